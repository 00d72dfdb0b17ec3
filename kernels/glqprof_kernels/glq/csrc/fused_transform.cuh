// The Hadamard transform of the fused kernels: hadamard.cuh's butterflies with fewer barriers, strides 8 to 128 by shuffles.
// Lengths are multiples of eight, so no block is shorter.
#pragma once

#include "fused_platform.cuh"
#include "rht.cuh"

namespace glq {

constexpr int kWarpSpan = 32 * kRadix;

// Strides 1 to 128 on the elements first + k of every lane; `first` is the lane's eighth of the warp's 256 elements.
__device__ __forceinline__ void butterflies_in_warp(float (&v)[kRadix], int first, int n) {
#pragma unroll
  for (int step = 1; step < kRadix; step *= 2) {
#pragma unroll
    for (int k = 0; k < kRadix; ++k) {
      if ((k & step) == 0) {
        const float a = v[k];
        const float b = v[k + step];
        v[k] = add(a, b);
        v[k + step] = sub(a, b);
      }
    }
  }
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const bool paired = first < paired_below(n, kRadix * lanes);  // both of a pair, or neither
    const uint32_t sign = (threadIdx.x & lanes) != 0 ? 0x80000000u : 0u;
#pragma unroll
    for (int k = 0; k < kRadix; ++k) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, v[k], lanes);
      // a + b in the lower lane; in the upper one a + (-b), which is a - b
      const float result = add(other, __uint_as_float(__float_as_uint(v[k]) ^ sign));
      v[k] = paired ? result : v[k];
    }
  }
}

// Transforms, without the scale, the n values of which load(first, inside, v) gives eight into data[padded(i)]. A thread reads
// and writes the same eight elements up to the first barrier; lanes past the end (`inside` false) read along with the last
// lane, since a warp that splits before its shuffles takes them one at a time. meanwhile() runs behind the first barrier. Ends with a
// barrier.
template <int THREADS, typename Load, typename Meanwhile>
__device__ __forceinline__ void fused_hadamard(float* data, int n, Load load, Meanwhile meanwhile) {
  for (int base = static_cast<int>(threadIdx.x) / 32 * kWarpSpan; base < n; base += THREADS * kRadix) {
    const int first = base + static_cast<int>(threadIdx.x) % 32 * kRadix;
    const bool inside = first < n;
    float v[kRadix];
    load(inside ? first : n - kRadix, inside, v);
#pragma unroll
    for (int k = 0; k < kRadix; ++k) v[k] = inside ? v[k] : 0.0f;
    __syncwarp();
    butterflies_in_warp(v, first, n);
    if (inside) {
#pragma unroll
      for (int k = 0; k < kRadix; ++k) data[padded(first + k)] = v[k];
    }
  }
  __syncthreads();
  meanwhile();
  strided_passes(data, n, kWarpSpan);
}

// Eight consecutive fp16 values, 16-byte aligned.
__device__ __forceinline__ void load_halves(const uint16_t* from, float (&v)[8]) {
  unpack8(*reinterpret_cast<const uint4*>(from), v);
}

// Rounds eight values to fp16; 16 bytes, or two at a time where they are not aligned.
__device__ __forceinline__ void store_halves(uint16_t* to, const float (&v)[8]) {
  uint16_t halves[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) halves[k] = round_to_half(v[k]);
  if (reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    uint32_t words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = halves[2 * k] | static_cast<uint32_t>(halves[2 * k + 1]) << 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) to[k] = halves[k];
  }
}

__device__ __forceinline__ void store_floats(float* to, const float (&v)[8]) {
  float4* quads = reinterpret_cast<float4*>(to);
  quads[0] = make_float4(v[0], v[1], v[2], v[3]);
  quads[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// Step 3 of the contract before rounding, elements first .. first + 7.
__device__ __forceinline__ void output_values(const float* data, const uint16_t* su, int first, int n, float (&v)[8]) {
  load_halves(su + first, v);
  const float scale = block_scale(first, n);
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k] = mul(mul(data[padded(first + k)], scale), v[k]);
}

// Asks L2 for bytes that will be read; `thread` of `threads` takes its part.
__device__ __forceinline__ void prefetch(const void* from, int bytes, int thread, int threads) {
#pragma unroll 1
  for (int at = 32 * thread; at < bytes; at += 32 * threads) prefetch_l2(static_cast<const unsigned char*>(from) + at);
}

}  // namespace glq
