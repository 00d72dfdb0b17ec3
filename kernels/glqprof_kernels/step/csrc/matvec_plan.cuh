// How linear and head_argmax are launched: blocks, and what their rings hold.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "launch.cuh"
#include "matvec.cuh"

namespace step {

constexpr size_t kOverHalf = 3 * 1024;
// Left of a multiprocessor's shared memory for the small kernels between two that stream weights.
constexpr size_t kLeftForOthers = 4 * 1024;
constexpr size_t kReservedBytes = 1024;  // by the hardware, a block

inline size_t share_bytes(int share, const DeviceLimits& limits) {
  const size_t larger = limits.shared_bytes / 2 + kOverHalf;
  switch (share) {
    case kLarger: return larger - kReservedBytes;
    case kSmaller: return limits.shared_bytes - larger - kLeftForOthers - kReservedBytes;
    default: return std::min(limits.block_shared_bytes, limits.shared_bytes - kLeftForOthers - kReservedBytes);
  }
}

// Two kernels that stream weights, one after the other, take different shares: then each has one block on every multiprocessor,
// and the second one's first rows come while the first one's last are multiplied. `epilogue_bytes`: shared memory after the ring's.
template <class S>
Launch plan_matvec(Matvec& m, const Tuning& tuning, const DeviceLimits& limits, size_t epilogue_bytes) {
  const int blocks = std::min({tuning.blocks > 0 ? tuning.blocks : limits.multiprocessors, m.outputs, kMaxBlocks});
  const size_t fixed = matvec_shared_bytes(S::kWarps, m.batch, 0, m.inputs) + epilogue_bytes;
  const size_t pair = 2ull * row_place_bytes(m.inputs);
  const size_t share = tuning.shared_kib > 0 ? static_cast<size_t>(tuning.shared_kib) * 1024 : share_bytes(tuning.share, limits);
  const size_t budget = std::min(std::max(share, fixed + kTilePairs * pair), limits.block_shared_bytes);
  if (fixed + kTilePairs * pair > budget) {
    throw std::invalid_argument("eight rows of these inputs do not fit in a thread block's shared memory on this GPU");
  }
  const int rows = (m.outputs + blocks - 1) / blocks;
  const int wanted = std::max((rows + 1) / 2, kTilePairs);
  m.ring = std::min({static_cast<int>((budget - fixed) / pair), wanted, kMaxRing});
  m.clocks = tuning.clocks;
  Launch plan;
  plan.grid = dim3(static_cast<unsigned int>(blocks));
  plan.threads = S::kThreads;
  // A share that is to keep others out is taken in full, whatever the ring needs of it.
  plan.shared_bytes = tuning.shared_kib > 0 || tuning.share == kSmaller ? fixed + m.ring * pair : budget;
  plan.dependent = starts_early(tuning.dependent, limits);
  return plan;
}

// start(shape) with the first of the shapes that holds the inputs.
template <class Start>
void by_inputs(int inputs, Start start) {
  if (inputs <= Narrow::kMostInputs) {
    start(Narrow());
  } else if (inputs <= Middle::kMostInputs) {
    start(Middle());
  } else if (inputs <= Wide::kMostInputs) {
    start(Wide());
  } else {
    throw std::invalid_argument("more inputs than 10240");
  }
}

}  // namespace step
