// The ring: each warp has stages of its own in shared memory, filled by cp.async with a slot (k 64; quarter: two) of weight
// words, block scales and the inputs of all rows. The copies run ahead over the end of a unit into the warp's
// next one; not quarter's, whose warps have one unit where rows are few.
#pragma once

#include "unit.cuh"

namespace nvfp4 {

template <int DEPTH>
struct RingOf {
  static constexpr int kDepth = DEPTH;
  static constexpr bool kPrefetches = true;
};
using Ring = RingOf<4>;
constexpr int kDeepestRing = 6;  // of quarter
struct Deep {
  static constexpr int kDepth = 0;  // chosen at the launch
  static constexpr bool kPrefetches = true;
};

struct alignas(128) SharedLine {
  unsigned char bytes[128];
};

// What a warp copies next. A stage: inputs [rows][slots][128 B], then codes [atom][slot], then block scales. A copy of the whole
// warp brings 512 bytes of codes; one more brings the scales by its first lanes and the inputs of the first rows by the others;
// further rows come 32 pieces of 16 bytes at a time.
template <class S, class E>
struct Source {
  using F = Shape<S, E>;
  static constexpr int kSlots = F::kStageSlots;
  static constexpr int kScaleLanes = F::kAtoms * kSlots * kScaleBytes / 16;
  static constexpr int kRowLanes = 8 * kSlots;
  static constexpr int kFirstRows = (32 - kScaleLanes) / kRowLanes;
  static constexpr int kRowsAtOnce = 32 / kRowLanes;
  static constexpr int kMore = (kItemRows - kFirstRows + kRowsAtOnce - 1) / kRowsAtOnce;
  static constexpr int kBusyLanes = kScaleLanes + kFirstRows * kRowLanes;
  static constexpr bool kKeepMore = kSlots == 1;  // else where further rows lie is found for each stage: it has few registers

  const MoeCall& call;
  const Matrix& m;
  UnitList<S, E> list;
  int left;                // slots of the unit not yet copied; 0: the warp's next unit follows
  Unit unit;
  const uint8_t* codes;    // this lane's
  const uint8_t* other;    // this lane's scales or inputs of a first row
  int other_left;          // columns from this lane's piece on; below 1 zeros are copied
  int stream;              // bytes from an atom to the next
  int more[kKeepMore ? kMore : 1];  // this lane's 16 bytes of further rows

  __device__ __forceinline__ explicit Source(const MoeCall& call_)
      : call(call_), m(E::kDown ? call_.down : call_.gate_up), list(call_) {
    left = 0;
    unit.item_word = unit.expert = unit.first = unit.count = unit.group = 0;
    codes = other = nullptr;
    other_left = 0;
    stream = m.slots * kSlotBytes;
#pragma unroll
    for (int& piece : more) piece = 0;
  }

  // Bytes of inputs in a stage.
  __device__ __forceinline__ int weights_at() const { return ring_rows<S>(call.item_rows) * kSlots * kSlotColumns * 2; }

  // Where 16 bytes of a row's inputs lie in a stage: so that the 8-byte loads of half a warp meet no bank twice.
  __device__ __forceinline__ static int input_at(int row, int chunk) {
    return row * kSlots * 128 + (chunk ^ (2 * (row % 4))) * 16;
  }

  // Which 16 bytes of the first rows a lane copies; lanes left over copy nothing.
  __device__ __forceinline__ static int first_input(int lane) {
    return min(max(lane - kScaleLanes, 0), kFirstRows * kRowLanes - 1);
  }

  // Where this lane's scales or inputs go in a stage.
  __device__ __forceinline__ int other_at() const {
    const int lane = threadIdx.x % 32, first = first_input(lane);
    return lane < kScaleLanes ? weights_at() + F::kAtoms * kSlots * kCodeBytes + lane * 16
                              : input_at(first / kRowLanes, first % kRowLanes);
  }

  __device__ __forceinline__ void open() {
    if (list.index < list.end) {
      const int lane = threadIdx.x % 32;
      unit = list.at(list.index, list.word(list.index));
      list.index += list.step;
      left = m.slots;
      const uint8_t* tiles = unit_tiles<S, E>(m, unit);
      codes = tiles + lane * 16;
      const uint8_t* inputs = reinterpret_cast<const uint8_t*>(inputs_base<E>(call));
      constexpr int kPieces = kScaleBytes / 16;
      const bool scales = lane < kScaleLanes;
      const int first = first_input(lane), first_row = first / kRowLanes, chunk = first % kRowLanes;
      const int piece = input_piece<E>(call, unit, min(first_row, unit.count - 1)) + chunk;
      const int slot = lane / kPieces % kSlots;
      const int scales_at = lane / kPieces / kSlots * stream + slot * kSlotBytes + kCodeBytes + lane % kPieces * 16;
      other = (scales ? tiles : inputs) + (scales ? scales_at : static_cast<int64_t>(piece) * 16);
      // No row: zeros, unread. Scales: as long as there is this slot.
      other_left = scales ? (m.slots - slot) * kSlotColumns : first_row < unit.count ? m.inputs - chunk * 8 : 0;
      if constexpr (kKeepMore) {
#pragma unroll
        for (int i = 0; i < kMore; ++i) {
          more[i] = input_piece<E>(call, unit, min(kFirstRows + 4 * i + lane / 8, unit.count - 1)) + lane % 8;
        }
      }
    }
  }

  // The inputs of the rows after the first ones.
  __device__ __forceinline__ void copy_more(SharedAddress stage) {
    const int lane = threadIdx.x % 32, chunk = lane % kRowLanes;
    const int done = (m.slots - left) * kSlotColumns;
    const int bytes = m.inputs - done - chunk * 8 > 0 ? 16 : 0;
    const uint16_t* base = inputs_base<E>(call);
    if constexpr (kKeepMore) {
#pragma unroll
      for (int i = 0; i < kMore; ++i) {
        const int row = kFirstRows + kRowsAtOnce * i + lane / kRowLanes;
        if (kFirstRows + kRowsAtOnce * i >= unit.count) break;
        if (row < unit.count) copy16_group(stage + input_at(row, chunk), base + static_cast<int64_t>(more[i]) * 8, bytes);
        more[i] += kSlotColumns / 8;
      }
    } else {
#pragma unroll 1
      for (int above = kFirstRows; above < unit.count; above += kRowsAtOnce) {
        const int row = above + lane / kRowLanes;
        const int64_t piece = input_piece<E>(call, unit, min(row, unit.count - 1)) + chunk;
        copy16_group_if(row < unit.count, stage + input_at(row, chunk), base + piece * 8 + done, bytes);
      }
    }
  }

  // The next stage of this unit, or nothing: predicates instead of branches.
  template <bool CODES, bool REST>
  __device__ __forceinline__ void copy_own(SharedAddress stage, int at) {
    const int lane = threadIdx.x % 32;
    if (CODES) {
      const SharedAddress to = stage + weights_at() + lane * 16;
#pragma unroll
      for (int i = 0; i < F::kAtoms * kSlots; ++i) {
        copy16_group_if(left > i % kSlots, to + i * kCodeBytes, codes + i / kSlots * stream + i % kSlots * kSlotBytes, 16);
      }
    }
    if (REST) copy16_group_if(left > 0 && lane < kBusyLanes, stage + at, other, other_left > 0 ? 16 : 0);
    if (REST && __builtin_expect(unit.count > kFirstRows, 0)) {
      if (left > 0) copy_more(stage);
    }
    advance();
  }

  __device__ __forceinline__ void advance() {
    codes += kSlots * kSlotBytes;
    other += threadIdx.x % 32 < kScaleLanes ? kSlots * kSlotBytes : kSlots * kSlotColumns * 2;
    other_left -= kSlots * kSlotColumns;
    left -= kSlots;
  }

  // The next stage: its codes, the rest, or both. Nothing where the warp has no more units.
  template <bool CODES, bool REST>
  __device__ __forceinline__ void copy(SharedAddress stage, int at) {
    static_assert(kSlots == 1, "copy_own() is for more slots a stage");
    if (__builtin_expect(left <= 0, 0)) open();
    if (__builtin_expect(left > 0, 1)) {
      const int lane = threadIdx.x % 32;
      if (CODES) {
        const SharedAddress to = stage + weights_at() + lane * 16;
#pragma unroll
        for (int atom = 0; atom < F::kAtoms; ++atom) copy16_group(to + atom * kCodeBytes, codes + atom * stream);
      }
      if (REST && kBusyLanes == 32) copy16_group(stage + at, other, other_left > 0 ? 16 : 0);
      if (REST && kBusyLanes < 32) copy16_group_if(lane < kBusyLanes, stage + at, other, other_left > 0 ? 16 : 0);
      if (REST && __builtin_expect(unit.count > kFirstRows, 0)) copy_more(stage);
      advance();
    }
  }

  template <bool CODES, bool REST>
  __device__ __forceinline__ void copy_next(SharedAddress stage, int at) {
    if constexpr (S::kRunsAhead) {
      copy<CODES, REST>(stage, at);
    } else {
      copy_own<CODES, REST>(stage, at);
    }
  }

  // What follows of the unit is asked into L2, up to `bytes` of its weights.
  __device__ __forceinline__ void look_ahead(int bytes) const {
    if (threadIdx.x % 32 == 0 && left > 0) {
      const int most = min(bytes / F::kAtoms / kSlotBytes, left) * kSlotBytes;
#pragma unroll
      for (int atom = 0; atom < F::kAtoms; ++atom) {
        if (most > 0) prefetch_l2(codes + atom * stream, most);
      }
    }
  }
};

template <int DEPTH>
__device__ __forceinline__ void wait_stage(int depth, RingOf<DEPTH>) { wait_copy_groups<DEPTH - 2>(); }
__device__ __forceinline__ void wait_stage(int depth, Deep) {
  if (depth == 16) {
    wait_copy_groups<14>();
  } else if (depth == 12) {
    wait_copy_groups<10>();
  } else if (depth == 8) {
    wait_copy_groups<6>();
  } else if (depth == 6) {
    wait_copy_groups<4>();
  } else {
    wait_copy_groups<2>();
  }
}

// A slot of a unit out of its stage.
template <class S, class E, int COLUMNS>
__device__ __forceinline__ void add_slot(float (&acc)[Shape<S, E>::kAtoms][Tiling<COLUMNS>::kValues], int slot, SharedAddress codes,
                                         SharedAddress scales, const SharedAddress (&inputs)[Tiling<COLUMNS>::kTiles]) {
  using F = Shape<S, E>;
  constexpr int kTiles = Tiling<COLUMNS>::kTiles;
  uint2 x[2][2][kTiles];
  auto load_inputs = [&](int pair) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        x[pair][block][tile] = load_shared8((inputs[tile] ^ ((2 * pair + block) * 32)) + slot * 128);
      }
    }
  };
  load_inputs(0);
  if constexpr (COLUMNS == 16 && F::kAtoms > 2) {
    // Registers do not hold all inputs: half of the slot after the other.
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      if (pair == 1) load_inputs(1);
#pragma unroll
      for (int atom = 0; atom < F::kAtoms; ++atom) {
        const uint2 c = load_shared8(codes + (atom * F::kStageSlots + slot) * kCodeBytes + 8 * pair);
        const uint2 s = load_shared8(scales + (atom * F::kStageSlots + slot) * kScaleBytes);
        add_blocks<COLUMNS>(acc[atom], c.x, c.y, pair == 0 ? s.x : s.y, x[pair]);
      }
    }
  } else {
    load_inputs(1);
#pragma unroll
    for (int atom = 0; atom < F::kAtoms; ++atom) {
      const uint4 c = load_shared16(codes + (atom * F::kStageSlots + slot) * kCodeBytes);
      const uint2 s = load_shared8(scales + (atom * F::kStageSlots + slot) * kScaleBytes);
      add_blocks<COLUMNS>(acc[atom], c.x, c.y, s.x, x[0]);
      add_blocks<COLUMNS>(acc[atom], c.z, c.w, s.y, x[1]);
    }
  }
}

// The stages of one warp: which is used next, which was used last and is free.
struct Stages {
  SharedAddress begin, end, now, before;
  int bytes;

  __device__ __forceinline__ void step() {
    before = now;
    now += bytes;
    now = now == end ? begin : now;
  }
};

template <class S, class E, class P, int COLUMNS>
__device__ __forceinline__ void run_unit_ring(const MoeCall& call, const Unit& unit, Source<S, E>& source, Stages& stages,
                                              int depth) {
  using F = Shape<S, E>;
  constexpr int kTiles = Tiling<COLUMNS>::kTiles;
  const int lane = threadIdx.x % 32;
  const float scale = __ldg(source.m.scale + unit.expert);
  const int codes = source.weights_at() + lane * 16;
  const int scales = source.weights_at() + F::kAtoms * F::kStageSlots * kCodeBytes + lane / 4 * 8;
  int inputs[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int row = input_row<COLUMNS>(lane, tile, unit.count);
    inputs[tile] = row * F::kStageSlots * 128 + row % 4 * 32 + lane % 4 * 8;  // block b of the slot: ^ 32 b
  }
  const int other_at = source.other_at();
  float acc[F::kAtoms][Tiling<COLUMNS>::kValues] = {};
#pragma unroll 1
  for (int left = source.m.slots; left > 0; left -= F::kStageSlots) {
    wait_stage(depth, P());
    __syncwarp();  // all lanes' copies have arrived; all lanes have read the stage that is filled now
    source.template copy_next<true, true>(stages.before, other_at);
    end_copy_group();
    SharedAddress at[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) at[tile] = stages.now + inputs[tile];
#pragma unroll
    for (int slot = 0; slot < F::kStageSlots; ++slot) {
      if constexpr (COLUMNS > 4) {
        if (slot == 0 || left > slot) add_slot<S, E, COLUMNS>(acc, slot, stages.now + codes, stages.now + scales, at);
      } else {
        // By selection: a branch would keep the loads of a slot behind the sums of the one before.
        float sums[F::kAtoms][2];
#pragma unroll
        for (int i = 0; i < 2 * F::kAtoms; ++i) sums[i / 2][i % 2] = acc[i / 2][i % 2];
        add_slot<S, E, COLUMNS>(sums, slot, stages.now + codes, stages.now + scales, at);
#pragma unroll
        for (int i = 0; i < 2 * F::kAtoms; ++i) {
          if (slot == 0 || left > slot) acc[i / 2][i % 2] = sums[i / 2][i % 2];
        }
      }
    }
    stages.step();
  }
  finish_unit<S, E, COLUMNS>(call, unit, scale, acc);
}

// `depth` stages a warp; Deep here below sm_90.
template <class S, class E, class P>
__device__ __forceinline__ void run_units_ring(const MoeCall& call, int depth_given) {
  using F = Shape<S, E>;
  GLQ_DYNAMIC_SHARED(SharedLine, lines);
  const int depth = P::kDepth > 0 ? P::kDepth : depth_given;
  Stages stages;
  stages.bytes = stage_bytes<S, E>(call.item_rows);
  stages.begin = shared_address(lines) + threadIdx.x / 32 * depth * stages.bytes;
  stages.end = stages.begin + depth * stages.bytes;
  stages.now = stages.begin;
  stages.before = stages.end - stages.bytes;

  if (!E::kDown) {
    glq::wait_for_previous_kernel();
    glq::let_next_kernel_start();
  } else {
    glq::let_next_kernel_start();
  }
  Source<S, E> source(call);
  source.list.read_plan();
  UnitList<S, E> list = source.list;
  if constexpr (!S::kRunsAhead) source.open();
  if (E::kDown) {
    // The plan was there before gate-up began: the first codes come while gate-up still runs; scales, and its results, then.
    Source<S, E> ahead = source;
#pragma unroll 1
    for (int i = 0; i < depth - 1; ++i) {
      ahead.template copy_next<true, false>(stages.begin + i * stages.bytes, source.other_at());
      end_copy_group();
    }
    if (call.ahead_bytes > 0) ahead.look_ahead(call.ahead_bytes);
    glq::wait_for_previous_kernel();
#pragma unroll 1
    for (int i = 0; i < depth - 1; ++i) {
      source.template copy_next<false, true>(stages.begin + i * stages.bytes, source.other_at());
      end_copy_group();
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < depth - 1; ++i) {
      source.template copy_next<true, true>(stages.begin + i * stages.bytes, source.other_at());
      end_copy_group();
    }
  }
  if constexpr (S::kRunsAhead) {
    for (int index = list.index; index < list.end; index += list.step) {
      const Unit unit = list.at(index, list.word(index));
      if (unit.count <= 4) {
        run_unit_ring<S, E, P, 4>(call, unit, source, stages, depth);
      } else if (S::kMostRows <= 8 || unit.count <= 8) {
        run_unit_ring<S, E, P, 8>(call, unit, source, stages, depth);
      } else {
        if constexpr (S::kMostRows > 8) run_unit_ring<S, E, P, 16>(call, unit, source, stages, depth);
      }
    }
  } else {
    if (source.left == 0 && source.unit.count == 0) return;  // no unit
    while (true) {
      if (source.unit.count <= 4) {
        run_unit_ring<S, E, P, 4>(call, source.unit, source, stages, depth);
      } else {
        run_unit_ring<S, E, P, 8>(call, source.unit, source, stages, depth);
      }
      if (source.list.index >= source.list.end) break;
      // All stages are free once the warp has met.
      wait_copy_groups<0>();
      __syncwarp();
      source.open();
      stages.now = stages.begin;
      stages.before = stages.end - stages.bytes;
#pragma unroll 1
      for (int i = 0; i < depth - 1; ++i) {
        source.template copy_own<true, true>(stages.begin + i * stages.bytes, source.other_at());
        end_copy_group();
      }
    }
  }
  wait_copy_groups<0>();
}

template <class S, class E>
__device__ __forceinline__ void run_units(const MoeCall& call, int depth, Ring) {
  if constexpr (S::kStageSlots > 1) {
    switch (depth) {
      case 3: return run_units_ring<S, E, RingOf<3>>(call, depth);
      case 5: return run_units_ring<S, E, RingOf<5>>(call, depth);
      case 6: return run_units_ring<S, E, RingOf<6>>(call, depth);
      default: return run_units_ring<S, E, Ring>(call, depth);
    }
  } else {
    run_units_ring<S, E, Ring>(call, depth);
  }
}

#if !NVFP4_BULK
template <class S, class E>
__device__ __forceinline__ void run_units(const MoeCall& call, int depth, Deep) {
  run_units_ring<S, E, Deep>(call, depth);
}
#endif

}  // namespace nvfp4
