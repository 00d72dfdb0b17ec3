// The contract's order or a free one, and one product for any number of stages.
#pragma once

#include "fused_rows.cuh"
#include "fused_units.cuh"

namespace glq {

// SHARED_TABLE: a block's shared memory holds the table.
template <class SHARE, int THREADS, bool SHARED_TABLE>
struct Traits {
  using Share = SHARE;
  using Shared = FusedShared<typename SHARE::Items>;
  static constexpr int kThreads = THREADS;
  static constexpr bool kSharedTable = SHARED_TABLE;
  static constexpr int kTable = kSharedFloats<typename SHARE::Items>;  // float index of the table, or of what lies in its stead
  static constexpr int kPlace = SHARED_TABLE ? 4 * kTable : -1;
};
template <int THREADS, bool SHARED_TABLE>
struct ExactTraits : Traits<RowShare, THREADS, SHARED_TABLE> {
  static constexpr bool kFast = false;
};
template <int THREADS, bool SHARED_TABLE>
struct FastTraits : Traits<UnitShare, THREADS, SHARED_TABLE> {
  static constexpr bool kFast = true;
};

// One kernel for any number of stages: layers that differ in it share all other instructions in the cache.
template <class C, typename Ready>
__device__ __forceinline__ void product(const FusedCall& call, typename C::Shared& shared, const float* dynamic, float* room,
                                        const Tables& tables, Ready ready) {
  using Share = typename C::Share;
  const FusedMatrix& m = call.matrix[shared.batch.phase];
  if (m.stages == 2) {
    Share::template multiply<2, false, C>(call, shared, dynamic, room, tables, ready);
  } else if (m.stages == 3 && m.small) {
    Share::template multiply<3, true, C>(call, shared, dynamic, room, tables, ready);
  } else if (m.stages == 1) {
    Share::template multiply<1, false, C>(call, shared, dynamic, room, tables, ready);
  } else if (m.stages == 3) {
    Share::template multiply<3, false, C>(call, shared, dynamic, room, tables, ready);
  } else {
    Share::template multiply<4, false, C>(call, shared, dynamic, room, tables, ready);
  }
}

}  // namespace glq
