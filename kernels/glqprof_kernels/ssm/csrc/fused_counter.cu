// The fused kernel whose last thread block of a group finishes it: for GPUs without clusters, and for any number of blocks.
#include "fused.cuh"
#include "instances.h"
#include "launch.h"

namespace ssm {

void launch_counter(const StepCall& call, bool dependent, cudaStream_t stream) {
  with_state(call, [&](auto size, auto narrow) {
    constexpr int kState = decltype(size)::value;
    constexpr bool kNarrow = decltype(narrow)::value;
    const Start start = {dim3(static_cast<unsigned int>(call.chunks), static_cast<unsigned int>(call.groups),
                              static_cast<unsigned int>(call.batch)),
                         static_cast<unsigned int>(fused_threads(1)), sizeof(FusedShared<kState, 1>), 1, dependent};
    SSM_START((ssm_fused_kernel<kState, kNarrow, 1, kCounter>), start, stream, call);
  });
}

}  // namespace ssm
