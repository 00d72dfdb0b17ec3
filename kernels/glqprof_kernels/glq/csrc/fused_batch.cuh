// What a thread block knows of its launch: the slots that take part, and how they are found.
#pragma once

#include "fused_shared.cuh"
#include "fused_transform.cuh"

namespace glq {

__device__ __forceinline__ void mark(const FusedCall& call, int phase, Mark which) {
  if (call.timeline != nullptr && threadIdx.x == 0) {
    read_clocks(call.timeline + 2 * (static_cast<int64_t>(phase * gridDim.x + blockIdx.x) * kMarks + which));
  }
}

// Transforms need fewer warps than a block has: the last ones prepare the product meanwhile, each its part.
enum Duty : int { kItemsDuty = 1, kMoreItemsDuty, kCopyDuty };

template <class C>
__device__ __forceinline__ bool has_duty(Duty duty) {
  return own_thread() / 32 == C::kThreads / 32 - duty;
}

// One thread a slot. Ends with a barrier.
template <class C>
__device__ __forceinline__ void find_slots(const FusedCall& call, Slots& shared) {
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

// By one warp: asks L2 for the signs that are needed after the product.
__device__ __forceinline__ void prefetch_signs(const FusedCall& call, const Slots& shared, const Batch& batch) {
  const FusedMatrix& m = call.matrix[batch.phase];
  const int lane = own_thread() % 32;
  if (batch.phase < call.last_phase) prefetch(call.matrix[1].sv, 2 * call.matrix[1].cols, lane, 32);
#pragma unroll 1
  for (int slot = batch.first_slot; slot < batch.end_slot; ++slot) {
    prefetch(m.su + static_cast<int64_t>(shared.expert[slot]) * m.rows, 2 * m.rows, lane, 32);
  }
}

}  // namespace glq
