// The ring: each warp has stages of its own in shared memory, filled by cp.async with a slot (k 64) of weight words, block
// scales and the inputs of all rows. The copies run ahead over the end of a unit into the warp's next one.
#pragma once

#include "unit.cuh"

namespace nvfp4 {

struct Ring {
  static constexpr int kDepth = 4;
  static constexpr bool kPrefetches = true;
};
struct Deep {
  static constexpr int kDepth = 0;  // chosen at the launch
  static constexpr bool kPrefetches = true;
};

struct alignas(128) SharedLine {
  unsigned char bytes[128];
};

// What a warp copies next. A stage: inputs [rows][128 B], then codes, then block scales. A copy of the whole warp brings 512
// bytes of codes; one more brings the scales by its first lanes and the inputs of the first rows by the others, 8 lanes a row;
// further rows come four at a time.
template <class S, class E>
struct Source {
  using F = Shape<S, E>;
  static constexpr int kScaleLanes = F::kTiles * kScaleBytes / 16;
  static constexpr int kFirstRows = (32 - kScaleLanes) / 8;
  static constexpr int kMore = (kItemRows - kFirstRows + 3) / 4;
  static constexpr int kBusyLanes = kScaleLanes + kFirstRows * 8;
  static constexpr int kAlways = 1 << 30;  // inputs left of a lane that copies scales

  const MoeCall& call;
  const Matrix& m;
  UnitList<S, E> list;
  int left;                // slots of the unit not yet copied; 0: the warp's next unit follows
  int count;
  const uint8_t* codes;    // this lane's
  const uint8_t* other;    // this lane's scales or inputs of a first row
  int other_step;          // from one slot to the next
  int other_left;          // inputs from this lane's 8 on; below 1 zeros are copied
  int stream;              // bytes from an atom row to the next
  int more[kMore];         // this lane's 16 bytes of further rows
  int other_at;            // in a stage

  __device__ __forceinline__ explicit Source(const MoeCall& call_)
      : call(call_), m(E::kDown ? call_.down : call_.gate_up), list(call_) {
    const int lane = threadIdx.x % 32;
    left = 0;
    count = 0;
    codes = other = nullptr;
    other_left = 0;
    stream = m.slots * F::kStreamBytes;
    if (lane < kScaleLanes) {
      other_step = F::kStreamBytes;
      other_at = weights_at() + F::kTiles * kCodeBytes + lane * 16;
    } else {
      other_step = kSlotColumns * 2;
      other_at = input_at(first_input(lane) / 8, first_input(lane) % 8);
    }
#pragma unroll
    for (int i = 0; i < kMore; ++i) more[i] = 0;
  }

  // Bytes of inputs in a stage.
  __device__ __forceinline__ int weights_at() const { return ring_rows(call.item_rows) * kSlotColumns * 2; }

  // Where 16 bytes of a row's inputs lie in a stage: so that the 8-byte loads of half a warp meet no bank twice.
  __device__ __forceinline__ static int input_at(int row, int chunk) { return row * 128 + (chunk ^ (2 * (row % 4))) * 16; }

  // Which 16 bytes of the first rows a lane copies; lanes left over copy nothing.
  __device__ __forceinline__ static int first_input(int lane) { return min(max(lane - kScaleLanes, 0), kFirstRows * 8 - 1); }

  __device__ __forceinline__ void open() {
    if (list.index < list.end) {
      const int lane = threadIdx.x % 32;
      const Unit unit = list.at(list.index, list.word(list.index));
      list.index += list.step;
      left = m.slots;
      count = unit.count;
      const uint8_t* tiles = unit_tiles<S, E>(m, unit);
      codes = tiles + lane * 16;
      const uint8_t* inputs = reinterpret_cast<const uint8_t*>(inputs_base<E>(call));
      constexpr int kOfStream = F::kSections * kScaleBytes / 16;
      const bool scales = lane < kScaleLanes;
      const int first = first_input(lane);
      const int piece = input_piece<E>(call, unit, min(first / 8, count - 1)) + first % 8;
      const int scales_at = lane / kOfStream * stream + F::kSections * kCodeBytes + lane % kOfStream * 16;
      other = (scales ? tiles : inputs) + (scales ? scales_at : static_cast<int64_t>(piece) * 16);
      other_left = scales ? kAlways : first / 8 < count ? m.inputs - first % 8 * 8 : 0;  // no row: zeros, unread
#pragma unroll
      for (int i = 0; i < kMore; ++i) {
        more[i] = input_piece<E>(call, unit, min(kFirstRows + 4 * i + lane / 8, count - 1)) + lane % 8;
      }
    }
  }

  // The next slot into a stage: its codes, the rest, or both. Nothing where the warp has no more units.
  template <bool CODES, bool REST>
  __device__ __forceinline__ void copy(SharedAddress stage) {
    if (__builtin_expect(left == 0, 0)) open();
    if (__builtin_expect(left > 0, 1)) {
      const int lane = threadIdx.x % 32;
      if (CODES) {
        const SharedAddress to = stage + weights_at() + lane * 16;
#pragma unroll
        for (int atom = 0; atom < S::kAtoms; ++atom) {
#pragma unroll
          for (int section = 0; section < F::kSections; ++section) {
            copy16_group(to + (atom * F::kSections + section) * kCodeBytes, codes + atom * stream + section * kCodeBytes);
          }
        }
      }
      if (REST && kBusyLanes == 32) copy16_group(stage + other_at, other, other_left > 0 ? 16 : 0);
      if (REST && kBusyLanes < 32) copy16_group_if(lane < kBusyLanes, stage + other_at, other, other_left > 0 ? 16 : 0);
      if (REST && __builtin_expect(count > kFirstRows, 0)) {
#pragma unroll
        for (int i = 0; i < kMore; ++i) {
          const int row = kFirstRows + 4 * i + lane / 8;
          const int chunk = lane % 8;
          if (kFirstRows + 4 * i >= count) break;
          const int inputs_left = m.inputs - (m.slots - left) * kSlotColumns - chunk * 8;
          if (row < count) {
            copy16_group(stage + input_at(row, chunk), inputs_base<E>(call) + static_cast<int64_t>(more[i]) * 8,
                         inputs_left > 0 ? 16 : 0);
          }
          more[i] += kSlotColumns / 8;
        }
      }
      codes += F::kStreamBytes;
      other += other_step;
      other_left -= kSlotColumns;
      --left;
    }
  }
};

__device__ __forceinline__ void wait_stage(int depth, Ring) { wait_copy_groups<Ring::kDepth - 2>(); }
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
__device__ __forceinline__ void add_stage(float (&acc)[Shape<S, E>::kTiles][Tiling<COLUMNS>::kValues], SharedAddress codes,
                                          SharedAddress scales, const SharedAddress (&inputs)[Tiling<COLUMNS>::kTiles]) {
  using F = Shape<S, E>;
  constexpr int kTiles = Tiling<COLUMNS>::kTiles;
  auto load_inputs = [&](int pair, uint2(&x)[2][kTiles]) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) x[block][tile] = load_shared8(inputs[tile] ^ ((2 * pair + block) * 32));
    }
  };
  if constexpr (E::kGated) {
#pragma unroll
    for (int section = 0; section < 2; ++section) {
      uint2 x[2][kTiles];
      load_inputs(section, x);
#pragma unroll
      for (int atom = 0; atom < S::kAtoms; ++atom) {
        const uint4 c = load_shared16(codes + (2 * atom + section) * kCodeBytes);
        const uint2 s = load_shared8(scales + (2 * atom + section) * kScaleBytes);
        add_blocks<COLUMNS>(acc[2 * atom], c.x, c.y, s.x, x);
        add_blocks<COLUMNS>(acc[2 * atom + 1], c.z, c.w, s.y, x);
      }
    }
  } else {
    uint2 x[2][2][kTiles];
    load_inputs(0, x[0]);
    load_inputs(1, x[1]);
#pragma unroll
    for (int atom = 0; atom < S::kAtoms; ++atom) {
      const uint4 c = load_shared16(codes + atom * kCodeBytes);
      const uint2 s = load_shared8(scales + atom * kScaleBytes);
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
  const int scales = source.weights_at() + F::kTiles * kCodeBytes + lane / 4 * 8;
  int inputs[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int row = input_row<COLUMNS>(lane, tile, unit.count);
    inputs[tile] = row * 128 + row % 4 * 32 + lane % 4 * 8;  // block b of the slot: ^ 32 b
  }
  float acc[F::kTiles][Tiling<COLUMNS>::kValues] = {};
  for (int slot = 0; slot < source.m.slots; ++slot) {
    wait_stage(depth, P());
    __syncwarp();  // all lanes' copies have arrived; all lanes have read the stage that is filled now
    source.template copy<true, true>(stages.before);
    end_copy_group();
    SharedAddress at[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) at[tile] = stages.now + inputs[tile];
    add_stage<S, E, COLUMNS>(acc, stages.now + codes, stages.now + scales, at);
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
  stages.bytes = F::kStageWeights + ring_rows(call.item_rows) * kSlotColumns * 2;
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
  if (E::kDown) {
    // The plan was there before gate-up began: the first codes come while gate-up still runs; scales, and its results, then.
    Source<S, E> ahead = source;
    for (int i = 0; i < depth - 1; ++i) {
      ahead.template copy<true, false>(stages.begin + i * stages.bytes);
      end_copy_group();
    }
    glq::wait_for_previous_kernel();
    for (int i = 0; i < depth - 1; ++i) {
      source.template copy<false, true>(stages.begin + i * stages.bytes);
      end_copy_group();
    }
  } else {
    for (int i = 0; i < depth - 1; ++i) {
      source.template copy<true, true>(stages.begin + i * stages.bytes);
      end_copy_group();
    }
  }
  for (int index = list.index; index < list.end; index += list.step) {
    const Unit unit = list.at(index, list.word(index));
    if (unit.count <= 4) {
      run_unit_ring<S, E, P, 4>(call, unit, source, stages, depth);
    } else if (unit.count <= 8) {
      run_unit_ring<S, E, P, 8>(call, unit, source, stages, depth);
    } else {
      run_unit_ring<S, E, P, 16>(call, unit, source, stages, depth);
    }
  }
  wait_copy_groups<0>();
}

template <class S, class E>
__device__ __forceinline__ void run_units(const MoeCall& call, int depth, Ring) {
  run_units_ring<S, E, Ring>(call, depth);
}

#if !NVFP4_BULK
template <class S, class E>
__device__ __forceinline__ void run_units(const MoeCall& call, int depth, Deep) {
  run_units_ring<S, E, Deep>(call, depth);
}
#endif

}  // namespace nvfp4
