// One block of eight weights times eight inputs, in the contract's order. No kernel structure: any schedule that keeps
// the order of the sums above it gives the same bits.
#pragma once

#include "arithmetic.cuh"

namespace glq {

// d = ((p0+p4)+(p2+p6)) + ((p1+p5)+(p3+p7)), p = c*x, c = C1, then c = fma(r_s, C_s, c) for each later stage.
// `entry[s]` is the codebook entry of stage s (eight fp16), `scale[s]` its factor (scale[0] is not read).
template <int STAGES>
__device__ __forceinline__ float block_dot(const uint4 (&entry)[STAGES], const float (&scale)[STAGES],
                                           const float (&x)[8]) {
  float c[8];
  unpack8(entry[0], c);
#pragma unroll
  for (int s = 1; s < STAGES; ++s) {
    float next[8];
    unpack8(entry[s], next);
#pragma unroll
    for (int k = 0; k < 8; ++k) c[k] = fma_once(scale[s], next[k], c[k]);
  }
  float p[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) p[k] = mul(c[k], x[k]);
  return add(add(add(p[0], p[4]), add(p[2], p[6])), add(add(p[1], p[5]), add(p[3], p[7])));
}

}  // namespace glq
