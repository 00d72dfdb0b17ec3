// The small kernels between the transforms and the matrices; one thread an element.
#pragma once

#include "activation.cuh"

namespace glq {

// A fill of 32-bit words: two fp16 zeros or one float zero each.
__global__ void __launch_bounds__(256) glq_fill_zero_kernel(uint32_t* __restrict__ words, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) words[i] = 0;
}

__global__ void __launch_bounds__(256)
glq_cast_kernel(const float* __restrict__ from, uint16_t* __restrict__ to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = round_to_half(from[i]);
}

// a = fp16(relu2(h)), [n].
__global__ void __launch_bounds__(256)
glq_relu2_kernel(const uint16_t* __restrict__ h, uint16_t* __restrict__ a, int n,
                 unsigned long long* __restrict__ overflow) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float value = half_to_float(h[i]);
  a[i] = store_activation(relu_squared(value), is_finite(value), overflow);
}

// a = fp16(swiglu(h[:n], h[n:])), [n]; h is [2n], the gate half first.
__global__ void __launch_bounds__(256)
glq_swiglu_kernel(const uint16_t* __restrict__ h, uint16_t* __restrict__ a, int n, float limit,
                  unsigned long long* __restrict__ overflow) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float gate = half_to_float(h[i]);
  const float up = half_to_float(h[n + i]);
  a[i] = store_activation(swiglu(gate, up, limit), is_finite(gate) && is_finite(up), overflow);
}

// out = fp16(out + w*e), product and sum rounded apart, [n].
__global__ void __launch_bounds__(256)
glq_weighted_add_kernel(uint16_t* __restrict__ out, const uint16_t* __restrict__ e, float w, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float p = mul(w, half_to_float(e[i]));
  out[i] = round_to_half(add(half_to_float(out[i]), p));
}

}  // namespace glq
