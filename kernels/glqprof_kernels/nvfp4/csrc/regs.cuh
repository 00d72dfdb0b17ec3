// The register pipeline: a slot of weights (two groups of k 32) and its inputs are loaded while the one before is used.
#pragma once

#include "unit.cuh"

namespace nvfp4 {

struct Regs {
  static constexpr bool kPrefetches = false;
};

template <class S, class E, int COLUMNS>
struct Group {
  uint4 codes[Shape<S, E>::kAtoms];
  uint2 scales[Shape<S, E>::kAtoms];
  uint2 x[2][2][Tiling<COLUMNS>::kTiles];
};

template <class S, class E, int COLUMNS>
__device__ __forceinline__ void run_unit_regs(const MoeCall& call, const Unit& unit) {
  using F = Shape<S, E>;
  using G = Group<S, E, COLUMNS>;
  constexpr int kTiles = Tiling<COLUMNS>::kTiles;
  constexpr bool kKeep = S::kGrouped;
  const Matrix& m = E::kDown ? call.down : call.gate_up;
  const int lane = threadIdx.x % 32;
  const float scale = __ldg(m.scale + unit.expert);
  const uint8_t* tiles = unit_tiles<S, E>(m, unit);
  const int64_t stream = static_cast<int64_t>(m.slots) * kSlotBytes;
  const uint16_t* inputs[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int piece = input_piece<E>(call, unit, input_row<COLUMNS>(lane, tile, unit.count));
    inputs[tile] = inputs_base<E>(call) + static_cast<int64_t>(piece) * 8 + lane % 4 * 4;
  }

  auto load = [&](G& group, int slot) {
    const uint8_t* from = tiles + static_cast<int64_t>(slot) * kSlotBytes;
#pragma unroll
    for (int atom = 0; atom < F::kAtoms; ++atom) {
      group.codes[atom] = load_weights16<kKeep>(from + atom * stream + lane * 16);
      group.scales[atom] = load_weights8<kKeep>(from + atom * stream + kCodeBytes + lane / 4 * 8);
    }
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const int k = slot * kSlotColumns + block * 16;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        uint2 x = {0, 0};
        if (k < m.inputs) x = *reinterpret_cast<const uint2*>(inputs[tile] + k);
        group.x[block / 2][block % 2][tile] = x;
      }
    }
  };

  float acc[F::kAtoms][Tiling<COLUMNS>::kValues] = {};
  auto add = [&](const G& group) {
#pragma unroll
    for (int atom = 0; atom < F::kAtoms; ++atom) {
      const uint4& c = group.codes[atom];
      add_blocks<COLUMNS>(acc[atom], c.x, c.y, group.scales[atom].x, group.x[0]);
      add_blocks<COLUMNS>(acc[atom], c.z, c.w, group.scales[atom].y, group.x[1]);
    }
  };
  G now;
  load(now, 0);
#pragma unroll 2
  for (int slot = 1; slot < m.slots; ++slot) {
    G next;
    load(next, slot);
    add(now);
    now = next;
  }
  add(now);
  finish_unit<S, E, COLUMNS>(call, unit, scale, acc);
}

template <class S, class E>
__device__ __forceinline__ void run_units(const MoeCall& call, int, Regs) {
  if (E::kDown) glq::let_next_kernel_start();
  glq::wait_for_previous_kernel();
  if (!E::kDown) glq::let_next_kernel_start();
  UnitList<S, E> list(call);
  list.read_plan();
  for (int index = list.index; index < list.end; index += list.step) {
    const Unit unit = list.at(index, list.word(index));
    if (unit.count <= 4) {
      run_unit_regs<S, E, 4>(call, unit);
    } else if (S::kMostRows <= 8 || unit.count <= 8) {
      run_unit_regs<S, E, 8>(call, unit);
    } else {
      if constexpr (S::kMostRows > 8) run_unit_regs<S, E, 16>(call, unit);
    }
  }
}

}  // namespace nvfp4
