// Matrix-vector product of one expert's quantised matrix: partial[q, m] = t_q of row m (the split sums, scaled).
//
// A warp takes eight rows of one window of 64 blocks. A lane owns one *pair* of neighbouring blocks, so its sixteen
// inputs stay in registers for all rows, index reads are 128 contiguous bytes a warp and stage, and the gathers of all
// rows are independent. Only the sum over pairs has a prescribed sequence: the pair sums go through shared memory, and
// one lane a (row, split) chain adds them in ascending order.
#pragma once

#include "block_dot.cuh"

namespace glq {

constexpr int kWindowBlocks = 64;               // a multiple of every split_blocks
constexpr int kPairs = kWindowBlocks / 2;       // one a lane
constexpr int kWarpRows = 8;
constexpr int kMatvecWarps = 2;                 // small blocks: about five fit an SM's share of 696 evenly
constexpr int kTileStride = kPairs + 4;         // keeps rows 16-byte aligned and their float4 reads free of conflicts

// The stages present in a matrix, in order; of one expert.
template <int STAGES>
struct StageSet {
  const uint16_t* plane[STAGES];  // [rows, blocks]
  const uint4* table[STAGES];     // codebook as fp16, 16 bytes an entry
  float scale[STAGES];            // r of the stage; scale[0] is not read
};

// The indices of blocks `first` and `first + 1` of a row, in the low and high half; 0 where there is no such block.
// Each is read once: evict-first keeps the stream of indices from pushing the codebook out of L1.
template <bool WORD_ALIGNED>
__device__ __forceinline__ uint32_t load_index_pair(const uint16_t* row, int first, int blocks) {
  uint32_t both = 0;
  if (WORD_ALIGNED) {  // the number of blocks is even: a pair is whole or absent
    if (first < blocks) both = __ldcs(reinterpret_cast<const unsigned int*>(row + first));
  } else {
    if (first < blocks) both = __ldcs(row + first);
    if (first + 1 < blocks) both |= static_cast<uint32_t>(__ldcs(row + first + 1)) << 16;
  }
  return both;
}

// The lane's indices in eight rows of all stages: all in flight together, so memory latency is paid once.
template <int STAGES, bool WORD_ALIGNED>
__device__ __forceinline__ void load_indices(const StageSet<STAGES>& stages, int row0, int rows, int first, int blocks,
                                             uint32_t (&index)[kWarpRows][STAGES]) {
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    const int row = row0 + r < rows ? row0 + r : rows - 1;  // a tail row repeats the last one and is not stored
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
      const uint16_t* start = stages.plane[s] + static_cast<size_t>(row) * blocks;
      index[r][s] = load_index_pair<WORD_ALIGNED>(start, first, blocks);
    }
  }
}

// Eight inputs of a block; zeros where there is no such block.
__device__ __forceinline__ void load_inputs(const uint16_t* x, int block, int blocks, float (&out)[8]) {
  uint4 packed = {0u, 0u, 0u, 0u};
  if (block < blocks) packed = __ldg(reinterpret_cast<const uint4*>(x) + block);
  unpack8(packed, out);
}

// grid (ceil(rows / 16), ceil(blocks / 64)), 64 threads. `word_aligned`: every row of every plane starts at a multiple
// of four bytes. `x`: fp16, 16-byte aligned. `partial`: [ceil(blocks / split_blocks), rows].
template <int STAGES>
__global__ void __launch_bounds__(kMatvecWarps * 32, 8)
glq_matvec_splitk_kernel(const StageSet<STAGES> stages, const uint16_t* __restrict__ x, float wscale,
                         float* __restrict__ partial, int rows, int blocks, int split_blocks, bool word_aligned) {
  __shared__ __align__(16) float tile[kMatvecWarps][kWarpRows][kTileStride];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int row0 = (blockIdx.x * kMatvecWarps + warp) * kWarpRows;
  const int window = blockIdx.y;
  if (row0 >= rows) return;
  const int first = window * kWindowBlocks + 2 * lane;

  uint32_t index[kWarpRows][STAGES];
  if (word_aligned) {
    load_indices<STAGES, true>(stages, row0, rows, first, blocks, index);
  } else {
    load_indices<STAGES, false>(stages, row0, rows, first, blocks, index);
  }
  float x_even[8];
  float x_odd[8];
  load_inputs(x, first, blocks, x_even);
  load_inputs(x, first + 1, blocks, x_odd);

#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    uint4 even[STAGES];
    uint4 odd[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
      even[s] = __ldg(stages.table[s] + (index[r][s] & 0xFFFFu));
      odd[s] = __ldg(stages.table[s] + (index[r][s] >> 16));
    }
    float pair = block_dot<STAGES>(even, stages.scale, x_even);
    const float second = block_dot<STAGES>(odd, stages.scale, x_odd);
    if (first + 1 < blocks) pair = add(pair, second);
    // Past the end the chain adds +0, which changes nothing: a sum that starts at +0 is never -0.
    tile[warp][r][lane] = first < blocks ? pair : 0.0f;
  }
  __syncwarp();

  const int chains_per_row = kWindowBlocks / split_blocks;
  const int pairs = split_blocks / 2;
  if (lane < kWarpRows * chains_per_row) {
    const int row = row0 + lane % kWarpRows;
    const int chain = lane / kWarpRows;
    const int split = window * chains_per_row + chain;
    if (row < rows && split * split_blocks < blocks) {
      const float4* sums = reinterpret_cast<const float4*>(&tile[warp][lane % kWarpRows][chain * pairs]);
      float acc = 0.0f;
#pragma unroll 2
      for (int p = 0; p < pairs / 4; ++p) {
        const float4 four = sums[p];
        acc = add(acc, four.x);
        acc = add(acc, four.y);
        acc = add(acc, four.z);
        acc = add(acc, four.w);
      }
      partial[static_cast<size_t>(split) * rows + row] = mul(acc, wscale);
    }
  }
}

// y[m] = ((+0 + t_0) + t_1) + ...; one thread a row.
__global__ void __launch_bounds__(256)
glq_reduce_splits_kernel(const float* __restrict__ partial, float* __restrict__ y, int rows, int splits) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int q = 0; q < splits; ++q) sum = add(sum, partial[static_cast<size_t>(q) * rows + row]);
  y[row] = sum;
}

}  // namespace glq
