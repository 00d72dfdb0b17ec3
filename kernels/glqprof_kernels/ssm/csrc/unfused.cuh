// The step in three kernels, with the fused one's arithmetic: convolution, state, norm.
#pragma once

#include "state_rows.cuh"

namespace ssm {

constexpr int kConvThreads = 256;
constexpr int kStateThreads = (kStateWarps + 1) * 32;
constexpr int kNormThreads = 512;

// One channel a thread; grid: (conv_dim / 256, batch).
__global__ void SSM_LAUNCH_BOUNDS(kConvThreads) ssm_conv_kernel(const GLQ_KERNEL_PARAMETER StepCall call) {
  const int channel = blockIdx.x * kConvThreads + threadIdx.x, sequence = blockIdx.y;
  Channel c;
  if (channel < call.conv_dim) c.load_weights(call, channel);
  glq::wait_for_previous_kernel();
  glq::let_next_kernel_start();
  if (channel >= call.conv_dim) return;
  c.load_window(call, sequence, channel);
  const float value = c.convolve(call, load_state(call.projected + sequence * call.projected_stride + call.inter + channel));
  call.channels[static_cast<int64_t>(sequence) * call.conv_dim + channel] = float_to_bf16(value);
  c.store_window(call, sequence, channel);
}

template <int STATE>
struct StateShared {
  float bc[2 * STATE];
  float step[kChunkRows];
  float decay[kChunkRows];
  float dot[kChunkRows];
};

// One chunk a block: eight warps for the state, one for what there is once a row; grid: (chunks, groups, batch).
template <int STATE, bool NARROW>
__global__ void SSM_LAUNCH_BOUNDS(kStateThreads) ssm_state_kernel(const GLQ_KERNEL_PARAMETER StepCall call) {
  GLQ_DYNAMIC_SHARED(float4, memory);
  StateShared<STATE>& shared = *reinterpret_cast<StateShared<STATE>*>(memory);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int group = blockIdx.y, sequence = blockIdx.z;
  const int first = group * call.group_rows + blockIdx.x * kChunkRows;
  const int rows = min(kChunkRows, call.group_rows - static_cast<int>(blockIdx.x) * kChunkRows);
  const bool row_warp = warp == kStateWarps;
  const bool has_row = row_warp && lane < rows;
  const int row = first + lane;
  const int head = has_row ? row / call.head_dim : 0;

  glq::wait_for_previous_kernel();
  glq::let_next_kernel_start();
  const uint16_t* const channels = call.channels + static_cast<int64_t>(sequence) * call.conv_dim;
  StateRows<STATE, NARROW> state(warp % kStateWarps, thread, first, rows);
  float x = 0.0f;
  if (row_warp) {
    if (has_row) {
      x = bf16_to_float(load_state(channels + row));
      const uint16_t raw_dt = load_state(call.projected + sequence * call.projected_stride + call.inter + call.conv_dim + head);
      const RowInputs inputs = row_inputs(x, bf16_to_float(raw_dt), parameter(call.dt_bias, head, call.wide & kWideDtBias),
                                          __ldg(call.a + head));
      shared.step[lane] = inputs.step;
      shared.decay[lane] = inputs.decay;
    }
  } else {
    state.load(call, sequence);
    for (int k = thread; k < 2 * STATE; k += kStateWarps * 32) {
      shared.bc[k] =
          bf16_to_float(load_state(channels + call.inter + (k < STATE ? 0 : (call.groups - 1) * STATE) + group * STATE + k));
    }
  }
  __syncthreads();
  if (!row_warp) state.update(call, sequence, shared.bc, shared.bc + STATE, shared.step, shared.decay, shared.dot);
  __syncthreads();
  if (has_row) {
    const float y = row_output(shared.dot[lane], parameter(call.d, head, call.wide & kWideD), x);
    call.y[static_cast<int64_t>(sequence) * call.inter + row] = float_to_bf16(y);
  }
}

// One group a block, one chunk a warp; grid: (groups, batch).
__global__ void SSM_LAUNCH_BOUNDS(kNormThreads) ssm_norm_kernel(const GLQ_KERNEL_PARAMETER StepCall call) {
  GLQ_DYNAMIC_SHARED(float, squares);
  const int lane = threadIdx.x % 32, group = blockIdx.x, sequence = blockIdx.y;
  glq::wait_for_previous_kernel();
  glq::let_next_kernel_start();
  const uint16_t* const y = call.y + static_cast<int64_t>(sequence) * call.inter;
  const uint16_t* const gate = call.projected + sequence * call.projected_stride;
  auto gated = [&](int k) {
    const int row = group * call.group_rows + k;
    return mul(bf16_to_float(load_state(y + row)), silu(bf16_to_float(load_state(gate + row))));
  };
  for (int chunk = threadIdx.x / 32; chunk < call.chunks; chunk += kNormThreads / 32) {
    const int k = chunk * kChunkRows + lane;
    const float value = k < call.group_rows ? gated(k) : 0.0f;
    const float sum = tree_sum<32>(mul(value, value));
    if (lane == 0) squares[chunk] = sum;
  }
  __syncthreads();
  float total = squares[0];
  for (int chunk = 1; chunk < call.chunks; ++chunk) total = add(total, squares[chunk]);
  const float scale = norm_scale(total, call.group_rows, call.eps);
  for (int k = threadIdx.x; k < call.group_rows; k += kNormThreads) {
    const int row = group * call.group_rows + k;
    call.out[sequence * call.out_stride + row] =
        normalised(gated(k), scale, parameter(call.norm_weight, row, call.wide & kWideNorm));
  }
}

}  // namespace ssm
