// Launches of one layer: plan, gate-up, down and, where the call asks for it, the weighted sum.
#pragma once

#include "moe_call.h"

namespace nvfp4 {

// What the two expert kernels are launched with, for a report.
struct Chosen {
  int warps;
  int depth;
  int shared_bytes;
  bool rows_once;
};

// `which`: bits 1 plan, 2 gate-up, 4 down, 8 combine; 15 is the layer, the rest serves measurements.
void launch_moe(const MoeCall& call, const MoeConfig& config, const DeviceLimits& limits, int which, cudaStream_t stream);

Chosen choose(const MoeCall& call, const MoeConfig& config, const DeviceLimits& limits, bool down);

}  // namespace nvfp4
