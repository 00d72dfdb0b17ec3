// The fused kernel whose thread blocks of a group are a cluster.
#include "fused.cuh"
#include "instances.h"
#include "launch.h"

namespace ssm {

namespace {

template <int STATE, int CHUNKS>
Start start_of(const StepCall& call, bool dependent) {
  const unsigned int blocks = static_cast<unsigned int>(call.chunks / CHUNKS);
  return {dim3(blocks, static_cast<unsigned int>(call.groups), static_cast<unsigned int>(call.batch)),
          static_cast<unsigned int>(fused_threads(CHUNKS)), sizeof(FusedShared<STATE, CHUNKS>), blocks, dependent};
}

}  // namespace

void launch_cluster(const StepCall& call, int chunks, bool dependent, cudaStream_t stream) {
  with_state(call, [&](auto size, auto narrow) {
    constexpr int kState = decltype(size)::value;
    constexpr bool kNarrow = decltype(narrow)::value;
    if (chunks == 1) {
      SSM_START((ssm_fused_kernel<kState, kNarrow, 1, kCluster>), (start_of<kState, 1>(call, dependent)), stream, call);
    } else {
      SSM_START((ssm_fused_kernel<kState, kNarrow, 2, kCluster>), (start_of<kState, 2>(call, dependent)), stream, call);
    }
  });
}

int largest_cluster() {
#if !defined(GLQ_EMULATE)
  Start start = {dim3(1), static_cast<unsigned int>(fused_threads(1)), sizeof(FusedShared<128, 1>), 1, false};
  for (start.cluster = kMaxCluster; start.cluster > 1; start.cluster /= 2) {
    start.grid.x = start.cluster;
    if (active_clusters(ssm_fused_kernel<128, false, 1, kCluster>, start) > 0) break;
  }
  return static_cast<int>(start.cluster);
#else
  return kMaxCluster;
#endif
}

}  // namespace ssm
