// The two expert kernels, and one of them behind a function pointer; instances are spread over files that compile side by side.
#pragma once

#include "bulk.cuh"
#include "regs.cuh"

namespace nvfp4 {

// A block's most threads. Of a multiprocessor's registers a ring takes half, so that gate-up's block and down's run side by side.
template <class S, class P>
constexpr int threads_of() {
  return P::kPrefetches ? S::kRingThreads : S::kThreads;
}

// Registers for two blocks of a multiprocessor, gate-up's and down's, where down's rings fill before gate-up ends.
template <class S, class P>
constexpr int blocks_at_once() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  return P::kPrefetches ? 2 : 1;
#else
  return 1;
#endif
}

// grid: any number of blocks of up to threads_of() threads. S: Base, Waves, Half, Quarter; P: Regs, Ring, Deep; E: Swiglu, Relu2.
template <class S, class P, class E>
__global__ void NVFP4_LAUNCH_BOUNDS((threads_of<S, P>()), (blocks_at_once<S, P>()))
    nvfp4_gate_up_kernel(const GLQ_KERNEL_PARAMETER MoeCall call, int depth) {
  run_units<S, E>(call, depth, P());
}

template <class S, class P>
__global__ void NVFP4_LAUNCH_BOUNDS((threads_of<S, P>()), (blocks_at_once<S, P>()))
    nvfp4_down_kernel(const GLQ_KERNEL_PARAMETER MoeCall call, int depth) {
  run_units<S, Down>(call, depth, P());
}

struct LaunchPlan {
  unsigned int blocks;
  unsigned int threads;
  size_t shared_bytes;
  int depth;
  bool dependent;
  bool rings;  // of this call: all of its kernels then ask for the same split of L1, so that they can share multiprocessors
};

using Starter = void (*)(const MoeCall& call, const LaunchPlan& plan, cudaStream_t stream);

#if defined(GLQ_EMULATE)
#define NVFP4_START(kernel, plan, stream, ...) \
  GLQ_LAUNCH(kernel, dim3((plan).blocks), dim3((plan).threads), (plan).shared_bytes, stream, __VA_ARGS__)
#else
// A launch that may start while the kernel before it runs, where plan.dependent says so.
template <typename Kernel, typename... Arguments>
void start_kernel(Kernel kernel, const char* what, dim3 grid, const LaunchPlan& plan, cudaStream_t stream,
                  Arguments... arguments) {
  glq::allow_shared_memory(kernel, plan.shared_bytes);
  const int carveout = plan.rings ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault;
  glq::check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, carveout), what);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
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
#define NVFP4_START(kernel, plan, stream, ...) \
  start_kernel(GLQ_UNWRAP kernel, "launching " #kernel, dim3((plan).blocks), plan, stream, __VA_ARGS__)
#endif

template <class S, class P, class E>
void start_gate_up(const MoeCall& call, const LaunchPlan& plan, cudaStream_t stream) {
  NVFP4_START((nvfp4_gate_up_kernel<S, P, E>), plan, stream, call, plan.depth);
}

template <class S, class P>
void start_down(const MoeCall& call, const LaunchPlan& plan, cudaStream_t stream) {
  NVFP4_START((nvfp4_down_kernel<S, P>), plan, stream, call, plan.depth);
}

// The expert kernels of one variant.
struct Starters {
  struct Sizes {
    Starter start;
    int columns;           // of a unit
    int atoms;             // of a unit
    int stage_weights;     // bytes of a ring's stage
    int (*stage_bytes)(int item_rows);
  };
  Sizes swiglu, relu2, down;
  int max_warps;
  int deepest_ring;  // stages of a ring that may be asked for: 3 to this; 0: it has Ring::kDepth
};

template <class S, class E>
Starters::Sizes sizes_of(Starter start) {
  using F = Shape<S, E>;
  return {start, F::kColumns, F::kAtoms, F::kWeightBytes, stage_bytes<S, E>};
}

template <class S, class P>
Starters starters();

#define NVFP4_INSTANTIATE(S, P)                                                                              \
  template <>                                                                                                \
  Starters starters<S, P>() {                                                                                \
    return {sizes_of<S, Swiglu>(start_gate_up<S, P, Swiglu>), sizes_of<S, Relu2>(start_gate_up<S, P, Relu2>),     \
            sizes_of<S, Down>(start_down<S, P>), threads_of<S, P>() / 32, S::kStageSlots > 1 ? kDeepestRing : 0}; \
  }

}  // namespace nvfp4
