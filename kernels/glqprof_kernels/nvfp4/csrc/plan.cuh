// The routing plan: which rows each expert computes, in items. One thread block; experts ascending, rows in the order of
// (token, slot), as routing.py defines it.
#pragma once

#include "moe_call.h"
#include "platform.cuh"

namespace nvfp4 {

constexpr int kPlanThreads = 256;
constexpr uint16_t kNoExpert = 0xFFFF;

inline size_t plan_shared_bytes(int experts, int slots) {
  return static_cast<size_t>(experts) * 3 * sizeof(int) + (static_cast<size_t>(slots) + 1) / 2 * 2 * sizeof(uint16_t);
}

__device__ __forceinline__ int items_of(int rows, int item_rows) { return (rows + item_rows - 1) / item_rows; }

// Exclusive sums of rows and items over the experts, by one warp; each lane takes consecutive ones. Returns the totals.
__device__ __forceinline__ int2 scan_experts(const int* count, int* row_at, int* item_at, int experts, int item_rows) {
  const int lane = threadIdx.x % 32;
  const int each = (experts + 31) / 32;
  const int begin = min(lane * each, experts), end = min(begin + each, experts);
  int rows = 0, items = 0;
  for (int e = begin; e < end; ++e) {
    rows += count[e];
    items += items_of(count[e], item_rows);
  }
  int rows_before = rows, items_before = items;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int r = __shfl_sync(0xFFFFFFFFu, rows_before, lane - step), i = __shfl_sync(0xFFFFFFFFu, items_before, lane - step);
    rows_before += lane >= step ? r : 0;
    items_before += lane >= step ? i : 0;
  }
  const int2 total = make_int2(__shfl_sync(0xFFFFFFFFu, rows_before, 31), __shfl_sync(0xFFFFFFFFu, items_before, 31));
  rows_before -= rows;
  items_before -= items;
  for (int e = begin; e < end; ++e) {
    row_at[e] = rows_before;
    item_at[e] = items_before;
    rows_before += count[e];
    items_before += items_of(count[e], item_rows);
  }
  return total;
}

// Rows of x that lie otherwise than the expert kernels read them, into the workspace. The blocks after the first.
__device__ __forceinline__ void stage_inputs(const MoeCall& call) {
  uint16_t* to = const_cast<uint16_t*>(call.x);
  for (int token = blockIdx.x - 1; token < call.tokens; token += gridDim.x - 1) {
    const uint16_t* from = call.x_given + token * call.x_given_strides[0];
    for (int k = threadIdx.x; k < call.gate_up.inputs; k += kPlanThreads) {
      to[token * call.x_stride + k] = from[k * call.x_given_strides[1]];
    }
  }
}

// grid: one block of kPlanThreads; more where x is to be copied.
__global__ void NVFP4_LAUNCH_BOUNDS(kPlanThreads, 1) nvfp4_plan_kernel(const GLQ_KERNEL_PARAMETER MoeCall call) {
  GLQ_DYNAMIC_SHARED(int, counts);
  int* row_at = counts + call.experts;
  int* item_at = row_at + call.experts;
  uint16_t* expert_of = reinterpret_cast<uint16_t*>(item_at + call.experts);
  const int slots = call.tokens * call.top_k;
  for (int e = threadIdx.x; e < call.experts; e += kPlanThreads) counts[e] = 0;
  glq::wait_for_previous_kernel();
  glq::let_next_kernel_start();
  if (blockIdx.x > 0) {
    stage_inputs(call);
    return;
  }
  __syncthreads();
  for (int slot = threadIdx.x; slot < slots; slot += kPlanThreads) {
    const int token = slot / call.top_k, k = slot % call.top_k;
    const int64_t id = call.ids[token * call.id_strides[0] + k * call.id_strides[1]];
    const float weight = call.weights[token * call.weight_strides[0] + k * call.weight_strides[1]];
    const bool valid = id >= 0 && id < call.experts;
    if (!valid && !call.mask_invalid) atomicAdd(call.errors, 1ull);
    const bool wanted = valid && weight != 0.0f;
    expert_of[slot] = wanted ? static_cast<uint16_t>(id) : kNoExpert;
    if (wanted) atomicAdd(&counts[id], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int2 total = scan_experts(counts, row_at, item_at, call.experts, call.item_rows);
    if (threadIdx.x == 0) {
      call.plan[0] = total.y;
      call.plan[1] = total.x;
    }
  }
  __syncthreads();
  int* items = call.plan + kPlanHeader;
  for (int e = threadIdx.x; e < call.experts; e += kPlanThreads) {
    const int number = items_of(counts[e], call.item_rows);
    for (int i = 0; i < number; ++i) {
      int* item = items + static_cast<int64_t>(item_at[e] + i) * kItemWords;
      item[kExpert] = e;
      item[kFirst] = row_at[e] + i * call.item_rows;
      item[kCount] = min(call.item_rows, counts[e] - i * call.item_rows);
      item[kGroupFirst] = item_at[e];
      item[kGroupItems] = number;
    }
  }
  __syncthreads();
  // Rows in order: 32 slots at a time; counts becomes the number of an expert's rows that were placed.
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x;
  for (int e = lane; e < call.experts; e += 32) counts[e] = 0;
  __syncwarp();
  for (int first = 0; first < slots; first += 32) {
    const int slot = first + lane;
    const uint32_t expert = slot < slots ? expert_of[slot] : kNoExpert;
    const uint32_t same = __match_any_sync(0xFFFFFFFFu, expert);
    const uint32_t before = same & ((1u << lane) - 1);
    const int rank = expert == kNoExpert ? 0 : counts[expert] + __popc(before);
    __syncwarp();
    if (expert != kNoExpert) {
      const int item = item_at[expert] + rank / call.item_rows;
      items[static_cast<int64_t>(item) * kItemWords + kItemRows0 + rank % call.item_rows] = slot / call.top_k << 16 | slot % call.top_k;
      if (before == 0) counts[expert] += __popc(same);
    }
    __syncwarp();
  }
}

}  // namespace nvfp4
