// The fast product: units of rows x one split, taken by warps from a list.
//
// The sums of each stage on the tensor cores, in integers. A = the nibbles as uint8, those of coordinates 0, 2, 4, 6 in a
// byte's lower half, the others in its upper half, each kind with a sum of its own: 2c + 8 and 32c + 128. B = the input in
// fixed point, 23 bits in three int8 parts, one part a column; the sum of the inputs takes the 128 away. Nothing is rounded
// before the end of a split.
#pragma once

#include "fused_call.h"
#include "fused_decode.cuh"

namespace glq {

// Rows x one split of one slot's matrix.
struct alignas(16) Unit {
  uint64_t code;  // first row's first chunk, in 16-byte units from the start of the codes
  int x;          // float index of the split's first input
  int out;        // index of the first row's t_q in `partial`
  int blocks;     // in the split
  int slot;
  int vector;
  int rows;  // 16, less at a matrix's end
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

constexpr uint32_t kLowerHalves = 0x0F0F0F0Fu;

template <int STAGES, bool SMALL, class C, typename Ready>
__device__ __forceinline__ void fast_product(const FusedMatrix& m, const Tables& tables, const UnitList& list,
                                             const float (*scales)[kFusedStages], const float* vector_scale,
                                             const float* shared, float* __restrict__ partial, Ready ready) {
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
          ahead[s][half] = load_codes(plane + unit.code + (span * (4 * kGroupRows) + of_lane) + 8 * half);
        }
      }
    }
  };
  int index = threadIdx.x / 32;
  Unit unit = list.units[index < list.count ? index : 0];
  ready();
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
            const uint32_t a0 = entry_of<C::kPlace, SMALL, 0>(tables, s, upper);
            const uint32_t a1 = entry_of<C::kPlace, SMALL, 0>(tables, s, lower);
            const uint32_t a2 = entry_of<C::kPlace, SMALL, 1>(tables, s, upper);
            const uint32_t a3 = entry_of<C::kPlace, SMALL, 1>(tables, s, lower);
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

}  // namespace glq
