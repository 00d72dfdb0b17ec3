// What the kernels need from their platform, so that the same source is compiled by nvcc for a GPU and, in the tests,
// by a host compiler that runs every CUDA thread as a fiber (GLQ_EMULATE; see tests/kernels/emulation).
//
// Arithmetic goes through intrinsics that name their rounding: no compiler may contract, reorder or flush them, whatever
// flags the file is built with.
#pragma once

#include <cstdint>

#if defined(GLQ_EMULATE)

#include "cuda_emulation.h"

#else

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace glq {

// A launch reports its own failure at once: an unchecked one would surface at an innocent later call.
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
  }
}

// Dynamic shared memory above 48 KiB must be asked for, per kernel and per device. Asked for at every launch that needs
// it: remembering the answer would be wrong on the second GPU of a process.
template <typename Kernel>
void allow_shared_memory(Kernel kernel, size_t bytes) {
  if (bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
          "asking for dynamic shared memory");
  }
}

}  // namespace glq

#define GLQ_STATIC_SHARED(type, name) __shared__ type name
#define GLQ_DYNAMIC_SHARED(type, name) extern __shared__ type name[]

// The kernel in parentheses, since template arguments hold commas.
#define GLQ_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                   \
  do {                                                                               \
    ::glq::allow_shared_memory(GLQ_UNWRAP kernel, shared_bytes);                     \
    GLQ_UNWRAP kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__);           \
    ::glq::check(cudaGetLastError(), "launching " #kernel);                          \
  } while (0)
#define GLQ_UNWRAP(...) __VA_ARGS__

namespace glq {

__device__ __forceinline__ float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

__device__ __forceinline__ uint16_t float_to_half(float value) { return __half_as_ushort(__float2half_rn(value)); }

// Both halves of a 32-bit word, the low one first.
__device__ __forceinline__ float2 halves_to_floats(uint32_t word) {
  return __half22float2(*reinterpret_cast<const __half2*>(&word));
}

}  // namespace glq

#endif
