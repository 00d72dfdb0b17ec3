// What lies in a thread block's shared memory: its slots and the rows it has in hand, the table, input vectors, and a room that
// the transform and the product use in turn.
#pragma once

#include "fused_call.h"
#include "fused_platform.cuh"

namespace glq {

constexpr int kFusedTiles = 40;  // of rows in hand: kFusedRows / 16, and one more a slot, which has eight rows or more

// One row in hand.
struct alignas(16) Row {
  uint32_t code;   // its first chunk, in 16-byte units from the start of the codes
  int x;           // float index of its input vector
  float scale[2];  // r of stages 2 and 3
};
struct alignas(8) RowScale {
  float scale;  // wscale
  float fourth; // r of stage 4
};

// Rows of one input vector, for the tensor cores.
struct Tile {
  int row;  // the first
  int rows; // 16 at most
};

// The rows in hand of a thread block: those whose input vectors and pair sums it has room for.
struct Batch {
  int begin, end;           // of the phase's rows, numbered by slot, then row
  int first_slot, end_slot;
  int vector_base;          // token (up) or slot (down) of the first input vector
  int vectors;
  int phase;
  int last;                 // end of the block's part of the phase
  int share;                // its begin
};

// A launch's slots that take part, in (token, top-k) order, and the rows in hand. It lies before the table, at a place that
// the compiler knows.
struct FusedShared {
  Row rows[kFusedRows];
  RowScale row_scales[kFusedRows];
  Tile tiles[kFusedTiles];
  int tile_count;
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
constexpr int kSharedFloats = (sizeof(FusedShared) + 127) / 128 * 32;  // of the dynamic shared memory, before the table
constexpr uint32_t kTablePlace = 4 * kSharedFloats;

}  // namespace glq
