// Scalar arithmetic of the contract: binary32, round to nearest even, denormals kept, an FMA only where one is named.
#pragma once

#include "platform.cuh"

namespace glq {

__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float fma_once(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }

// Rounds to fp16; every NaN becomes 0x7FFF, whatever its payload and sign were.
__device__ __forceinline__ uint16_t round_to_half(float value) {
  return value != value ? uint16_t{0x7FFF} : float_to_half(value);
}

__device__ __forceinline__ bool is_finite(float value) {
  return (__float_as_uint(value) & 0x7FFFFFFFu) < 0x7F800000u;
}

// Eight consecutive fp16 values (16 bytes, aligned) as floats.
__device__ __forceinline__ void unpack8(const uint4& packed, float (&out)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 pair = halves_to_floats(words[k]);
    out[2 * k] = pair.x;
    out[2 * k + 1] = pair.y;
  }
}

}  // namespace glq
