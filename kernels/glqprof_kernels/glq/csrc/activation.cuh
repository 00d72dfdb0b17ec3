// The activation between the two matrices of an expert: relu squared, or SwiGLU with a stated exponential.
#pragma once

#include "arithmetic.cuh"

namespace glq {

enum Activation : int { kRelu2 = 0, kSwiglu = 1 };

// v = max(h, 0) with NaN kept; v*v.
__device__ __forceinline__ float relu_squared(float h) {
  const float v = h > 0.0f ? h : (h == h ? 0.0f : h);
  return mul(v, v);
}

// exp(t), within about one unit in the last place, by operations that a CPU repeats to the bit:
// n = rint(t * log2(e)); r = t - n*ln2 in two fused steps; degree-7 Taylor polynomial by fused Horner steps; times 2^n
// in two halves. Outside [-104, 89] the result is 0 or inf.
__device__ __forceinline__ float stated_exp(float t) {
  if (t != t) return t;
  if (t > 89.0f) return __uint_as_float(0x7F800000u);
  if (t < -104.0f) return 0.0f;
  const float n = rintf(mul(t, __uint_as_float(0x3FB8AA3Bu)));     // log2(e)
  float r = fma_once(n, __uint_as_float(0xBF317200u), t);          // -ln2, its upper 16 bits
  r = fma_once(n, __uint_as_float(0xB5BFBE8Eu), r);                // -ln2, the rest
  float p = __uint_as_float(0x39500D01u);                          // 1/5040
  p = fma_once(p, r, __uint_as_float(0x3AB60B61u));                // 1/720
  p = fma_once(p, r, __uint_as_float(0x3C088889u));                // 1/120
  p = fma_once(p, r, __uint_as_float(0x3D2AAAABu));                // 1/24
  p = fma_once(p, r, __uint_as_float(0x3E2AAAABu));                // 1/6
  p = fma_once(p, r, 0.5f);
  p = fma_once(p, r, 1.0f);
  p = fma_once(p, r, 1.0f);
  const int whole = static_cast<int>(n);
  const int half = whole >> 1;  // floor, also of negative numbers
  p = mul(p, __uint_as_float(static_cast<uint32_t>(half + 127) << 23));
  return mul(p, __uint_as_float(static_cast<uint32_t>(whole - half + 127) << 23));
}

// g/(1+exp(-g)) * u; before it, with limit > 0, g is clamped to <= limit and u to +-limit (a NaN stays NaN).
__device__ __forceinline__ float swiglu(float g, float u, float limit) {
  if (limit > 0.0f) {
    g = g > limit ? limit : g;
    u = u > limit ? limit : (u < -limit ? -limit : u);
  }
  return mul(divide(g, add(1.0f, stated_exp(-g))), u);
}

// Stores an activation as fp16; a finite pre-activation whose activation is infinite is counted.
__device__ __forceinline__ uint16_t store_activation(float value, bool inputs_finite, unsigned long long* overflow) {
  const uint16_t bits = round_to_half(value);
  if ((bits & 0x7FFF) == 0x7C00 && inputs_finite && overflow != nullptr) atomicAdd(overflow, 1ull);
  return bits;
}

}  // namespace glq
