// The Hadamard transform of the fused kernels: hadamard.cuh's butterflies with fewer barriers, strides 8 to 128 by shuffles.
// Lengths are multiples of eight, so no block is shorter.
#pragma once

#include "fused_platform.cuh"
#include "hadamard.cuh"

namespace glq {

constexpr int kWarpSpan = 32 * kRadix;

// Strides 1 to 128 on the elements first + k of every lane; `first` is the lane's eighth of the warp's 256 elements.
__device__ __forceinline__ void butterflies_in_warp(float (&v)[kRadix], int first, int n) {
  const int thread = own_thread();
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
    const float sign = (thread & lanes) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int k = 0; k < kRadix; ++k) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, v[k], lanes);
      // a + b in the lower lane, a - b in the upper: 1 * v and -1 * v are exact, so this is one rounded addition.
      if (paired) v[k] = fma_once(v[k], sign, other);
    }
  }
}

// Strides S, 2S and 4S on data[padded(i)]. What a thread skips it has in common with its warp. Ends with a barrier.
template <int S, int THREADS>
__device__ __forceinline__ void strided_pass(float* data, int n) {
  static_assert(S % 32 == 0, "a warp's elements differ below S");
  constexpr int kApart = S + S / 8;  // in `data`, of elements S apart
  const int below[3] = {paired_below(n, S), paired_below(n, 2 * S), paired_below(n, 4 * S)};
#pragma unroll 1
  for (int group = static_cast<int>(threadIdx.x); group / S * (kRadix * S) < below[0]; group += THREADS) {
    const int base = group / S * (kRadix * S);
    float* at = data + padded(base + group % S);
    float v[kRadix];
#pragma unroll
    for (int k = 0; k < kRadix; ++k) v[k] = base + (k & ~1) * S < below[0] ? at[k * kApart] : 0.0f;
#pragma unroll
    for (int step = 1, i = 0; step < kRadix; step *= 2, ++i) {
#pragma unroll
      for (int k = 0; k < kRadix; ++k) {
        if ((k & step) == 0 && base + k * S < below[i]) {
          const float a = v[k];
          const float b = v[k + step];
          v[k] = add(a, b);
          v[k + step] = sub(a, b);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kRadix; ++k) {
      if (base + (k & ~1) * S < below[0]) at[k * kApart] = v[k];
    }
  }
  __syncthreads();
}

// Transforms, without the scale, the n < 131072 values of which load(first, inside, v) gives eight into data[padded(i)]. A
// thread reads and writes the same eight elements up to the first barrier; lanes past the end (`inside` false) read along
// with the last lane, since a warp that splits before its shuffles takes them one at a time. meanwhile() runs behind the
// first barrier. Ends with a barrier.
template <int THREADS, typename Load, typename Meanwhile>
__device__ __forceinline__ void fused_hadamard(float* data, int n, Load load, Meanwhile meanwhile) {
  const int thread = own_thread();
#pragma unroll 1
  for (int base = thread / 32 * kWarpSpan; base < n; base += THREADS * kRadix) {
    const int first = base + thread % 32 * kRadix;
    const bool inside = first < n;
    float v[kRadix];
    load(inside ? first : n - kRadix, inside, v);
    __syncwarp();
    butterflies_in_warp(v, first, n);
    if (inside) {
#pragma unroll
      for (int k = 0; k < kRadix; ++k) data[padded(first) + k] = v[k];
    }
  }
  __syncthreads();
  meanwhile();
  if (paired_below(n, kWarpSpan) > 0) strided_pass<kWarpSpan, THREADS>(data, n);
  if (paired_below(n, 8 * kWarpSpan) > 0) strided_pass<8 * kWarpSpan, THREADS>(data, n);
  if (paired_below(n, 64 * kWarpSpan) > 0) strided_pass<64 * kWarpSpan, THREADS>(data, n);
}

// The words of N places as soon as they are there: PARTS times 16 bytes at `from`, the next ones `apart` bytes on; 0 beyond
// `places`. Only what is missing is looked at again, so that the last word to come is in hand one way through L2 after it was
// stored.
template <int PARTS, int N>
__device__ __forceinline__ void load_when_there(uint4 (&words)[PARTS * N], const void* from, int apart, int places) {
  const unsigned char* bytes = static_cast<const unsigned char*>(from);
#pragma unroll
  for (int q = 0; q < PARTS * N; ++q) {
    const uint32_t word = q / PARTS < places ? kMissing : 0;
    words[q] = make_uint4(word, word, word, word);
  }
  bool missing;
  int looks = 0;
#pragma unroll 1
  do {
    missing = false;
    apart = opaque(apart);  // addresses are made again: they would take registers
#pragma unroll
    for (int q = 0; q < PARTS * N; ++q) {
      if (!any_missing(words[q])) continue;
      words[q] = load_words(bytes + q / PARTS * apart + q % PARTS * 16);
      missing = true;
    }
  } while (missing && (looks++ == 0 || keep_waiting()));
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
    store_words(to, make_uint4(words[0], words[1], words[2], words[3]));
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

// The same for another thread block.
__device__ __forceinline__ void store_float_words(float* to, const float (&v)[8]) {
#pragma unroll
  for (int k = 0; k < 8; k += 4) {
    store_words(to + k, make_uint4(__float_as_uint(v[k]), __float_as_uint(v[k + 1]), __float_as_uint(v[k + 2]),
                                      __float_as_uint(v[k + 3])));
  }
}

// Step 3 of the contract before rounding, elements first .. first + 7.
__device__ __forceinline__ void output_values(const float* data, const uint16_t* su, int first, int n, float (&v)[8]) {
  load_halves(su + first, v);
  const float scale = block_scale(first, n);
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k] = mul(mul(data[padded(first) + k], scale), v[k]);
}

// Asks L2 for bytes that will be read; `thread` of `threads` takes its part.
__device__ __forceinline__ void prefetch(const void* from, int bytes, int thread, int threads) {
#pragma unroll 1
  for (int at = 32 * thread; at < bytes; at += 32 * threads) prefetch_l2(static_cast<const unsigned char*>(from) + at);
}

}  // namespace glq
