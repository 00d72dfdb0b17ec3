// One layer's fused MoE: ids, weights and scalars are read on the device, all (token, expert) slots run at once.
//
// Phases: up (input transform of each token, up product) and down (output transform of the up sums, activation, input
// transform; down product; output transform, the token's experts in top-k order). A phase's work is cut into units of rows x
// one split, and every thread block takes a contiguous, equally costly share of them. What stands between the products every
// block makes for itself, of the slots that it needs: reading a slot's sums from L2 costs less than handing a vector on. What
// follows the down product is done by the block that finishes a slot's last unit. The phases are one cooperative launch, in
// which down waits slot by slot for the up units of all blocks, or two launches.
//
// Memory between thread blocks: sums are stored, the block's barrier is passed, one thread counts the units (acquire
// and release); whoever sees the full count lets its block read, past L1. Counters return to zero within the call: a slot's
// last down unit is finished after every block has made the slot's vector.
#pragma once

#include "activation.cuh"
#include "fused_product.cuh"
#include "fused_transform.cuh"

namespace glq {

// A launch's slots that take part, in (token, top-k) order, and the units in hand.
struct FusedShared {
  Unit units[kFusedUnits];
  float scales[2][kFusedSlots][kFusedStages];
  float weight[kFusedSlots];
  int token[kFusedSlots];
  int expert[kFusedSlots];
  int first_slot[kFusedSlots + 1];  // of each token; [tokens]: all slots
  float vector_scale[kFusedVectors];
  unsigned int peak[kFusedVectors];
  unsigned long long table_ready;
  int warp_slots[kFusedSlots / 32];
  int taken;
  int last;
  int combine;
};

// Small weights, asked of L2 by some block each.
template <class C>
__device__ __forceinline__ void prefetch_weights(const FusedCall& call) {
  const int thread = static_cast<int>(blockIdx.x * C::kThreads + threadIdx.x);
  const int threads = static_cast<int>(gridDim.x * C::kThreads);
#pragma unroll 1
  for (int phase = call.first_phase; phase <= call.last_phase; ++phase) {
    const FusedMatrix& m = call.matrix[phase];
#pragma unroll
    for (int s = 0; s < C::kStages; ++s) prefetch(m.scale[s], 4 * call.experts, thread, threads);
    prefetch(m.sv, 2 * m.cols, thread, threads);
  }
}

// Ends with a barrier. One thread a slot.
template <class C>
__device__ __forceinline__ void find_slots(const FusedCall& call, FusedShared& shared) {
  static_assert(C::kThreads >= kFusedSlots, "a thread a slot");
  const int slots = call.tokens * call.top_k;
  const int i = static_cast<int>(threadIdx.x);
  const int warp = i / 32;
  const int token = call.by_top_k(i);
  const int k = i - token * call.top_k;
  bool active = false;
  int64_t id = 0;
  float weight = 0.0f;
  if (i < slots) {
    const int64_t at = token * call.id_strides[0] + k * call.id_strides[1];
    id = call.wide_ids ? static_cast<const int64_t*>(call.ids)[at]
                                     : static_cast<int64_t>(static_cast<const int32_t*>(call.ids)[at]);
    weight = call.weights[token * call.weight_strides[0] + k * call.weight_strides[1]];
  }
  prefetch_weights<C>(call);  // while these loads are on their way
  if (i < slots) {
    const bool is_expert = id >= 0 && id < call.experts;
    active = is_expert && weight != 0.0f;
    if (!is_expert && !call.mask_invalid && blockIdx.x == 0 && call.first_phase == 0) atomicAdd(call.errors, 1ull);
  }
  const unsigned int of_warp = __ballot_sync(0xFFFFFFFFu, active);
  if (i % 32 == 0 && warp < kFusedSlots / 32) shared.warp_slots[warp] = __popc(of_warp);
  __syncthreads();
  if (i < slots) {
    int slot = __popc(of_warp & ((1u << i % 32) - 1));
    for (int w = 0; w < warp; ++w) slot += shared.warp_slots[w];
    if (k == 0) shared.first_slot[token] = slot;
    if (i == slots - 1) shared.first_slot[call.tokens] = slot + active;
    if (active) {
      shared.token[slot] = token;
      shared.expert[slot] = static_cast<int>(id);
      shared.weight[slot] = weight;
      for (int phase = call.first_phase; phase <= call.last_phase; ++phase) {
#pragma unroll
        for (int s = 0; s < C::kStages; ++s) shared.scales[phase][slot][s] = call.matrix[phase].scale[s][id];
      }
    }
  }
  __syncthreads();
}

// The units of one phase; numbered by slot, then group of rows, then split.
struct UnitGrid {
  const FusedMatrix& m;

  __device__ __forceinline__ int per_slot() const { return m.units; }
  // The first unit that starts at or after `cost` blocks.
  __device__ __forceinline__ int at(int cost) const {
    const int row = m.by_blocks(cost);
    return row * m.splits + (cost - row * m.blocks + m.split_blocks - 1) / m.split_blocks;
  }
};

// Full units come first in the list: the short ones, of a last split, even out the end.
template <class C>
__device__ __forceinline__ void list_units(const FusedMatrix& m, FusedShared& shared, int begin,
                                           int end, int first_vector, int vector_stride, int vector_base, bool by_token) {
  const int before = m.by_splits(begin);
  const int full = end - begin - (m.by_splits(end) - before);
  const int padded_rows = m.groups * kGroupRows;
  for (int unit = begin + static_cast<int>(threadIdx.x); unit < end; unit += C::kThreads) {
    const int row_group = m.by_splits(unit);
    const int split = unit - row_group * m.splits;
    const int last_splits = row_group - before;  // units of a last split before this one
    const int slot = m.by_row_groups(row_group);
    const int row = (row_group - slot * m.row_groups) * C::kUnitRows;
    const int vector = (by_token ? shared.token[slot] : slot) - vector_base;
    const int first_block = split * m.split_blocks;
    Unit u;
    const int64_t tile_row = static_cast<int64_t>(shared.expert[slot]) * m.groups + row / kGroupRows;
    u.code = static_cast<uint64_t>((tile_row * m.chunks + first_block / kChunkBlocks) * kGroupRows + row % kGroupRows);
    u.x = first_vector + vector * vector_stride + first_block * 8;
    u.out = (slot * m.splits + split) * padded_rows + row;
    u.blocks = min(m.split_blocks, m.blocks - first_block);
    u.slot = slot;
    u.vector = vector;
    u.unused = 0;
    shared.units[split + 1 == m.splits ? full + last_splits : unit - begin - last_splits] = u;
  }
}

// The codes of every warp's first unit, while the input vectors are made.
template <class C>
__device__ __forceinline__ void prefetch_codes(const FusedMatrix& m, const Unit* units, int count) {
  constexpr int kParts = C::kUnitRows / 2;  // 32 bytes, of a chunk's rows
  const int warp = threadIdx.x / 32;
  if (warp >= count) return;
  const int parts = (units[warp].blocks + kChunkBlocks - 1) / kChunkBlocks * kParts;
  for (int i = threadIdx.x % 32; i < parts; i += 32) {
    const uint64_t at = units[warp].code + i / kParts * kGroupRows + i % kParts * 2;
#pragma unroll
    for (int s = 0; s < C::kStages; ++s) prefetch_l2(reinterpret_cast<const uint4*>(m.codes[s]) + at);
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
  const uint16_t* x = call.x + token * call.token_stride;
  const bool wide = is_wide(x, call.element_stride, m.sv);
  fused_hadamard<C::kThreads>(scratch, m.cols, [&](int first, bool, float(&v)[kRadix]) {
    float sign[kRadix];
    load_halves(m.sv + first, sign);
    if (wide) {
      load_halves(x + first, v);
    } else {
#pragma unroll
      for (int k = 0; k < kRadix; ++k) v[k] = half_to_float(x[(first + k) * call.element_stride]);
    }
#pragma unroll
    for (int k = 0; k < kRadix; ++k) v[k] = mul(v[k], sign[k]);
  });
  store_vector<C>(shared, vector, index, m.blocks, [&](int i) {
    const float value = mul(scratch[padded(i)], block_scale(i, m.cols));
    return C::kFast ? value : half_to_float(round_to_half(value));
  });
  __syncthreads();  // scratch is written again
}

// --- between the products and after them --------------------------------------------------------------------------------

// Loads of 16 or 32 bytes in flight before the first is used; the most that do not spill.
template <class C>
constexpr int loads_at_once = C::kFast ? 6 : 8;

// data = H(y), y[m] = ((+0 + t_0) + t_1) + ... of a slot; +0 for a split that is not there changes nothing. Ends with a
// barrier.
template <class C>
__device__ __forceinline__ void hadamard_of_sums(const FusedCall& call, int phase, float* data, int slot) {
  const FusedMatrix& m = call.matrix[phase];
  const int padded_rows = m.groups * kGroupRows;
  const float* partial = call.partial[phase] + static_cast<int64_t>(slot) * m.splits * padded_rows;
  fused_hadamard<C::kThreads>(data, m.rows, [&](int first, bool, float(&v)[kRadix]) {
#pragma unroll
    for (int k = 0; k < kRadix; ++k) v[k] = 0.0f;
#pragma unroll 1
    for (int from = 0; from < m.splits; from += loads_at_once<C>) {
      float4 low[loads_at_once<C>];
      float4 high[loads_at_once<C>];
#pragma unroll
      for (int q = 0; q < loads_at_once<C>; ++q) {
        low[q] = high[q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (from + q < m.splits) {
          const float4* sums = reinterpret_cast<const float4*>(partial + static_cast<int64_t>(from + q) * padded_rows + first);
          low[q] = load_coherent(sums);
          high[q] = load_coherent(sums + 1);
        }
      }
#pragma unroll
      for (int q = 0; q < loads_at_once<C>; ++q) {
        v[0] = add(v[0], low[q].x);
        v[1] = add(v[1], low[q].y);
        v[2] = add(v[2], low[q].z);
        v[3] = add(v[3], low[q].w);
        v[4] = add(v[4], high[q].x);
        v[5] = add(v[5], high[q].y);
        v[6] = add(v[6], high[q].z);
        v[7] = add(v[7], high[q].w);
      }
    }
  });
}

// A slot's input vector of down: output transform of its up sums, activation, input transform. `counts`: one block alone
// counts what became infinite.
template <class C>
__device__ __forceinline__ void make_down_x(const FusedCall& call, FusedShared& shared, float* data, float* vector, int index,
                                            int slot, bool counts) {
  const FusedMatrix& up = call.matrix[0];
  const FusedMatrix& down = call.matrix[1];
  hadamard_of_sums<C>(call, 0, data, slot);
  const uint16_t* su = up.su + static_cast<int64_t>(shared.expert[slot]) * up.rows;
  const int n = down.cols;
  // A thread reads its own elements (and, gated, elements beyond n) and then writes its own.
  int infinite = 0;
  fused_hadamard<C::kThreads>(data, n, [&](int first, bool inside, float(&v)[kRadix]) {
    float h[kRadix], u[kRadix], sign[kRadix];
    load_halves(down.sv + first, sign);
    output_values(data, su, first, up.rows, h);
    if (call.activation == kSwiglu) output_values(data, su, n + first, up.rows, u);
#pragma unroll
    for (int k = 0; k < kRadix; ++k) {
      if (call.activation != kSwiglu) u[k] = 0.0f;
      if (!C::kFast) {
        h[k] = half_to_float(round_to_half(h[k]));
        u[k] = half_to_float(round_to_half(u[k]));
      }
      float a = call.activation == kSwiglu ? swiglu(h[k], u[k], call.limit) : relu_squared(h[k]);
      if (!C::kFast) {
        a = half_to_float(round_to_half(a));
        infinite += inside && (__float_as_uint(a) & 0x7FFFFFFFu) == 0x7F800000u && is_finite(h[k]) && is_finite(u[k]);
      }
      v[k] = mul(a, sign[k]);
    }
  });
  if (counts && infinite != 0) atomicAdd(call.overflow, static_cast<unsigned long long>(infinite));
  store_vector<C>(shared, vector, index, down.blocks, [&](int i) {
    const float value = mul(data[padded(i)], block_scale(i, n));
    return C::kFast ? value : half_to_float(round_to_half(value));
  });
  __syncthreads();  // data is written again
}

// out = sum over the token's slots in top-k order.
template <class C>
__device__ __forceinline__ void combine(const FusedCall& call, FusedShared& shared, int token) {
  const int n = call.matrix[1].rows;
  const int begin = shared.first_slot[token];
  const int end = shared.first_slot[token + 1];
  for (int first = threadIdx.x * 8; first < n; first += C::kThreads * 8) {
    float sum[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) sum[k] = 0.0f;
#pragma unroll 1
    for (int from = begin; from < end; from += loads_at_once<C>) {
      uint4 low[loads_at_once<C>];  // fp16 (exact) or the first half of fp32
      uint4 high[loads_at_once<C>];
#pragma unroll
      for (int j = 0; j < loads_at_once<C>; ++j) {
        low[j] = high[j] = make_uint4(0, 0, 0, 0);
        if (from + j < end) {
          const int64_t at = static_cast<int64_t>(from + j) * n + first;
          if (C::kFast) {
            const uint4* e = reinterpret_cast<const uint4*>(static_cast<const float*>(call.expert_out) + at);
            low[j] = load_coherent(e);
            high[j] = load_coherent(e + 1);
          } else {
            low[j] = load_coherent(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(call.expert_out) + at));
          }
        }
      }
#pragma unroll
      for (int j = 0; j < loads_at_once<C>; ++j) {
        if (from + j >= end) break;
        const float weight = shared.weight[from + j];
        float e[8];
        if (C::kFast) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            e[k] = __uint_as_float(part_of(low[j], k));
            e[k + 4] = __uint_as_float(part_of(high[j], k));
          }
        } else {
          unpack8(low[j], e);
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          sum[k] = C::kFast ? fma_once(weight, e[k], sum[k])
                            : half_to_float(round_to_half(add(sum[k], mul(weight, e[k]))));
        }
      }
    }
    store_halves(call.out + static_cast<int64_t>(token) * n + first, sum);
  }
}

// Output transform of a slot; whoever finishes a token's last slot adds the token's slots up.
template <class C>
__device__ __forceinline__ void hand_down_to_out(const FusedCall& call, FusedShared& shared, float* data, int slot) {
  const FusedMatrix& m = call.matrix[1];
  hadamard_of_sums<C>(call, 1, data, slot);
  const uint16_t* su = m.su + static_cast<int64_t>(shared.expert[slot]) * m.rows;
  for (int first = threadIdx.x * 8; first < m.rows; first += C::kThreads * 8) {
    float v[8];
    output_values(data, su, first, m.rows, v);
    const int64_t at = static_cast<int64_t>(slot) * m.rows + first;
    if (C::kFast) {
      store_floats(static_cast<float*>(call.expert_out) + at, v);
    } else {
      store_halves(static_cast<uint16_t*>(call.expert_out) + at, v);
    }
  }
  __syncthreads();
  const int token = shared.token[slot];
  if (threadIdx.x == 0) {
    call.done[slot] = 0;
    call.done[kFusedSlots + slot] = 0;
    const int count = shared.first_slot[token + 1] - shared.first_slot[token];
    shared.combine = add_acquire_release(&call.token_done[token], 1) + 1 == count;
    if (shared.combine) call.token_done[token] = 0;
  }
  __syncthreads();
  if (shared.combine) combine<C>(call, shared, token);
}

// --- the kernel --------------------------------------------------------------------------------------------------------

template <class C>
__device__ __forceinline__ void run_phase(const FusedCall& call, FusedShared& shared, float* dynamic,
                                          const Tables& tables, int phase) {
  const FusedMatrix& m = call.matrix[phase];
  const bool up = phase == 0;
  float* scratch = dynamic + call.scratch;
  const int active = shared.first_slot[call.tokens];
  const UnitGrid grid{m};
  const int up_units = call.matrix[0].units;
  if (!up) {  // a token without experts is written by nobody else
    for (int t = blockIdx.x; t < call.tokens; t += gridDim.x) {
      if (shared.first_slot[t] == shared.first_slot[t + 1]) combine<C>(call, shared, t);
    }
  }
  // Block b starts at cost * b / grid, without a product that needs 64 bits.
  const int cost = active * m.row_groups * m.blocks;
  const int part = call.by_thread_blocks(cost);
  const int rest = cost - part * static_cast<int>(gridDim.x);
  auto share = [&](int b) { return part * b + call.by_thread_blocks(rest * b); };
  int begin = grid.at(share(static_cast<int>(blockIdx.x)));
  const int last = grid.at(share(static_cast<int>(blockIdx.x) + 1));
  while (begin < last) {
    const int first_slot = m.by_units(begin);
    const int vector_base = up ? shared.token[first_slot] : first_slot;
    int end = min(last, begin + kFusedUnits);
    int end_slot = m.by_units(end - 1) + 1;
    auto vector_of = [&](int slot) { return (up ? shared.token[slot] : slot) - vector_base; };
    while (vector_of(end_slot - 1) >= call.vectors[phase]) --end_slot;
    end = min(end, end_slot * grid.per_slot());
    const int vectors = vector_of(end_slot - 1) + 1;

    if (threadIdx.x < kFusedVectors) shared.peak[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared.taken = C::kThreads / 32;
    list_units<C>(m, shared, begin, end, call.first_vector, call.vector_stride[phase], vector_base, up);
    for (int slot = first_slot; slot < end_slot; ++slot) {  // signs that are needed after the product
      for (int p = phase; p <= call.last_phase; ++p) {
        const FusedMatrix& of = call.matrix[p];
        prefetch(of.su + static_cast<int64_t>(shared.expert[slot]) * of.rows, 2 * of.rows, threadIdx.x, C::kThreads);
      }
    }
    __syncthreads();
    prefetch_codes<C>(m, shared.units, end - begin);
    if (!up) {
      for (int slot = first_slot + static_cast<int>(threadIdx.x); slot < end_slot; slot += C::kThreads) {
        wait_until_at_least(&call.done[slot], up_units);
      }
      __syncthreads();
      mark(call, phase, kPreviousDone);
    }
    for (int v = 0; v < vectors; ++v) {
      float* vector = dynamic + call.first_vector + v * call.vector_stride[phase];
      if (up) {
        load_token<C>(call, shared, scratch, vector, v, vector_base + v);
      } else {
        const int slot = vector_base + v;
        make_down_x<C>(call, shared, scratch, vector, v, slot, begin <= slot * grid.per_slot());
      }
    }
    mark(call, phase, kVectorsMade);
    if (C::kSharedTable) wait_for_copy(&shared.table_ready);
    __syncthreads();
    mark(call, phase, kTableLoaded);
    const UnitList list{shared.units, end - begin, &shared.taken};
    if constexpr (C::kFast) {
      fast_product<C>(m, tables, list, shared.scales[phase], shared.vector_scale, dynamic, call.partial[phase]);
    } else {
      exact_product<C>(m, tables, list, shared.scales[phase], dynamic, call.partial[phase]);
    }
    __syncthreads();
    mark(call, phase, kProductDone);
    auto count_units = [&](int slot) {  // how many of the slot are done now
      const int units = min(end, (slot + 1) * grid.per_slot()) - max(begin, slot * grid.per_slot());
      return add_acquire_release(&call.done[phase * kFusedSlots + slot], units) + units;
    };
    if (up) {
      for (int slot = first_slot + static_cast<int>(threadIdx.x); slot < end_slot; slot += C::kThreads) count_units(slot);
    } else {
      for (int slot = first_slot; slot < end_slot; ++slot) {
        if (threadIdx.x == 0) shared.last = count_units(slot) == grid.per_slot();
        __syncthreads();
        if (shared.last) hand_down_to_out<C>(call, shared, scratch, slot);
        __syncthreads();  // shared.last is written again
      }
    }
    mark(call, phase, kHandedOver);
    begin = end;
  }
}

// grid: any number of thread blocks, C::kThreads threads; both phases in one launch: all of them resident at once.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) glq_fused_kernel(const GLQ_KERNEL_PARAMETER FusedCall call) {
  GLQ_DYNAMIC_SHARED(float, dynamic);
  __shared__ FusedShared shared;
  mark(call, call.first_phase, kStarted);
  if (C::kSharedTable) start_copy<C::kThreads>(dynamic, call.table, 4 * call.table_words, &shared.table_ready);
  if (call.dependent) {
    // Down reads what was there before up, and up has waited for that, and up's sums, for which it waits slot by slot: every
    // block of up is on its multiprocessor already, or down would not have been started.
    if (call.first_phase == 0) wait_for_previous_kernel();
    let_next_kernel_start();
  }
  mark(call, call.first_phase, kPreviousDone);
  find_slots<C>(call, shared);
  mark(call, call.first_phase, kSlotsFound);

  const unsigned char* base = reinterpret_cast<const unsigned char*>(C::kSharedTable ? dynamic : reinterpret_cast<const float*>(call.table));
  Tables tables{base, base + 4 * call.small_word, base + 4 * call.wide_word, call.fold_bytes, {}};
#pragma unroll
  for (int k = 0; k < 5; ++k) tables.exponents.at[k] = call.exponents[k];
#pragma unroll 1
  for (int phase = call.first_phase; phase <= call.last_phase; ++phase) {
    run_phase<C>(call, shared, dynamic, tables, phase);
  }
  // The slots' counters stood for up's sums; whoever waits for this kernel waits for up too.
  if (call.dependent && call.first_phase == 1) wait_for_previous_kernel();
}

}  // namespace glq
