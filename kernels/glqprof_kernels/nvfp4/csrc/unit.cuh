// Units: up to 16 rows of one expert times 32 (half: 16) output columns, one warp's work, done along the whole of k.
#pragma once

#include "decode.cuh"
#include "moe_call.h"

namespace nvfp4 {

// Which units a warp walks. Base: block-fastest, so that few units spread over all multiprocessors. Waves: the items of an
// expert next to each other for the same columns, on the warps of one block, so that they read the same weights at the same
// time. Half: as base, with units of 16 columns, twice as many.
struct Base {
  static constexpr int kAtoms = 2;
  static constexpr bool kGrouped = false;
  static constexpr int kThreads = 256;
};
struct Waves {
  static constexpr int kAtoms = 2;
  static constexpr bool kGrouped = true;
  static constexpr int kThreads = 256;
};
struct Half {
  static constexpr int kAtoms = 1;
  static constexpr bool kGrouped = false;
  static constexpr int kThreads = 512;
};

// Epilogues, which choose the layout: gate and up rows of the same columns share an atom.
struct Swiglu {
  static constexpr bool kGated = true;
  static constexpr bool kDown = false;
};
struct Relu2 {
  static constexpr bool kGated = false;
  static constexpr bool kDown = false;
};
struct Down {
  static constexpr bool kGated = false;
  static constexpr bool kDown = true;
};

template <class S, class E>
struct Shape {
  static constexpr int kAtoms = S::kAtoms;
  static constexpr int kSections = E::kGated ? 2 : 1;  // of a slot of one atom row: k 32 each, or k 64
  static constexpr int kTiles = kAtoms * kSections;    // mma results a unit has
  static constexpr int kColumns = kAtomRows * kAtoms;
  static constexpr int kStreamBytes = kSections * kSectionBytes;  // of a slot
  static constexpr int kWeightBytes = kAtoms * kStreamBytes;
  static constexpr int kStageWeights = (kWeightBytes + 127) / 128 * 128;
};

// Rows that a stage of a ring has room for: its first copy brings up to three, there or not.
__host__ __device__ inline int ring_rows(int item_rows) { return item_rows < 4 ? 4 : item_rows; }
inline size_t stage_bytes(int weight_bytes, int item_rows) {
  return static_cast<size_t>((weight_bytes + 127) / 128 * 128 + ring_rows(item_rows) * kSlotColumns * 2);
}

// Ring-deep from sm_90 on: a stage has 2304 bytes of weights, one slot of two gated atoms or more slots of less; rows of its
// inputs lie so that the 8-byte loads of half a warp meet no bank twice.
constexpr int kBulkTiles = 4;
constexpr int kBulkBarrierBytes = 128;  // of up to 16 stages
constexpr int kBulkHeaderBytes = kBulkBarrierBytes + 64;
__host__ __device__ constexpr int bulk_input_bytes(int slots) { return slots * kSlotColumns * 2 + 32; }
__host__ __device__ inline int bulk_stage_bytes(int tiles, int item_rows) {
  return kBulkTiles * kSectionBytes + item_rows * bulk_input_bytes(kBulkTiles / tiles);
}

template <bool VALUE>
struct Flag {
  static constexpr bool kValue = VALUE;
};

// A unit as every lane of its warp knows it.
struct Unit {
  int item_word;  // word `lane` of the item
  int expert;
  int first;
  int count;
  int group;  // of output columns
};

// The units of this launch, and which are this warp's: index, index + step and so on, below end.
template <class S, class E>
struct UnitList {
  const MoeCall& call;
  int per_item;
  int index, step, end;

  int first_word;  // what at() needs of memory for the first; grouped: read when it is asked for

  // Reads nothing of what the kernel before writes.
  __device__ __forceinline__ explicit UnitList(const MoeCall& call_) : call(call_) {
    const Matrix& m = E::kDown ? call.down : call.gate_up;
    // From a shuffle the compiler knows that all lanes agree: branches need no convergence barrier, values one register.
    const int warps = blockDim.x / 32, warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    per_item = m.columns / Shape<S, E>::kColumns;
    index = S::kGrouped ? warp : warp * gridDim.x + blockIdx.x;
    step = S::kGrouped ? warps : warps * gridDim.x;
    end = 0;
    first_word = 0;
  }

  __device__ __forceinline__ int first_item() const { return min(index / per_item, call.item_capacity - 1); }

  // The plan may be old, so that L2 has it no more: asked for while the kernel before still runs.
  __device__ __forceinline__ void prefetch() const {
    if (threadIdx.x % 32 == 0) {
      prefetch_l2(call.plan);
      if (!S::kGrouped) prefetch_l2(call.plan + kPlanHeader + static_cast<int64_t>(first_item()) * kItemWords);
    }
  }

  __device__ __forceinline__ void read_plan() {
    if (!S::kGrouped) first_word = word_of(first_item());
    const int units = __shfl_sync(0xFFFFFFFFu, __ldcg(call.plan), 0) * per_item;
    end = units;
    if (S::kGrouped) {
      // A range a block: all blocks have work, where there are as many units.
      index += static_cast<int>(static_cast<int64_t>(units) * blockIdx.x / gridDim.x);
      end = static_cast<int>(static_cast<int64_t>(units) * (blockIdx.x + 1) / gridDim.x);
      if (index < end) first_word = word(index);
    }
  }

  __device__ __forceinline__ int word_of(int item) const {
    return __ldcg(call.plan + kPlanHeader + static_cast<int64_t>(item) * kItemWords + threadIdx.x % 32);
  }

  // What at() needs of memory, so that it can be asked for early; `unit` below the number of units.
  __device__ __forceinline__ int word(int unit) const { return word_of(unit / per_item); }
  // Of the unit after `unit`, if there is one; else `other`.
  __device__ __forceinline__ int word_after(int unit, int other) const { return unit + step < end ? word(unit + step) : other; }

  __device__ __forceinline__ Unit at(int unit, int word) const {
    Unit found;
    found.item_word = word;
    found.group = unit - unit / per_item * per_item;
    if (S::kGrouped) {
      const int number = __shfl_sync(0xFFFFFFFFu, found.item_word, kGroupItems);
      if (number > 1) {
        const int first = __shfl_sync(0xFFFFFFFFu, found.item_word, kGroupFirst);
        const int within = unit - first * per_item;
        found.group = within / number;
        found.item_word = word_of(first + within % number);
      }
    }
    found.expert = __shfl_sync(0xFFFFFFFFu, found.item_word, kExpert);
    found.first = __shfl_sync(0xFFFFFFFFu, found.item_word, kFirst);
    found.count = __shfl_sync(0xFFFFFFFFu, found.item_word, kCount);
    return found;
  }
};

template <class S, class E>
__device__ __forceinline__ const uint8_t* unit_tiles(const Matrix& m, const Unit& unit) {
  const int64_t streams = static_cast<int64_t>(unit.expert) * (m.columns / kAtomRows) + unit.group * S::kAtoms;
  return m.tiles + streams * m.slots * Shape<S, E>::kStreamBytes;
}

// Where row `row` of the unit's inputs starts, in 16-byte pieces from inputs_base(); all lanes call.
template <class E>
__device__ __forceinline__ int input_piece(const MoeCall& call, const Unit& unit, int row) {
  if (E::kDown) return (unit.first + row) * (call.down.inputs / 8);
  const int token = __shfl_sync(0xFFFFFFFFu, unit.item_word, kItemRows0 + row) >> 16;
  return token * static_cast<int>(call.x_stride / 8);
}
template <class E>
__device__ __forceinline__ const uint16_t* inputs_base(const MoeCall& call) {
  return E::kDown ? call.h : call.x;
}

// What follows the sum: times the expert's scale, and the epilogue.
template <class S, class E, int COLUMNS>
__device__ __forceinline__ void finish_unit(const MoeCall& call, const Unit& unit, float scale,
                                            const float (&acc)[Shape<S, E>::kTiles][Tiling<COLUMNS>::kValues]) {
  const int lane = threadIdx.x % 32;
  int slot[COLUMNS / 4];  // of the lane's rows; before any branch, since all lanes exchange
  if constexpr (E::kDown) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 4; ++i) {
      const int place = __shfl_sync(0xFFFFFFFFu, unit.item_word, kItemRows0 + output_row<COLUMNS>(lane, i));
      slot[i] = (place >> 16) * call.top_k + (place & 0xFFFF);
    }
  }
#pragma unroll
  for (int i = 0; i < COLUMNS / 4; ++i) {
    const int row = output_row<COLUMNS>(lane, i);
    if (row < unit.count) {
#pragma unroll
      for (int part = 0; part < 2 * S::kAtoms; ++part) {
        const int atom = part / 2, half = part % 2;
        const int index = sum_index<COLUMNS>(half, i);
        const int column = unit.group * Shape<S, E>::kColumns + atom * kAtomRows + half * 8 + lane / 4;
        if constexpr (E::kDown) {
          const float y = glq::mul(acc[atom][index], scale);
          const int64_t at = static_cast<int64_t>(slot[i]) * call.down.columns + column;
          if (call.expert_out_bf16) {
            static_cast<uint16_t*>(call.expert_out)[at] = float_to_bf16(y);
          } else {
            static_cast<float*>(call.expert_out)[at] = y;
          }
        } else {
          uint16_t activated;
          if constexpr (E::kGated) {
            const float gate = glq::mul(acc[2 * atom][index], scale);
            const float up = glq::mul(acc[2 * atom + 1][index], scale);
            activated = float_to_bf16(glq::swiglu(gate, up, call.limit));
          } else {
            activated = float_to_bf16(glq::relu_squared(bf16_to_float(float_to_bf16(glq::mul(acc[atom][index], scale)))));
          }
          call.h[static_cast<int64_t>(unit.first + row) * call.down.inputs + column] = activated;
        }
      }
    }
  }
}

}  // namespace nvfp4
