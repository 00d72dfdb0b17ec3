// Launches of one step.
#pragma once

#include "step_call.h"

namespace ssm {

// The exchange and the chunks a block that a configuration comes to; throws std::invalid_argument where it cannot be.
struct Chosen {
  int exchange;
  int chunks;
};
Chosen choose(const StepCall& call, const StepConfig& config, const DeviceLimits& limits);

// One launch.
void launch_fused(const StepCall& call, const StepConfig& config, const DeviceLimits& limits, cudaStream_t stream);

// Three launches: convolution, state, norm.
void launch_unfused(const StepCall& call, const StepConfig& config, const DeviceLimits& limits, cudaStream_t stream);

// Of the files that hold the kernels' instances.
void launch_cluster(const StepCall& call, int chunks, bool dependent, cudaStream_t stream);
void launch_counter(const StepCall& call, bool dependent, cudaStream_t stream);
void launch_state(const StepCall& call, bool dependent, cudaStream_t stream);

// The largest cluster of the fused kernel, 16, 8 .. 1, that the current device can hold.
int largest_cluster();

}  // namespace ssm
