// What lies in a thread block's shared memory: its slots and the items it has in hand, the table, input vectors, and a room
// that the transform and the product use in turn.
#pragma once

#include "fused_call.h"
#include "fused_platform.cuh"

namespace glq {

// The items in hand of a thread block: those whose input vectors, and what else a product needs, it has room for. An item is
// what blocks share out: a row (exact), or rows x one split (fast).
struct Batch {
  int begin, end;  // of the phase's items, numbered by slot, then row
  int first_slot, end_slot;
  int vector_base;  // token (up) or slot (down) of the first input vector
  int vectors;
  int phase;
  int last;   // end of the block's part of the phase
  int share;  // its begin
};

// A launch's slots that take part, in (token, top-k) order, and the batch in hand. It lies before the table, at a place that
// the compiler knows.
struct Slots {
  Batch batch;
  float weight[kFusedSlots];
  int token[kFusedSlots];
  int expert[kFusedSlots];
  int first_slot[kFusedSlots + 1];  // of each token; [tokens]: all slots
  float vector_scale[kFusedVectors];
  unsigned int peak[kFusedVectors];
  unsigned long long table_ready;
  int warp_slots[kFusedSlots / 32];
};

template <class Items>
struct FusedShared : Slots {
  Items items;
};

// Floats before the table.
template <class Items>
constexpr int kSharedFloats = (sizeof(FusedShared<Items>) + 127) / 128 * 32;

__device__ __forceinline__ int vector_of(const Slots& shared, int phase, int slot) {
  return phase == 0 ? shared.token[slot] : slot;
}

// A batch that begins at an item; its end is the share's to find.
__device__ __forceinline__ Batch batch_from(const FusedMatrix& m, const Slots& shared, int phase, int begin, int last,
                                            int share) {
  Batch batch;
  batch.phase = phase;
  batch.begin = begin;
  batch.last = last;
  batch.share = share;
  batch.first_slot = m.by_items(begin);
  batch.vector_base = vector_of(shared, phase, batch.first_slot);
  return batch;
}

}  // namespace glq
