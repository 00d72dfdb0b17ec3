// What a fused kernel is launched with: plain structs, no torch, no device code. See fused_kernel.cuh for the schedule.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(GLQ_EMULATE)
#include "cuda_emulation.h"
#else
#include <cuda_runtime_api.h>
#endif

#if defined(__CUDACC__)
#define GLQ_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GLQ_HOST_DEVICE inline
#endif

namespace glq {

constexpr int kFusedStages = 4;
constexpr int kFusedSlots = 256;     // (token, expert) slots of one launch; more tokens are more launches
constexpr int kFusedRows = 192;      // rows that a thread block has in hand at a time, at most (exact)
constexpr int kFusedUnits = 256;     // units that it has in hand at a time (fast)
constexpr int kFusedVectors = 2;     // input vectors that it holds at a time, at most
constexpr int kGroupRows = 32;       // rows of a tile of indices
constexpr int kChunkBlocks = 8;      // blocks of a tile of indices: 16 bytes a row
constexpr int kUnitRows = 16;        // rows of a unit: of a tensor-core product (fast)
constexpr int kSmallEntries = 256;
constexpr int kFastSplitBlocks = 64;

// n / divisor for 0 <= n < 2^31 by a multiplication: (n * factor) >> (31 + bits), factor = ceil(2^(31 + bits) / divisor) with
// 2^bits >= divisor, which is exact (Granlund and Montgomery 1994, theorem 4.2).
struct Divide {
  uint32_t factor;
  int shift;

  GLQ_HOST_DEVICE int operator()(int n) const {
    return static_cast<int>((static_cast<uint64_t>(static_cast<uint32_t>(n)) * factor) >> shift);
  }
};

inline Divide divide_by(int divisor) {
  int bits = 0;
  while ((int64_t{1} << bits) < divisor) ++bits;
  const uint64_t power = uint64_t{1} << (31 + bits);
  return {static_cast<uint32_t>((power + divisor - 1) / divisor), 31 + bits};
}

// One matrix of all experts, re-laid out (fused.py describes the layout).
struct FusedMatrix {
  const uint32_t* codes[kFusedStages];  // [experts, groups, chunks, 32 rows, 4 words], 16-byte aligned
  const float* scale[kFusedStages];     // wscale, r of each later stage; [experts]
  const uint16_t* sv;                   // fp16 signs [cols]
  const uint16_t* su;                   // fp16 signs [experts, rows]
  int stages;
  bool small;        // the third stage reads the small table
  int rows;
  int cols;
  int blocks;        // cols / 8
  int chunks;        // ceil(blocks / 8)
  int groups;        // ceil(rows / 32)
  int split_blocks;  // blocks of one sum t_q
  int splits;        // ceil(blocks / split_blocks)
  // Set at launch. An item is what thread blocks share out: a row (exact), or a unit of 16 rows x one split (fast).
  int items;         // of a slot
  int parts;         // sums a row, one after the other `sum_rows` words on: one (exact), or one a split (fast)
  int sum_rows;
  int row_groups;    // of a slot, 16 rows each
  Divide by_items, by_blocks, by_splits, by_split_blocks, by_row_groups;
};

// Where a thread block looks at the clock, when asked to.
enum Mark : int { kStarted = 0, kPreviousDone, kSlotsFound, kVectorsMade, kTableLoaded, kProductDone, kHandedOver, kMarks = 8 };

struct FusedCall {
  FusedMatrix matrix[2];  // up, down
  const uint32_t* table;  // [big words, padded to 4][256 small words]
  int table_words;        // all of it
  uint32_t exponents[5];  // fused_decode.cuh
  uint32_t fold_bytes;    // 4 * T: a code from T on is the negated entry code - T
  int64_t experts;
  int activation;
  float limit;
  unsigned long long* overflow;  // activations that became infinite
  unsigned long long* errors;    // slots whose id is no expert, unless masked
  bool mask_invalid;

  const uint16_t* x;
  int64_t token_stride, element_stride;
  bool wide_x;  // 16 bytes at a time
  const void* ids;
  bool wide_ids;  // int64, else int32
  int64_t id_strides[2];
  const float* weights;
  int64_t weight_strides[2];
  int tokens, top_k;
  Divide by_top_k, by_thread_blocks;  // set at launch
  uint16_t* out;  // [tokens, down.rows]

  // Workspace of one run object. Between calls all of its words are kMissing.
  float* sums[2];       // of each phase's matrix, [slots, parts, sum_rows]
  void* expert_out;     // [slots, down.rows], fp16 (exact) or fp32 (fast)

  unsigned long long* timeline;  // null, or [2 phases, thread blocks, kMarks, 2]: nanoseconds and cycles of each mark

  int first_phase;      // of this launch; 0: up, 1: down
  int last_phase;
  int first_vector;     // float index in shared memory of the input vectors; behind them a room for transforms and products
  int vector_stride[2]; // floats from one input vector to the next, in each phase
  int vectors[2];       // how many fit
  int rows_fit[2][kFusedVectors];  // exact: rows whose pair sums fit behind one vector, behind two
  int shared_floats;    // all of the shared memory
  bool table_in_shared;
  bool dependent;       // launched while the kernel before it may still run: wait for it where its results are needed
};

inline void set_sizes(FusedMatrix& m, int rows, int cols, int split_blocks) {
  m.rows = rows;
  m.cols = cols;
  m.blocks = cols / 8;
  m.chunks = (m.blocks + kChunkBlocks - 1) / kChunkBlocks;
  m.groups = (rows + kGroupRows - 1) / kGroupRows;
  m.split_blocks = split_blocks;
  m.splits = (m.blocks + split_blocks - 1) / split_blocks;
}

inline void set_items(FusedMatrix& m, bool fast) {
  m.row_groups = (m.rows + kUnitRows - 1) / kUnitRows;
  m.items = fast ? m.row_groups * m.splits : m.rows;
  m.parts = fast ? m.splits : 1;
  m.sum_rows = fast ? m.groups * kGroupRows : m.rows;
  m.by_items = divide_by(m.items);
  m.by_blocks = divide_by(m.blocks);
  m.by_splits = divide_by(m.splits);
  m.by_split_blocks = divide_by(m.split_blocks);
  m.by_row_groups = divide_by(m.row_groups);
}

// Sets the workspace pointers within `base` (256-byte aligned; null only measures) for `slots` slots; returns the bytes. Layers
// of different sizes may share a workspace: before the first call all of its bytes must be 0xFF.
inline size_t carve_workspace(FusedCall& call, char* base, int slots) {
  size_t used = 0;
  auto part = [&](size_t bytes) {
    char* at = base == nullptr ? nullptr : base + used;
    used += (bytes + 255) / 256 * 256;
    return at;
  };
  // A thread block may compute down sums of one slot while another still reads up sums of the next: each has its own.
  for (int phase = 0; phase < 2; ++phase) {
    const FusedMatrix& m = call.matrix[phase];
    const size_t of_slot = static_cast<size_t>(m.splits) * m.groups * kGroupRows;  // a fast kernel's, which has the most
    call.sums[phase] = reinterpret_cast<float*>(part(slots * of_slot * sizeof(float)));
  }
  call.expert_out = part(slots * static_cast<size_t>(call.matrix[1].rows) * sizeof(float));
  return used;
}

// Which kernel, and the way to launch.
struct FusedConfig {
  bool fast = false;
  bool one_launch = true;  // both phases in one cooperative launch, where the device and the layer allow it
  bool dependent = true;   // two launches: each may start while the one before it runs
  int blocks = 0;     // thread blocks; 0: one a multiprocessor
  int cluster = 1;    // thread blocks that share one copy of the table (sm_90: 1 or 2; 4 leaves multiprocessors empty)
};

}  // namespace glq
