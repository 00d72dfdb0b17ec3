// One launch, which may start while the kernel before it runs.
#pragma once

#include "calls.h"
#include "platform.cuh"

namespace step {

struct Launch {
  dim3 grid;
  unsigned int threads;
  size_t shared_bytes;
  bool dependent;
};

inline bool starts_early(bool wanted, const DeviceLimits& limits) { return wanted && limits.capability >= 90; }

#if defined(GLQ_EMULATE)
#define STEP_START(kernel, plan, stream, ...) \
  GLQ_LAUNCH(kernel, (plan).grid, dim3((plan).threads), (plan).shared_bytes, stream, __VA_ARGS__)
#else
// All kernels ask for the same split of L1: two with different ones never share a multiprocessor, and then none starts early.
template <typename Kernel, typename... Arguments>
void start_kernel(Kernel kernel, const char* what, const Launch& plan, cudaStream_t stream, Arguments... arguments) {
  glq::allow_shared_memory(kernel, plan.shared_bytes);
  glq::check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared), what);
  cudaLaunchConfig_t config = {};
  config.gridDim = plan.grid;
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = plan.dependent ? 1 : 0;
  glq::check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}
#define STEP_START(kernel, plan, stream, ...) \
  start_kernel(GLQ_UNWRAP kernel, "launching " #kernel, plan, stream, __VA_ARGS__)
#endif

}  // namespace step
