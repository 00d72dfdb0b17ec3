// y = W x for 1 to 8 vectors x, at the rate of memory: what linear and head_argmax share.
//
// A block takes consecutive rows of W, as many as any other give or take one, in tiles of eight through a ring in shared
// memory. Its warps share a tile's inputs: each multiplies the same steps of 32 inputs in every tile and keeps its part of x
// in registers. The sums of the warps meet in shared memory, in an order that only the number of inputs gives.
//
// A step is two m16n8k16 products. A lane's 16 bytes of a row of W, as one load brings them, are its four words of the left
// matrix: words 0 and 2 are of row g, 1 and 3 of row g + 8. With words 0 and 2 of x on the right, rows g are half of the sum;
// with words 1 and 3, rows g + 8 are the other half; the other rows are not used. A row of x is a column on the right.
#pragma once

#include "calls.h"
#include "row_ring.cuh"

namespace step {

constexpr int kStepInputs = 32;
constexpr size_t kBarrierBytes = kMaxRing * 8;
constexpr int kNotes = 4;  // of a block, where the call has clocks

// A block's shape: WARPS warps of up to STEPS steps each.
template <int WARPS, int STEPS>
struct Shape {
  static constexpr int kWarps = WARPS;
  static constexpr int kSteps = STEPS;
  static constexpr int kThreads = WARPS * 32;
  static constexpr int kReducers = WARPS / 2;  // warps that add up tiles in turn: the last, as the first fills the ring
  static constexpr int kMostInputs = WARPS * STEPS * kStepInputs;
  static constexpr int kBlocksAtOnce = WARPS == 8 ? 2 : 1;  // of a multiprocessor, for the registers
};
using Narrow = Shape<8, 11>;  // 2816 inputs
using Middle = Shape<8, 16>;  // 4096
using Wide = Shape<16, 20>;   // 10240

__host__ __device__ __forceinline__ int sums_of_tile(int warps, int batch) { return warps * batch * kTileRows; }

// Shared memory of a block, without what an epilogue takes at its end.
inline size_t matvec_shared_bytes(int warps, int batch, int ring, int inputs) {
  return kBarrierBytes + 2 * sizeof(float) * sums_of_tile(warps, batch) + 2ull * ring * row_place_bytes(inputs);
}

// EPILOGUE: at(batch row, W's row, sum) from eight lanes of a warp, one for each row of a tile; every row once.
template <class S, class Look, class Epilogue>
__device__ __forceinline__ void multiply_rows(const Matvec& m, Look look, unsigned char* shared, Epilogue& epilogue) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int rows = m.outputs / static_cast<int>(gridDim.x), more = m.outputs % static_cast<int>(gridDim.x);
  const int first = static_cast<int>(blockIdx.x) * rows + min(static_cast<int>(blockIdx.x), more);
  const int end = first + rows + (static_cast<int>(blockIdx.x) < more ? 1 : 0);
  const uint64_t started = m.clocks == nullptr ? 0 : now_ns();
  float* sums = reinterpret_cast<float*>(shared + kBarrierBytes);
  const int tile_sums = sums_of_tile(S::kWarps, m.batch);
  const nvfp4::SharedAddress base = nvfp4::shared_address(shared);
  RowRing<Look> ring(base, base + static_cast<uint32_t>(kBarrierBytes + 2 * sizeof(float) * tile_sums), m.ring, m.inputs, first, end,
                     look);
  ring.start();
  glq::let_next_kernel_start();
  __syncthreads();
  glq::wait_for_previous_kernel();
  if (m.clocks != nullptr && threadIdx.x == 0) {
    uint64_t* to = m.clocks + blockIdx.x * kNotes;
    to[0] = started;
    to[1] = now_ns();
    to[3] = multiprocessor();
  }

  const int all_steps = (m.inputs + kStepInputs - 1) / kStepInputs;
  const int first_step = all_steps * warp / S::kWarps;
  const int steps = all_steps * (warp + 1) / S::kWarps - first_step;
  const int row = lane / 4, part = lane % 4;  // of W in the tile, and of x in the batch; the lane's 8 inputs of a step
  const int first_input = first_step * kStepInputs + part * 8;
  uint4 x[S::kSteps];
  const uint16_t* from = m.x + row * m.x_stride + first_input;
#pragma unroll
  for (int s = 0; s < S::kSteps; ++s) {
    x[s] = make_uint4(0, 0, 0, 0);
    if (s < steps && row < m.batch && first_input + s * kStepInputs < m.inputs) {
      x[s] = load_fresh(reinterpret_cast<const uint4*>(from + s * kStepInputs));
    }
  }

  float* mine = sums + (warp * m.batch + 2 * part) * kTileRows + row;
  int adds = S::kWarps - 1;  // the warp that adds up this tile
#pragma unroll 1
  for (int tile = first; tile < end; tile += kTileRows) {
    ring.wait();
    // A place past the last row holds anything: what comes of it stays in its own sums.
    const nvfp4::SharedAddress at = ring.place(row) + 2 * first_input;
    // Sums of even and of odd steps, so that a product does not wait for the one before it.
    float even[2][4] = {}, odd[2][4] = {};
    constexpr int kAtOnce = S::kSteps > 16 ? 2 : 4;
#pragma unroll
    for (int s0 = 0; s0 < S::kSteps; s0 += kAtOnce) {
      uint4 w[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        w[i] = make_uint4(0, 0, 0, 0);  // what x's zeros meet must not be infinite
        if (s0 + i < S::kSteps && s0 + i < steps) w[i] = nvfp4::load_shared16(at + (s0 + i) * kStepInputs * 2);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (s0 + i >= S::kSteps) break;
        const uint4& v = x[s0 + i];
        multiply_add_bf16(even[i % 2], w[i], uint2{v.x, v.z});
        multiply_add_bf16(odd[i % 2], w[i], uint2{v.y, v.w});
      }
    }
    auto sum_of = [&](int i) {
      return __fadd_rn(__fadd_rn(even[0][i], odd[0][i + 2]), __fadd_rn(even[1][i], odd[1][i + 2]));
    };
    if (2 * part < m.batch) mine[0] = sum_of(0);
    if (2 * part + 1 < m.batch) mine[kTileRows] = sum_of(1);
    __syncthreads();
    ring.advance();
    if (warp == adds) {
      constexpr int kEach = S::kWarps / 4;  // a lane adds up a quarter of the warps
      const float* here = sums + lane / kTileRows * kEach * m.batch * kTileRows + lane % kTileRows;
      const int output = tile + lane % kTileRows;
#pragma unroll 1
      for (int b = 0; b < m.batch; ++b, here += kTileRows) {
        float sum = here[0];
#pragma unroll
        for (int i = 1; i < kEach; ++i) sum = __fadd_rn(sum, here[i * m.batch * kTileRows]);
        sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 8));
        sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 16));
        if (lane < kTileRows && output < end) epilogue.at(b, output, sum);
      }
    }
    if (--adds < S::kWarps - S::kReducers) adds = S::kWarps - 1;
    // The other half of `sums`: this one may still be added up while the next tile is multiplied.
    const int other = sums == reinterpret_cast<float*>(shared + kBarrierBytes) ? tile_sums : -tile_sums;
    sums += other;
    mine += other;
  }
  if (m.clocks != nullptr && threadIdx.x == 0) m.clocks[blockIdx.x * kNotes + 2] = now_ns();
}

}  // namespace step
