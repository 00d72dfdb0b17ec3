// Matrix-vector products of many experts at once: units of rows x one split, taken by warps from a list.
//
// Exact: a lane owns a row's chunk of eight blocks in every span of LANES chunks, and computes whole pair sums; the first
// lane of a row adds all pair sums of a split in ascending order, so a (row, split) chain never leaves its warp.
// Fast: the sums of each stage on the tensor cores, in integers. A = the nibbles as uint8, those of coordinates 0, 2, 4, 6 in a
// byte's lower half, the others in its upper half, each kind with a sum of its own: 2c + 8 and 32c + 128. B = the input in
// fixed point, 23 bits in three int8 parts, one part a column; the sum of the inputs takes the 128 away. Nothing is rounded
// before the end of a split.
#pragma once

#include "fused_call.h"
#include "fused_decode.cuh"

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

constexpr int kExactLanes = 2;  // that share a row

// Rows x one split of one slot's matrix.
struct alignas(16) Unit {
  uint64_t code;  // first row's first chunk, in 16-byte units from the start of the codes
  int x;          // float index of the split's first input
  int out;        // index of the first row's t_q in `partial`
  int blocks;     // in the split
  int slot;
  int vector;
  int rows;       // 16, less at a matrix's end
};

struct Tables {
  const unsigned char* big;
  const unsigned char* small_words;
  uint32_t fold_bytes;
  Exponents exponents;
};

// Where a warp's next unit comes from.
struct UnitList {
  const Unit* units;
  int count;
  int* taken;  // shared: the next unit; a warp's first unit is its own number

  __device__ __forceinline__ int next(int lane) const {
    int index = 0;
    if (lane == 0) index = atomicAdd(taken, 1);
    return __shfl_sync(0xFFFFFFFFu, index, 0);
  }
};

__device__ __forceinline__ uint32_t part_of(const uint4& v, int k) {
  return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}

// STAGES of the matrix; SMALL: the third reads the small table.
template <int STAGES, bool SMALL, int HALF>
__device__ __forceinline__ float exact_block(const Tables& tables, const uint32_t (&word)[STAGES], const float (&scale)[STAGES],
                                             const float4& x_low, const float4& x_high) {
  float c[8];
  unpack_nibbles(folded_entry(tables.big, code_bytes<HALF>(word[0]), tables.fold_bytes), tables.exponents, c);
#pragma unroll
  for (int s = 1; s < STAGES; ++s) {
    float next[8];
    if (SMALL && s == 2) {
      const uint32_t entry = *reinterpret_cast<const uint32_t*>(tables.small_words + code_bytes<HALF>(word[s]));
      unpack_nibbles(entry, tables.exponents, next);
    } else {
      unpack_nibbles(folded_entry(tables.big, code_bytes<HALF>(word[s]), tables.fold_bytes), tables.exponents, next);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) c[k] = fma_once(scale[s], next[k], c[k]);
  }
  const float x[8] = {x_low.x, x_low.y, x_low.z, x_low.w, x_high.x, x_high.y, x_high.z, x_high.w};
  float p[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) p[k] = mul(c[k], x[k]);
  return add(add(add(p[0], p[4]), add(p[2], p[6])), add(add(p[1], p[5]), add(p[3], p[7])));
}

// Past the end of a row the codes are 0 and the inputs +0, so that a pair sum there is a zero, or an odd last block's sum
// and a zero: neither changes a sum that began at +0 (and is never -0). Scales are finite (fused.py).
template <int STAGES, bool SMALL>
__device__ __forceinline__ void exact_product(const FusedMatrix& m, const Tables& tables, const UnitList& list,
                                              const float (*scales)[kFusedStages], const float* shared,
                                              float* __restrict__ partial, uint64_t policy) {
  constexpr int kSpan = kExactLanes * kChunkBlocks;
  constexpr bool kAhead = STAGES < 4;  // registers for a span's codes while the one before is used
  const int lane = own_thread() % 32;
  const int chunk = lane % kExactLanes;
  const int row = lane / kExactLanes;
  const uint4* planes[STAGES];
#pragma unroll
  for (int s = 0; s < STAGES; ++s) planes[s] = reinterpret_cast<const uint4*>(m.codes[s]) + chunk * kGroupRows + row;

  uint4 ahead[STAGES];
  auto fetch = [&](const Unit& unit, int span) {
    const bool inside = span * kSpan + chunk * kChunkBlocks < unit.blocks;
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
      ahead[s] = make_uint4(0, 0, 0, 0);
      if (inside) ahead[s] = load_stream(planes[s] + unit.code + span * (kExactLanes * kGroupRows), policy);
    }
  };

  int index = threadIdx.x / 32;
  Unit unit = list.units[index < list.count ? index : 0];
  if (kAhead && index < list.count) fetch(unit, 0);
  while (index < list.count) {
    float scale[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES; ++s) scale[s] = scales[unit.slot][s];
    const Unit current = unit;
    const int in_hand = index;  // what is needed of the unit at its end is read again
    float acc = 0.0f;
    for (int span = 0; span * kSpan < current.blocks; ++span) {
      uint4 codes[STAGES];
      if (!kAhead) fetch(current, span);
#pragma unroll
      for (int s = 0; s < STAGES; ++s) codes[s] = ahead[s];
      if ((span + 1) * kSpan < current.blocks) {
        if (kAhead) fetch(current, span + 1);
      } else {
        index = list.next(lane);
        if (index < list.count) {
          unit = list.units[index];
          if (kAhead) fetch(unit, 0);
        }
      }
      const float4* x = reinterpret_cast<const float4*>(shared + current.x + (span * kExactLanes + chunk) * (kChunkBlocks * 8));
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
          pair[2 + w] = add(exact_block<STAGES, SMALL, 0>(tables, word, scale, x[4 * w], x[4 * w + 1]),
                            exact_block<STAGES, SMALL, 1>(tables, word, scale, x[4 * w + 2], x[4 * w + 3]));
        }
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
          codes[s].x = codes[s].z;
          codes[s].y = codes[s].w;
        }
        x += 8;
      }
#pragma unroll
      for (int from = 0; from < kExactLanes; ++from) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          // Only the first lane of a row has the chain; the others add along.
          acc = add(acc, from == 0 ? pair[w] : __shfl_down_sync(0xFFFFFFFFu, pair[w], from));
        }
      }
    }
    const Unit& done = list.units[in_hand];
    if (chunk == 0 && row < done.rows) store_words(partial + done.out + row, mul(acc, scale[0]));
  }
}

constexpr uint32_t kLowerHalves = 0x0F0F0F0Fu;

template <int STAGES, bool SMALL>
__device__ __forceinline__ void fast_product(const FusedMatrix& m, const Tables& tables, const UnitList& list,
                                             const float (*scales)[kFusedStages], const float* vector_scale,
                                             const float* shared, float* __restrict__ partial, uint64_t policy) {
  constexpr int kSpan = 4 * kChunkBlocks;
  constexpr bool kAhead = STAGES < 4;  // registers for a span's codes while the one before is used
  const int lane = own_thread() % 32;
  const int chunk = lane % 4;
  const int row = lane / 4;
  const int of_lane = chunk * kGroupRows + row;
  uint4 ahead[STAGES][2];
  auto fetch = [&](const Unit& unit, int span) {
    const bool inside = span * kSpan + chunk * kChunkBlocks < unit.blocks;  // past it the inputs are zeros
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ahead[s][half] = make_uint4(0, 0, 0, 0);
        if (inside) {
          const uint4* plane = reinterpret_cast<const uint4*>(m.codes[s]);  // read again: pointers would take registers
          ahead[s][half] = load_stream(plane + unit.code + (span * (4 * kGroupRows) + of_lane) + 8 * half, policy);
        }
      }
    }
  };
  auto nibbles = [&](int s, uint32_t bytes) {
    if (SMALL && s == 2) return *reinterpret_cast<const uint32_t*>(tables.small_words + bytes);
    return folded_entry(tables.big, bytes, tables.fold_bytes);
  };

  int index = threadIdx.x / 32;
  Unit unit = list.units[index < list.count ? index : 0];
  if (kAhead && index < list.count) fetch(unit, 0);
  while (index < list.count) {
    const Unit current = unit;
    const int in_hand = index;  // what is needed of the unit at its end is read again
    int even[STAGES][4] = {};
    int odd[STAGES][4] = {};
    int inputs = 0;  // of the lane's column and its quarter of k
    for (int span = 0; span * kSpan < current.blocks; ++span) {
      uint4 codes[STAGES][2];
      if (!kAhead) fetch(current, span);
#pragma unroll
      for (int s = 0; s < STAGES; ++s) {
        codes[s][0] = ahead[s][0];
        codes[s][1] = ahead[s][1];
      }
      if ((span + 1) * kSpan < current.blocks) {
        if (kAhead) fetch(current, span + 1);
      } else {
        index = list.next(lane);
        if (index < list.count) {
          unit = list.units[index];
          if (kAhead) fetch(unit, 0);
        }
      }
      // A lane's columns beyond the fourth repeat: nothing reads them.
      const uint2* x = reinterpret_cast<const uint2*>(shared + current.x + span * (kSpan * 8)) + chunk * 4 + row % 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const uint2 b0 = x[2 * w * 16];
          const uint2 b1 = x[(2 * w + 1) * 16];
#pragma unroll
          for (int s = 0; s < STAGES; ++s) {
            const uint32_t upper = w == 0 ? codes[s][0].x : codes[s][0].y;
            const uint32_t lower = w == 0 ? codes[s][1].x : codes[s][1].y;
            const uint32_t a0 = nibbles(s, code_bytes<0>(upper));
            const uint32_t a1 = nibbles(s, code_bytes<0>(lower));
            const uint32_t a2 = nibbles(s, code_bytes<1>(upper));
            const uint32_t a3 = nibbles(s, code_bytes<1>(lower));
            multiply_u8s8(even[s], a0 & kLowerHalves, a1 & kLowerHalves, a2 & kLowerHalves, a3 & kLowerHalves, b0.x, b1.x);
            multiply_u8s8(odd[s], a0 & ~kLowerHalves, a1 & ~kLowerHalves, a2 & ~kLowerHalves, a3 & ~kLowerHalves, b0.y, b1.y);
          }
          inputs = add_bytes(b1.y, add_bytes(b1.x, add_bytes(b0.y, add_bytes(b0.x, inputs))));
        }
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            codes[s][r].x = codes[s][r].z;
            codes[s][r].y = codes[s][r].w;
          }
        }
        x += kChunkBlocks / 2 * 16;
      }
    }
    const Unit& done = list.units[in_hand];
    // Columns 0 and 1 are in lane 4g, columns 2 and 3 in lane 4g + 1; of rows g and g + 8. The inputs of column c: in lanes 4c
    // to 4c + 3.
    inputs += __shfl_xor_sync(0xFFFFFFFFu, inputs, 1);
    inputs += __shfl_xor_sync(0xFFFFFFFFu, inputs, 2);
    int bias[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) bias[k] = 128 * __shfl_sync(0xFFFFFFFFu, inputs, 8 * chunk + 4 * k);
    float total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
      const float factor = s == 0 ? 1.0f : scales[done.slot][s];
      int sums[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] = 16 * even[s][k] + odd[s][k] - bias[k % 2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int lowest = __shfl_down_sync(0xFFFFFFFFu, sums[2 * half], 1);
        const float sum = fma_once(static_cast<float>(sums[2 * half]), 65536.0f,
                                   fma_once(static_cast<float>(sums[2 * half + 1]), 256.0f, static_cast<float>(lowest)));
        total[half] = fma_once(factor, sum, total[half]);
      }
    }
    if (chunk == 0) {
      const float factor = mul(scales[done.slot][0], vector_scale[done.vector]);
      if (row < done.rows) store_words(partial + done.out + row, mul(total[0], factor));
      if (row + 8 < done.rows) store_words(partial + done.out + row + 8, mul(total[1], factor));
    }
  }
}

template <int STAGES, bool SMALL, bool FAST>
__device__ __forceinline__ void product_of(const FusedMatrix& m, const Tables& tables, const UnitList& list,
                                           const float (*scales)[kFusedStages], const float* vector_scale,
                                           const float* shared, float* __restrict__ partial, uint64_t policy) {
  if constexpr (FAST) {
    fast_product<STAGES, SMALL>(m, tables, list, scales, vector_scale, shared, partial, policy);
  } else {
    exact_product<STAGES, SMALL>(m, tables, list, scales, shared, partial, policy);
  }
}

// One kernel for any number of stages: layers that differ in it share all other instructions in the cache.
template <bool FAST, typename... Rest>
__device__ __forceinline__ void product(const FusedMatrix& m, Rest&&... rest) {
  if (m.stages == 2) {
    product_of<2, false, FAST>(m, rest...);
  } else if (m.stages == 3 && m.small) {
    product_of<3, true, FAST>(m, rest...);
  } else if (m.stages == 1) {
    product_of<1, false, FAST>(m, rest...);
  } else if (m.stages == 3) {
    product_of<3, false, FAST>(m, rest...);
  } else {
    product_of<4, false, FAST>(m, rest...);
  }
}

}  // namespace glq
