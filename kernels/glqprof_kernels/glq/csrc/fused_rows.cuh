// Exact: thread blocks share out rows, each an equal number, and hand on one sum a row.
#pragma once

#include "fused_exact_product.cuh"
#include "fused_shared.cuh"

namespace glq {

struct RowItems {
  Row rows[kFusedRows];
  RowScale scales[kFusedRows];
};

struct RowShare {
  using Items = RowItems;

  static __device__ __forceinline__ Batch next_batch(const FusedCall& call, const Slots& shared, int phase, int begin, int last,
                                                     int share) {
    const FusedMatrix& m = call.matrix[phase];
    Batch batch = batch_from(m, shared, phase, begin, last, share);
    batch.end = min(last, begin + call.rows_fit[phase][0]);
    batch.vectors = 1;
    if (vector_of(shared, phase, m.by_items(batch.end - 1)) != batch.vector_base) {
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
    batch.end_slot = m.by_items(batch.end - 1) + 1;
    return batch;
  }

  // The first row of thread block b's part of all slots' rows, in equal parts.
  static __device__ __forceinline__ int first_item(const FusedCall& call, const FusedMatrix& m, int slots, int b) {
    const int all = slots * m.rows;
    const int part = call.by_thread_blocks(all);
    return part * b + call.by_thread_blocks((all - part * static_cast<int>(gridDim.x)) * b);
  }

  // By two warps: where the rows in hand lie, and their scales.
  static __device__ __forceinline__ void list_rows(const FusedCall& call, FusedShared<RowItems>& shared, const Batch& batch,
                                                   int thread, int threads) {
    const FusedMatrix& m = call.matrix[batch.phase];
#pragma unroll 1
    for (int i = thread; i < batch.end - batch.begin; i += threads) {
      const int slot = m.by_items(batch.begin + i);
      const int row = batch.begin + i - slot * m.rows;
      const int expert = shared.expert[slot];
      const int vector = vector_of(shared, batch.phase, slot) - batch.vector_base;
      const int64_t tile_row = static_cast<int64_t>(expert) * m.groups + row / kGroupRows;
      Row r;
      r.code = static_cast<uint32_t>(tile_row * m.chunks * kGroupRows + row % kGroupRows);
      r.x = call.first_vector + vector * call.vector_stride[batch.phase];
#pragma unroll
      for (int s = 1; s < 3; ++s) r.scale[s - 1] = s < m.stages ? m.scale[s][expert] : 0.0f;
      shared.items.rows[i] = r;
      shared.items.scales[i] = {m.scale[0][expert], m.stages > 3 ? m.scale[3][expert] : 0.0f};
    }
  }

  // By the last two warps, for the product.
  template <class C>
  static __device__ __forceinline__ void prepare(const FusedCall& call, FusedShared<RowItems>& shared, const Batch& batch,
                                                 int thread) {
    list_rows(call, shared, batch, thread, 64);
  }

  // Asks L2 for every thread's first job.
  static __device__ __forceinline__ void prefetch_codes(const FusedCall& call, const FusedShared<RowItems>& shared) {
    const FusedMatrix& m = call.matrix[shared.batch.phase];
    const int rows = shared.batch.end - shared.batch.begin;
    const int chunk = own_thread() / rows;
    if (chunk >= m.chunks) return;
    const int64_t at = static_cast<int64_t>(shared.items.rows[own_thread() - chunk * rows].code) + chunk * kGroupRows;
#pragma unroll
    for (int s = 0; s < kFusedStages; ++s) {
      if (s < m.stages) prefetch_l2(reinterpret_cast<const uint4*>(m.codes[s]) + at);
    }
  }

  template <int STAGES, bool SMALL, class C, typename Ready>
  static __device__ __forceinline__ void multiply(const FusedCall& call, FusedShared<RowItems>& shared, const float* dynamic,
                                                  float* room, const Tables& tables, Ready ready) {
    const Batch& batch = shared.batch;
    const RowsInHand hand{shared.items.rows,      shared.items.scales, dynamic, room, call.sums[batch.phase] + batch.begin,
                          batch.end - batch.begin};
    exact_product<STAGES, SMALL, C>(call.matrix[batch.phase], tables, hand, ready);
  }
};

}  // namespace glq
