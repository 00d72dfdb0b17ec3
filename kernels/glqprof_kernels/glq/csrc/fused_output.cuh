// After the down product: a slot's output, and the sum of a token's slots.
#pragma once

#include "fused_batch.cuh"

namespace glq {

// By `threads` threads, of which this is number `thread`: words that are not there, for the next call.
__device__ __forceinline__ void clear_words(float* words, int count, int thread, int threads) {
#pragma unroll 1
  for (int i = 4 * thread; i < count; i += 4 * threads) store_words(words + i, make_uint4(kMissing, kMissing, kMissing, kMissing));
}

// A slot's sums, when nobody reads them any more.
__device__ __forceinline__ void clear_sums(const FusedCall& call, int phase, int slot, int thread, int threads) {
  const FusedMatrix& m = call.matrix[phase];
  const int count = m.splits * m.groups * kGroupRows;
  clear_words(call.partial[phase] + static_cast<int64_t>(slot) * count, count, thread, threads);
}

// By one warp, after the block has made the batch's down vectors: whoever is the last to have read a slot's up sums clears
// them.
__device__ __forceinline__ void release_up_sums(const FusedCall& call, const FusedShared& shared) {
  const Batch& batch = shared.batch;
  const int of_slot = call.matrix[1].units;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int slot = batch.first_slot; slot < batch.end_slot; ++slot) {
    const int units = min(batch.end, (slot + 1) * of_slot) - max(batch.begin, slot * of_slot);
    int count = 0;
    if (lane == 0) count = add_acquire_release(&call.readers[slot], units) + units;
    if (__shfl_sync(0xFFFFFFFFu, count, 0) != of_slot) continue;
    clear_sums(call, 0, slot, lane, 32);
    if (lane == 0) call.readers[slot] = 0;
  }
}

// out = sum over the token's slots in top-k order, as soon as they are there; each is read here alone, and cleared.
template <class C>
__device__ __forceinline__ void combine(const FusedCall& call, FusedShared& shared, int token) {
  const int n = call.matrix[1].rows;
  const int begin = shared.first_slot[token];
  const int end = shared.first_slot[token + 1];
  constexpr int kBytes = C::kFast ? 4 : 2;
#pragma unroll 1
  for (int first = threadIdx.x * 8; first < n; first += C::kThreads * 8) {
    float sum[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) sum[k] = 0.0f;
#pragma unroll 1
    for (int from = begin; from < end; from += kLoadsAtOnce) {
      unsigned char* e = static_cast<unsigned char*>(call.expert_out) + (static_cast<int64_t>(from) * n + first) * kBytes;
      const int64_t apart = static_cast<int64_t>(n) * kBytes;
      uint4 low[kLoadsAtOnce];  // fp16 (exact) or the first half of fp32
      uint4 high[kLoadsAtOnce];
      bool missing;
      do {
        missing = false;
#pragma unroll
        for (int j = 0; j < kLoadsAtOnce; ++j) {
          low[j] = high[j] = make_uint4(0, 0, 0, 0);
          if (from + j < end) {
            low[j] = load_words(e + j * apart);
            if (C::kFast) high[j] = load_words(e + j * apart + 16);
          }
        }
#pragma unroll
        for (int j = 0; j < kLoadsAtOnce; ++j) missing = missing || any_missing(low[j]) || (C::kFast && any_missing(high[j]));
      } while (missing && keep_waiting());
#pragma unroll
      for (int j = 0; j < kLoadsAtOnce; ++j) {
        if (from + j >= end) break;
        const float weight = shared.weight[from + j];
        float value[8];
        if (C::kFast) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            value[k] = __uint_as_float(part_of(low[j], k));
            value[k + 4] = __uint_as_float(part_of(high[j], k));
          }
        } else {
          unpack8(low[j], value);
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          sum[k] = C::kFast ? fma_once(weight, value[k], sum[k])
                            : half_to_float(round_to_half(add(sum[k], mul(weight, value[k]))));
        }
      }
#pragma unroll 1
      for (int j = 0; from + j < min(end, from + kLoadsAtOnce); ++j) {
        clear_words(reinterpret_cast<float*>(e + j * apart), 2 * kBytes, 0, 1);
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

// Output transform's end of a slot; the block that has a token's last slot adds the token's slots up.
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
      store_float_words(static_cast<float*>(call.expert_out) + at, v);
    } else {
      store_halves(static_cast<uint16_t*>(call.expert_out) + at, v);
    }
  }
  clear_sums(call, 1, slot, static_cast<int>(threadIdx.x), C::kThreads);
  const int token = shared.token[slot];
  if (slot + 1 == shared.first_slot[token + 1]) combine<C>(call, shared, token);
}

}  // namespace glq
