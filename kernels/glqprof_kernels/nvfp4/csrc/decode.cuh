// Packed codes to mma operands. Two words of a lane hold sixteen e2m1 codes: for two blocks of 16 inputs, the four registers
// of an m16k16 operand, each a pair of codes. Three pairs of a word lie so that one turn and one mask put sign, exponent and
// mantissa at bits 15 and 8..6 of both halves; the fourth pairs of both words share the bits that are left, since four such
// patterns do not fit one word. Turns are shifts to the left where nothing has to come around: the multiplier can do these,
// rotations only the pipe of the logic operations, which takes one every other cycle. As bf16 that is the value times 2^-126,
// 0.5 being subnormal. tiles.py packs.
#pragma once

#include "platform.cuh"

namespace nvfp4 {

constexpr uint32_t kPairMask = 0x81C081C0u;
constexpr uint32_t kLeftMask = 0x60306030u;  // bits that the three pairs of a word leave

__device__ __forceinline__ void decode_blocks(uint32_t first, uint32_t second, uint32_t (&a)[2][4]) {
  const uint32_t fourth = merge<kLeftMask>(first, rotate_right(second, 2));
  a[0][0] = first & kPairMask;
  a[0][1] = rotate_right(first, 4) & kPairMask;
  a[0][2] = first << 6 & kPairMask;
  a[0][3] = rotate_right(fourth, 6) & kPairMask;
  a[1][0] = second & kPairMask;
  a[1][1] = rotate_right(second, 4) & kPairMask;
  a[1][2] = second << 6 & kPairMask;
  a[1][3] = fourth << 4 & kPairMask;
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (int r = 0; r < 4; ++r) a[block][r] = times_2_126(a[block][r]);
  }
}

// The rows of an item lie in the columns of mma's 16 x 8 results. COLUMNS = 4: row r in column 2r, so that each lane has one
// of two; 8: row r in column r; 16: in two results. Columns beyond the item's rows repeat its last row; nothing reads them.
template <int COLUMNS>
struct Tiling {
  static constexpr int kTiles = COLUMNS == 16 ? 2 : 1;
  static constexpr int kValues = COLUMNS / 2;  // of a lane, for 16 weight rows: [half of the rows][its columns]
};

template <int COLUMNS>
using Sums = float[Tiling<COLUMNS>::kValues];

// acc = fma(p, scale, acc) for two blocks of 16 weight rows, k ascending. `scales`: bytes of row g (blocks 0, 1), row g + 8.
template <int COLUMNS>
__device__ __forceinline__ void add_blocks(float (&acc)[Tiling<COLUMNS>::kValues], uint32_t first, uint32_t second,
                                           uint32_t scales, const uint2 (&b)[2][Tiling<COLUMNS>::kTiles]) {
  uint32_t a[2][4];
  decode_blocks(first, second, a);
  const float2 upper = e4m3_pair<false>(scales);
  const float2 lower = e4m3_pair<true>(scales);
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const float scale[2] = {block ? upper.y : upper.x, block ? lower.y : lower.x};
#pragma unroll
    for (int tile = 0; tile < Tiling<COLUMNS>::kTiles; ++tile) {
      float p[4];
      multiply_bf16(p, a[block], b[block][tile]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (COLUMNS == 4) {
          acc[half] = glq::fma_once(p[2 * half], scale[half], acc[half]);
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& sum = acc[4 * tile + 2 * half + i];
            sum = glq::fma_once(p[2 * half + i], scale[half], sum);
          }
        }
      }
    }
  }
}

// The item's row that a lane reads for a column tile.
template <int COLUMNS>
__device__ __forceinline__ int input_row(int lane, int tile, int count) {
  const int column = lane / 4;
  return min(COLUMNS == 4 ? column / 2 : 8 * tile + column, count - 1);
}

// The item's row of a lane's value i of COLUMNS / 4 in each half.
template <int COLUMNS>
__device__ __forceinline__ int output_row(int lane, int i) {
  const int column = 2 * (lane % 4) + i % 2;
  return COLUMNS == 4 ? column / 2 : 8 * (i / 2) + column;
}

// Where value i of `half` is in Sums.
template <int COLUMNS>
__device__ __forceinline__ constexpr int sum_index(int half, int i) {
  return COLUMNS == 4 ? half : 4 * (i / 2) + 2 * half + i % 2;
}

}  // namespace nvfp4
