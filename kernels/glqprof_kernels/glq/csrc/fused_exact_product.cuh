// The exact product, of the rows that a thread block has in hand.
//
// A thread takes (row, chunk of eight blocks) jobs in turn, in equal numbers; the four pair sums of a job go to shared memory,
// and when all are there one thread a (row, split) adds them up in order. So work is even to a job, however few rows there are,
// and what must be in order is a fiftieth of it.
#pragma once

#include "fused_call.h"
#include "fused_decode.cuh"

namespace glq {

// One row in hand.
struct alignas(16) Row {
  uint32_t code;   // its first chunk, in 16-byte units from the start of the codes
  int x;           // float index of its input vector
  float scale[2];  // r of stages 2 and 3
};
struct alignas(8) RowScale {
  float scale;   // wscale
  float fourth;  // r of stage 4
};

// What a product works on, besides the matrix.
struct RowsInHand {
  const Row* rows;
  const RowScale* scales;
  const float* dynamic;  // shared memory, for Row::x
  float* room;           // for pair sums
  float* sums;           // of the first row in hand, in global memory
  int count;             // of rows
};

// STAGES of the matrix; SMALL: the third reads the small table.
template <int STAGES, bool SMALL, int PLACE, int HALF>
__device__ __forceinline__ float exact_block(const Tables& tables, const uint32_t (&word)[STAGES], const float (&scale)[STAGES],
                                             const float4& x_low, const float4& x_high) {
  float c[8];
  unpack_nibbles(entry_of<PLACE, SMALL, HALF>(tables, 0, word[0]), tables.exponents, c);
#pragma unroll
  for (int s = 1; s < STAGES; ++s) {
    float next[8];
    unpack_nibbles(entry_of<PLACE, SMALL, HALF>(tables, s, word[s]), tables.exponents, next);
#pragma unroll
    for (int k = 0; k < 8; ++k) c[k] = fma_once(scale[s], next[k], c[k]);
  }
  const float x[8] = {x_low.x, x_low.y, x_low.z, x_low.w, x_high.x, x_high.y, x_high.z, x_high.w};
  float p[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) p[k] = mul(c[k], x[k]);
  return add(add(add(p[0], p[4]), add(p[2], p[6])), add(add(p[1], p[5]), add(p[3], p[7])));
}

// The rows' sums of the pair sums in hand.room: of a split in order, then of the splits in order.
template <int THREADS>
__device__ __forceinline__ void chain_pairs(const FusedMatrix& m, const RowsInHand& hand) {
  const int thread = own_thread();
  const int split_chunks = m.split_blocks / kChunkBlocks;
  const float4* pairs = reinterpret_cast<const float4*>(hand.room);
#pragma unroll 1
  for (int i = thread; i < hand.count * m.splits; i += THREADS) {
    const int split = i / hand.count;
    const int row = i - split * hand.count;
    const int first = split * split_chunks;
    const int end = min(first + split_chunks, m.chunks);
    float acc = 0.0f;
#pragma unroll 4
    for (int chunk = first; chunk < end; ++chunk) {
      const float4 pair = pairs[chunk * hand.count + row];
      acc = add(add(add(add(acc, pair.x), pair.y), pair.z), pair.w);
    }
    hand.room[4 * (first * hand.count + row)] = mul(acc, hand.scales[row].scale);  // no other thread reads this split's pairs
  }
  __syncthreads();
#pragma unroll 1
  for (int row = thread; row < hand.count; row += THREADS) {
    float y = 0.0f;
#pragma unroll 1
    for (int split = 0; split < m.splits; ++split) y = add(y, hand.room[4 * (split * split_chunks * hand.count + row)]);
    store_words(hand.sums + row, y);
  }
}

// Past the end of a row the codes are 0 and the inputs +0, so that a pair sum there is a zero, or an odd last block's sum
// and a zero: neither changes a sum that began at +0 (and is never -0). Scales are finite (fused.py). ready(): waits for the
// inputs and the table.
template <int STAGES, bool SMALL, class C, typename Ready>
__device__ __forceinline__ void exact_product(const FusedMatrix& m, const Tables& tables, const RowsInHand& hand, Ready ready) {
  const int jobs = hand.count * m.chunks;
  const int thread = own_thread();
  const int chunk_step = C::kThreads / hand.count;
  const int row_step = C::kThreads - chunk_step * hand.count;
  int chunk = thread / hand.count;  // of the job whose codes are asked for
  int row = thread - chunk * hand.count;
  const uint4* planes[STAGES];
#pragma unroll
  for (int s = 0; s < STAGES; ++s) planes[s] = reinterpret_cast<const uint4*>(m.codes[s]);
  uint4 ahead[STAGES];
  auto fetch = [&] {
    const bool inside = chunk < m.chunks;
    const uint32_t at = hand.rows[row].code + static_cast<uint32_t>(chunk) * kGroupRows;
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
      ahead[s] = make_uint4(0, 0, 0, 0);
      if (inside) ahead[s] = load_codes(planes[s] + at);
    }
  };
  fetch();
  ready();
  float4* pairs = reinterpret_cast<float4*>(hand.room) + thread;
  // All lanes of a warp stay together; those beyond the last job compute along and store nothing.
#pragma unroll 1
  for (int left = jobs - thread, any = jobs - thread / 32 * 32; any > 0; left -= C::kThreads, any -= C::kThreads) {
    uint4 codes[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES; ++s) codes[s] = ahead[s];
    const Row in_hand = hand.rows[row];
    const float4* x = reinterpret_cast<const float4*>(hand.dynamic + in_hand.x + min(chunk, m.chunks - 1) * (kChunkBlocks * 8));
    float scale[STAGES];
#pragma unroll
    for (int s = 1; s < STAGES; ++s) scale[s] = s < 3 ? in_hand.scale[s - 1] : hand.scales[row].fourth;
    row += row_step;
    chunk += chunk_step;
    if (row >= hand.count) {
      row -= hand.count;
      ++chunk;
    }
    fetch();
    float pair[4];
    // In halves: the instruction cache holds a short loop better than a long one without jumps.
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      pair[0] = pair[2];
      pair[1] = pair[3];
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        uint32_t word[STAGES];
#pragma unroll
        for (int s = 0; s < STAGES; ++s) word[s] = w == 0 ? codes[s].x : codes[s].y;
        pair[2 + w] = add(exact_block<STAGES, SMALL, C::kPlace, 0>(tables, word, scale, x[4 * w], x[4 * w + 1]),
                          exact_block<STAGES, SMALL, C::kPlace, 1>(tables, word, scale, x[4 * w + 2], x[4 * w + 3]));
      }
#pragma unroll
      for (int s = 0; s < STAGES; ++s) {
        codes[s].x = codes[s].z;
        codes[s].y = codes[s].w;
      }
      x += 8;
    }
    if (left > 0) *pairs = make_float4(pair[0], pair[1], pair[2], pair[3]);
    pairs += C::kThreads;
  }
  __syncthreads();
  chain_pairs<C::kThreads>(m, hand);
}

}  // namespace glq
