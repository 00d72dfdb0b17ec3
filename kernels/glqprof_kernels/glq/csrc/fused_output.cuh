// After the down product: a slot's output, and the sum of a token's slots.
#pragma once

#include "fused_batch.cuh"

namespace glq {

// Words that are not there, for the next call: `thread` of `threads` stores its part.
__device__ __forceinline__ void clear_words(float* words, int count, int thread, int threads) {
#pragma unroll 1
  for (int i = 4 * thread; i < count; i += 4 * threads) {
    store_words(words + i, make_uint4(kMissing, kMissing, kMissing, kMissing));
  }
}

// A slot's sums of both phases.
__device__ __forceinline__ void clear_sums(const FusedCall& call, int slot, int thread, int threads) {
#pragma unroll 1
  for (int phase = 0; phase < 2; ++phase) {
    const int count = call.matrix[phase].parts * call.matrix[phase].sum_rows;
    clear_words(call.sums[phase] + static_cast<int64_t>(slot) * count, count, thread, threads);
  }
}

// Expert outputs that are asked for before the first is used.
constexpr int kLoadsAtOnce = 6;

// A step of a token's sum over its slots.
template <class C>
__device__ __forceinline__ void add_weighted(float (&sum)[8], float weight, const float (&value)[8]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    sum[k] = C::kFast ? fma_once(weight, value[k], sum[k])
                      : half_to_float(round_to_half(add(sum[k], mul(weight, value[k]))));
  }
}

// Eight elements of the sum over a token's slots but the last, in top-k order, as soon as they are there; each word is read
// here alone, and cleared.
template <class C>
__device__ __forceinline__ void add_others(const FusedCall& call, const Slots& shared, int token, int first,
                                           float (&sum)[8]) {
  const int n = call.matrix[1].rows;
  const int last = shared.first_slot[token + 1] - 1;
  constexpr int kBytes = C::kFast ? 4 : 2;
  constexpr int kParts = kBytes / 2;  // of 16 bytes, fp16 (exact) or fp32
#pragma unroll 1
  for (int from = shared.first_slot[token]; from < last; from += kLoadsAtOnce) {
    unsigned char* e = static_cast<unsigned char*>(call.expert_out) + (static_cast<int64_t>(from) * n + first) * kBytes;
    uint4 words[kParts * kLoadsAtOnce];
    load_when_there<kParts, kLoadsAtOnce>(words, e, n * kBytes, last - from);
#pragma unroll
    for (int j = 0; j < kLoadsAtOnce; ++j) {
      if (from + j >= last) break;
      float value[8];
      if (C::kFast) {
#pragma unroll
        for (int k = 0; k < 8; ++k) value[k] = __uint_as_float(part_of(words[kParts * j + k / 4 * (kParts - 1)], k % 4));
      } else {
        unpack8(words[j], value);
      }
      add_weighted<C>(sum, shared.weight[from + j], value);
      clear_words(reinterpret_cast<float*>(e + j * n * kBytes), 2 * kBytes, 0, 1);
    }
  }
}

template <class C>
__device__ __forceinline__ void write_zeros(const FusedCall& call, int token) {
  const int n = call.matrix[1].rows;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += C::kThreads) call.out[static_cast<int64_t>(token) * n + i] = 0;
}

// Output transform's end of a slot; the block that has a token's last slot adds the token's slots up. Whoever has seen all down
// sums of a slot knows that every reader of its up sums is done with them, and clears both.
template <class C>
__device__ __forceinline__ void finish_slot(const FusedCall& call, Slots& shared, const float* data, int slot) {
  const FusedMatrix& m = call.matrix[1];
  const uint16_t* su = m.su + static_cast<int64_t>(shared.expert[slot]) * m.rows;
  const int token = shared.token[slot];
  const bool last = slot + 1 == shared.first_slot[token + 1];
#pragma unroll 1
  for (int first = own_thread() * 8; first < m.rows; first += C::kThreads * 8) {
    float sum[8] = {};
    if (last) add_others<C>(call, shared, token, first, sum);
    float v[8];
    output_values(data, su, first, m.rows, v);
    const int64_t at = static_cast<int64_t>(slot) * m.rows + first;
    if (last) {
#pragma unroll
      for (int k = 0; k < 8; ++k) v[k] = C::kFast ? v[k] : half_to_float(round_to_half(v[k]));
      add_weighted<C>(sum, shared.weight[slot], v);
      store_halves(call.out + static_cast<int64_t>(token) * m.rows + first, sum);
    } else if (C::kFast) {
      store_float_words(static_cast<float*>(call.expert_out) + at, v);
    } else {
      store_halves(static_cast<uint16_t*>(call.expert_out) + at, v);
    }
  }
  // By the warps that have no outputs, while the others wait for those of other slots; by all where there are few such.
  const int busy = (m.rows / 8 + 31) / 32 * 32;
  const int idle = busy > C::kThreads / 4 * 3 ? 0 : busy;
  const int thread = static_cast<int>(threadIdx.x) - idle;
  if (thread >= 0) clear_sums(call, slot, thread, C::kThreads - idle);
}

}  // namespace glq
