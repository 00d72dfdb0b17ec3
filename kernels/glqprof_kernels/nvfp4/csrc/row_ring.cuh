// The ring of quarter units whose inputs the block holds once: its warps have units of one item, so that a row comes from L2
// once a block and not once a warp, and a stage of a warp is what lies in memory: two slots, 1152 bytes, nine lines.
#pragma once

#include "ring.cuh"

namespace nvfp4 {

// Bytes from a row of inputs to the next, of whole stages; 32 more, so that the 8-byte loads of half a warp meet no bank twice.
__host__ __device__ constexpr int row_pitch(int slots) { return (slots + 1) / 2 * 2 * kSlotColumns * 2 + 32; }
constexpr int kRowStageBytes = 2 * kSlotBytes;

// 16 bytes of a stage a lane, thrice; lanes beyond it, and stages beyond the unit, copy nothing. `left`: bytes from this lane's
// first piece to the end of the unit.
struct RowSource {
  const uint8_t* from;
  int left;

  __device__ __forceinline__ void fill(SharedAddress stage) {
    copy16_group_if(left > 0, stage, from, 16);
    copy16_group_if(left > 512, stage + 512, from + 512, 16);
    copy16_group_if(left > 1024 && threadIdx.x % 32 < 8, stage + 1024, from + 1024, 16);
    end_copy_group();
    from += kRowStageBytes;
    left -= kRowStageBytes;
  }
};

// A slot: the lane's codes, its scales, its row's inputs.
template <int COLUMNS>
__device__ __forceinline__ void add_row_slot(float (&acc)[Tiling<COLUMNS>::kValues], SharedAddress codes, SharedAddress scales,
                                             SharedAddress inputs) {
  uint2 x[2][2][1];
#pragma unroll
  for (int block = 0; block < 4; ++block) x[block / 2][block % 2][0] = load_shared8(inputs + block * 32);
  const uint4 c = load_shared16(codes);
  const uint2 s = load_shared8(scales);
  add_blocks<COLUMNS>(acc, c.x, c.y, s.x, x[0]);
  add_blocks<COLUMNS>(acc, c.z, c.w, s.y, x[1]);
}

// `begin`: this lane's first 16 bytes of the warp's stages, of which all but the last are on their way.
template <class S, class E, int COLUMNS, int DEPTH>
__device__ __forceinline__ void run_row_unit(const MoeCall& call, const Matrix& m, const Unit& unit, RowSource& source,
                                             SharedAddress begin, SharedAddress rows) {
  const int lane = threadIdx.x % 32;
  const float scale = __ldg(m.scale + unit.expert);
  const int scales = kCodeBytes + lane / 4 * 8 - lane * 16;
  const SharedAddress end = begin + DEPTH * kRowStageBytes;
  SharedAddress now = begin, before = end - kRowStageBytes;
  SharedAddress inputs = rows + input_row<COLUMNS>(lane, 0, unit.count) * row_pitch(m.slots) + lane % 4 * 8;
  float acc[1][Tiling<COLUMNS>::kValues] = {};
#pragma unroll 1
  for (int left = m.slots; left > 0; left -= 2) {
    wait_copy_groups<DEPTH - 2>();
    __syncwarp();  // all lanes' copies have arrived; all lanes have read the stage that is filled now
    source.fill(before);
    add_row_slot<COLUMNS>(acc[0], now, now + scales, inputs);
    if constexpr (COLUMNS > 4) {
      if (left > 1) add_row_slot<COLUMNS>(acc[0], now + kSlotBytes, now + scales + kSlotBytes, inputs + kSlotColumns * 2);
    } else {
      // By selection: a branch would keep the loads of a slot behind the sums of the one before.
      float sums[2] = {acc[0][0], acc[0][1]};
      add_row_slot<COLUMNS>(sums, now + kSlotBytes, now + scales + kSlotBytes, inputs + kSlotColumns * 2);
      acc[0][0] = left > 1 ? sums[0] : acc[0][0];
      acc[0][1] = left > 1 ? sums[1] : acc[0][1];
    }
    inputs += 2 * kSlotColumns * 2;
    before = now;
    now += kRowStageBytes;
    now = now == end ? begin : now;
  }
  finish_unit<S, E, COLUMNS>(call, unit, scale, acc);
}

// All threads: the rows of an item to shared memory, what is missing of the last slot as zeros.
template <class E>
__device__ __forceinline__ void copy_rows(const MoeCall& call, const Matrix& m, const Unit& unit, SharedAddress rows) {
  const uint16_t* base = inputs_base<E>(call);
  const int pieces = m.inputs / 8;
#pragma unroll 1
  for (int row = 0; row < unit.count; ++row) {
    const int64_t first = input_piece<E>(call, unit, row);
#pragma unroll 1
    for (int piece = threadIdx.x; piece < m.slots * (kSlotColumns / 8); piece += blockDim.x) {
      const bool there = piece < pieces;
      copy16_group(rows + row * row_pitch(m.slots) + piece * 16, base + (first + (there ? piece : 0)) * 8, there ? 16 : 0);
    }
  }
}

// A block takes chunks of as many units of an item as it has warps.
template <class S, class E, int DEPTH>
__device__ __forceinline__ void run_units_rows(const MoeCall& call) {
  using F = Shape<S, E>;
  static_assert(F::kAtoms == 1 && F::kStageSlots == 2 && S::kMostRows <= 8, "a unit of a quarter");
  GLQ_DYNAMIC_SHARED(SharedLine, lines);
  const Matrix& m = E::kDown ? call.down : call.gate_up;
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32, warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const int per_item = m.columns / F::kColumns, chunks = (per_item + warps - 1) / warps;
  const SharedAddress begin = shared_address(lines) + warp * DEPTH * kRowStageBytes + lane * 16;
  const SharedAddress rows = shared_address(lines) + warps * DEPTH * kRowStageBytes;
  auto word_of = [&](int chunk) {
    const int item = min(chunk / chunks, call.item_capacity - 1);
    return __ldcg(call.plan + kPlanHeader + static_cast<int64_t>(item) * kItemWords + lane);
  };
  int chunk = blockIdx.x, held = -1;
  if (!E::kDown) {
    glq::wait_for_previous_kernel();
    glq::let_next_kernel_start();
  } else {
    glq::let_next_kernel_start();
  }
  int word = word_of(chunk);
  const int end = __shfl_sync(0xFFFFFFFFu, __ldcg(call.plan), 0) * chunks;
  if (E::kDown && chunk >= end) glq::wait_for_previous_kernel();
#pragma unroll 1
  for (; chunk < end; chunk += gridDim.x) {
    const int item = chunk / chunks;
    Unit unit;
    unit.item_word = word;
    unit.expert = __shfl_sync(0xFFFFFFFFu, word, kExpert);
    unit.first = __shfl_sync(0xFFFFFFFFu, word, kFirst);
    unit.count = __shfl_sync(0xFFFFFFFFu, word, kCount);
    unit.group = (chunk - item * chunks) * warps + warp;
    const bool busy = unit.group < per_item;
    RowSource source;
    source.from = unit_tiles<S, E>(m, unit) + lane * 16;
    source.left = busy ? m.slots * kSlotBytes - lane * 16 : 0;
    if (!E::kDown && held < 0) copy_rows<E>(call, m, unit, rows);  // in the first stage's group
#pragma unroll 1
    for (int i = 0; i < DEPTH - 1; ++i) source.fill(begin + i * kRowStageBytes);
    if (!E::kDown && held < 0) {
      wait_copy_groups<DEPTH - 2>();
      __syncthreads();
    } else if (item != held) {
      if (E::kDown && held < 0) {
        glq::wait_for_previous_kernel();
      } else {
        __syncthreads();  // all warps have done with the rows before
      }
      copy_rows<E>(call, m, unit, rows);
      end_copy_group();
      wait_copy_groups<0>();
      __syncthreads();
    }
    held = item;
    word = word_of(chunk + gridDim.x);
    if (busy) {
      if (unit.count <= 4) {
        run_row_unit<S, E, 4, DEPTH>(call, m, unit, source, begin, rows);
      } else {
        run_row_unit<S, E, 8, DEPTH>(call, m, unit, source, begin, rows);
      }
    }
    __syncwarp();  // all lanes have read the last stages
  }
}

template <class S, class E>
__device__ __forceinline__ void run_units(const MoeCall& call, int depth, Ring) {
  if constexpr (S::kStageSlots > 1) {
    if (call.rows_once) {
      switch (depth) {
        case 3: return run_units_rows<S, E, 3>(call);
        case 5: return run_units_rows<S, E, 5>(call);
        default: return run_units_rows<S, E, 4>(call);
      }
    }
    if (depth == 3) return run_units_ring<S, E, RingOf<3>>(call, depth);
  }
  run_units_ring<S, E, Ring>(call, depth);
}

}  // namespace nvfp4
