// Block-diagonal Walsh-Hadamard transform of one vector in shared memory, by one thread block.
//
// The blocks are the binary decomposition of the length n, largest first, so a block starts at a multiple of twice its
// own size. Two things follow for the *global* index i: bit tests on i are bit tests within its block, and the pairs of
// stride s are exactly those whose lower index is below n with the bits under 2s cleared. No table of blocks is needed.
#pragma once

#include "arithmetic.cuh"

namespace glq {

constexpr int kRadix = 8;  // elements a thread holds: three strides a pass, one barrier between passes

// Pairs (i, i + stride) of any block have i below this.
__host__ __device__ inline int paired_below(int n, int stride) { return n & ~(2 * stride - 1); }

// The largest block's size: the highest power of two that is at most n.
__host__ __device__ inline int largest_block(int n) {
  int size = 1;
  while (size <= n / 2) size *= 2;
  return size;
}

// 1/sqrt(size of the block that holds element i), rounded to binary32: 2^-k or 2^-k times 0x3F3504F3.
__device__ __forceinline__ float block_scale(int i, int n) {
  const int log2_size = 31 - __clz(i ^ n);  // the highest bit where n has 1 and i has 0
  const uint32_t base = (log2_size & 1) ? 0x3F3504F3u : 0x3F800000u;
  return __uint_as_float(base - (static_cast<uint32_t>(log2_size >> 1) << 23));
}

// Shared-memory position of element i: a pad word every eight makes both the contiguous and the strided accesses of a
// pass nearly free of bank conflicts.
__host__ __device__ inline int padded(int i) { return i + (i >> 3); }

__host__ inline size_t hadamard_shared_bytes(int n) { return sizeof(float) * static_cast<size_t>(padded(n) + 1); }

// Threads for a vector of n elements.
__host__ inline int hadamard_threads(int n) {
  const int wanted = (n + kRadix - 1) / kRadix;
  const int rounded = (wanted + 31) / 32 * 32;
  return rounded > 1024 ? 1024 : rounded;
}

// Strides s, 2s and 4s on the elements first + k*s, k = 0..7.
__device__ __forceinline__ void butterflies(float (&v)[kRadix], int first, int s, int n) {
#pragma unroll
  for (int step = 1; step < kRadix; step *= 2) {
    const int limit = paired_below(n, step * s);
#pragma unroll
    for (int k = 0; k < kRadix; ++k) {
      if ((k & step) == 0 && first + k * s < limit) {
        const float a = v[k];
        const float b = v[k + step];
        v[k] = add(a, b);
        v[k + step] = sub(a, b);
      }
    }
  }
}

// Strides s and up on data[padded(i)]; s: a multiple of the radix. Strides beyond half the largest block pair nothing. Ends with a
// barrier, or does nothing.
__device__ __forceinline__ void strided_passes(float* data, int n, int s) {
  for (; paired_below(n, s) > 0; s *= kRadix) {
    const int log2_s = 31 - __clz(s);
    const int groups = ((n + kRadix * s - 1) >> (log2_s + 3)) << log2_s;
    for (int group = threadIdx.x; group < groups; group += blockDim.x) {
      const int first = ((group >> log2_s) << (log2_s + 3)) + (group & (s - 1));
      if (first >= paired_below(n, s)) continue;  // paired with nothing from this stride on
      float v[kRadix];
#pragma unroll
      for (int k = 0; k < kRadix; ++k) v[k] = first + k * s < n ? data[padded(first + k * s)] : 0.0f;
      butterflies(v, first, s, n);
#pragma unroll
      for (int k = 0; k < kRadix; ++k) {
        if (first + k * s < n) data[padded(first + k * s)] = v[k];
      }
    }
    __syncthreads();
  }
}

// Transforms, without the scale, the n values that load(i) gives into data[padded(i)]. Ends with a barrier.
template <typename Load>
__device__ __forceinline__ void hadamard(float* data, int n, Load load) {
  for (int group = threadIdx.x; group * kRadix < n; group += blockDim.x) {
    const int first = group * kRadix;
    float v[kRadix];
    load(first, v);
    butterflies(v, first, 1, n);
#pragma unroll
    for (int k = 0; k < kRadix; ++k) {
      if (first + k < n) data[padded(first + k)] = v[k];
    }
  }
  __syncthreads();
  strided_passes(data, n, kRadix);
}

}  // namespace glq
