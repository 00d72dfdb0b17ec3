// What the SSM kernels need beyond GLQ's platform: bf16, square roots, clusters of thread blocks, launches that may start
// early. tests/kernels/emulation/ssm_emulation.h has the same functions for the tests.
#pragma once

#include "../../glq/csrc/activation.cuh"
#include "../../glq/csrc/fused_platform.cuh"
#include "step_call.h"

#if defined(GLQ_EMULATE)

#include "ssm_emulation.h"
#define SSM_LAUNCH_BOUNDS(threads)

#else

#include <cuda_bf16.h>

// 1: left to itself, ptxas spilled on sm_120 for the sake of a fourth block.
#define SSM_LAUNCH_BOUNDS(threads) __launch_bounds__(threads, 1)

namespace ssm {

// To nearest even; every NaN becomes 0x7FFF.
__device__ __forceinline__ uint16_t float_to_bf16(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__device__ __forceinline__ float bf16_to_float(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

__device__ __forceinline__ float square_root(float value) { return __fsqrt_rn(value); }

// States: through L2 alone, and where the program has them, not where a compiler would like them.
__device__ __forceinline__ uint4 load_state(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
__device__ __forceinline__ uint2 load_state(const uint2* from) {
  uint2 v;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}
__device__ __forceinline__ uint16_t load_state(const uint16_t* from) {
  uint16_t v;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(from));
  return v;
}

// The barrier of a cluster has rounds: every thread of every block arrives once a round and then waits once.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
// What this thread stored in the cluster's shared memory is visible to whoever waited.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
// *shared of block `rank` of the cluster = value.
__device__ __forceinline__ void store_in_block(float* shared, int rank, float value) {
#if __CUDA_ARCH__ >= 900
  const uint32_t here = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.f32 [there], %2;\n}" ::"r"(here),
               "r"(rank), "f"(value)
               : "memory");
#endif
}

// How a kernel is launched: `cluster` blocks along x form a cluster (1: none); `dependent`: it may start before the kernel ahead
// of it has ended, and waits for it by itself.
struct Start {
  dim3 grid;
  unsigned int threads;
  size_t shared_bytes;
  unsigned int cluster;
  bool dependent;
};

struct StartConfig {
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attributes[2];

  StartConfig(const Start& start, cudaStream_t stream) {
    unsigned int count = 0;
    if (start.cluster > 1) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count].val.clusterDim.x = start.cluster;
      attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
      ++count;
    }
    if (start.dependent) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count].val.programmaticStreamSerializationAllowed = 1;
      ++count;
    }
    config.gridDim = start.grid;
    config.blockDim = dim3(start.threads);
    config.dynamicSmemBytes = start.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
  }
};

template <typename Kernel>
void allow_cluster(Kernel kernel, unsigned int cluster) {
  if (cluster > 8) {
    glq::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "asking for a large cluster");
  }
}

template <typename Kernel>
void start_kernel(Kernel kernel, const char* what, const Start& start, cudaStream_t stream, const StepCall& call) {
  allow_cluster(kernel, start.cluster);
  // As the kernels around it in a token: with another split of L1 it would not start on a multiprocessor where one of them is.
  glq::check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared), what);
  StartConfig made(start, stream);
  glq::check(cudaLaunchKernelEx(&made.config, kernel, call), what);
}

// How many such clusters the device holds at a time; 0 where it has none of that size.
template <typename Kernel>
int active_clusters(Kernel kernel, const Start& start) {
  int count = 0;
  StartConfig made(start, nullptr);
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, start.cluster > 8) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&count, kernel, &made.config) != cudaSuccess) {
    cudaGetLastError();  // forget it: this asks whether it can be done
    return 0;
  }
  return count;
}

}  // namespace ssm

// The kernel in parentheses, since template arguments hold commas.
#define SSM_START(kernel, start, stream, call) ::ssm::start_kernel(GLQ_UNWRAP kernel, "launching " #kernel, start, stream, call)

#endif
