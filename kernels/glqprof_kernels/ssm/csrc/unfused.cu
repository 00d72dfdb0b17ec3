// The three kernels of the unfused step.
#include "unfused.cuh"

#include "instances.h"
#include "launch.h"

namespace ssm {

void launch_unfused(const StepCall& call, const StepConfig& config, const DeviceLimits& limits, cudaStream_t stream) {
  const bool dependent = config.dependent && limits.capability >= 90;
  const unsigned int batch = static_cast<unsigned int>(call.batch), groups = static_cast<unsigned int>(call.groups);
  const unsigned int blocks = static_cast<unsigned int>((call.conv_dim + kConvThreads - 1) / kConvThreads);
  SSM_START((ssm_conv_kernel), (Start{dim3(blocks, batch), kConvThreads, 0, 1, dependent}), stream, call);
  with_state(call, [&](auto size, auto narrow) {
    constexpr int kState = decltype(size)::value;
    constexpr bool kNarrow = decltype(narrow)::value;
    const Start start = {dim3(static_cast<unsigned int>(call.chunks), groups, batch), kStateThreads, sizeof(StateShared<kState>), 1,
                         dependent};
    SSM_START((ssm_state_kernel<kState, kNarrow>), start, stream, call);
  });
  SSM_START((ssm_norm_kernel), (Start{dim3(groups, batch), kNormThreads, kMaxChunks * sizeof(float), 1, dependent}), stream, call);
}

}  // namespace ssm
