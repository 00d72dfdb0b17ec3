// What a thread block knows of its launch: the slots that take part, the batch of units in hand, and how both are found.
#pragma once

#include "fused_product.cuh"
#include "fused_transform.cuh"

namespace glq {

__device__ __forceinline__ void mark(const FusedCall& call, int phase, Mark which) {
  if (call.timeline != nullptr && threadIdx.x == 0) {
    read_clocks(call.timeline + 2 * (static_cast<int64_t>(phase * gridDim.x + blockIdx.x) * kMarks + which));
  }
}

// Transforms need fewer warps than a block has: the last ones prepare the product meanwhile, each its part.
enum Duty : int { kRowsDuty = 1, kMoreRowsDuty, kCopyDuty };

template <class C>
__device__ __forceinline__ bool has_duty(Duty duty) {
  return static_cast<int>(threadIdx.x) / 32 == C::kThreads / 32 - duty;
}

// One thread a slot. Ends with a barrier.
template <class C>
__device__ __forceinline__ void find_slots(const FusedCall& call, FusedShared& shared) {
  static_assert(C::kThreads >= kFusedSlots, "a thread a slot");
  const int slots = call.tokens * call.top_k;
  const int i = static_cast<int>(threadIdx.x);
  const int warp = i / 32;
  const int token = call.by_top_k(i);
  const int k = i - token * call.top_k;
  bool active = false;
  int64_t id = 0;
  float weight = 0.0f;
  if (i < slots) {
    const int64_t at = token * call.id_strides[0] + k * call.id_strides[1];
    id = call.wide_ids ? static_cast<const int64_t*>(call.ids)[at]
                       : static_cast<int64_t>(static_cast<const int32_t*>(call.ids)[at]);
    weight = call.weights[token * call.weight_strides[0] + k * call.weight_strides[1]];
    const bool is_expert = id >= 0 && id < call.experts;
    active = is_expert && weight != 0.0f;
    if (!is_expert && !call.mask_invalid && blockIdx.x == 0 && call.first_phase == 0) atomicAdd(call.errors, 1ull);
  }
  const unsigned int of_warp = __ballot_sync(0xFFFFFFFFu, active);
  if (i % 32 == 0 && warp < kFusedSlots / 32) shared.warp_slots[warp] = __popc(of_warp);
  __syncthreads();
  if (i < slots) {
    int slot = __popc(of_warp & ((1u << i % 32) - 1));
    for (int w = 0; w < warp; ++w) slot += shared.warp_slots[w];
    if (k == 0) shared.first_slot[token] = slot;
    if (i == slots - 1) shared.first_slot[call.tokens] = slot + active;
    if (active) {
      shared.token[slot] = token;
      shared.expert[slot] = static_cast<int>(id);
      shared.weight[slot] = weight;
    }
  }
  __syncthreads();
}

__device__ __forceinline__ int vector_of(const FusedShared& shared, int phase, int slot) {
  return phase == 0 ? shared.token[slot] : slot;
}

__device__ __forceinline__ Batch next_batch(const FusedCall& call, const FusedShared& shared, int phase, int begin, int last,
                                            int share) {
  const FusedMatrix& m = call.matrix[phase];
  Batch batch;
  batch.phase = phase;
  batch.begin = begin;
  batch.last = last;
  batch.share = share;
  batch.first_slot = m.by_rows(begin);
  batch.vector_base = vector_of(shared, phase, batch.first_slot);
  batch.end = min(last, begin + call.rows_fit[phase][0]);
  batch.vectors = 1;
  if (vector_of(shared, phase, m.by_rows(batch.end - 1)) != batch.vector_base) {
    int slot = batch.first_slot + 1;  // of the second vector
    while (vector_of(shared, phase, slot) == batch.vector_base) ++slot;
    if (call.vectors[phase] < 2 || begin + call.rows_fit[phase][1] <= slot * m.rows) {
      batch.end = min(batch.end, slot * m.rows);
    } else {
      batch.end = min(batch.end, begin + call.rows_fit[phase][1]);
      batch.vectors = 2;
      const int second = vector_of(shared, phase, slot);
      while (slot * m.rows < batch.end && vector_of(shared, phase, slot) == second) ++slot;
      batch.end = min(batch.end, slot * m.rows);
    }
  }
  batch.end_slot = m.by_rows(batch.end - 1) + 1;
  return batch;
}

// The first row of thread block b's part of all slots' rows, in equal parts.
__device__ __forceinline__ int first_row(const FusedCall& call, const FusedMatrix& m, int slots, int b) {
  const int all = slots * m.rows;
  const int part = call.by_thread_blocks(all);
  return part * b + call.by_thread_blocks((all - part * static_cast<int>(gridDim.x)) * b);
}

// By two warps: where the rows in hand lie, and their scales.
__device__ __forceinline__ void list_rows(const FusedCall& call, FusedShared& shared, const Batch& batch, int thread,
                                          int threads) {
  const FusedMatrix& m = call.matrix[batch.phase];
#pragma unroll 1
  for (int i = thread; i < batch.end - batch.begin; i += threads) {
    const int slot = m.by_rows(batch.begin + i);
    const int row = batch.begin + i - slot * m.rows;
    const int expert = shared.expert[slot];
    const int vector = vector_of(shared, batch.phase, slot) - batch.vector_base;
    const int64_t tile_row = static_cast<int64_t>(expert) * m.groups + row / kGroupRows;
    Row r;
    r.code = static_cast<uint32_t>(tile_row * m.chunks * kGroupRows + row % kGroupRows);
    r.x = call.first_vector + vector * call.vector_stride[batch.phase];
#pragma unroll
    for (int s = 1; s < 3; ++s) r.scale[s - 1] = s < m.stages ? m.scale[s][expert] : 0.0f;
    shared.rows[i] = r;
    shared.row_scales[i] = {m.scale[0][expert], m.stages > 3 ? m.scale[3][expert] : 0.0f};
  }
}

// By one thread: the rows in hand in tiles of one vector.
__device__ __forceinline__ void list_tiles(const FusedCall& call, FusedShared& shared, const Batch& batch) {
  const int rows = call.matrix[batch.phase].rows;
  int count = 0;
#pragma unroll 1
  for (int slot = batch.first_slot; slot < batch.end_slot; ++slot) {
    const int end = min(batch.end, (slot + 1) * rows) - batch.begin;
#pragma unroll 1
    for (int at = max(batch.begin, slot * rows) - batch.begin; at < end; at += kTileRows) {
      shared.tiles[count++] = {at, min(kTileRows, end - at)};
    }
  }
  shared.tile_count = count;
}

// By one warp: asks L2 for the signs that are needed after the product.
__device__ __forceinline__ void prefetch_signs(const FusedCall& call, const FusedShared& shared, const Batch& batch) {
  const FusedMatrix& m = call.matrix[batch.phase];
  const int lane = own_thread() % 32;
  if (batch.phase < call.last_phase) prefetch(call.matrix[1].sv, 2 * call.matrix[1].cols, lane, 32);
#pragma unroll 1
  for (int slot = batch.first_slot; slot < batch.end_slot; ++slot) {
    prefetch(m.su + static_cast<int64_t>(shared.expert[slot]) * m.rows, 2 * m.rows, lane, 32);
  }
}

// Asks L2 for what a thread (exact) or a warp (fast) reads first.
template <class C>
__device__ __forceinline__ void prefetch_codes(const FusedCall& call, const FusedShared& shared) {
  const FusedMatrix& m = call.matrix[shared.batch.phase];
  const int rows = shared.batch.end - shared.batch.begin;
  int row, chunk;
  if (C::kFast) {
    const Spans spans(m, shared.tile_count, C::kThreads);
    if (spans.begin == spans.end) return;
    const int tile = spans.begin / spans.of_tile;
    const int lane = own_thread() % 32;
    row = min(shared.tiles[tile].row + lane % kTileRows, rows - 1);
    chunk = (spans.begin - tile * spans.of_tile) / 2 * 4 + lane / kTileRows;
  } else {
    chunk = own_thread() / rows;
    row = own_thread() - chunk * rows;
  }
  if (chunk >= m.chunks) return;
  const int64_t at = static_cast<int64_t>(shared.rows[row].code) + chunk * kGroupRows;
#pragma unroll
  for (int s = 0; s < kFusedStages; ++s) {
    if (s < m.stages) {
      prefetch_l2(reinterpret_cast<const uint4*>(m.codes[s]) + at);
      if (C::kFast && chunk + 2 < m.chunks) prefetch_l2(reinterpret_cast<const uint4*>(m.codes[s]) + at + 2 * kGroupRows);
    }
  }
}

}  // namespace glq
