// After the down product: a slot's output, and the sum of a token's slots.
#pragma once

#include "fused_batch.cuh"

namespace glq {

// out = sum over the token's slots in top-k order.
template <class C>
__device__ __forceinline__ void combine(const FusedCall& call, FusedShared& shared, int token) {
  const int n = call.matrix[1].rows;
  const int begin = shared.first_slot[token];
  const int end = shared.first_slot[token + 1];
#pragma unroll 1
  for (int first = threadIdx.x * 8; first < n; first += C::kThreads * 8) {
    float sum[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) sum[k] = 0.0f;
#pragma unroll 1
    for (int from = begin; from < end; from += kLoadsAtOnce) {
      uint4 low[kLoadsAtOnce];  // fp16 (exact) or the first half of fp32
      uint4 high[kLoadsAtOnce];
#pragma unroll
      for (int j = 0; j < kLoadsAtOnce; ++j) {
        low[j] = high[j] = make_uint4(0, 0, 0, 0);
        if (from + j < end) {
          const int64_t at = static_cast<int64_t>(from + j) * n + first;
          if (C::kFast) {
            const uint4* e = reinterpret_cast<const uint4*>(static_cast<const float*>(call.expert_out) + at);
            low[j] = load_coherent(e);
            high[j] = load_coherent(e + 1);
          } else {
            low[j] = load_coherent(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(call.expert_out) + at));
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kLoadsAtOnce; ++j) {
        if (from + j >= end) break;
        const float weight = shared.weight[from + j];
        float e[8];
        if (C::kFast) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            e[k] = __uint_as_float(part_of(low[j], k));
            e[k + 4] = __uint_as_float(part_of(high[j], k));
          }
        } else {
          unpack8(low[j], e);
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          sum[k] = C::kFast ? fma_once(weight, e[k], sum[k])
                            : half_to_float(round_to_half(add(sum[k], mul(weight, e[k]))));
        }
      }
    }
    store_halves(call.out + static_cast<int64_t>(token) * n + first, sum);
  }
}

template <class C>
__device__ __forceinline__ void write_zeros(const FusedCall& call, int token) {
  const int n = call.matrix[1].rows;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += C::kThreads) call.out[static_cast<int64_t>(token) * n + i] = 0;
}

// Output transform's end of a slot; whoever finishes a token's last slot adds the token's slots up.
template <class C>
__device__ __forceinline__ void finish_slot(const FusedCall& call, FusedShared& shared, const float* data, int slot) {
  const FusedMatrix& m = call.matrix[1];
  const uint16_t* su = m.su + static_cast<int64_t>(shared.expert[slot]) * m.rows;
#pragma unroll 1
  for (int first = threadIdx.x * 8; first < m.rows; first += C::kThreads * 8) {
    float v[8];
    output_values(data, su, first, m.rows, v);
    const int64_t at = static_cast<int64_t>(slot) * m.rows + first;
    if (C::kFast) {
      store_floats(static_cast<float*>(call.expert_out) + at, v);
    } else {
      store_halves(static_cast<uint16_t*>(call.expert_out) + at, v);
    }
  }
  __syncthreads();
  const int token = shared.token[slot];
  if (threadIdx.x == 0) {
    call.done[slot] = 0;
    call.done[kFusedSlots + slot] = 0;
    const int count = shared.first_slot[token + 1] - shared.first_slot[token];
    shared.combine = add_acquire_release(&call.token_done[token], 1) + 1 == count;
    if (shared.combine) call.token_done[token] = 0;
  }
  __syncthreads();
  if (shared.combine) combine<C>(call, shared, token);
}

}  // namespace glq
