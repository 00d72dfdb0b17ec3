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
//
// Most of the time that is not the products' goes to fetching instructions that a multiprocessor runs once or twice a launch,
// so there is one copy of the transform, in a loop over what it transforms.
#pragma once

#include "activation.cuh"
#include "fused_product.cuh"
#include "fused_transform.cuh"

namespace glq {

// The units whose input vectors a block holds at a time.
struct Batch {
  int begin, end;           // of the phase's units, numbered by slot, then group of rows, then split
  int first_slot, end_slot;
  int vector_base;          // token (up) or slot (down) of the first input vector
  int vectors;
  int phase;
  int last;                 // end of the block's part of the phase
};

// A launch's slots that take part, in (token, top-k) order, and the units in hand.
struct FusedShared {
  Unit units[kFusedUnits];
  Batch batch;
  float scales[kFusedSlots][kFusedStages];
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

__device__ __forceinline__ void mark(const FusedCall& call, int phase, Mark which) {
  if (call.timeline != nullptr && threadIdx.x == 0) {
    read_clocks(call.timeline + 2 * (static_cast<int64_t>(phase * gridDim.x + blockIdx.x) * kMarks + which));
  }
}

// Transforms need fewer warps than a block has: the last ones prepare the product meanwhile, each its part.
enum Duty : int { kUnitsDuty = 1, kScalesDuty, kCopyDuty };

template <class C>
__device__ __forceinline__ bool has_duty(Duty duty) {
  return static_cast<int>(threadIdx.x) / 32 == C::kThreads / 32 - duty;
}

// One thread a slot. Ends with a barrier.
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
    }
  }
  __syncthreads();
}

__device__ __forceinline__ int vector_of(const FusedShared& shared, int phase, int slot) {
  return phase == 0 ? shared.token[slot] : slot;
}

__device__ __forceinline__ Batch next_batch(const FusedCall& call, const FusedShared& shared, int phase, int begin, int last) {
  const FusedMatrix& m = call.matrix[phase];
  Batch batch;
  batch.phase = phase;
  batch.begin = begin;
  batch.last = last;
  batch.first_slot = m.by_units(begin);
  batch.vector_base = vector_of(shared, phase, batch.first_slot);
  const int most = min(last, begin + kFusedUnits);
  batch.end_slot = m.by_units(most - 1) + 1;
  while (vector_of(shared, phase, batch.end_slot - 1) - batch.vector_base >= call.vectors[phase]) --batch.end_slot;
  batch.end = min(most, batch.end_slot * m.units);
  batch.vectors = vector_of(shared, phase, batch.end_slot - 1) - batch.vector_base + 1;
  return batch;
}

// The first unit that starts at or after thread block b's part of all blocks of eight, in equal parts.
__device__ __forceinline__ int first_unit(const FusedCall& call, const FusedMatrix& m, int slots, int b) {
  const int all = slots * m.row_groups * m.blocks;
  const int part = call.by_thread_blocks(all);
  const int at = part * b + call.by_thread_blocks((all - part * static_cast<int>(gridDim.x)) * b);
  const int row_group = m.by_blocks(at);
  return row_group * m.splits + m.by_split_blocks(at - row_group * m.blocks + m.split_blocks - 1);
}

// By one warp: the batch's units. Full ones come first in the list: the short ones, of a last split, even out the end.
template <class C>
__device__ __forceinline__ void list_units(const FusedCall& call, FusedShared& shared, const Batch& batch) {
  const int phase = batch.phase;
  const FusedMatrix& m = call.matrix[phase];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int before = m.by_splits(batch.begin);
  const int count = batch.end - batch.begin;
  const int full = count - (m.by_splits(batch.end) - before);
  const int padded_rows = m.groups * kGroupRows;
  if (lane < kFusedVectors) shared.peak[lane] = 0;
  if (lane == 0) shared.taken = C::kThreads / 32;
#pragma unroll 1
  for (int unit = batch.begin + lane; unit < batch.end; unit += 32) {
    const int row_group = m.by_splits(unit);
    const int split = unit - row_group * m.splits;
    const int last_splits = row_group - before;  // units of a last split before this one
    const int slot = m.by_row_groups(row_group);
    const int row = (row_group - slot * m.row_groups) * kUnitRows;
    const int vector = vector_of(shared, phase, slot) - batch.vector_base;
    const int first_block = split * m.split_blocks;
    Unit u;
    const int64_t tile_row = static_cast<int64_t>(shared.expert[slot]) * m.groups + row / kGroupRows;
    u.code = static_cast<uint64_t>((tile_row * m.chunks + first_block / kChunkBlocks) * kGroupRows + row % kGroupRows);
    u.x = call.first_vector + vector * call.vector_stride[phase] + first_block * 8;
    u.out = (slot * m.splits + split) * padded_rows + row;
    u.blocks = min(m.split_blocks, m.blocks - first_block);
    u.slot = slot;
    u.vector = vector;
    u.unused = 0;
    shared.units[split + 1 == m.splits ? full + last_splits : unit - batch.begin - last_splits] = u;
  }
}

// By one warp: the scales of the batch's slots.
__device__ __forceinline__ void load_scales(const FusedCall& call, FusedShared& shared, const Batch& batch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const FusedMatrix& m = call.matrix[batch.phase];
#pragma unroll 1
  for (int slot = batch.first_slot + lane; slot < batch.end_slot; slot += 32) {
#pragma unroll
    for (int s = 0; s < kFusedStages; ++s) shared.scales[slot][s] = s < m.stages ? m.scale[s][shared.expert[slot]] : 0.0f;
  }
}

// Asks L2 for the signs that are needed after the product.
template <class C>
__device__ __forceinline__ void prefetch_signs(const FusedCall& call, const FusedShared& shared) {
  const Batch& batch = shared.batch;
  const int thread = static_cast<int>(threadIdx.x);
  if (call.last_phase == 1) prefetch(call.matrix[1].sv, 2 * call.matrix[1].cols, thread, C::kThreads);
#pragma unroll 1
  for (int slot = batch.first_slot; slot < batch.end_slot; ++slot) {
    const FusedMatrix& m = call.matrix[batch.phase];
    prefetch(m.su + static_cast<int64_t>(shared.expert[slot]) * m.rows, 2 * m.rows, thread, C::kThreads);
  }
}

// Asks L2 for every warp's first unit.
template <class C>
__device__ __forceinline__ void prefetch_codes(const FusedCall& call, const FusedShared& shared) {
  const Batch& batch = shared.batch;
  const FusedMatrix& m = call.matrix[batch.phase];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp >= batch.end - batch.begin) return;
  constexpr int kParts = kUnitRows / 2;  // 32 bytes, of a chunk's rows
  const Unit& unit = shared.units[warp];
  const int parts = (unit.blocks + kChunkBlocks - 1) / kChunkBlocks * kParts;
#pragma unroll 1
  for (int part = static_cast<int>(threadIdx.x) % 32; part < parts; part += 32) {
    const uint64_t at = unit.code + part / kParts * kGroupRows + part % kParts * 2;
#pragma unroll
    for (int s = 0; s < kFusedStages; ++s) {
      if (s < m.stages) prefetch_l2(reinterpret_cast<const uint4*>(m.codes[s]) + at);
    }
  }
}

// --- what a transform reads --------------------------------------------------------------------------------------------

enum Source : int { kToken = 0, kSums, kActivation };

// Loads of 32 bytes in flight before the first is used.
constexpr int kLoadsAtOnce = 6;

// y[m] = ((+0 + t_0) + t_1) + ... of a slot; +0 for a split that is not there changes nothing.
__device__ __forceinline__ void load_sums(const FusedCall& call, int phase, int slot, int first, float (&v)[kRadix]) {
  const FusedMatrix& m = call.matrix[phase];
  const int padded_rows = m.groups * kGroupRows;
  const float* partial = call.partial[phase] + static_cast<int64_t>(slot) * m.splits * padded_rows + first;
#pragma unroll
  for (int k = 0; k < kRadix; ++k) v[k] = 0.0f;
#pragma unroll 1
  for (int from = 0; from < m.splits; from += kLoadsAtOnce) {
    float4 low[kLoadsAtOnce];
    float4 high[kLoadsAtOnce];
#pragma unroll
    for (int q = 0; q < kLoadsAtOnce; ++q) {
      low[q] = high[q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (from + q < m.splits) {
        const float4* sums = reinterpret_cast<const float4*>(partial + static_cast<int64_t>(from + q) * padded_rows);
        low[q] = load_coherent(sums);
        high[q] = load_coherent(sums + 1);
      }
    }
#pragma unroll
    for (int q = 0; q < kLoadsAtOnce; ++q) {
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
}

__device__ __forceinline__ void load_token(const FusedCall& call, int token, int first, float (&v)[kRadix]) {
  const uint16_t* x = call.x + token * call.token_stride;
  float sign[kRadix];
  load_halves(call.matrix[0].sv + first, sign);
  if (call.wide_x) {
    load_halves(x + first, v);
  } else {
#pragma unroll
    for (int k = 0; k < kRadix; ++k) v[k] = half_to_float(x[(first + k) * call.element_stride]);
  }
#pragma unroll
  for (int k = 0; k < kRadix; ++k) v[k] = mul(v[k], sign[k]);
}

// Output transform's end, activation, times sv of down. A thread reads its own elements (and, gated, elements beyond n).
template <class C>
__device__ __forceinline__ void load_activation(const FusedCall& call, const float* data, int expert, int first,
                                                float (&v)[kRadix], int& infinite) {
  const FusedMatrix& up = call.matrix[0];
  const int n = call.matrix[1].cols;
  const uint16_t* su = up.su + static_cast<int64_t>(expert) * up.rows;
  float h[kRadix], u[kRadix], sign[kRadix];
  load_halves(call.matrix[1].sv + first, sign);
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
      infinite += (__float_as_uint(a) & 0x7FFFFFFFu) == 0x7F800000u && is_finite(h[k]) && is_finite(u[k]);
    }
    v[k] = mul(a, sign[k]);
  }
}

// The transform's end: eight elements of an input vector, before they are rounded.
__device__ __forceinline__ void scaled_values(const float* data, int n, int first, float (&v)[kRadix]) {
  const float scale = block_scale(first, n);
#pragma unroll
  for (int k = 0; k < kRadix; ++k) v[k] = mul(data[padded(first) + k], scale);
}

// An input vector in shared memory, +0 from n up to `stride`. Exact: the fp16 values as floats.
// Fast: fixed point. 2^k < 2^22 / largest magnitude; the integer in three signed bytes, highest first, and a zero; for each
// block a part's coordinates 0, 2, 4, 6 and 1, 3, 5, 7; blocks ordered within 32 as fast_product reads them.
template <class C>
__device__ __forceinline__ void store_vector(FusedShared& shared, const float* data, int n, float* vector, int stride, int index) {
  if (!C::kFast) {
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x) * kRadix; first < stride; first += C::kThreads * kRadix) {
      float v[kRadix] = {};
      if (first < n) {
        scaled_values(data, n, first, v);
#pragma unroll
        for (int k = 0; k < kRadix; ++k) v[k] = half_to_float(round_to_half(v[k]));
      }
      store_floats(vector + first, v);
    }
    return;
  }
  unsigned int peak = 0;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) * kRadix; first < n; first += C::kThreads * kRadix) {
    float v[kRadix];
    scaled_values(data, n, first, v);
#pragma unroll
    for (int k = 0; k < kRadix; ++k) peak = max(peak, __float_as_uint(v[k]) & 0x7FFFFFFFu);
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
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) * kRadix; first < stride; first += C::kThreads * kRadix) {
    uint32_t bytes[3][2] = {};
    if (finite && first < n) {
      float v[kRadix];
      scaled_values(data, n, first, v);
#pragma unroll
      for (int k = 0; k < kRadix; ++k) {
        const int whole = __float2int_rn(mul(v[k], up));
        const int middle = (whole + 128) >> 8;
        const int high = (middle + 128) >> 8;
        const int at = 8 * (k / 2);
        bytes[0][k % 2] |= static_cast<uint32_t>(high & 255) << at;
        bytes[1][k % 2] |= static_cast<uint32_t>(middle & 255) << at;
        bytes[2][k % 2] |= static_cast<uint32_t>(whole & 255) << at;
      }
    }
    const int j = first / kRadix;
    uint4* to = parts + (((j / 32) * 8 + j % 8) * 4 + (j % 32) / 8) * 2;
    to[0] = make_uint4(bytes[0][0], bytes[0][1], bytes[1][0], bytes[1][1]);
    to[1] = make_uint4(bytes[2][0], bytes[2][1], 0, 0);
  }
}

// --- after the down product --------------------------------------------------------------------------------------------

// out = sum over the token's slots in top-k order.
template <class C>
__device__ __forceinline__ void combine(const FusedCall& call, FusedShared& shared, int token) {
  const int n = call.matrix[1].rows;
  const int begin = shared.first_slot[token];
  const int end = shared.first_slot[token + 1];
#pragma unroll 1
  for (int first = threadIdx.x * 8; first < n; first += C::kThreads * 8) {
    float sum[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) sum[k] = 0.0f;
#pragma unroll 1
    for (int from = begin; from < end; from += kLoadsAtOnce) {
      uint4 low[kLoadsAtOnce];  // fp16 (exact) or the first half of fp32
      uint4 high[kLoadsAtOnce];
#pragma unroll
      for (int j = 0; j < kLoadsAtOnce; ++j) {
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
      for (int j = 0; j < kLoadsAtOnce; ++j) {
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

template <class C>
__device__ __forceinline__ void write_zeros(const FusedCall& call, int token) {
  const int n = call.matrix[1].rows;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += C::kThreads) call.out[static_cast<int64_t>(token) * n + i] = 0;
}

// Output transform's end of a slot; whoever finishes a token's last slot adds the token's slots up.
template <class C>
__device__ __forceinline__ void finish_slot(const FusedCall& call, FusedShared& shared, const float* data, int slot) {
  const FusedMatrix& m = call.matrix[1];
  const uint16_t* su = m.su + static_cast<int64_t>(shared.expert[slot]) * m.rows;
#pragma unroll 1
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

// Counts a slot's units of the batch as done; whether all of the slot's are.
__device__ __forceinline__ bool count_units(const FusedCall& call, const Batch& batch, int slot) {
  const int of_slot = call.matrix[batch.phase].units;
  const int units = min(batch.end, (slot + 1) * of_slot) - max(batch.begin, slot * of_slot);
  return add_acquire_release(&call.done[batch.phase * kFusedSlots + slot], units) + units == of_slot;
}

// The batch is read from shared memory after the product again, so that the product has its registers.
template <class C>
__device__ __forceinline__ void run_batch(const FusedCall& call, FusedShared& shared, float* dynamic, const Tables& tables,
                                          const Batch& batch) {
  const bool up = batch.phase == 0;
  float* scratch = dynamic + call.scratch;
  if (has_duty<C>(kUnitsDuty)) list_units<C>(call, shared, batch);
  if (has_duty<C>(kScalesDuty)) {
    if (threadIdx.x % 32 == 0) shared.batch = batch;
    load_scales(call, shared, batch);
  }
  if (!up) {
    for (int slot = batch.first_slot + static_cast<int>(threadIdx.x); slot < batch.end_slot; slot += C::kThreads) {
      wait_until_at_least(&call.done[slot], call.matrix[0].units);
    }
    __syncthreads();
    mark(call, batch.phase, kPreviousDone);
  }
  // First every input vector; then the product; then, of down, the slots that are done.
  Source source = up ? kToken : kSums;
  int vector = 0;
  int slot = 0;
  bool multiplied = false;
#pragma unroll 1
  for (;;) {
    int which = batch.vector_base + vector;
    if (multiplied) {
      which = slot;
      if (slot == shared.batch.end_slot) break;
      if (threadIdx.x == 0) shared.last = count_units(call, shared.batch, slot);
      ++slot;
      __syncthreads();
      const bool last = shared.last != 0;
      __syncthreads();  // shared.last is written again
      if (!last) continue;
      source = kSums;
    }
    const int n = source == kSums ? call.matrix[multiplied ? 1 : 0].rows : call.matrix[up ? 0 : 1].cols;
    int infinite = 0;
    auto load = [&](int first, bool inside, float(&v)[kRadix]) {
      if (source == kToken) {
        load_token(call, which, first, v);
      } else if (source == kSums) {
        load_sums(call, multiplied ? 1 : 0, which, first, v);
      } else {
        int of_lane = 0;
        load_activation<C>(call, scratch, shared.expert[which], first, v, of_lane);
        infinite += inside ? of_lane : 0;
      }
    };
    auto meanwhile = [&] {
      if (!multiplied && vector == 0 && source != kActivation) prefetch_codes<C>(call, shared);
    };
    fused_hadamard<C::kThreads>(scratch, n, load, meanwhile);
    if (multiplied) {
      finish_slot<C>(call, shared, scratch, which);
      __syncthreads();  // scratch is written again
      continue;
    }
    if (source == kSums) {
      source = kActivation;
      continue;
    }
    // Every block that needs the slot was here: one alone counts.
    if (infinite != 0 && shared.batch.begin <= which * call.matrix[1].units) {
      atomicAdd(call.overflow, static_cast<unsigned long long>(infinite));
    }
    const int stride = call.vector_stride[up ? 0 : 1];
    store_vector<C>(shared, scratch, n, dynamic + call.first_vector + vector * stride, stride, vector);
    __syncthreads();  // scratch is written again
    ++vector;
    if (vector < shared.batch.vectors) {
      source = up ? kToken : kSums;
      continue;
    }
    mark(call, shared.batch.phase, kVectorsMade);
    prefetch_signs<C>(call, shared);
    if (C::kSharedTable) wait_for_copy(&shared.table_ready);
    __syncthreads();
    mark(call, shared.batch.phase, kTableLoaded);
    const UnitList list{shared.units, shared.batch.end - shared.batch.begin, &shared.taken};
    product<C::kFast>(call.matrix[shared.batch.phase], tables, list, shared.scales, shared.vector_scale, dynamic,
                      call.partial[shared.batch.phase]);
    __syncthreads();
    mark(call, shared.batch.phase, kProductDone);
    multiplied = true;
    slot = shared.batch.first_slot;
    if (shared.batch.phase == 0) {
      for (slot += static_cast<int>(threadIdx.x); slot < shared.batch.end_slot; slot += C::kThreads) {
        count_units(call, shared.batch, slot);
      }
      break;
    }
  }
  mark(call, shared.batch.phase, kHandedOver);
}

// grid: any number of thread blocks, C::kThreads threads; both phases in one launch: all of them resident at once.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) glq_fused_kernel(const GLQ_KERNEL_PARAMETER FusedCall call) {
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
  if constexpr (C::kSharedTable) return;  // no such chip has the shared memory: plan_shared never chooses this kernel
#endif
  GLQ_DYNAMIC_SHARED(float, dynamic);
  __shared__ FusedShared shared;
  mark(call, call.first_phase, kStarted);
  if (C::kSharedTable && has_duty<C>(kCopyDuty)) start_copy(dynamic, call.table, 4 * call.table_words, &shared.table_ready);
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
  Tables tables{base, base + 4 * call.small_word, call.fold_bytes, {}};
#pragma unroll
  for (int k = 0; k < 5; ++k) tables.exponents.at[k] = call.exponents[k];
#pragma unroll 1
  for (int phase = call.first_phase; phase <= call.last_phase; ++phase) {
    const FusedMatrix& m = call.matrix[phase];
    const int slots = shared.first_slot[call.tokens];
    if (phase == 1 && slots < call.tokens * call.top_k) {  // a token without experts is written by nobody else
      for (int t = blockIdx.x; t < call.tokens; t += gridDim.x) {
        if (shared.first_slot[t] == shared.first_slot[t + 1]) write_zeros<C>(call, t);
      }
    }
    const int begin = first_unit(call, m, slots, static_cast<int>(blockIdx.x));
    const int last = first_unit(call, m, slots, static_cast<int>(blockIdx.x) + 1);
    if (begin == last) continue;
    Batch batch = next_batch(call, shared, phase, begin, last);
    for (;;) {
      run_batch<C>(call, shared, dynamic, tables, batch);
      __syncthreads();  // the units are written again
      if (shared.batch.end == shared.batch.last) break;
      batch = next_batch(call, shared, shared.batch.phase, shared.batch.end, shared.batch.last);
      __syncthreads();  // the batch is written again
    }
    phase = shared.batch.phase;  // read again, like the batch
    __syncthreads();
  }
  // The slots' counters stood for up's sums; whoever waits for this kernel waits for up too.
  if (call.dependent && call.first_phase == 1) wait_for_previous_kernel();
}

}  // namespace glq
