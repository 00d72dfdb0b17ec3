// One token's attention over its KV cache: a thread block takes 64 positions of one kv head for four of the query heads that
// share it; the last block of these heads joins the chunks, in ascending order.
#include "launch.cuh"
#include "launch.h"

namespace step {

namespace {

constexpr int kAttendThreads = 256;
constexpr int kAttendWarps = kAttendThreads / 32;
constexpr int kOfWarp = kChunk / kAttendWarps;  // positions
constexpr float kNothing = -INFINITY;

// exp(m - largest), where a chunk without a position (or with nothing above -inf) has weight 0 and NaN stays NaN.
__device__ __forceinline__ float share_of(float m, float largest) {
  return m == kNothing ? 0.0f : exponential(__fsub_rn(m, largest));
}

__device__ __forceinline__ float larger(float a, float b) { return a > b ? a : b; }

// Where this block's heads lie.
struct Place {
  int split, kv, group, groups, batch, first_head, heads;
  __device__ __forceinline__ explicit Place(const AttendCall& call) {
    const int of_kv = call.heads / call.kv_heads;
    groups = (of_kv + kHeadsPerBlock - 1) / kHeadsPerBlock;
    split = blockIdx.x;
    kv = blockIdx.y / groups;
    group = blockIdx.y % groups;
    batch = blockIdx.z;
    first_head = kv * of_kv + group * kHeadsPerBlock;
    heads = min(kHeadsPerBlock, of_kv - group * kHeadsPerBlock);
  }
};

// What a warp, then a block, knows of its positions, for each head: the largest score, the sum of exponentials, the weighted
// sum of values. In shared memory: sums [warps][heads][dim], maxima [warps][heads][2].
struct Shared {
  float* sums;
  float* maxima;
  __device__ __forceinline__ float* sum(int warp, int head, int dim) const { return sums + (warp * kHeadsPerBlock + head) * dim; }
  __device__ __forceinline__ float* maximum(int warp, int head) const { return maxima + (warp * kHeadsPerBlock + head) * 2; }
};

// LANES lanes take one position, 8 dimensions each; the warp 32 / LANES positions at a time.
template <int LANES>
__device__ __forceinline__ void attend_warp(const AttendCall& call, const Place& place, int64_t position, const Shared& shared) {
  constexpr int kAtOnce = 32 / LANES, kRounds = kOfWarp / kAtOnce;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int dims = lane % LANES * 8;
  const bool has_dims = dims < call.dim;
  const int64_t first = static_cast<int64_t>(place.split) * kChunk + warp * kOfWarp + lane / LANES;
  const int64_t cache = (static_cast<int64_t>(place.batch) * call.kv_heads + place.kv) * call.capacity * call.dim + dims;
  const int64_t fresh = static_cast<int64_t>(place.kv) * call.dim + dims;
  uint4 k[kRounds], v[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int64_t at = first + r * kAtOnce;
    k[r] = v[r] = make_uint4(0, 0, 0, 0);
    if (!has_dims || at > position) continue;
    if (at == position) {
      k[r] = load_fresh(reinterpret_cast<const uint4*>(call.k_new + place.batch * call.k_stride + fresh));
      v[r] = load_fresh(reinterpret_cast<const uint4*>(call.v_new + place.batch * call.v_stride + fresh));
      if (place.group == 0) {
        *reinterpret_cast<uint4*>(call.k_cache + cache + at * call.dim) = k[r];
        *reinterpret_cast<uint4*>(call.v_cache + cache + at * call.dim) = v[r];
      }
    } else {
      k[r] = load_fresh(reinterpret_cast<const uint4*>(call.k_cache + cache + at * call.dim));
      v[r] = load_fresh(reinterpret_cast<const uint4*>(call.v_cache + cache + at * call.dim));
    }
  }
  float scores[kRounds][kHeadsPerBlock];
#pragma unroll
  for (int h = 0; h < kHeadsPerBlock; ++h) {
    uint4 words = make_uint4(0, 0, 0, 0);
    if (has_dims && h < place.heads) {
      const int64_t at = place.batch * call.q_stride + static_cast<int64_t>(place.first_head + h) * call.dim + dims;
      words = load_fresh(reinterpret_cast<const uint4*>(call.q + at));
    }
    float q[8];
    unpack8(words, q);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      float key[8], dot = 0.0f;
      unpack8(k[r], key);
#pragma unroll
      for (int i = 0; i < 8; ++i) dot = __fmaf_rn(q[i], key[i], dot);
#pragma unroll
      for (int distance = LANES / 2; distance > 0; distance /= 2) {
        dot = __fadd_rn(dot, __shfl_xor_sync(kAllLanes, dot, distance));
      }
      scores[r][h] = __fmul_rn(dot, call.scale);
    }
  }
  float acc[kHeadsPerBlock][8], largest[kHeadsPerBlock], total[kHeadsPerBlock];
#pragma unroll
  for (int h = 0; h < kHeadsPerBlock; ++h) {
    largest[h] = kNothing;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (first + r * kAtOnce <= position) largest[h] = larger(largest[h], scores[r][h]);
    }
    if (LANES == 16) largest[h] = larger(largest[h], __shfl_xor_sync(kAllLanes, largest[h], 16));
    // A NaN is never the larger one: it comes in through the exponentials. Where nothing is above -inf, so that -inf - -inf does
    // not make one, 0 stands for the largest.
    if (largest[h] == kNothing) largest[h] = 0.0f;
    total[h] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[h][i] = 0.0f;
  }
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    float value[8];
    unpack8(v[r], value);
    const bool seen = first + r * kAtOnce <= position;
#pragma unroll
    for (int h = 0; h < kHeadsPerBlock; ++h) {
      const float share = seen ? exponential(__fsub_rn(scores[r][h], largest[h])) : 0.0f;
      total[h] = __fadd_rn(total[h], share);
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[h][i] = __fmaf_rn(share, value[i], acc[h][i]);
    }
  }
  const bool any = static_cast<int64_t>(place.split) * kChunk + warp * kOfWarp <= position;
#pragma unroll
  for (int h = 0; h < kHeadsPerBlock; ++h) {
    if (LANES == 16) {
      total[h] = __fadd_rn(total[h], __shfl_xor_sync(kAllLanes, total[h], 16));
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[h][i] = __fadd_rn(acc[h][i], __shfl_xor_sync(kAllLanes, acc[h][i], 16));
    }
    if (lane < LANES && has_dims) {
      float4* to = reinterpret_cast<float4*>(shared.sum(warp, h, call.dim) + dims);
      to[0] = make_float4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
      to[1] = make_float4(acc[h][4], acc[h][5], acc[h][6], acc[h][7]);
    }
    if (lane == 0) {
      shared.maximum(warp, h)[0] = any ? largest[h] : kNothing;
      shared.maximum(warp, h)[1] = total[h];
    }
  }
}

__device__ __forceinline__ float4 weighted(const float4& add, float share, const float4& to) {
  return make_float4(__fmaf_rn(share, add.x, to.x), __fmaf_rn(share, add.y, to.y), __fmaf_rn(share, add.z, to.z),
                     __fmaf_rn(share, add.w, to.w));
}

// The warps' results into one, for the last block to join.
__device__ __forceinline__ void store_chunk(const AttendCall& call, const Place& place, const Shared& shared) {
  const int quads = call.dim / 4;
  for (int i = threadIdx.x; i < place.heads * quads; i += kAttendThreads) {
    const int h = i / quads, d = i % quads * 4;
    float largest = kNothing;
#pragma unroll
    for (int w = 0; w < kAttendWarps; ++w) largest = larger(largest, shared.maximum(w, h)[0]);
    float total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < kAttendWarps; ++w) {
      const float share = share_of(shared.maximum(w, h)[0], largest);
      total = __fmaf_rn(share, shared.maximum(w, h)[1], total);
      sum = weighted(*reinterpret_cast<const float4*>(shared.sum(w, h, call.dim) + d), share, sum);
    }
    const int64_t at = (static_cast<int64_t>(place.batch) * call.heads + place.first_head + h) * call.splits + place.split;
    *reinterpret_cast<float4*>(call.sums + at * call.dim + d) = sum;
    if (d == 0) {
      call.maxima[2 * at] = largest;
      call.maxima[2 * at + 1] = total;
    }
  }
}

// All chunks of this block's heads: `weights` [heads][splits] in shared memory, `parts` the sums of those who share a quad.
__device__ __forceinline__ void join_chunks(const AttendCall& call, const Place& place, int splits, float* weights, float4* parts) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t head0 = static_cast<int64_t>(place.batch) * call.heads + place.first_head;
  if (warp < place.heads) {
    const float* maxima = call.maxima + 2 * (head0 + warp) * call.splits;
    float largest = kNothing, total = 0.0f;
    for (int i = lane; i < splits; i += 32) largest = larger(largest, load_fresh(&maxima[2 * i]));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      largest = larger(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    for (int i = lane; i < splits; i += 32) {
      const float share = share_of(load_fresh(&maxima[2 * i]), largest);
      weights[warp * call.splits + i] = share;
      total = __fmaf_rn(share, load_fresh(&maxima[2 * i + 1]), total);
    }
    total = warp_sum(total);
    for (int i = lane; i < splits; i += 32) weights[warp * call.splits + i] = __fdiv_rn(weights[warp * call.splits + i], total);
  }
  __syncthreads();
  const int quads = place.heads * call.dim / 4;
  const int sharing = max(1, kAttendThreads / quads);  // threads that share a quad of outputs: every sharing-th chunk each
  const int quad = static_cast<int>(threadIdx.x) % quads, part = static_cast<int>(threadIdx.x) / quads;
  const int h = quad / (call.dim / 4), d = quad % (call.dim / 4) * 4;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (part < sharing) {
    const float* sums = call.sums + (head0 + h) * call.splits * call.dim + d;
#pragma unroll 8
    for (int i = part; i < splits; i += sharing) {
      sum = weighted(load_fresh(reinterpret_cast<const float4*>(sums + static_cast<int64_t>(i) * call.dim)),
                     weights[h * call.splits + i], sum);
    }
    parts[part * quads + quad] = sum;
  }
  __syncthreads();
  if (part != 0) return;
  for (int p = 1; p < sharing; ++p) sum = weighted(parts[p * quads + quad], 1.0f, sum);
  uint16_t* to = call.out + place.batch * call.out_stride + static_cast<int64_t>(place.first_head + h) * call.dim + d;
  to[0] = float_to_bf16(sum.x);
  to[1] = float_to_bf16(sum.y);
  to[2] = float_to_bf16(sum.z);
  to[3] = float_to_bf16(sum.w);
}

size_t attend_shared_bytes(const AttendCall& call) {
  const size_t warps = static_cast<size_t>(kAttendWarps) * kHeadsPerBlock * (call.dim + 2) * sizeof(float);
  const size_t join = kAttendThreads * sizeof(float4) + static_cast<size_t>(kHeadsPerBlock) * call.splits * sizeof(float);
  return warps > join ? warps : join;
}

}  // namespace

// grid: (chunks of a full cache, kv heads * head groups, batch).
template <int LANES>
__global__ void STEP_LAUNCH_BOUNDS(kAttendThreads, 1) step_attend_kernel(const GLQ_KERNEL_PARAMETER AttendCall call) {
  GLQ_DYNAMIC_SHARED(float4, memory);
  __shared__ int last;
  const Place place(call);
  glq::let_next_kernel_start();
  glq::wait_for_previous_kernel();
  const int64_t position = load_fresh(call.position);
  if (position < 0 || position >= call.capacity) {
    if (place.split > 0) return;
    uint16_t* to = call.out + place.batch * call.out_stride + static_cast<int64_t>(place.first_head) * call.dim;
    for (int i = threadIdx.x; i < place.heads * call.dim; i += kAttendThreads) to[i] = 0x7FFF;
    return;
  }
  const int splits = static_cast<int>(position / kChunk) + 1;
  if (place.split >= splits) return;
  Shared shared;
  shared.sums = reinterpret_cast<float*>(memory);
  shared.maxima = shared.sums + kAttendWarps * kHeadsPerBlock * call.dim;
  attend_warp<LANES>(call, place, position, shared);
  __syncthreads();
  store_chunk(call, place, shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    int* counter = call.counters + blockIdx.z * gridDim.y + blockIdx.y;
    last = glq::add_acquire_release(counter, 1) == splits - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  if (!last) return;
  join_chunks(call, place, splits, reinterpret_cast<float*>(memory + kAttendThreads), memory);
}

void launch_attend(const AttendCall& call, bool dependent, cudaStream_t stream) {
  const int groups = (call.heads / call.kv_heads + kHeadsPerBlock - 1) / kHeadsPerBlock;
  Launch plan;
  plan.grid = dim3(static_cast<unsigned int>(call.splits), static_cast<unsigned int>(call.kv_heads * groups),
                   static_cast<unsigned int>(call.batch));
  plan.threads = kAttendThreads;
  plan.shared_bytes = attend_shared_bytes(call);
  plan.dependent = dependent;
  if (call.dim <= 128) {
    STEP_START((step_attend_kernel<16>), plan, stream, call);
  } else {
    STEP_START((step_attend_kernel<32>), plan, stream, call);
  }
}

}  // namespace step
