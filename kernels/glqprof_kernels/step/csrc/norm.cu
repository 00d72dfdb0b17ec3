// The embedding's rows, and a layer's residual add with the next layer's RMSNorm: a thread block a row.
#include "launch.cuh"
#include "launch.h"

namespace step {

namespace {

constexpr int kVector = 8;  // values of 16 bytes
constexpr int kMaxThreads = 1024;
constexpr int kMaxVectors = 2;  // of a thread: 16384 values a row

unsigned int threads_for(int hidden) {
  const int vectors = hidden / kVector;
  return static_cast<unsigned int>((vectors < kMaxThreads ? vectors : kMaxThreads) + 31) / 32 * 32;
}

}  // namespace

__global__ void STEP_LAUNCH_BOUNDS(kMaxThreads, 1) step_embed_kernel(const GLQ_KERNEL_PARAMETER EmbedCall call) {
  glq::let_next_kernel_start();
  glq::wait_for_previous_kernel();
  const int row = blockIdx.x;
  const int64_t token = load_fresh(&call.token[row]);
  const bool known = token >= 0 && token < call.vocab;
  const uint4* from = reinterpret_cast<const uint4*>(call.table + (known ? token : 0) * call.hidden);
  uint4* to = reinterpret_cast<uint4*>(call.out + static_cast<int64_t>(row) * call.hidden);
  const uint32_t nan = 0x7FFF7FFFu;
  for (int v = threadIdx.x; v < call.hidden / kVector; v += blockDim.x) {
    to[v] = known ? __ldg(&from[v]) : make_uint4(nan, nan, nan, nan);
  }
}

namespace {

// A thread's vector v of a row, as binary32.
__device__ __forceinline__ void load_weight(const NormCall& call, int v, float (&values)[kVector]) {
  if (call.weight_fp32) {
    const float4* from = static_cast<const float4*>(call.weight) + 2 * v;
    const float4 a = __ldg(from), b = __ldg(from + 1);
    const float all[kVector] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = all[i];
  } else {
    unpack8(__ldg(static_cast<const uint4*>(call.weight) + v), values);
  }
}

// bf16(addend), or bf16(bf16(addend) + second).
__device__ __forceinline__ void load_addend(const NormCall& call, int64_t at, float (&values)[kVector]) {
  const uint4 words = load_fresh(reinterpret_cast<const uint4*>(call.addend + at));
  uint4 others = make_uint4(0, 0, 0, 0);
  if (call.second != nullptr) others = load_fresh(reinterpret_cast<const uint4*>(call.second + at));
  if (call.addend_fp16) {
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = glq::halves_to_floats(w[i]);
      values[2 * i] = rounded_to_bf16(pair.x);
      values[2 * i + 1] = rounded_to_bf16(pair.y);
    }
  } else {
    unpack8(words, values);
  }
  if (call.second == nullptr) return;
  float plus[kVector];
  unpack8(others, plus);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = rounded_to_bf16(__fadd_rn(values[i], plus[i]));
}

// The sum over the block, the same in all threads; a warp's by exchange, then the warps' by exchange in every warp.
__device__ __forceinline__ float block_sum(float value, float* of_warp) {
  value = warp_sum(value);
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
  if (lane == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(lane < warps ? of_warp[lane] : 0.0f);
}

}  // namespace

// grid: a block a row, of threads_for(hidden) threads.
template <int VECTORS>
__global__ void STEP_LAUNCH_BOUNDS(kMaxThreads, 1) step_add_rms_norm_kernel(const GLQ_KERNEL_PARAMETER NormCall call) {
  __shared__ float of_warp[32];
  const int vectors = call.hidden / kVector;
  float weight[VECTORS][kVector], x[VECTORS][kVector];
  glq::let_next_kernel_start();
#pragma unroll
  for (int j = 0; j < VECTORS; ++j) {
    const int v = static_cast<int>(threadIdx.x) + j * static_cast<int>(blockDim.x);
    if (v < vectors) load_weight(call, v, weight[j]);
  }
  glq::wait_for_previous_kernel();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * call.hidden;
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < VECTORS; ++j) {
    const int v = static_cast<int>(threadIdx.x) + j * static_cast<int>(blockDim.x);
    if (v >= vectors) continue;
    const int64_t at = row + v * kVector;
    uint4* residual = reinterpret_cast<uint4*>(call.residual + at);
    const uint4 before = load_fresh(residual);
    if (call.addend != nullptr) {
      float plus[kVector];
      load_addend(call, at, plus);
      unpack8(before, x[j]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[j][i] = rounded_to_bf16(__fadd_rn(x[j][i], plus[i]));
      *residual = pack8(x[j]);
    } else {
      unpack8(before, x[j]);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares = __fmaf_rn(x[j][i], x[j][i], squares);
  }
  const float mean = __fdiv_rn(block_sum(squares, of_warp), static_cast<float>(call.hidden));
  const float scale = reciprocal_root(__fadd_rn(mean, call.eps));
#pragma unroll
  for (int j = 0; j < VECTORS; ++j) {
    const int v = static_cast<int>(threadIdx.x) + j * static_cast<int>(blockDim.x);
    if (v >= vectors) continue;
    const int64_t at = row + v * kVector;
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[j][i] = rounded_to_bf16(__fmul_rn(weight[j][i], __fmul_rn(x[j][i], scale)));
    *reinterpret_cast<uint4*>(call.out + at) = pack8(x[j]);
    if (call.out_fp16 == nullptr) continue;
    uint32_t halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      halves[i] = static_cast<uint32_t>(glq::float_to_half(x[j][2 * i])) |
                  static_cast<uint32_t>(glq::float_to_half(x[j][2 * i + 1])) << 16;
    }
    *reinterpret_cast<uint4*>(call.out_fp16 + at) = make_uint4(halves[0], halves[1], halves[2], halves[3]);
  }
}

void launch_embed(const EmbedCall& call, int batch, bool dependent, cudaStream_t stream) {
  const Launch plan{dim3(static_cast<unsigned int>(batch)), threads_for(call.hidden), 0, dependent};
  STEP_START((step_embed_kernel), plan, stream, call);
}

void launch_add_rms_norm(const NormCall& call, int batch, bool dependent, cudaStream_t stream) {
  const Launch plan{dim3(static_cast<unsigned int>(batch)), threads_for(call.hidden), 0, dependent};
  if (call.hidden <= kMaxThreads * kVector) {
    STEP_START((step_add_rms_norm_kernel<1>), plan, stream, call);
  } else {
    STEP_START((step_add_rms_norm_kernel<kMaxVectors>), plan, stream, call);
  }
}

}  // namespace step
