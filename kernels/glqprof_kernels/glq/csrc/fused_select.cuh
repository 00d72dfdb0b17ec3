// One compiled fused kernel behind a function pointer; the two files compile side by side.
#pragma once

#include "fused_kernel.cuh"
#include "fused_launch.h"

namespace glq {

struct LaunchPlan {
  int blocks;
  size_t shared_bytes;
  bool dependent;
  bool cooperative;
  int cluster;
};

using Starter = void (*)(const FusedCall& call, const LaunchPlan& plan, cudaStream_t stream);

template <class C>
void start_fused(const FusedCall& call, const LaunchPlan& plan, cudaStream_t stream) {
#if defined(GLQ_EMULATE)
  emulation::machine().cooperative = plan.cooperative;
  GLQ_LAUNCH((glq_fused_kernel<C>), dim3(plan.blocks), dim3(C::kThreads), plan.shared_bytes, stream, call);
#else
  allow_shared_memory(glq_fused_kernel<C>, plan.shared_bytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned int>(plan.blocks));
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[3];
  unsigned int count = 0;
  if (plan.cooperative) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  if (plan.dependent) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (plan.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned int>(plan.cluster), 1, 1};
  }
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, glq_fused_kernel<C>, call), "launching glq_fused_kernel");
#endif
}

Starter select_exact(bool shared_table);
Starter select_fast(bool shared_table);

// Where a block's shared memory is too small for the table: it stays in global memory, and threads get more registers.
constexpr int kFallbackThreads = 256;
constexpr int kThreads = 512;

}  // namespace glq
