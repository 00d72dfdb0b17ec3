// What the step kernels need beyond NVFP4's platform.cuh; tests/kernels/emulation/step_emulation.h has the same functions.
#pragma once

#include "../../nvfp4/csrc/platform.cuh"

#if defined(GLQ_EMULATE)

#include "step_emulation.h"
#define STEP_LAUNCH_BOUNDS(threads, blocks)

#else

#define STEP_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)

namespace step {

// c += a * b: a 16 x 16 by rows, b 16 x 8 by columns, bf16; c 16 x 8 binary32.
__device__ __forceinline__ void multiply_add_bf16(float (&c)[4], const uint4& a, const uint2& b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

// Nanoseconds of the GPU's clock, and the multiprocessor that this block is on.
__device__ __forceinline__ uint64_t now_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ uint32_t multiprocessor() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

#if NVFP4_BULK
// All lanes of a warp wait for the barrier's round of this parity.
__device__ __forceinline__ void wait_round(nvfp4::SharedAddress barrier, uint32_t parity) { nvfp4::wait_barrier(barrier, parity); }
#endif

__device__ __forceinline__ float reciprocal_root(float value) { return __frsqrt_rn(value); }
__device__ __forceinline__ float exponential(float value) { return expf(value); }

// Written by the kernel before this one or by other thread blocks: L1, which may hold what was there before, is passed by.
template <typename T>
__device__ __forceinline__ T load_fresh(const T* from) {
  return __ldcg(from);
}
__device__ __forceinline__ uint16_t load_fresh(const uint16_t* from) {
  return __ldcg(reinterpret_cast<const unsigned short*>(from));
}
__device__ __forceinline__ int64_t load_fresh(const int64_t* from) {
  return __ldcg(reinterpret_cast<const long long*>(from));
}
__device__ __forceinline__ uint64_t load_fresh(const uint64_t* from) {
  return __ldcg(reinterpret_cast<const unsigned long long*>(from));
}

}  // namespace step

namespace nvfp4 {
__device__ __forceinline__ void store_shared16(SharedAddress to, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
}  // namespace nvfp4

#endif

namespace step {

using nvfp4::bf16_to_float;
using nvfp4::float_to_bf16;

constexpr unsigned int kAllLanes = 0xFFFFFFFFu;

// Both halves of a word, the low one first.
__device__ __forceinline__ float2 bf16_pair(uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
}

__device__ __forceinline__ float rounded_to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

// Eight bf16 of 16 bytes as binary32, and back.
__device__ __forceinline__ void unpack8(const uint4& words, float (&values)[8]) {
  const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = bf16_pair(w[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}
__device__ __forceinline__ uint4 pack8(const float (&values)[8]) {
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = static_cast<uint32_t>(float_to_bf16(values[2 * i])) | static_cast<uint32_t>(float_to_bf16(values[2 * i + 1])) << 16;
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// The order of numbers, NaN of either sign above all, -0 equal to +0; never 0.
__device__ __forceinline__ uint32_t ordered(float value) {
  if (value != value) return 0xFFFFFFFFu;
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

}  // namespace step
