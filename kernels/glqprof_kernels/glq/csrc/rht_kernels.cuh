// The randomized Hadamard transform before and after a matrix. One thread block a vector: its blocks of the transform
// are independent, but together they fill one thread block's threads, and the launch costs more than the work.
#pragma once

#include "activation.cuh"
#include "rht.cuh"

namespace glq {

// y[v, :] = scale * H(sv * x[v, :]), not yet rounded to fp16; grid (vectors). Strides are in elements: x may be a view.
__global__ void __launch_bounds__(1024)
glq_input_rht_kernel(const uint16_t* __restrict__ x, int64_t vector_stride, int64_t element_stride,
                     const uint16_t* __restrict__ sv, float* __restrict__ y, int n) {
  GLQ_DYNAMIC_SHARED(float, data);
  hadamard_of_signed(data, x + static_cast<int64_t>(blockIdx.x) * vector_stride, element_stride, sv, n);
  float* out = y + static_cast<int64_t>(blockIdx.x) * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = mul(data[padded(i)], block_scale(i, n));
}

__device__ __forceinline__ void hadamard_of_floats(float* data, const float* __restrict__ y, int n) {
  hadamard(data, n, [&](int first, float(&v)[kRadix]) {
#pragma unroll
    for (int k = 0; k < kRadix; ++k) v[k] = first + k < n ? y[first + k] : 0.0f;
  });
}

// h = fp16(scale * H(y) * su); one vector, grid (1).
__global__ void __launch_bounds__(1024)
glq_output_rht_kernel(const float* __restrict__ y, const uint16_t* __restrict__ su, uint16_t* __restrict__ h, int n) {
  GLQ_DYNAMIC_SHARED(float, data);
  hadamard_of_floats(data, y, n);
  for (int i = threadIdx.x; i < n; i += blockDim.x) h[i] = round_to_half(output_value(data, su, i, n));
}

// The output transform with the activation in its store. ROUND_FIRST: the activation acts on h rounded to fp16, as the
// contract says; without it, on the unrounded value (v3b-fp32act). a: fp16, [n] for relu2, [n / 2] for SwiGLU.
template <int ACTIVATION, bool ROUND_FIRST>
__global__ void __launch_bounds__(1024)
glq_output_rht_act_kernel(const float* __restrict__ y, const uint16_t* __restrict__ su, uint16_t* __restrict__ a, int n,
                          float limit, unsigned long long* __restrict__ overflow) {
  GLQ_DYNAMIC_SHARED(float, data);
  hadamard_of_floats(data, y, n);
  const int count = ACTIVATION == kSwiglu ? n / 2 : n;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    float h = output_value(data, su, i, n);
    if (ROUND_FIRST) h = half_to_float(round_to_half(h));
    if (ACTIVATION == kSwiglu) {
      float u = output_value(data, su, count + i, n);
      if (ROUND_FIRST) u = half_to_float(round_to_half(u));
      a[i] = store_activation(swiglu(h, u, limit), is_finite(h) && is_finite(u), overflow);
    } else {
      a[i] = store_activation(relu_squared(h), is_finite(h), overflow);
    }
  }
}

}  // namespace glq
