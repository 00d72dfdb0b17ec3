// Matrix-vector products of many experts at once: the rows that a thread block has in hand.
//
// Exact: a thread takes (row, chunk of eight blocks) jobs in turn, in equal numbers; the four pair sums of a job go to shared
// memory, and when all are there one thread a (row, split) adds them up in order. So work is even to a job, however few rows
// there are, and what must be in order is a fiftieth of it.
// Fast: the sums of each stage on the tensor cores, in integers. A = the nibbles as uint8, those of coordinates 0, 2, 4, 6 in a
// byte's lower half, the others in its upper half, each kind with a sum of its own: 2c + 8 and 32c + 128. B = the input in
// fixed point, 23 bits in three int8 parts, one part a column; the sum of the inputs takes the 128 away. A warp has an equal part of
// all half spans (tile of 16 rows x 4 chunks x half of each) and adds its integers to the rows' in shared memory: nothing is
// rounded before the end of a row, so who adds what cannot be told from the bits.
#pragma once

#include "fused_decode.cuh"
#include "fused_shared.cuh"

namespace glq {

// The contract's order, or a free one. SHARED_TABLE: a block's shared memory holds the table.
template <int THREADS, bool SHARED_TABLE>
struct ExactTraits {
  static constexpr bool kFast = false;
  static constexpr int kThreads = THREADS;
  static constexpr bool kSharedTable = SHARED_TABLE;
};
template <int THREADS, bool SHARED_TABLE>
struct FastTraits {
  static constexpr bool kFast = true;
  static constexpr int kThreads = THREADS;
  static constexpr bool kSharedTable = SHARED_TABLE;
};

struct Tables {
  const unsigned char* global;  // the table in global memory; a kernel with it in shared memory does not look
  uint32_t fold_bytes;
  uint32_t window;       // of the shared memory; 0 of a table in global memory
  uint32_t window_fold;  // window + fold_bytes
  Exponents exponents;
};

// What a product works on, besides the matrix.
struct Hand {
  const Row* rows;
  const RowScale* scales;
  const Tile* tiles;
  const float* vector_scale;
  const float* dynamic;    // shared memory, for Row::x
  float* room;             // for pair sums or integer sums
  float* sums;             // of the first row in hand, in global memory
  int count;               // of rows
  int tile_count;
  uint64_t policy;
};

__device__ __forceinline__ uint32_t part_of(const uint4& v, int k) {
  return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}

// The eight nibbles of a word's code of the even (0) or odd (1) block: of the big table, or, of a third stage that is SMALL, of
// the small words behind it.
template <bool SHARED, bool SMALL, int HALF>
__device__ __forceinline__ uint32_t entry_of(const Tables& tables, int stage, uint32_t word) {
  const bool small = SMALL && stage == 2;
  const uint32_t bytes = code_bytes<HALF>(word, tables.window);
  if constexpr (SHARED) {
    if (small) return shared_word<kTablePlace>(bytes);
    return folded_shared_word<kTablePlace, kNegation>(bytes, tables.window_fold, tables.fold_bytes);
  }
  const bool negated = !small && bytes >= tables.fold_bytes;
  const uint32_t entry = *reinterpret_cast<const uint32_t*>(tables.global + (negated ? bytes - tables.fold_bytes : bytes));
  return negated ? kNegation - entry : entry;
}

// STAGES of the matrix; SMALL: the third reads the small table.
template <int STAGES, bool SMALL, bool SHARED, int HALF>
__device__ __forceinline__ float exact_block(const Tables& tables, const uint32_t (&word)[STAGES], const float (&scale)[STAGES],
                                             const float4& x_low, const float4& x_high) {
  float c[8];
  unpack_nibbles(entry_of<SHARED, SMALL, HALF>(tables, 0, word[0]), tables.exponents, c);
#pragma unroll
  for (int s = 1; s < STAGES; ++s) {
    float next[8];
    unpack_nibbles(entry_of<SHARED, SMALL, HALF>(tables, s, word[s]), tables.exponents, next);
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
__device__ __forceinline__ void chain_pairs(const FusedMatrix& m, const Hand& hand) {
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
__device__ __forceinline__ void exact_product(const FusedMatrix& m, const Tables& tables, const Hand& hand, Ready ready) {
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
      if (inside) ahead[s] = load_stream(planes[s] + at, hand.policy);
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
        pair[2 + w] = add(exact_block<STAGES, SMALL, C::kSharedTable, 0>(tables, word, scale, x[4 * w], x[4 * w + 1]),
                          exact_block<STAGES, SMALL, C::kSharedTable, 1>(tables, word, scale, x[4 * w + 2], x[4 * w + 3]));
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

constexpr uint32_t kLowerHalves = 0x0F0F0F0Fu;

// A warp's part of the half spans of all tiles in hand.
struct Spans {
  int of_tile;
  int begin, end;

  __device__ __forceinline__ Spans(const FusedMatrix& m, int tiles, int threads) {
    of_tile = (m.chunks + 3) / 4 * 2;
    const int all = tiles * of_tile;
    const int warp = own_thread() / 32;
    begin = all * warp / (threads / 32);
    end = all * (warp + 1) / (threads / 32);
  }
};

// room: int [stage][part][row].
template <int STAGES, bool SMALL, class C, typename Ready>
__device__ __forceinline__ void fast_product(const FusedMatrix& m, const Tables& tables, const Hand& hand, Ready ready) {
  constexpr int kSpan = 4 * kChunkBlocks;
  constexpr bool kAhead = STAGES < 4;  // registers for a span's codes while the one before is used
  const int lane = own_thread() % 32;
  const int chunk = lane % 4;
  const int row = lane / 4;
  const Spans spans(m, hand.tile_count, C::kThreads);
  int* room = reinterpret_cast<int*>(hand.room);
  int at = spans.begin;
  int tile = at / spans.of_tile;
  int half_span = at - tile * spans.of_tile;
  uint4 ahead[STAGES][2];
  auto fetch = [&](int of_tile_index, int span) {
    const bool inside = span * 4 + chunk < m.chunks;  // past it the inputs are zeros
    const Tile t = hand.tiles[of_tile_index];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t from = hand.rows[t.row + min(row + 8 * half, t.rows - 1)].code + (span * 4 + chunk) * kGroupRows;
#pragma unroll
      for (int s = 0; s < STAGES; ++s) {
        ahead[s][half] = make_uint4(0, 0, 0, 0);
        // The pointer is read again: pointers would take registers.
        if (inside) ahead[s][half] = load_stream(reinterpret_cast<const uint4*>(m.codes[s]) + from, hand.policy);
      }
    }
  };

  if (kAhead && at < spans.end) fetch(tile, half_span / 2);
#pragma unroll 1
  for (int i = own_thread(); i < 3 * STAGES * hand.count; i += C::kThreads) room[i] = 0;
  ready();
  while (at < spans.end) {
    int even[STAGES][4] = {};
    int odd[STAGES][4] = {};
    int inputs = 0;  // of the lane's column and its quarter of k
    const int in_hand = tile;
    do {
      if (!kAhead) fetch(tile, half_span / 2);
      uint4 codes[STAGES][2];
#pragma unroll
      for (int s = 0; s < STAGES; ++s) {
        codes[s][0] = ahead[s][0];
        codes[s][1] = ahead[s][1];
      }
      const int first = half_span % 2;
      // A lane's columns beyond the fourth repeat: nothing reads them.
      const uint2* x = reinterpret_cast<const uint2*>(hand.dynamic + hand.rows[hand.tiles[tile].row].x +
                                                      half_span / 2 * (kSpan * 8)) +
                       first * (kChunkBlocks / 2 * 16) + chunk * 4 + row % 4;
      const int halves = min(2 - first, spans.end - at);
      at += halves;
      half_span += halves;
      if (half_span == spans.of_tile) {
        half_span = 0;
        ++tile;
      }
      if (kAhead && at < spans.end) fetch(tile, half_span / 2);
      auto upper_halves = [&] {
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            codes[s][r].x = codes[s][r].z;
            codes[s][r].y = codes[s][r].w;
          }
        }
      };
      if (first != 0) upper_halves();
#pragma unroll 1
      for (int half = 0; half < halves; ++half) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const uint2 b0 = x[2 * w * 16];
          const uint2 b1 = x[(2 * w + 1) * 16];
#pragma unroll
          for (int s = 0; s < STAGES; ++s) {
            const uint32_t upper = w == 0 ? codes[s][0].x : codes[s][0].y;
            const uint32_t lower = w == 0 ? codes[s][1].x : codes[s][1].y;
            const uint32_t a0 = entry_of<C::kSharedTable, SMALL, 0>(tables, s, upper);
            const uint32_t a1 = entry_of<C::kSharedTable, SMALL, 0>(tables, s, lower);
            const uint32_t a2 = entry_of<C::kSharedTable, SMALL, 1>(tables, s, upper);
            const uint32_t a3 = entry_of<C::kSharedTable, SMALL, 1>(tables, s, lower);
            multiply_u8s8(even[s], a0 & kLowerHalves, a1 & kLowerHalves, a2 & kLowerHalves, a3 & kLowerHalves, b0.x, b1.x);
            multiply_u8s8(odd[s], a0 & ~kLowerHalves, a1 & ~kLowerHalves, a2 & ~kLowerHalves, a3 & ~kLowerHalves, b0.y, b1.y);
          }
          inputs = add_bytes(b1.y, add_bytes(b1.x, add_bytes(b0.y, add_bytes(b0.x, inputs))));
        }
        upper_halves();
        x += kChunkBlocks / 2 * 16;
      }
    } while (tile == in_hand && at < spans.end);
    // Columns 0 and 1 are in lane 4g, columns 2 and 3 in lane 4g + 1; of rows g and g + 8. The inputs of column c: in lanes 4c
    // to 4c + 3.
    inputs += __shfl_xor_sync(0xFFFFFFFFu, inputs, 1);
    inputs += __shfl_xor_sync(0xFFFFFFFFu, inputs, 2);
    const Tile t = hand.tiles[in_hand];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int bias = 128 * __shfl_sync(0xFFFFFFFFu, inputs, 8 * chunk + 4 * k);
      const int part = 2 * chunk + k;
#pragma unroll
      for (int s = 0; s < STAGES; ++s) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int sum = 16 * even[s][2 * half + k] + odd[s][2 * half + k] - bias;
          if (part < 3 && row + 8 * half < t.rows) {
            atomicAdd(room + (3 * s + part) * hand.count + t.row + row + 8 * half, sum);
          }
        }
      }
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = own_thread(); i < hand.count; i += C::kThreads) {
    const float scale[4] = {1.0f, hand.rows[i].scale[0], hand.rows[i].scale[1], hand.scales[i].fourth};
    float total = 0.0f;
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
      float part[3];
#pragma unroll
      for (int k = 0; k < 3; ++k) part[k] = static_cast<float>(room[(3 * s + k) * hand.count + i]);
      total = fma_once(scale[s], fma_once(part[0], 65536.0f, fma_once(part[1], 256.0f, part[2])), total);
    }
    const float factor = mul(hand.scales[i].scale, hand.vector_scale[hand.rows[i].x != hand.rows[0].x ? 1 : 0]);
    store_words(hand.sums + i, mul(total, factor));
  }
}

template <int STAGES, bool SMALL, class C, typename Ready>
__device__ __forceinline__ void product_of(const FusedMatrix& m, const Tables& tables, const Hand& hand, Ready ready) {
  if constexpr (C::kFast) {
    fast_product<STAGES, SMALL, C>(m, tables, hand, ready);
  } else {
    exact_product<STAGES, SMALL, C>(m, tables, hand, ready);
  }
}

// One kernel for any number of stages: layers that differ in it share all other instructions in the cache.
template <class C, typename Ready>
__device__ __forceinline__ void product(const FusedMatrix& m, const Tables& tables, const Hand& hand, Ready ready) {
  if (m.stages == 2) {
    product_of<2, false, C>(m, tables, hand, ready);
  } else if (m.stages == 3 && m.small) {
    product_of<3, true, C>(m, tables, hand, ready);
  } else if (m.stages == 1) {
    product_of<1, false, C>(m, tables, hand, ready);
  } else if (m.stages == 3) {
    product_of<3, false, C>(m, tables, hand, ready);
  } else {
    product_of<4, false, C>(m, tables, hand, ready);
  }
}

}  // namespace glq
