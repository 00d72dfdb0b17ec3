// What the NVFP4 kernels are launched with: plain structs, no torch, no device code.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#if defined(GLQ_EMULATE)
#include "cuda_emulation.h"
#else
#include <cuda_runtime_api.h>
#endif

namespace nvfp4 {

constexpr int kAtomRows = 16;         // rows of an atom, one m of mma.m16n8k16: output columns, or 8 gates and their 8 ups
constexpr int kSlotColumns = 64;      // inputs of a slot
constexpr int kSlotBytes = 576;       // of an atom: 512 B of codes, 64 B of block scales
constexpr int kCodeBytes = 512;
constexpr int kScaleBytes = 64;
constexpr int kItemRows = 16;
constexpr int kQuarterRows = 8;       // of an item at most where units are quarters, which have 64 registers
constexpr int kMaxWarps = 16;
constexpr int kMaxExperts = 2048;
constexpr int kMaxSlots = 32768;      // (token, expert) pairs of a call

// One matrix of all experts in tiles (tiles.py has the layout).
struct Matrix {
  const uint8_t* tiles;  // [experts, columns / 16 (gated: / 8), slots, 576], 16-byte aligned
  const float* scale;    // [experts]
  int columns;           // what an expert writes: inter (gate-up) or hidden (down)
  int inputs;            // what it reads
  int slots;             // ceil(inputs / 64)
};

// An item: up to 16 rows of one expert, as the plan kernel writes it: 32 words, so that a warp reads it at once. From
// kItemRows0 on its rows, each token << 16 | slot of the token.
enum ItemWord : int { kExpert = 0, kFirst, kCount, kGroupFirst, kGroupItems, kItemRows0 = 16, kItemWords = 32 };
constexpr int kPlanHeader = 32;  // words before the first item; word 0: items, word 1: rows in them

struct MoeCall {
  Matrix gate_up, down;
  int experts;
  bool gated;
  float limit;
  bool mask_invalid;
  unsigned long long* errors;  // slots whose id is no expert, unless masked

  const uint16_t* x;  // bf16, rows at multiples of 16 bytes
  int64_t x_stride;   // elements from one token's row to the next
  const uint16_t* x_given;      // null; or an x that lies otherwise, which the plan kernel copies to x
  int64_t x_given_strides[2];
  const int64_t* ids;
  int64_t id_strides[2];
  const float* weights;
  int64_t weight_strides[2];
  int tokens, top_k;
  uint16_t* out;        // bf16 [tokens, hidden], or null: expert outputs are what is asked for
  void* expert_out;     // [tokens * top_k, hidden]
  bool expert_out_bf16;  // else binary32

  // Workspace of one run object.
  int* plan;      // header and items
  uint16_t* h;    // [tokens * top_k, inter] bf16, rows in the plan's order
  int item_rows;  // rows of an item at most: 1, 2, 4, 8 or 16
  int item_capacity;
  int ahead_bytes;  // MoeConfig::ahead_kib
};

inline int64_t max_items(int64_t slots, int64_t experts, int item_rows) {
  const int64_t used = std::min(slots, experts);
  return used + (slots - used) / item_rows;
}

// Rows that the kernels can copy 16 bytes at a time.
inline bool rows_are_aligned(const MoeCall& call, int64_t element_stride) {
  return element_stride == 1 && call.x_stride % 8 == 0 && reinterpret_cast<uintptr_t>(call.x) % 16 == 0 &&
         call.tokens * call.x_stride / 8 < INT32_MAX;
}

// Sets the workspace pointers within `base` (256-byte aligned; null only measures); returns the bytes. The items come last.
inline size_t carve_workspace(MoeCall& call, char* base, int64_t element_stride = 1) {
  size_t used = 0;
  auto part = [&](size_t bytes) {
    char* at = base == nullptr ? nullptr : base + used;
    used += (bytes + 255) / 256 * 256;
    return at;
  };
  const size_t slots = static_cast<size_t>(call.tokens) * call.top_k;
  call.item_capacity = static_cast<int>(max_items(static_cast<int64_t>(slots), call.experts, call.item_rows));
  call.h = reinterpret_cast<uint16_t*>(part(slots * call.down.inputs * sizeof(uint16_t)));
  char* staged = part(static_cast<size_t>(call.tokens) * call.gate_up.inputs * sizeof(uint16_t));
  call.x_given = nullptr;
  if (base != nullptr && !rows_are_aligned(call, element_stride)) {
    call.x_given = call.x;
    call.x_given_strides[0] = call.x_stride;
    call.x_given_strides[1] = element_stride;
    call.x = reinterpret_cast<const uint16_t*>(staged);
    call.x_stride = call.gate_up.inputs;
  }
  char* outputs = part(slots * call.down.columns * sizeof(float));
  if (call.expert_out == nullptr) call.expert_out = outputs;
  call.plan = reinterpret_cast<int*>(part((kPlanHeader + static_cast<size_t>(call.item_capacity) * kItemWords) * sizeof(int)));
  return used;
}

// Fewer rows an item where few tokens come or few of them meet at an expert: less shared memory for inputs. Which rows share
// an item changes no byte.
inline int item_rows_of(int64_t tokens, int64_t top_k, int64_t experts) {
  if (tokens <= 2) return static_cast<int>(tokens < 1 ? 1 : tokens);
  if (tokens <= 4 || tokens * top_k <= experts) return 4;
  return tokens <= 8 ? 8 : kItemRows;
}

enum Schedule : int { kBase = 0, kWaves = 1, kHalf = 2, kQuarter = 3 };
enum Pipeline : int { kRegs = 0, kRing = 1, kDeep = 2 };

struct MoeConfig {
  int schedule = kBase;
  int pipeline = kRing;
  int warps = 0;         // a block's at most; 0: as many as there is work for, up to 8 (half-regs: 12, quarter: 16)
  int depth = 0;         // stages of ring-deep (4, 6, 8, 12, 16; from sm_90 on 2 to 16) or quarter-ring (3 to 6); 0: chosen
  int shared_kib = 0;    // what ring-deep's stages may take of a block's; 0: gate-up's and down's share (launch.cu)
  int item_rows = 0;     // 1, 2, 4, 8 or 16; 0: by the tokens
  int blocks = 0;        // thread blocks; 0: one a multiprocessor
  int ahead_kib = 0;     // of its first unit that a warp of a down ring asks into L2 while gate-up runs, beyond its stages
  bool dependent = true;  // programmatic dependent launch
};

// Rows of an item of such a call; refuses more than the unit takes.
inline int item_rows_for(const MoeConfig& config, int64_t tokens, int64_t top_k, int64_t experts) {
  const int most = config.schedule == kQuarter ? kQuarterRows : kItemRows;
  if (config.item_rows > most) throw std::invalid_argument("quarter units take items of 8 rows at most");
  return config.item_rows > 0 ? config.item_rows : std::min(item_rows_of(tokens, top_k, experts), most);
}

struct DeviceLimits {
  int multiprocessors = 132;
  size_t shared_bytes = 227 * 1024;
  int capability = 90;
};

}  // namespace nvfp4
