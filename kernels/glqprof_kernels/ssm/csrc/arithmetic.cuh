// The step's arithmetic, shared by all its kernels; docs/kernels/ssm.md is the contract. Binary32, rounded to nearest even, an
// FMA only where one is named.
#pragma once

#include "platform.cuh"

namespace ssm {

using glq::add;
using glq::divide;
using glq::fma_once;
using glq::mul;

__device__ __forceinline__ float silu(float v) { return divide(v, add(1.0f, glq::stated_exp(-v))); }

// max(z, 0) + log(1 + exp(-|z|)). The logarithm is 2 * atanh(w), w = u / (u + 2) in [0, 1/3]: its series up to w^15, whose next
// term is below 2^-29 of the sum.
__device__ __forceinline__ float softplus(float z) {
  if (z != z) return z;
  const float u = glq::stated_exp(-fabsf(z));
  const float w = divide(u, add(u, 2.0f));
  const float s = mul(w, w);
  float p = __uint_as_float(0x3E088889u);             // 2/15
  p = fma_once(p, s, __uint_as_float(0x3E1D89D9u));   // 2/13
  p = fma_once(p, s, __uint_as_float(0x3E3A2E8Cu));   // 2/11
  p = fma_once(p, s, __uint_as_float(0x3E638E39u));   // 2/9
  p = fma_once(p, s, __uint_as_float(0x3E924925u));   // 2/7
  p = fma_once(p, s, __uint_as_float(0x3ECCCCCDu));   // 2/5
  p = fma_once(p, s, __uint_as_float(0x3F2AAAABu));   // 2/3
  const float log = fma_once(w, mul(p, s), add(w, w));
  return add(z > 0.0f ? z : 0.0f, log);
}

// Element i of a small parameter, which is binary32 or bf16.
__device__ __forceinline__ float parameter(const void* from, int64_t i, bool wide) {
  return wide ? __ldg(static_cast<const float*>(from) + i)
              : bf16_to_float(__ldg(static_cast<const unsigned short*>(from) + i));
}

// One channel of the convolution: the taps' weights, and the inputs that they meet, the newest last.
struct Channel {
  float weight[kMaxTaps];
  uint16_t window[kMaxTaps];
  float bias;

  __device__ __forceinline__ void load_weights(const StepCall& call, int channel) {
    if (call.taps == 4) {
      const uint2 packed = __ldg(reinterpret_cast<const uint2*>(call.conv_weight) + channel);
      weight[0] = bf16_to_float(static_cast<uint16_t>(packed.x & 0xFFFFu));
      weight[1] = bf16_to_float(static_cast<uint16_t>(packed.x >> 16));
      weight[2] = bf16_to_float(static_cast<uint16_t>(packed.y & 0xFFFFu));
      weight[3] = bf16_to_float(static_cast<uint16_t>(packed.y >> 16));
    } else {
#pragma unroll
      for (int k = 0; k < kMaxTaps; ++k) {
        if (k < call.taps) weight[k] = bf16_to_float(__ldg(call.conv_weight + static_cast<int64_t>(channel) * call.taps + k));
      }
    }
    bias = call.conv_bias == nullptr ? 0.0f : parameter(call.conv_bias, channel, call.wide & kWideConvBias);
  }

  // All but the newest input, from the state: its oldest column falls out.
  __device__ __forceinline__ void load_window(const StepCall& call, int sequence, int channel) {
    const uint16_t* from = call.conv_state + sequence * call.conv_stride + static_cast<int64_t>(channel) * call.taps;
    if (call.taps == 4) {
      const uint2 packed = load_state(reinterpret_cast<const uint2*>(from));
      window[0] = static_cast<uint16_t>(packed.x >> 16);
      window[1] = static_cast<uint16_t>(packed.y & 0xFFFFu);
      window[2] = static_cast<uint16_t>(packed.y >> 16);
    } else {
#pragma unroll
      for (int k = 0; k + 1 < kMaxTaps; ++k) {
        if (k + 1 < call.taps) window[k] = load_state(from + k + 1);
      }
    }
  }

  __device__ __forceinline__ void prefetch_window(const StepCall& call, int sequence, int channel) const {
    glq::prefetch_l2(call.conv_state + sequence * call.conv_stride + static_cast<int64_t>(channel) * call.taps);
  }

  // bf16(silu(bias + sum of weight * input, oldest first)) as binary32.
  __device__ __forceinline__ float convolve(const StepCall& call, uint16_t newest) {
    float sum = bias;
#pragma unroll
    for (int k = 0; k < kMaxTaps; ++k) {
      if (k + 1 == call.taps) window[k] = newest;
      if (k < call.taps) sum = fma_once(weight[k], bf16_to_float(window[k]), sum);
    }
    return bf16_to_float(float_to_bf16(silu(sum)));
  }

  __device__ __forceinline__ void store_window(const StepCall& call, int sequence, int channel) const {
    uint16_t* to = call.conv_state_out + sequence * call.conv_out_stride + static_cast<int64_t>(channel) * call.taps;
    if (call.taps == 4) {
      uint2 packed;
      packed.x = window[0] | static_cast<uint32_t>(window[1]) << 16;
      packed.y = window[2] | static_cast<uint32_t>(window[3]) << 16;
      *reinterpret_cast<uint2*>(to) = packed;
    } else {
#pragma unroll
      for (int k = 0; k < kMaxTaps; ++k) {
        if (k < call.taps) to[k] = window[k];
      }
    }
  }
};

// Row i of the state meets dt * x of its channel and the decay exp(dt * a) of its head.
struct RowInputs {
  float step, decay;  // dt * x, exp(dt * a)
};

__device__ __forceinline__ RowInputs row_inputs(float x, float raw_dt, float dt_bias, float a) {
  const float dt = softplus(add(raw_dt, dt_bias));
  return {mul(dt, x), glq::stated_exp(mul(dt, a))};
}

// y of a row, rounded to bf16, as binary32.
__device__ __forceinline__ float row_output(float dot, float d, float x) {
  return bf16_to_float(float_to_bf16(fma_once(d, x, dot)));
}

// The sum of one value a lane: halves onto halves; every lane gets it.
template <int LANES>
__device__ __forceinline__ float tree_sum(float value) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    value = add(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  }
  return value;
}

__device__ __forceinline__ float norm_scale(float squares, int rows, float eps) {
  return divide(1.0f, square_root(add(divide(squares, static_cast<float>(rows)), eps)));
}

__device__ __forceinline__ uint16_t normalised(float gated, float scale, float weight) {
  return float_to_bf16(mul(weight, bf16_to_float(float_to_bf16(mul(gated, scale)))));
}

}  // namespace ssm
