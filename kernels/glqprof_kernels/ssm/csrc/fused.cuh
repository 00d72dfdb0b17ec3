// One layer in one launch: convolution, state, output, gated norm.
//
// A group of the norm is the heads that share B and C. Its thread blocks (along x) each take CHUNKS chunks of 32 rows of the
// state; a chunk has eight warps for the state and one, the row warp, for what there is once a row: x, dt, gate, y, the norm.
// All blocks of a group convolve its B and C; their states are stored at the end, when all have read them.
#pragma once

#include "state_rows.cuh"

namespace ssm {

template <int STATE, int CHUNKS>
struct FusedShared {
  float bc[2 * STATE];  // B, then C
  float step[CHUNKS * kChunkRows];
  float decay[CHUNKS * kChunkRows];
  float dot[CHUNKS * kChunkRows];
  float squares[kMaxChunks];  // of the group's chunks
  int last;
};

constexpr int fused_threads(int chunks) { return chunks * (kStateWarps + 1) * 32; }

template <int STATE, bool NARROW, int CHUNKS, int EXCHANGE>
__global__ void SSM_LAUNCH_BOUNDS(fused_threads(CHUNKS)) ssm_fused_kernel(const GLQ_KERNEL_PARAMETER StepCall call) {
  constexpr int kStateThreads = CHUNKS * kStateWarps * 32;
  constexpr int kOwn = (2 * STATE + kStateThreads - 1) / kStateThreads;  // channels of B and C a thread convolves
  GLQ_DYNAMIC_SHARED(float4, memory);
  FusedShared<STATE, CHUNKS>& shared = *reinterpret_cast<FusedShared<STATE, CHUNKS>*>(memory);
  if (EXCHANGE == kCluster) cluster_arrive_relaxed();

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int group = blockIdx.y, sequence = blockIdx.z;
  const bool row_warp = warp >= CHUNKS * kStateWarps;
  const int own_chunk = row_warp ? warp - CHUNKS * kStateWarps : warp / kStateWarps;
  const int chunk = blockIdx.x * CHUNKS + own_chunk;
  const int first = group * call.group_rows + chunk * kChunkRows;
  const int rows = min(kChunkRows, call.group_rows - chunk * kChunkRows);
  const bool has_row = row_warp && lane < rows;
  const int row = first + lane;
  const int head = has_row ? row / call.head_dim : 0;
  auto owns = [&](int j) { return !row_warp && thread + j * kStateThreads < 2 * STATE; };
  auto channel_of = [&](int j) {
    const int k = thread + j * kStateThreads;
    return call.inter + (k < STATE ? 0 : (call.groups - 1) * STATE) + group * STATE + k;
  };

  // Weights, which no kernel writes; states, unless the kernel ahead might still write them.
  Channel channels[kOwn];
  StateRows<STATE, NARROW> state(warp % kStateWarps, thread, first, rows);
  float dt_bias = 0.0f, a = 0.0f, d = 0.0f, norm_weight = 0.0f;
  auto load_states = [&] {
    if (!row_warp) state.load(call, sequence);
    if (has_row) channels[0].load_window(call, sequence, row);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (owns(j)) channels[j].load_window(call, sequence, channel_of(j));
    }
  };
  if (call.early_state) {
    load_states();
  } else {
    if (!row_warp) state.prefetch(call, sequence);
    if (has_row) channels[0].prefetch_window(call, sequence, row);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (owns(j)) channels[j].prefetch_window(call, sequence, channel_of(j));
    }
  }
  if (has_row) {
    channels[0].load_weights(call, row);
    dt_bias = parameter(call.dt_bias, head, call.wide & kWideDtBias);
    a = __ldg(call.a + head);
    d = parameter(call.d, head, call.wide & kWideD);
    norm_weight = parameter(call.norm_weight, row, call.wide & kWideNorm);
  }
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if (owns(j)) channels[j].load_weights(call, channel_of(j));
  }

  // After the wait, so that the next kernel starts only when the one ahead has ended: what its early reads rely on.
  glq::wait_for_previous_kernel();
  glq::let_next_kernel_start();
  const uint16_t* const projected = call.projected + sequence * call.projected_stride;
  uint16_t newest[kOwn] = {}, raw_dt = 0, raw_gate = 0;
  if (has_row) {
    newest[0] = load_state(projected + call.inter + row);
    raw_dt = load_state(projected + call.inter + call.conv_dim + head);
    raw_gate = load_state(projected + row);
  }
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if (owns(j)) newest[j] = load_state(projected + call.inter + channel_of(j));
  }
  if (!call.early_state) load_states();

  float x = 0.0f;
  if (has_row) {
    x = channels[0].convolve(call, newest[0]);
    channels[0].store_window(call, sequence, row);
    const RowInputs inputs = row_inputs(x, bf16_to_float(raw_dt), dt_bias, a);
    shared.step[own_chunk * kChunkRows + lane] = inputs.step;
    shared.decay[own_chunk * kChunkRows + lane] = inputs.decay;
  }
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if (owns(j)) shared.bc[thread + j * kStateThreads] = channels[j].convolve(call, newest[j]);
  }
  __syncthreads();

  float gate = 0.0f;
  if (row_warp) {
    gate = silu(bf16_to_float(raw_gate));
  } else {
    state.update(call, sequence, shared.bc, shared.bc + STATE, shared.step + own_chunk * kChunkRows,
                 shared.decay + own_chunk * kChunkRows, shared.dot + own_chunk * kChunkRows);
  }
  if (EXCHANGE == kCluster) cluster_wait();  // all blocks of the cluster run
  __syncthreads();

  float gated = 0.0f, squares = 0.0f;
  if (row_warp) {
    if (has_row) gated = mul(row_output(shared.dot[own_chunk * kChunkRows + lane], d, x), gate);
    squares = tree_sum<32>(mul(gated, gated));
  }
  auto total = [&] {
    float sum = shared.squares[0];
    for (int k = 1; k < call.chunks; ++k) sum = add(sum, shared.squares[k]);
    return sum;
  };
  auto store_shared_windows = [&] {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (owns(j)) channels[j].store_window(call, sequence, channel_of(j));
    }
  };
  uint16_t* const out = call.out + sequence * call.out_stride;

  if (EXCHANGE == kCluster) {
    if (row_warp && lane < static_cast<int>(gridDim.x)) store_in_block(shared.squares + chunk, lane, squares);
    cluster_arrive();
    cluster_wait();
    if (has_row) out[row] = normalised(gated, norm_scale(total(), call.group_rows, call.eps), norm_weight);
    if (blockIdx.x == 0) store_shared_windows();
    return;
  }

  // The block that counts last has everything of the others in global memory, and finishes the group.
  const int64_t which = static_cast<int64_t>(sequence) * call.groups + group;
  if (has_row) call.gated[static_cast<int64_t>(sequence) * call.inter + row] = gated;
  if (row_warp && lane == 0) call.squares[which * call.chunks + chunk] = squares;
  __syncthreads();
  if (thread == 0) {
    shared.last = glq::add_acquire_release(call.counters + which, 1) == static_cast<int>(gridDim.x) - 1;
    if (shared.last) call.counters[which] = 0;
  }
  __syncthreads();
  if (!shared.last) return;
  for (int k = thread; k < call.chunks; k += fused_threads(CHUNKS)) {
    shared.squares[k] = glq::load_coherent(call.squares + which * call.chunks + k);
  }
  __syncthreads();
  const float scale = norm_scale(total(), call.group_rows, call.eps);
  for (int k = thread; k < call.group_rows; k += fused_threads(CHUNKS)) {
    const int i = group * call.group_rows + k;
    const float value = glq::load_coherent(call.gated + static_cast<int64_t>(sequence) * call.inter + i);
    out[i] = normalised(value, scale, parameter(call.norm_weight, i, call.wide & kWideNorm));
  }
  store_shared_windows();
}

}  // namespace ssm
