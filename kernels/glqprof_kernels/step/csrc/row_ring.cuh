// A block's rows of weights on their way through shared memory, in pairs, in a ring.
//
// From sm_90 on one warp starts a bulk copy a row and a barrier in shared memory counts its bytes; below, all threads copy
// 16 bytes at a time, in one group a pair. A row's place is its bytes rounded up to an odd multiple of 64, so that the eight
// lanes of one phase of a 16-byte load, four in each of two neighbouring rows, hit all banks once. What a place has after its
// row, up to the next multiple of 64 bytes, is zeros.
#pragma once

#include "platform.cuh"

namespace step {

constexpr int kTileRows = 8;
constexpr int kTilePairs = kTileRows / 2;
constexpr int kMaxRing = 32;  // pairs

__host__ __device__ __forceinline__ int row_place_bytes(int inputs) { return ((inputs * 2 + 63) / 64 | 1) * 64; }

// LOOK(row): where that row of the weights begins. The block's rows are those from `first` to `end`, taken in tiles of eight.
template <class Look>
class RowRing {
 public:
  __device__ __forceinline__ RowRing(nvfp4::SharedAddress barriers, nvfp4::SharedAddress rows, int pairs, int inputs, int first,
                                     int end, Look look)
      : barriers_(barriers), rows_(rows), pairs_(pairs), row_bytes_(inputs * 2), place_(row_place_bytes(inputs)), row_(first),
        end_(end), look_(look) {}

  // Asks for what the ring holds. Called by all threads; a barrier of the block must follow.
  __device__ __forceinline__ void start() {
#if NVFP4_BULK
    if (threadIdx.x < 32) {
      if (static_cast<int>(threadIdx.x) < pairs_) nvfp4::init_barrier(barriers_ + 8 * threadIdx.x);
      nvfp4::publish_barriers();
      __syncwarp();
    }
#endif
    fill(row_, 2 * pairs_);
    const int tail = (64 - row_bytes_ % 64) % 64 / 16;  // vectors
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * pairs_ * tail; i += blockDim.x) {
      nvfp4::store_shared16(rows_ + i / tail * place_ + row_bytes_ + i % tail * 16, make_uint4(0, 0, 0, 0));
    }
  }

  // Returns when the tile's rows are there for this thread.
  __device__ __forceinline__ void wait() const {
#if NVFP4_BULK
#pragma unroll
    for (int i = 0; i < kTilePairs; ++i) {
      const int slot = slot_ + i;
      const bool wraps = slot >= pairs_;
      if (row_ + 2 * i < end_) wait_round(barriers_ + 8 * (wraps ? slot - pairs_ : slot), round_ ^ (wraps ? 1u : 0u));
    }
#else
    switch (pairs_ - kTilePairs) {  // pairs that may still be on their way
      case 0: nvfp4::wait_copy_groups<0>(); break;
      case 1: nvfp4::wait_copy_groups<1>(); break;
      case 2: nvfp4::wait_copy_groups<2>(); break;
      case 3: nvfp4::wait_copy_groups<3>(); break;
      case 4: nvfp4::wait_copy_groups<4>(); break;
      case 5: nvfp4::wait_copy_groups<5>(); break;
      default: nvfp4::wait_copy_groups<6>(); break;
    }
    __syncthreads();
#endif
  }

  // Where row `row` of the tile lies.
  __device__ __forceinline__ nvfp4::SharedAddress place(int row) const { return rows_ + (2 * slot_of(row / 2) + row % 2) * place_; }

  // Goes on to the next tile: asks for the rows that take the places of this one's, which all threads have read.
  __device__ __forceinline__ void advance() {
    fill(row_ + 2 * pairs_, kTileRows);
    row_ += kTileRows;
    slot_ += kTilePairs;
    if (slot_ >= pairs_) {
      slot_ -= pairs_;
      round_ ^= 1;
    }
  }

 private:
  // The place of the tile's pair `pair`, or of one further on.
  __device__ __forceinline__ int slot_of(int pair) const {
    const int slot = slot_ + pair;
    return slot >= pairs_ ? slot - pairs_ : slot;
  }

  // `count` rows from `row` on, to the places from the tile's first on.
  __device__ __forceinline__ void fill(int row, int count) const {
#if NVFP4_BULK
    if (threadIdx.x >= 32) return;
    const int last = min(count, end_ - row);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < last; i += 32) {
      const nvfp4::SharedAddress barrier = barriers_ + 8 * slot_of(i / 2);
      if (i % 2 == 0) nvfp4::expect_bytes(barrier, i + 1 < last ? 2 * row_bytes_ : row_bytes_);
      nvfp4::bulk_copy(rows_ + (2 * slot_of(i / 2) + i % 2) * place_, look_(row + i), row_bytes_, barrier);
    }
#else
    const int vectors = row_bytes_ / 16;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (row + i < end_) {
        const uint16_t* from = look_(row + i);
        const nvfp4::SharedAddress to = rows_ + (2 * slot_of(i / 2) + i % 2) * place_;
        for (int v = threadIdx.x; v < vectors; v += blockDim.x) nvfp4::copy16_group(to + 16 * v, from + 8 * v);
      }
      if (i % 2 == 1) nvfp4::end_copy_group();  // also where nothing was copied: groups are counted
    }
#endif
  }

  nvfp4::SharedAddress barriers_, rows_;
  int pairs_, row_bytes_, place_;
  int row_, end_;  // the tile's first row
  int slot_ = 0;   // of its first pair
  uint32_t round_ = 0;
  Look look_;
};

}  // namespace step
