// One compiled fused kernel behind a function pointer; the instances are spread over files that compile side by side.
#pragma once

#include "fused_kernel.cuh"
#include "fused_launch.h"

namespace glq {

struct LaunchPlan {
  int blocks;
  size_t shared_bytes;
  bool dependent;
  bool cooperative;
};

using Starter = void (*)(const FusedCall& call, const LaunchPlan& plan, cudaStream_t stream);

template <class C>
void start_fused(const FusedCall& call, const LaunchPlan& plan, cudaStream_t stream) {
#if defined(GLQ_EMULATE)
  GLQ_LAUNCH((glq_fused_kernel<C>), dim3(plan.blocks), dim3(C::kThreads), plan.shared_bytes, stream, call);
#else
  allow_shared_memory(glq_fused_kernel<C>, plan.shared_bytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned int>(plan.blocks));
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  unsigned int count = 0;
  if (plan.cooperative) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  if (plan.dependent) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, glq_fused_kernel<C>, call), "launching glq_fused_kernel");
#endif
}

Starter select_exact_2(const FusedConfig& config, bool shared_table);
Starter select_exact_3_small(const FusedConfig& config, bool shared_table);
Starter select_exact_rest(const FusedConfig& config, int stages, bool small, bool shared_table);
Starter select_fast(int stages, bool small, bool shared_table);

// Where a block's shared memory is too small for the table: it stays in global memory, and threads get more registers.
constexpr int kFallbackThreads = 256;
constexpr int kThreads = 512;

// What is compiled without GLQ_FUSED_TUNING.
inline bool is_default_exact(const FusedConfig& c) { return c.lanes == 2 && !c.wide; }

template <int STAGES, bool SMALL>
Starter default_exact(bool shared_table) {
  return shared_table ? start_fused<ExactTraits<STAGES, SMALL, 2, false, kThreads, true>>
                      : start_fused<ExactTraits<STAGES, SMALL, 2, false, kFallbackThreads, false>>;
}

#if defined(GLQ_FUSED_TUNING)
// The alternatives that a device run compares.
template <int STAGES, bool SMALL>
Starter tuned_exact(const FusedConfig& c) {
  if (c.lanes == 1 && !c.wide) return start_fused<ExactTraits<STAGES, SMALL, 1, false, kThreads, true>>;
  if constexpr (SMALL) {
    if (c.lanes == 2 && c.wide) return start_fused<ExactTraits<STAGES, SMALL, 2, true, kThreads, true>>;
  }
  return nullptr;
}
#endif

}  // namespace glq
