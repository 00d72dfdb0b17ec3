// Ring-deep from sm_90 on: each warp has stages of its own in shared memory, filled by the bulk copy engine. One lane asks for
// some slots (k 64): codes and scales of an atom are one piece, inputs one a row. A barrier a stage says when all have arrived.
#pragma once

#include "ring.cuh"

namespace nvfp4 {

#if NVFP4_BULK

template <class S, class E>
struct BulkShape : Shape<S, E> {
  using F = Shape<S, E>;
  static constexpr int kSlots = kBulkAtoms / F::kAtoms;  // of a stage
  static constexpr int kAtomBytes = kSlots * kSlotBytes;
  static constexpr int kInputsAt = F::kAtoms * kAtomBytes;
  static constexpr int kInputBytes = bulk_input_bytes(kSlots);
};

// What a warp copies next. A stage: weights, an atom's slots after the other's; then inputs [rows][kInputBytes].
template <class S, class E>
struct BulkSource {
  using F = BulkShape<S, E>;

  const MoeCall& call;
  const Matrix& m;
  UnitList<S, E> list;
  int word;               // of the next unit
  int left;               // slots of the unit not yet copied; 0: the warp's next unit follows
  int count;
  int stream;             // bytes from an atom row to the next
  int inputs_left;        // bytes of a row
  const uint8_t* weights;
  int lane_piece;         // 16-byte pieces from where the inputs begin, of this lane's row
  int64_t first_piece;    // of the first row

  __device__ __forceinline__ explicit BulkSource(const MoeCall& call_)
      : call(call_), m(E::kDown ? call_.down : call_.gate_up), list(call_) {
    left = count = inputs_left = word = lane_piece = 0;
    first_piece = 0;
    stream = m.slots * kSlotBytes;
    weights = nullptr;
  }

  __device__ __forceinline__ void read_plan() {
    list.read_plan();
    word = list.first_word;
  }

  __device__ __forceinline__ void open() {
    if (list.index >= list.end) return;
    const Unit unit = list.at(list.index, word);
    word = list.word_after(list.index, word);
    list.index += list.step;
    left = m.slots;
    count = unit.count;
    weights = unit_tiles<S, E>(m, unit);
    lane_piece = input_piece<E>(call, unit, min(static_cast<int>(threadIdx.x % 32), count - 1));
    first_piece = __shfl_sync(0xFFFFFFFFu, lane_piece, 0);
    inputs_left = m.inputs * 2;
  }

  // The barrier expects all of a stage's bytes from the copy of the weights on.
  template <bool WEIGHTS, bool INPUTS>
  __device__ __forceinline__ void copy(SharedAddress stage, SharedAddress barrier) {
    if (__builtin_expect(left == 0, 0)) {
      open();
      if (left == 0) return;
    }
    const int slots = min(left, F::kSlots);
    const int bytes = min(inputs_left, F::kSlots * kSlotColumns * 2), atom_bytes = slots * kSlotBytes;
    const SharedAddress to = stage + F::kInputsAt;
    const uint8_t* base = reinterpret_cast<const uint8_t*>(inputs_base<E>(call));
    if (elect_lane()) {
      if (WEIGHTS) {
        expect_bytes(barrier, F::kAtoms * atom_bytes + count * bytes);
#pragma unroll
        for (int atom = 0; atom < F::kAtoms; ++atom) {
          bulk_copy(stage + atom * F::kAtomBytes, weights + atom * stream, atom_bytes, barrier);
        }
      }
      if (INPUTS) bulk_copy(to, base + first_piece * 16, bytes, barrier);
    }
    if (INPUTS) {
#pragma unroll 1
      for (int row = 1; row < count; ++row) {
        const int64_t piece = __shfl_sync(0xFFFFFFFFu, lane_piece, row);
        if (elect_lane()) bulk_copy(to + row * F::kInputBytes, base + piece * 16, bytes, barrier);
      }
    }
    weights += F::kAtomBytes;
    first_piece += F::kSlots * kSlotColumns / 8;
    lane_piece += F::kSlots * kSlotColumns / 8;
    inputs_left -= F::kSlots * kSlotColumns * 2;
    left -= slots;
  }
};

// The stages of one warp, behind their barriers and 64 bytes of zeros, the inputs of a last slot's missing half.
struct BulkStages {
  SharedAddress zeros, begin, end, now, barriers, barrier;
  int bytes;
  uint32_t parity;

  __device__ __forceinline__ BulkStages(SharedAddress at, int depth, int stage_bytes) : bytes(stage_bytes), parity(0) {
    barriers = barrier = at;
    zeros = at + kBulkBarrierBytes;
    begin = now = at + kBulkHeaderBytes;
    end = begin + depth * bytes;
    const int lane = threadIdx.x % 32;
    if (lane < depth) init_barrier(barriers + 8 * lane);
    if (lane < 8) store_shared8(zeros + 8 * lane, {0, 0});
    publish_barriers();
    __syncwarp();
  }

  __device__ __forceinline__ void wait() const { wait_barrier(barrier, parity); }
  __device__ __forceinline__ void step() {
    now += bytes;
    barrier += 8;
    if (now == end) {
      now = begin;
      barrier = barriers;
      parity ^= 1;
    }
  }
};

// A slot of a unit in registers.
template <class S, class E, int COLUMNS>
struct BulkSlot {
  using F = BulkShape<S, E>;
  static constexpr int kTiles = Tiling<COLUMNS>::kTiles;
  uint4 codes[F::kAtoms];
  uint2 scales[F::kAtoms];
  uint2 x[2][2][kTiles];

  // Slot `slot` of the stage. `half`: it has 32 inputs.
  __device__ __forceinline__ void load(const BulkStages& stages, int slot, const int (&inputs)[kTiles], bool half) {
    const int lane = threadIdx.x % 32;
    const SharedAddress at = stages.now + slot * kSlotBytes + lane * 16;
    const SharedAddress scales_at = stages.now + slot * kSlotBytes + kCodeBytes + lane / 4 * 8;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const SharedAddress first = stages.now + inputs[tile] + slot * kSlotColumns * 2;
      const SharedAddress second = half ? stages.zeros + lane % 4 * 8 : first + 64;
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        x[0][block][tile] = load_shared8(first + block * 32);
        x[1][block][tile] = load_shared8(second + block * 32);
      }
    }
#pragma unroll
    for (int atom = 0; atom < F::kAtoms; ++atom) {
      codes[atom] = load_shared16(at + atom * F::kAtomBytes);
      scales[atom] = load_shared8(scales_at + atom * F::kAtomBytes);
    }
  }

  __device__ __forceinline__ void add_to(float (&acc)[F::kAtoms][Tiling<COLUMNS>::kValues]) const {
#pragma unroll
    for (int atom = 0; atom < F::kAtoms; ++atom) {
      add_blocks<COLUMNS>(acc[atom], codes[atom].x, codes[atom].y, scales[atom].x, x[0]);
      add_blocks<COLUMNS>(acc[atom], codes[atom].z, codes[atom].w, scales[atom].y, x[1]);
    }
  }
};

template <class S, class E, int COLUMNS>
__device__ __forceinline__ void run_unit_bulk(const MoeCall& call, const Unit& unit, BulkSource<S, E>& source,
                                              BulkStages& stages) {
  using F = BulkShape<S, E>;
  using Slot = BulkSlot<S, E, COLUMNS>;
  // Registers hold two slots.
  constexpr bool kAhead = F::kSlots > 1 && S::kRingThreads == 256 && COLUMNS * S::kColumns <= (E::kGated ? 64 : 128);
  constexpr int kTiles = Tiling<COLUMNS>::kTiles;
  const int lane = threadIdx.x % 32;
  const float scale = __ldg(source.m.scale + unit.expert);
  int inputs[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    inputs[tile] = F::kInputsAt + input_row<COLUMNS>(lane, tile, unit.count) * F::kInputBytes + lane % 4 * 8;
  }
  const bool ends_half = source.m.inputs % kSlotColumns != 0;
  int left = source.m.slots;  // slots whose sums are missing
  float acc[F::kAtoms][Tiling<COLUMNS>::kValues] = {};
  Slot held[kAhead ? 2 : 1];
  auto load = [&](Slot& slot, int number) { slot.load(stages, number, inputs, ends_half && left == 1); };
  // A stage is filled again once its slots have been used: their loads have arrived in all lanes then.
  auto fill = [&](SharedAddress stage, SharedAddress barrier) {
    __syncwarp();
    source.template copy<true, true>(stage, barrier);
  };
  if constexpr (kAhead) {
    stages.wait();
    load(held[0], 0);
    while (left > 0) {
      const SharedAddress stage = stages.now, barrier = stages.barrier;
#pragma unroll
      for (int number = 0; number < F::kSlots; ++number) {
        const Slot& now = held[number % 2];
        Slot& next = held[(number + 1) % 2];
        const bool last = --left == 0;  // of the unit
        if (number + 1 < F::kSlots) {
          if (!last) load(next, number + 1);
        } else {
          stages.step();
          if (!last) {
            stages.wait();
            load(next, 0);
          }
        }
        now.add_to(acc);
        if (number + 1 < F::kSlots && last) {
          stages.step();
          break;
        }
      }
      fill(stage, barrier);
    }
  } else {
    while (left > 0) {
      stages.wait();
#pragma unroll
      for (int number = 0; number < F::kSlots; ++number) {
        if (number > 0 && left == 0) break;
        load(held[0], number);
        held[0].add_to(acc);
        --left;
      }
      fill(stages.now, stages.barrier);
      stages.step();
    }
  }
  finish_unit<S, E, COLUMNS>(call, unit, scale, acc);
}

// `depth` stages a warp.
template <class S, class E>
__device__ __forceinline__ void run_units(const MoeCall& call, int depth, Deep) {
  GLQ_DYNAMIC_SHARED(SharedLine, lines);
  const int bytes = bulk_stage_bytes(Shape<S, E>::kAtoms, call.item_rows);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  BulkStages stages(shared_address(lines) + warp * (kBulkHeaderBytes + depth * bytes), depth, bytes);
  BulkSource<S, E> source(call);
  if (!E::kDown) {
    source.list.prefetch();
    glq::wait_for_previous_kernel();
  }
  glq::let_next_kernel_start();
  source.read_plan();
  const UnitList<S, E> list = source.list;
  auto fill = [&](auto& from, auto weights, auto inputs) {
#pragma unroll 1
    for (int i = 0; i < depth; ++i) {
      from.template copy<decltype(weights)::kValue, decltype(inputs)::kValue>(stages.begin + i * bytes, stages.barriers + 8 * i);
    }
  };
  if (E::kDown) {
    // The plan was there before gate-up began: the first weights come while gate-up still runs, then its results.
    BulkSource<S, E> ahead = source;
    fill(ahead, Flag<true>(), Flag<false>());
    glq::wait_for_previous_kernel();
    fill(source, Flag<false>(), Flag<true>());
  } else {
    fill(source, Flag<true>(), Flag<true>());
  }
  __syncwarp();
  int word = list.first_word;
  for (int index = list.index; index < list.end; index += list.step) {
    const Unit unit = list.at(index, word);
    word = list.word_after(index, word);
    if (unit.count <= 4) {
      run_unit_bulk<S, E, 4>(call, unit, source, stages);
    } else if (S::kMostRows <= 8 || unit.count <= 8) {
      run_unit_bulk<S, E, 8>(call, unit, source, stages);
    } else {
      if constexpr (S::kMostRows > 8) run_unit_bulk<S, E, 16>(call, unit, source, stages);
    }
  }
}

#endif

}  // namespace nvfp4
