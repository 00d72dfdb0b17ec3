// The ordered weighted sum of a token's expert outputs.
#pragma once

#include "moe_call.h"
#include "platform.cuh"

namespace nvfp4 {

constexpr int kCombineThreads = 128;
constexpr int kCombineAhead = 8;  // slots whose loads are in flight together

// s = +0; p = w * e; s = s + p in top-k order, slots of weight 0 and of no expert skipped; bf16. grid: (hidden / 512, tokens),
// four columns a thread.
__global__ void NVFP4_LAUNCH_BOUNDS(kCombineThreads, 1) nvfp4_combine_kernel(const GLQ_KERNEL_PARAMETER MoeCall call) {
  glq::wait_for_previous_kernel();
  glq::let_next_kernel_start();
  const int hidden = call.down.columns;
  const int column = (blockIdx.x * kCombineThreads + threadIdx.x) * 4;
  if (column >= hidden) return;
  for (int token = blockIdx.y; token < call.tokens; token += gridDim.y) {
    const float* from = static_cast<const float*>(call.expert_out) + static_cast<int64_t>(token) * call.top_k * hidden + column;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int begin = 0; begin < call.top_k; begin += kCombineAhead) {
      float weight[kCombineAhead];
      float4 e[kCombineAhead];
#pragma unroll
      for (int i = 0; i < kCombineAhead; ++i) {
        weight[i] = 0.0f;
        e[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const int k = begin + i;
        if (k >= call.top_k) continue;
        const int64_t id = call.ids[token * call.id_strides[0] + k * call.id_strides[1]];
        if (id < 0 || id >= call.experts) continue;
        weight[i] = call.weights[token * call.weight_strides[0] + k * call.weight_strides[1]];
        if (weight[i] != 0.0f) e[i] = glq::load_coherent(reinterpret_cast<const float4*>(from + static_cast<int64_t>(k) * hidden));
      }
#pragma unroll
      for (int i = 0; i < kCombineAhead; ++i) {
        if (weight[i] == 0.0f) continue;
        sum[0] = glq::add(sum[0], glq::mul(weight[i], e[i].x));
        sum[1] = glq::add(sum[1], glq::mul(weight[i], e[i].y));
        sum[2] = glq::add(sum[2], glq::mul(weight[i], e[i].z));
        sum[3] = glq::add(sum[3], glq::mul(weight[i], e[i].w));
      }
    }
    uint2 packed;
    packed.x = float_to_bf16(sum[0]) | static_cast<uint32_t>(float_to_bf16(sum[1])) << 16;
    packed.y = float_to_bf16(sum[2]) | static_cast<uint32_t>(float_to_bf16(sum[3])) << 16;
    *reinterpret_cast<uint2*>(call.out + static_cast<int64_t>(token) * hidden + column) = packed;
  }
}

}  // namespace nvfp4
