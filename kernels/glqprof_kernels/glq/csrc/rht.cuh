// The ends of the randomized Hadamard transforms, for every kernel that has one inside.
#pragma once

#include "hadamard.cuh"

namespace glq {

// v = elements first .. first + 7 of sv * vector; 0 from n on. `wide`: both can be read 16 bytes at a time.
__device__ __forceinline__ void load_signed(const uint16_t* vector, int64_t element_stride, const uint16_t* sv, int n,
                                            bool wide, int first, float (&v)[kRadix]) {
  if (wide && first + kRadix <= n) {
    float sign[kRadix];
    unpack8(*reinterpret_cast<const uint4*>(vector + first), v);
    unpack8(*reinterpret_cast<const uint4*>(sv + first), sign);
#pragma unroll
    for (int k = 0; k < kRadix; ++k) v[k] = mul(v[k], sign[k]);
  } else {
#pragma unroll
    for (int k = 0; k < kRadix; ++k) {
      const int i = first + k;
      v[k] = i < n ? mul(half_to_float(vector[i * element_stride]), half_to_float(sv[i])) : 0.0f;
    }
  }
}

__device__ __forceinline__ bool is_wide(const uint16_t* vector, int64_t element_stride, const uint16_t* sv) {
  return element_stride == 1 && reinterpret_cast<uintptr_t>(vector) % 16 == 0 && reinterpret_cast<uintptr_t>(sv) % 16 == 0;
}

// data = H(sv * vector), without the scale. Ends with a barrier.
__device__ __forceinline__ void hadamard_of_signed(float* data, const uint16_t* vector, int64_t element_stride,
                                                   const uint16_t* sv, int n) {
  const bool wide = is_wide(vector, element_stride, sv);
  hadamard(data, n, [&](int first, float(&v)[kRadix]) { load_signed(vector, element_stride, sv, n, wide, first, v); });
}

// The value that step 3 of the contract rounds to h.
__device__ __forceinline__ float output_value(const float* data, const uint16_t* su, int i, int n) {
  return mul(mul(data[padded(i)], block_scale(i, n)), half_to_float(su[i]));
}

}  // namespace glq
