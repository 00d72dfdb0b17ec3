// One layer's fused MoE: ids, weights and scalars are read on the device, all (token, expert) slots run at once.
//
// Phases: up (input transform of each token, up product, then for each slot the output transform, the activation and the
// input transform of the down product) and down (down product, output transform, the token's experts in top-k order). A
// phase's work is cut into units of rows x one split, and every thread block takes a contiguous, equally costly share of
// them. The thread block that finishes a slot's last unit does what follows the product (hand-over). The phases are two
// launches, the second of which waits for the first.
//
// Memory between thread blocks: sums are stored, the block's barrier is passed, one thread fences and counts the units;
// whoever sees the full count fences and lets its block read past L1. Counters return to zero within the launch.
#pragma once

#include "activation.cuh"
#include "fused_product.cuh"
#include "rht.cuh"

namespace glq {

// A launch's slots that take part, in (token, top-k) order, and the units in hand.
struct FusedShared {
  Unit units[kFusedUnits];
  float scales[kFusedSlots][kFusedStages];
  float weight[kFusedSlots];
  int token[kFusedSlots];
  int expert[kFusedSlots];
  int first_slot[kFusedSlots + 1];  // of each token; [tokens]: all slots
  float vector_scale[kFusedVectors];
  unsigned int peak[kFusedVectors];
  int taken;
  int last;
  int combine;
  unsigned char active[kFusedSlots];
};

template <int THREADS>
__device__ __forceinline__ void find_slots(const FusedCall& call, FusedShared& shared) {
  const int slots = call.tokens * call.top_k;
  auto weight_of = [&](int t, int k) { return call.weights[t * call.weight_strides[0] + k * call.weight_strides[1]]; };
  auto id_of = [&](int t, int k) {
    const int64_t at = t * call.id_strides[0] + k * call.id_strides[1];
    return call.wide_ids ? static_cast<const int64_t*>(call.ids)[at]
                         : static_cast<int64_t>(static_cast<const int32_t*>(call.ids)[at]);
  };
  for (int i = threadIdx.x; i < slots; i += THREADS) {
    const int64_t id = id_of(i / call.top_k, i % call.top_k);
    const bool is_expert = id >= 0 && id < call.experts;
    shared.active[i] = is_expert && weight_of(i / call.top_k, i % call.top_k) != 0.0f;
    if (!is_expert && !call.mask_invalid && blockIdx.x == 0 && call.phase == 0) atomicAdd(call.errors, 1ull);
  }
  __syncthreads();
  for (int i = threadIdx.x; i <= slots; i += THREADS) {
    int before = 0;
    for (int j = 0; j < i; ++j) before += shared.active[j];
    if (i % call.top_k == 0) shared.first_slot[i / call.top_k] = before;
    if (i < slots && shared.active[i]) {
      shared.token[before] = i / call.top_k;
      shared.expert[before] = static_cast<int>(id_of(i / call.top_k, i % call.top_k));
      shared.weight[before] = weight_of(i / call.top_k, i % call.top_k);
    }
  }
  __syncthreads();
}

// The units of one phase; numbered by slot, then group of rows, then split.
struct UnitGrid {
  int unit_rows;
  int row_groups;  // of a slot
  int splits;
  int split_blocks;
  int blocks;  // of a row

  __device__ __forceinline__ int per_slot() const { return row_groups * splits; }
  // The first unit that starts at or after `cost` blocks.
  __device__ __forceinline__ int at(int64_t cost) const {
    const int64_t row = cost / blocks;
    const int split = (static_cast<int>(cost - row * blocks) + split_blocks - 1) / split_blocks;
    return static_cast<int>(row) * splits + split;
  }
};

// Full units come first in the list: the short ones, of a last split, even out the end.
template <class C>
__device__ __forceinline__ void list_units(const FusedMatrix& m, const UnitGrid& grid, FusedShared& shared, int begin,
                                           int end, int first_vector, int vector_stride, int vector_base, bool by_token) {
  const int before = begin / grid.splits;
  const int full = end - begin - (end / grid.splits - before);
  const int padded_rows = m.groups * kGroupRows;
  for (int unit = begin + static_cast<int>(threadIdx.x); unit < end; unit += C::kThreads) {
    const int row_group = unit / grid.splits;
    const int split = unit - row_group * grid.splits;
    const int last_splits = row_group - before;  // units of a last split before this one
    const int slot = row_group / grid.row_groups;
    const int row = (row_group - slot * grid.row_groups) * grid.unit_rows;
    const int vector = (by_token ? shared.token[slot] : slot) - vector_base;
    const int first_block = split * grid.split_blocks;
    Unit u;
    const int64_t tile_row = static_cast<int64_t>(shared.expert[slot]) * m.groups + row / kGroupRows;
    u.code = static_cast<uint64_t>((tile_row * m.chunks + first_block / kChunkBlocks) * kGroupRows + row % kGroupRows);
    u.x = first_vector + vector * vector_stride + first_block * 8;
    u.out = (slot * grid.splits + split) * padded_rows + row;
    u.blocks = min(grid.split_blocks, grid.blocks - first_block);
    u.slot = slot;
    u.vector = vector;
    u.unused = 0;
    shared.units[split + 1 == grid.splits ? full + last_splits : unit - begin - last_splits] = u;
  }
}

__device__ __forceinline__ void mark(const FusedCall& call, int phase, Mark which) {
  if (call.timeline != nullptr && threadIdx.x == 0) {
    read_clocks(call.timeline + 2 * (static_cast<int64_t>(phase * gridDim.x + blockIdx.x) * kMarks + which));
  }
}

// --- input vectors -----------------------------------------------------------------------------------------------------

// Element i of an input vector in shared memory; exact: the fp16 value as a float.
// Fast: fixed point. 2^k < 2^22 / largest magnitude; the integer in three signed bytes, highest first, and a zero; for each
// block a part's coordinates 0, 2, 4, 6 and 1, 3, 5, 7; blocks ordered within 32 as fast_product reads them.
template <class C, typename Value>
__device__ __forceinline__ void store_vector(FusedShared& shared, float* vector, int index, int blocks, Value value) {
  if (!C::kFast) {
    for (int i = threadIdx.x; i < blocks * 8; i += C::kThreads) vector[i] = value(i);
    return;
  }
  unsigned int peak = 0;
  for (int i = threadIdx.x; i < blocks * 8; i += C::kThreads) {
    const unsigned int magnitude = __float_as_uint(value(i)) & 0x7FFFFFFFu;
    peak = magnitude > peak ? magnitude : peak;
  }
  peak = __reduce_max_sync(0xFFFFFFFFu, peak);
  if (threadIdx.x % 32 == 0) atomicMax(&shared.peak[index], peak);
  __syncthreads();
  const int exponent = max(static_cast<int>(shared.peak[index] >> 23), 32);  // the largest is below 2^(exponent - 126)
  const bool finite = exponent < 255;
  const float up = __uint_as_float(static_cast<uint32_t>(275 - exponent) << 23);  // 2^(148 - exponent)
  if (threadIdx.x == 0) {
    // 2^-k / 32; not a number when an input is not finite, for the transform spreads it to every row.
    const uint32_t down = static_cast<uint32_t>(exponent - 21 - 5) << 23;
    shared.vector_scale[index] = __uint_as_float(finite ? down : 0x7FC00000u);
  }
  uint4* parts = reinterpret_cast<uint4*>(vector);
  for (int j = threadIdx.x; j < (blocks + 31) / 32 * 32; j += C::kThreads) {
    uint32_t bytes[3][2] = {};
    if (finite && j < blocks) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int whole = __float2int_rn(mul(value(8 * j + k), up));
        const int middle = (whole + 128) >> 8;
        const int high = (middle + 128) >> 8;
        const int at = 8 * (k / 2);
        bytes[0][k % 2] |= static_cast<uint32_t>(high & 255) << at;
        bytes[1][k % 2] |= static_cast<uint32_t>(middle & 255) << at;
        bytes[2][k % 2] |= static_cast<uint32_t>(whole & 255) << at;
      }
    }
    uint4* to = parts + (((j / 32) * 8 + j % 8) * 4 + (j % 32) / 8) * 2;
    to[0] = make_uint4(bytes[0][0], bytes[0][1], bytes[1][0], bytes[1][1]);
    to[1] = make_uint4(bytes[2][0], bytes[2][1], 0, 0);
  }
}

template <class C>
__device__ __forceinline__ void load_token(const FusedCall& call, FusedShared& shared, float* scratch, float* vector,
                                           int index, int token) {
  const FusedMatrix& m = call.matrix[0];
  hadamard_of_signed(scratch, call.x + token * call.token_stride, call.element_stride, m.sv, m.cols);
  store_vector<C>(shared, vector, index, m.blocks, [&](int i) {
    const float value = mul(scratch[padded(i)], block_scale(i, m.cols));
    return C::kFast ? value : half_to_float(round_to_half(value));
  });
  __syncthreads();  // scratch is written again
}

template <class C>
__device__ __forceinline__ void load_down_x(const FusedCall& call, FusedShared& shared, float* vector, int index, int slot) {
  const int cols = call.matrix[1].cols;
  if (C::kFast) {
    const float* from = static_cast<const float*>(call.down_x) + static_cast<int64_t>(slot) * cols;
    store_vector<C>(shared, vector, index, cols / 8, [&](int i) { return load_coherent(from + i); });
  } else {
    const uint16_t* from = static_cast<const uint16_t*>(call.down_x) + static_cast<int64_t>(slot) * cols;
    for (int j = threadIdx.x; j < cols / 8; j += C::kThreads) {
      float values[8];
      unpack8(load_coherent(reinterpret_cast<const uint4*>(from) + j), values);
#pragma unroll
      for (int k = 0; k < 8; ++k) vector[8 * j + k] = values[k];
    }
  }
}

// --- hand-over ---------------------------------------------------------------------------------------------------------

// data = H(y), y[m] = ((+0 + t_0) + t_1) + ... of a slot. Ends with a barrier.
__device__ __forceinline__ void hadamard_of_sums(const FusedCall& call, const FusedMatrix& m, float* data, int slot) {
  const int padded_rows = m.groups * kGroupRows;
  const float* partial = call.partial + static_cast<int64_t>(slot) * m.splits * padded_rows;
  hadamard(data, m.rows, [&](int first, float(&v)[kRadix]) {
#pragma unroll
    for (int k = 0; k < kRadix; ++k) v[k] = 0.0f;
#pragma unroll 4
    for (int q = 0; q < m.splits; ++q) {
      const float4* sums = reinterpret_cast<const float4*>(partial + static_cast<int64_t>(q) * padded_rows + first);
      const float4 low = load_coherent(sums);
      const float4 high = load_coherent(sums + 1);
      v[0] = add(v[0], low.x);
      v[1] = add(v[1], low.y);
      v[2] = add(v[2], low.z);
      v[3] = add(v[3], low.w);
      v[4] = add(v[4], high.x);
      v[5] = add(v[5], high.y);
      v[6] = add(v[6], high.z);
      v[7] = add(v[7], high.w);
    }
  });
}

// Output transform, activation, input transform of the down product; down_x of the slot.
template <class C>
__device__ __forceinline__ void hand_up_to_down(const FusedCall& call, FusedShared& shared, float* data, int slot) {
  const FusedMatrix& up = call.matrix[0];
  const FusedMatrix& down = call.matrix[1];
  hadamard_of_sums(call, up, data, slot);
  const uint16_t* su = up.su + static_cast<int64_t>(shared.expert[slot]) * up.rows;
  const int n = down.cols;
  auto h_of = [&](int i) {
    const float h = output_value(data, su, i, up.rows);
    return C::kFast ? h : half_to_float(round_to_half(h));
  };
  auto activation_of = [&](int i) {
    const float h = h_of(i);
    const float u = call.activation == kSwiglu ? h_of(n + i) : 0.0f;
    const float a = call.activation == kSwiglu ? swiglu(h, u, call.limit) : relu_squared(h);
    if (C::kFast) return a;
    return half_to_float(store_activation(a, is_finite(h) && is_finite(u), call.overflow));
  };
  // A group of the first pass reads its own elements (and, gated, elements beyond n) and then writes its own.
  hadamard(data, n, [&](int first, float(&v)[kRadix]) {
#pragma unroll
    for (int k = 0; k < kRadix; ++k) v[k] = mul(activation_of(first + k), half_to_float(down.sv[first + k]));
  });
  for (int i = threadIdx.x; i < n; i += C::kThreads) {
    const float value = mul(data[padded(i)], block_scale(i, n));
    const int64_t at = static_cast<int64_t>(slot) * n + i;
    if (C::kFast) {
      static_cast<float*>(call.down_x)[at] = value;
    } else {
      static_cast<uint16_t*>(call.down_x)[at] = round_to_half(value);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) call.done[slot] = 0;
}

// out = sum over the token's slots in top-k order.
template <class C>
__device__ __forceinline__ void combine(const FusedCall& call, FusedShared& shared, int token) {
  const int n = call.matrix[1].rows;
  const int begin = shared.first_slot[token];
  const int end = shared.first_slot[token + 1];
  for (int i = threadIdx.x; i < n; i += C::kThreads) {
    float sum = 0.0f;
    for (int slot = begin; slot < end; ++slot) {
      const int64_t at = static_cast<int64_t>(slot) * n + i;
      if (C::kFast) {
        sum = fma_once(shared.weight[slot], load_coherent(static_cast<const float*>(call.expert_out) + at), sum);
      } else {
        const float e = half_to_float(load_coherent(static_cast<const uint16_t*>(call.expert_out) + at));
        sum = half_to_float(round_to_half(add(sum, mul(shared.weight[slot], e))));
      }
    }
    call.out[static_cast<int64_t>(token) * n + i] = round_to_half(sum);
  }
}

// Output transform of a slot; whoever finishes a token's last slot adds the token's slots up.
template <class C>
__device__ __forceinline__ void hand_down_to_out(const FusedCall& call, FusedShared& shared, float* data, int slot) {
  const FusedMatrix& m = call.matrix[1];
  hadamard_of_sums(call, m, data, slot);
  const uint16_t* su = m.su + static_cast<int64_t>(shared.expert[slot]) * m.rows;
  for (int i = threadIdx.x; i < m.rows; i += C::kThreads) {
    const float value = output_value(data, su, i, m.rows);
    const int64_t at = static_cast<int64_t>(slot) * m.rows + i;
    if (C::kFast) {
      static_cast<float*>(call.expert_out)[at] = value;
    } else {
      static_cast<uint16_t*>(call.expert_out)[at] = round_to_half(value);
    }
  }
  __syncthreads();
  const int token = shared.token[slot];
  if (threadIdx.x == 0) {
    call.done[kFusedSlots + slot] = 0;
    __threadfence();
    const int count = shared.first_slot[token + 1] - shared.first_slot[token];
    shared.combine = atomicAdd(&call.token_done[token], 1) + 1 == count;
    if (shared.combine) {
      call.token_done[token] = 0;
      __threadfence();
    }
  }
  __syncthreads();
  if (shared.combine) combine<C>(call, shared, token);
}

// --- the kernel --------------------------------------------------------------------------------------------------------

template <class C>
__device__ __forceinline__ void run_phase(const FusedCall& call, FusedShared& shared, float* dynamic,
                                          const Tables& tables) {
  const int phase = call.phase;
  const FusedMatrix& m = call.matrix[phase];
  const bool up = phase == 0;
  float* scratch = dynamic + call.scratch;
  const int active = shared.first_slot[call.tokens];
  UnitGrid grid;
  grid.unit_rows = C::kUnitRows;
  grid.row_groups = (m.rows + C::kUnitRows - 1) / C::kUnitRows;
  grid.splits = m.splits;
  grid.split_blocks = m.split_blocks;
  grid.blocks = m.blocks;

  for (int slot = threadIdx.x; slot < active; slot += C::kThreads) {
#pragma unroll
    for (int s = 0; s < C::kStages; ++s) shared.scales[slot][s] = m.scale[s][shared.expert[slot]];
  }
  if (!up) {  // a token without experts is written by nobody else
    for (int t = blockIdx.x; t < call.tokens; t += gridDim.x) {
      if (shared.first_slot[t] == shared.first_slot[t + 1]) combine<C>(call, shared, t);
    }
  }
  const int64_t cost = static_cast<int64_t>(active) * grid.row_groups * grid.blocks;
  int begin = grid.at(cost * blockIdx.x / gridDim.x);
  const int last = grid.at(cost * (blockIdx.x + 1) / gridDim.x);
  while (begin < last) {
    const int first_slot = begin / grid.per_slot();
    const int vector_base = up ? shared.token[first_slot] : first_slot;
    int end = min(last, begin + kFusedUnits);
    int end_slot = (end - 1) / grid.per_slot() + 1;
    auto vector_of = [&](int slot) { return (up ? shared.token[slot] : slot) - vector_base; };
    while (vector_of(end_slot - 1) >= call.vectors) --end_slot;
    end = min(end, end_slot * grid.per_slot());
    const int vectors = vector_of(end_slot - 1) + 1;

    if (threadIdx.x < kFusedVectors) shared.peak[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared.taken = C::kThreads / 32;
    list_units<C>(m, grid, shared, begin, end, call.first_vector, call.vector_stride, vector_base, up);
    __syncthreads();
    for (int v = 0; v < vectors; ++v) {
      float* vector = dynamic + call.first_vector + v * call.vector_stride;
      if (up) {
        load_token<C>(call, shared, scratch, vector, v, vector_base + v);
      } else {
        load_down_x<C>(call, shared, vector, v, vector_base + v);
      }
    }
    __syncthreads();
    mark(call, phase, kVectorsLoaded);
    const UnitList list{shared.units, end - begin, &shared.taken};
    if constexpr (C::kFast) {
      fast_product<C>(m, tables, list, shared.scales, shared.vector_scale, dynamic, call.partial);
    } else {
      exact_product<C>(m, tables, list, shared.scales, dynamic, call.partial);
    }
    __syncthreads();
    mark(call, phase, kProductDone);
    for (int slot = first_slot; slot < end_slot; ++slot) {
      if (threadIdx.x == 0) {
        const int units = min(end, (slot + 1) * grid.per_slot()) - max(begin, slot * grid.per_slot());
        __threadfence();
        const int before = atomicAdd(&call.done[phase * kFusedSlots + slot], units);
        shared.last = before + units == grid.per_slot();
        __threadfence();
      }
      __syncthreads();
      if (shared.last) {
        if (up) {
          hand_up_to_down<C>(call, shared, scratch, slot);
        } else {
          hand_down_to_out<C>(call, shared, scratch, slot);
        }
      }
      __syncthreads();  // shared.last is written again
    }
    mark(call, phase, kHandedOver);
    begin = end;
  }
}

// grid: any number of thread blocks, C::kThreads threads.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) glq_fused_kernel(const GLQ_KERNEL_PARAMETER FusedCall call) {
  GLQ_DYNAMIC_SHARED(float, dynamic);
  __shared__ FusedShared shared;
  mark(call, call.phase, kStarted);
  if (C::kSharedTable) {
    // Every block starts elsewhere, so that they do not ask one slice of L2 for the same lines at once.
    const int quads = call.table_words / 4;
    const int start = static_cast<int>(static_cast<int64_t>(quads) * blockIdx.x / gridDim.x);
    for (int i = threadIdx.x; i < quads; i += C::kThreads) {
      const int at = i + start < quads ? i + start : i + start - quads;
      copy16_async(dynamic + 4 * at, call.table + 4 * at);
    }
  }
  if (call.dependent) {
    wait_for_previous_kernel();
    let_next_kernel_start();
  }
  mark(call, call.phase, kPreviousDone);
  find_slots<C::kThreads>(call, shared);
  if (C::kSharedTable) wait_for_copies();
  __syncthreads();
  mark(call, call.phase, kTableLoaded);

  const unsigned char* base = reinterpret_cast<const unsigned char*>(C::kSharedTable ? dynamic : reinterpret_cast<const float*>(call.table));
  Tables tables{base, base + 4 * call.small_word, base + 4 * call.wide_word, call.fold_bytes, {}};
#pragma unroll
  for (int k = 0; k < 5; ++k) tables.exponents.at[k] = call.exponents[k];
  run_phase<C>(call, shared, dynamic, tables);
}

}  // namespace glq
