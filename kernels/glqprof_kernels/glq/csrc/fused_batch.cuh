// What a thread block knows of its launch: the slots that take part, the batch of units in hand, and how both are found.
#pragma once

#include "fused_product.cuh"
#include "fused_transform.cuh"

namespace glq {

// Loads of 32 bytes in flight before the first is used.
constexpr int kLoadsAtOnce = 6;

// The units whose input vectors a block holds at a time.
struct Batch {
  int begin, end;           // of the phase's units, numbered by slot, then group of rows, then split
  int first_slot, end_slot;
  int vector_base;          // token (up) or slot (down) of the first input vector
  int vectors;
  int phase;
  int last;                 // end of the block's part of the phase
  int share;                // its begin
};

// A launch's slots that take part, in (token, top-k) order, and the units in hand.
struct FusedShared {
  Unit units[kFusedUnits];
  Batch batch;
  float scales[kFusedSlots][kFusedStages];
  float weight[kFusedSlots];
  int token[kFusedSlots];
  int expert[kFusedSlots];
  int first_slot[kFusedSlots + 1];  // of each token; [tokens]: all slots
  float vector_scale[kFusedVectors];
  unsigned int peak[kFusedVectors];
  unsigned long long table_ready;
  int warp_slots[kFusedSlots / 32];
  int taken;
};

__device__ __forceinline__ void mark(const FusedCall& call, int phase, Mark which) {
  if (call.timeline != nullptr && threadIdx.x == 0) {
    read_clocks(call.timeline + 2 * (static_cast<int64_t>(phase * gridDim.x + blockIdx.x) * kMarks + which));
  }
}

// Transforms need fewer warps than a block has: the last ones prepare the product meanwhile, each its part.
enum Duty : int { kUnitsDuty = 1, kScalesDuty, kCopyDuty };

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
  batch.first_slot = m.by_units(begin);
  batch.vector_base = vector_of(shared, phase, batch.first_slot);
  const int most = min(last, begin + kFusedUnits);
  batch.end_slot = m.by_units(most - 1) + 1;
  while (vector_of(shared, phase, batch.end_slot - 1) - batch.vector_base >= call.vectors[phase]) --batch.end_slot;
  batch.end = min(most, batch.end_slot * m.units);
  batch.vectors = vector_of(shared, phase, batch.end_slot - 1) - batch.vector_base + 1;
  return batch;
}

// The first unit that starts at or after thread block b's part of all blocks of eight, in equal parts.
__device__ __forceinline__ int first_unit(const FusedCall& call, const FusedMatrix& m, int slots, int b) {
  const int all = slots * m.row_groups * m.blocks;
  const int part = call.by_thread_blocks(all);
  const int at = part * b + call.by_thread_blocks((all - part * static_cast<int>(gridDim.x)) * b);
  const int row_group = m.by_blocks(at);
  return row_group * m.splits + m.by_split_blocks(at - row_group * m.blocks + m.split_blocks - 1);
}

// By one warp: the batch's units. Full ones come first in the list: the short ones, of a last split, even out the end.
template <class C>
__device__ __forceinline__ void list_units(const FusedCall& call, FusedShared& shared, const Batch& batch) {
  const int phase = batch.phase;
  const FusedMatrix& m = call.matrix[phase];
  const int lane = own_thread() % 32;
  const int before = m.by_splits(batch.begin);
  const int count = batch.end - batch.begin;
  const int full = count - (m.by_splits(batch.end) - before);
  const int padded_rows = m.groups * kGroupRows;
  if (lane < kFusedVectors) shared.peak[lane] = 0;
  if (lane == 0) shared.taken = C::kThreads / 32;
#pragma unroll 1
  for (int unit = batch.begin + lane; unit < batch.end; unit += 32) {
    const int row_group = m.by_splits(unit);
    const int split = unit - row_group * m.splits;
    const int last_splits = row_group - before;  // units of a last split before this one
    const int slot = m.by_row_groups(row_group);
    const int row = (row_group - slot * m.row_groups) * kUnitRows;
    const int vector = vector_of(shared, phase, slot) - batch.vector_base;
    const int first_block = split * m.split_blocks;
    Unit u;
    const int64_t tile_row = static_cast<int64_t>(shared.expert[slot]) * m.groups + row / kGroupRows;
    u.code = static_cast<uint64_t>((tile_row * m.chunks + first_block / kChunkBlocks) * kGroupRows + row % kGroupRows);
    u.x = call.first_vector + vector * call.vector_stride[phase] + first_block * 8;
    u.out = (slot * m.splits + split) * padded_rows + row;
    u.blocks = min(m.split_blocks, m.blocks - first_block);
    u.slot = slot;
    u.vector = vector;
    u.rows = min(kUnitRows, m.rows - row);
    shared.units[split + 1 == m.splits ? full + last_splits : unit - batch.begin - last_splits] = u;
  }
}

// By one warp: the scales of the batch's slots.
__device__ __forceinline__ void load_scales(const FusedCall& call, FusedShared& shared, const Batch& batch) {
  const int lane = own_thread() % 32;
  const FusedMatrix& m = call.matrix[batch.phase];
#pragma unroll 1
  for (int slot = batch.first_slot + lane; slot < batch.end_slot; slot += 32) {
#pragma unroll
    for (int s = 0; s < kFusedStages; ++s) shared.scales[slot][s] = s < m.stages ? m.scale[s][shared.expert[slot]] : 0.0f;
  }
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

// Asks L2 for every warp's first unit.
template <class C>
__device__ __forceinline__ void prefetch_codes(const FusedCall& call, const FusedShared& shared) {
  const Batch& batch = shared.batch;
  const FusedMatrix& m = call.matrix[batch.phase];
  const int warp = own_thread() / 32;
  if (warp >= batch.end - batch.begin) return;
  constexpr int kParts = kUnitRows / 2;  // 32 bytes, of a chunk's rows
  const Unit& unit = shared.units[warp];
  const int parts = (unit.blocks + kChunkBlocks - 1) / kChunkBlocks * kParts;
#pragma unroll 1
  for (int part = own_thread() % 32; part < parts; part += 32) {
    const uint64_t at = unit.code + part / kParts * kGroupRows + part % kParts * 2;
#pragma unroll
    for (int s = 0; s < kFusedStages; ++s) {
      if (s < m.stages) prefetch_l2(reinterpret_cast<const uint4*>(m.codes[s]) + at);
    }
  }
}

}  // namespace glq
