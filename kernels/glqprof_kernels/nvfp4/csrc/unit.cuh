// Units: up to 16 rows of one expert times 32 output columns (half: 16; quarter: one atom, 8 where gated), one warp's work,
// done along the whole of k.
#pragma once

#include "decode.cuh"
#include "moe_call.h"

namespace nvfp4 {

// Which units a warp walks. Base: block-fastest, so that few units spread over all multiprocessors. Waves: the items of an
// expert next to each other for the same columns, on the warps of one block, so that they read the same weights at the same
// time. Half: as base, with units of 16 columns, twice as many. Quarter: one atom a unit, up to 16 warps a block, and two
// slots a stage of its ring, so that waiting and asking cost a unit of half the bytes no more than half's.
struct Base {
  static constexpr int kColumns = 32;
  static constexpr bool kGrouped = false;
  static constexpr int kThreads = 256, kRingThreads = 256;
  static constexpr int kStageSlots = 1, kLeastRows = 4, kMostRows = kItemRows;
  static constexpr bool kRunsAhead = true;
};
struct Waves {
  static constexpr int kColumns = 32;
  static constexpr bool kGrouped = true;
  static constexpr int kThreads = 256, kRingThreads = 256;
  static constexpr int kStageSlots = 1, kLeastRows = 4, kMostRows = kItemRows;
  static constexpr bool kRunsAhead = true;
};
struct Half {
  static constexpr int kColumns = 16;
  static constexpr bool kGrouped = false;
  static constexpr int kThreads = 384, kRingThreads = 256;
  static constexpr int kStageSlots = 1, kLeastRows = 4, kMostRows = kItemRows;
  static constexpr bool kRunsAhead = true;
};
struct Quarter {  // 64 registers a thread: rings that run ahead, or items of more rows, would spill
  static constexpr int kColumns = 8;
  static constexpr bool kGrouped = false;
  static constexpr int kThreads = 512, kRingThreads = 512;
  static constexpr int kStageSlots = 2, kLeastRows = 1, kMostRows = kQuarterRows;
  static constexpr bool kRunsAhead = false;
};

// Epilogues, which choose the layout: gated, an atom has 8 gate rows and the up rows of the same columns.
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
  static constexpr int kAtomColumns = E::kGated ? kAtomRows / 2 : kAtomRows;
  static constexpr int kAtoms = S::kColumns < kAtomColumns ? 1 : S::kColumns / kAtomColumns;
  static constexpr int kColumns = kAtomColumns * kAtoms;
  static constexpr int kStageSlots = S::kStageSlots;  // of a ring
  static constexpr int kWeightBytes = kAtoms * kStageSlots * kSlotBytes;
  static constexpr int kStageWeights = (kWeightBytes + 127) / 128 * 128;
};

// Rows that a stage of a ring has room for: its first copy brings up to three (quarter: one), there or not.
template <class S>
__host__ __device__ constexpr int ring_rows(int item_rows) {
  return item_rows < S::kLeastRows ? S::kLeastRows : item_rows;
}
template <class S, class E>
__host__ __device__ constexpr int stage_bytes(int item_rows) {
  return Shape<S, E>::kStageWeights + ring_rows<S>(item_rows) * S::kStageSlots * kSlotColumns * 2;
}

// Ring-deep from sm_90 on: a stage has 2304 bytes of weights, one slot of four atoms or more slots of less; rows of its
// inputs lie so that the 8-byte loads of half a warp meet no bank twice.
constexpr int kBulkAtoms = 4;
constexpr int kBulkBarrierBytes = 128;  // of up to 16 stages
constexpr int kBulkHeaderBytes = kBulkBarrierBytes + 64;
__host__ __device__ constexpr int bulk_input_bytes(int slots) { return slots * kSlotColumns * 2 + 32; }
__host__ __device__ inline int bulk_stage_bytes(int atoms, int item_rows) {
  return kBulkAtoms * kSlotBytes + item_rows * bulk_input_bytes(kBulkAtoms / atoms);
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
  using F = Shape<S, E>;
  const int64_t atoms = static_cast<int64_t>(unit.expert) * (m.columns / F::kAtomColumns) + unit.group * F::kAtoms;
  return m.tiles + atoms * m.slots * kSlotBytes;
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
                                            const float (&acc)[Shape<S, E>::kAtoms][Tiling<COLUMNS>::kValues]) {
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
      using F = Shape<S, E>;
      constexpr int kParts = F::kAtomColumns / 8;  // columns a lane has of an atom
#pragma unroll
      for (int part = 0; part < kParts * F::kAtoms; ++part) {
        const int atom = part / kParts, half = part % kParts;
        const int index = sum_index<COLUMNS>(half, i);
        const int column = unit.group * F::kColumns + part * 8 + lane / 4;
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
            const float gate = glq::mul(acc[atom][index], scale);
            const float up = glq::mul(acc[atom][sum_index<COLUMNS>(1, i)], scale);
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
