// Input vectors of the products: what each transform reads, and how its result lies in shared memory.
#pragma once

#include "activation.cuh"
#include "fused_batch.cuh"

namespace glq {

enum Source : int { kToken = 0, kSums, kActivation };

// A slot's sums ((+0 + part 0) + part 1) + ..., as soon as they are there. AT_ONCE: parts that are asked for before the first
// is used; +0 for a part that is not there changes nothing.
template <int AT_ONCE>
__device__ __forceinline__ void load_sums(const FusedCall& call, int phase, int slot, int first, float (&v)[kRadix]) {
  const FusedMatrix& m = call.matrix[phase];
  const float* sums = call.sums[phase] + static_cast<int64_t>(slot) * m.parts * m.sum_rows + first;
#pragma unroll
  for (int k = 0; k < kRadix; ++k) v[k] = 0.0f;
#pragma unroll 1
  for (int from = 0; from < m.parts; from += AT_ONCE) {
    uint4 words[2 * AT_ONCE];
    load_when_there<2, AT_ONCE>(words, sums + static_cast<int64_t>(from) * m.sum_rows, 4 * m.sum_rows, m.parts - from);
#pragma unroll
    for (int q = 0; q < 2 * AT_ONCE; ++q) {
#pragma unroll
      for (int k = 0; k < 4; ++k) v[q % 2 * 4 + k] = add(v[q % 2 * 4 + k], __uint_as_float(part_of(words[q], k)));
    }
  }
}

__device__ __forceinline__ void load_token(const FusedCall& call, int token, int first, float (&v)[kRadix]) {
  const uint16_t* x = call.x + token * call.token_stride;
  float sign[kRadix];
  load_halves(call.matrix[0].sv + first, sign);
  if (call.wide_x) {
    load_halves(x + first, v);
  } else {
#pragma unroll
    for (int k = 0; k < kRadix; ++k) v[k] = half_to_float(x[(first + k) * call.element_stride]);
  }
#pragma unroll
  for (int k = 0; k < kRadix; ++k) v[k] = mul(v[k], sign[k]);
}

// Output transform's end, activation, times sv of down. A thread reads its own elements (and, gated, elements beyond n).
template <class C>
__device__ __forceinline__ void load_activation(const FusedCall& call, const float* data, int expert, int first,
                                                float (&v)[kRadix], int& infinite) {
  const FusedMatrix& up = call.matrix[0];
  const int n = call.matrix[1].cols;
  const uint16_t* su = up.su + static_cast<int64_t>(expert) * up.rows;
  float h[kRadix], u[kRadix], sign[kRadix];
  load_halves(call.matrix[1].sv + first, sign);
  output_values(data, su, first, up.rows, h);
  if (call.activation == kSwiglu) output_values(data, su, n + first, up.rows, u);
#pragma unroll
  for (int k = 0; k < kRadix; ++k) {
    if (call.activation != kSwiglu) u[k] = 0.0f;
    if (!C::kFast) {
      h[k] = half_to_float(round_to_half(h[k]));
      u[k] = half_to_float(round_to_half(u[k]));
    }
    float a = call.activation == kSwiglu ? swiglu(h[k], u[k], call.limit) : relu_squared(h[k]);
    if (!C::kFast) {
      a = half_to_float(round_to_half(a));
      infinite += (__float_as_uint(a) & 0x7FFFFFFFu) == 0x7F800000u && is_finite(h[k]) && is_finite(u[k]);
    }
    v[k] = mul(a, sign[k]);
  }
}

// The transform's end: eight elements of an input vector, before they are rounded.
__device__ __forceinline__ void scaled_values(const float* data, int n, int first, float (&v)[kRadix]) {
  const float scale = block_scale(first, n);
#pragma unroll
  for (int k = 0; k < kRadix; ++k) v[k] = mul(data[padded(first) + k], scale);
}

// An input vector in shared memory, +0 from n up to `stride`. Exact: the fp16 values as floats.
// Fast: fixed point. 2^k < 2^22 / largest magnitude; the integer in three signed bytes, highest first, and a zero; for each
// block a part's coordinates 0, 2, 4, 6 and 1, 3, 5, 7; blocks ordered within 32 as fast_product reads them.
template <class C>
__device__ __forceinline__ void store_vector(Slots& shared, const float* data, int n, float* vector, int stride,
                                             int index) {
  if (!C::kFast) {
#pragma unroll 1
    for (int first = own_thread() * kRadix; first < stride; first += C::kThreads * kRadix) {
      float v[kRadix] = {};
      if (first < n) {
        scaled_values(data, n, first, v);
#pragma unroll
        for (int k = 0; k < kRadix; ++k) v[k] = half_to_float(round_to_half(v[k]));
      }
      store_floats(vector + first, v);
    }
    return;
  }
  unsigned int peak = 0;
#pragma unroll 1
  for (int first = own_thread() * kRadix; first < n; first += C::kThreads * kRadix) {
    float v[kRadix];
    scaled_values(data, n, first, v);
#pragma unroll
    for (int k = 0; k < kRadix; ++k) peak = max(peak, __float_as_uint(v[k]) & 0x7FFFFFFFu);
  }
  peak = __reduce_max_sync(0xFFFFFFFFu, peak);
  if (threadIdx.x % 32 == 0) atomicMax(&shared.peak[index], peak);
  __syncthreads();
  const int exponent = max(static_cast<int>(shared.peak[index] >> 23), 32);  // the largest is below 2^(exponent - 126)
  const bool finite = exponent < 255;
  const float up = __uint_as_float(static_cast<uint32_t>(275 - exponent) << 23);  // 2^(148 - exponent)
  if (threadIdx.x == 0) {
    // 2^-k / 32; not a number when an input is not finite, for the transform spreads it to every row.
    const uint32_t down = static_cast<uint32_t>(exponent - 21 - 5) << 23;
    shared.vector_scale[index] = __uint_as_float(finite ? down : 0x7FC00000u);
  }
  uint4* parts = reinterpret_cast<uint4*>(vector);
#pragma unroll 1
  for (int first = own_thread() * kRadix; first < stride; first += C::kThreads * kRadix) {
    uint32_t bytes[3][2] = {};
    if (finite && first < n) {
      float v[kRadix];
      scaled_values(data, n, first, v);
#pragma unroll
      for (int k = 0; k < kRadix; ++k) {
        const int whole = __float2int_rn(mul(v[k], up));
        const int middle = (whole + 128) >> 8;
        const int high = (middle + 128) >> 8;
        const int at = 8 * (k / 2);
        bytes[0][k % 2] |= static_cast<uint32_t>(high & 255) << at;
        bytes[1][k % 2] |= static_cast<uint32_t>(middle & 255) << at;
        bytes[2][k % 2] |= static_cast<uint32_t>(whole & 255) << at;
      }
    }
    const int j = first / kRadix;
    uint4* to = parts + (((j / 32) * 8 + j % 8) * 4 + (j % 32) / 8) * 2;
    to[0] = make_uint4(bytes[0][0], bytes[0][1], bytes[1][0], bytes[1][1]);
    to[1] = make_uint4(bytes[2][0], bytes[2][1], 0, 0);
  }
}

}  // namespace glq
