// Fast: thread blocks share out units of 16 rows x one split, equally costly parts, and hand on a sum a unit's row.
#pragma once

#include "fused_fast_product.cuh"
#include "fused_shared.cuh"

namespace glq {

struct UnitItems {
  Unit units[kFusedUnits];
  float scales[kFusedSlots][kFusedStages];
  int taken;
};

struct UnitShare {
  using Items = UnitItems;

  static __device__ __forceinline__ Batch next_batch(const FusedCall& call, const Slots& shared, int phase, int begin, int last,
                                                     int share) {
    const FusedMatrix& m = call.matrix[phase];
    Batch batch = batch_from(m, shared, phase, begin, last, share);
    const int most = min(last, begin + kFusedUnits);
    batch.end_slot = m.by_items(most - 1) + 1;
    while (vector_of(shared, phase, batch.end_slot - 1) - batch.vector_base >= call.vectors[phase]) --batch.end_slot;
    batch.end = min(most, batch.end_slot * m.items);
    batch.vectors = vector_of(shared, phase, batch.end_slot - 1) - batch.vector_base + 1;
    return batch;
  }

  // The first unit that starts at or after thread block b's part of all blocks of eight, in equal parts.
  static __device__ __forceinline__ int first_item(const FusedCall& call, const FusedMatrix& m, int slots, int b) {
    const int all = slots * m.row_groups * m.blocks;
    const int part = call.by_thread_blocks(all);
    const int at = part * b + call.by_thread_blocks((all - part * static_cast<int>(gridDim.x)) * b);
    const int row_group = m.by_blocks(at);
    return row_group * m.splits + m.by_split_blocks(at - row_group * m.blocks + m.split_blocks - 1);
  }

  // By one warp: the batch's units. Full ones come first in the list: the short ones, of a last split, even out the end.
  static __device__ __forceinline__ void list_units(const FusedCall& call, FusedShared<UnitItems>& shared, const Batch& batch,
                                                    int warps) {
    const int phase = batch.phase;
    const FusedMatrix& m = call.matrix[phase];
    const int lane = own_thread() % 32;
    const int before = m.by_splits(batch.begin);
    const int count = batch.end - batch.begin;
    const int full = count - (m.by_splits(batch.end) - before);
    const int padded_rows = m.groups * kGroupRows;
    if (lane == 0) shared.items.taken = warps;
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
      shared.items.units[split + 1 == m.splits ? full + last_splits : unit - batch.begin - last_splits] = u;
    }
  }

  // By one warp: the scales of the batch's slots.
  static __device__ __forceinline__ void load_scales(const FusedCall& call, FusedShared<UnitItems>& shared,
                                                     const Batch& batch) {
    const int lane = own_thread() % 32;
    const FusedMatrix& m = call.matrix[batch.phase];
#pragma unroll 1
    for (int slot = batch.first_slot + lane; slot < batch.end_slot; slot += 32) {
#pragma unroll
      for (int s = 0; s < kFusedStages; ++s)
        shared.items.scales[slot][s] = s < m.stages ? m.scale[s][shared.expert[slot]] : 0.0f;
    }
  }

  // By the last two warps, for the product.
  template <class C>
  static __device__ __forceinline__ void prepare(const FusedCall& call, FusedShared<UnitItems>& shared, const Batch& batch,
                                                 int thread) {
    if (thread < 32) {
      list_units(call, shared, batch, C::kThreads / 32);
    } else {
      load_scales(call, shared, batch);
    }
  }

  // Asks L2 for every warp's first unit.
  static __device__ __forceinline__ void prefetch_codes(const FusedCall& call, const FusedShared<UnitItems>& shared) {
    const Batch& batch = shared.batch;
    const FusedMatrix& m = call.matrix[batch.phase];
    const int warp = own_thread() / 32;
    if (warp >= batch.end - batch.begin) return;
    constexpr int kParts = kUnitRows / 2;  // 32 bytes, of a chunk's rows
    const Unit& unit = shared.items.units[warp];
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

  template <int STAGES, bool SMALL, class C, typename Ready>
  static __device__ __forceinline__ void multiply(const FusedCall& call, FusedShared<UnitItems>& shared, const float* dynamic,
                                                  float*, const Tables& tables, Ready ready) {
    const Batch& batch = shared.batch;
    const UnitList list{shared.items.units, batch.end - batch.begin, &shared.items.taken};
    fast_product<STAGES, SMALL, C>(call.matrix[batch.phase], tables, list, shared.items.scales, shared.vector_scale, dynamic,
                                   call.sums[batch.phase], ready);
  }
};

}  // namespace glq
