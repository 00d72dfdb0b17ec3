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

// The sums of `values` over LANES lanes: a lane gets that of the value with its own number, values[lane % LANES].
template <int LANES, int HALF = LANES / 2>
__device__ __forceinline__ float scattered_sum(float (&values)[LANES]) {
  if constexpr (HALF == 0) {
    return values[0];
  } else {
    const bool upper = threadIdx.x & HALF;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const float kept = upper ? values[i + HALF] : values[i], given = upper ? values[i] : values[i + HALF];
      values[i] = __fadd_rn(kept, __shfl_xor_sync(kAllLanes, given, HALF));
    }
    return scattered_sum<LANES, HALF / 2>(values);
  }
}

// LANES lanes take one position, 8 dimensions each; the warp 32 / LANES positions at a time. Each lane then has one score, that
// of round r and head h where its number is 4 r + h, which is as many as there are lanes.
template <int LANES>
__device__ __forceinline__ void attend_warp(const AttendCall& call, const Place& place, int64_t position, const Shared& shared) {
  constexpr int kAtOnce = 32 / LANES, kRounds = kOfWarp / kAtOnce;
  static_assert(kRounds * kHeadsPerBlock == LANES, "a score a lane");
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int dims = lane % LANES * 8;
  const bool has_dims = dims < call.dim;
  const int64_t first = static_cast<int64_t>(place.split) * kChunk + warp * kOfWarp + lane / LANES;
  const int64_t cache = (static_cast<int64_t>(place.batch) * call.kv_heads + place.kv) * call.capacity * call.dim + dims;
  const int64_t fresh = static_cast<int64_t>(place.kv) * call.dim + dims;
  uint4 q[kHeadsPerBlock], k[kRounds], v[kRounds];
#pragma unroll
  for (int h = 0; h < kHeadsPerBlock; ++h) {
    q[h] = make_uint4(0, 0, 0, 0);
    if (has_dims && h < place.heads) {
      const int64_t at = place.batch * call.q_stride + static_cast<int64_t>(place.first_head + h) * call.dim + dims;
      q[h] = load_fresh(reinterpret_cast<const uint4*>(call.q + at));
    }
  }
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
  float dots[LANES];
#pragma unroll
  for (int h = 0; h < kHeadsPerBlock; ++h) {
    float query[8];
    unpack8(q[h], query);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      float key[8], dot = 0.0f;
      unpack8(k[r], key);
#pragma unroll
      for (int i = 0; i < 8; ++i) dot = __fmaf_rn(query[i], key[i], dot);
      dots[r * kHeadsPerBlock + h] = dot;
    }
  }
  const float score = __fmul_rn(scattered_sum<LANES>(dots), call.scale);
  const bool seen = first + lane % LANES / kHeadsPerBlock * kAtOnce <= position;
  float largest = seen ? score : kNothing;  // of the head's eight positions; a NaN is never the larger one
#pragma unroll
  for (int distance = kHeadsPerBlock; distance < 32; distance *= 2) {
    largest = larger(largest, __shfl_xor_sync(kAllLanes, largest, distance));
  }
  // Where nothing is above -inf, so that -inf - -inf does not make a NaN, 0 stands for the largest.
  if (!(largest > kNothing)) largest = 0.0f;
  const float share = seen ? exponential(__fsub_rn(score, largest)) : 0.0f;
  float total = share;
#pragma unroll
  for (int distance = kHeadsPerBlock; distance < 32; distance *= 2) {
    total = __fadd_rn(total, __shfl_xor_sync(kAllLanes, total, distance));
  }
  if (lane < kHeadsPerBlock) {
    const bool any = static_cast<int64_t>(place.split) * kChunk + warp * kOfWarp <= position;
    shared.maximum(warp, lane)[0] = any ? largest : kNothing;
    shared.maximum(warp, lane)[1] = total;
  }
  float acc[kHeadsPerBlock][8] = {};
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    float value[8];
    unpack8(v[r], value);
#pragma unroll
    for (int h = 0; h < kHeadsPerBlock; ++h) {
      const float mine = __shfl_sync(kAllLanes, share, lane / LANES * LANES + r * kHeadsPerBlock + h);
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[h][i] = __fmaf_rn(mine, value[i], acc[h][i]);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeadsPerBlock; ++h) {
    if (LANES == 16) {
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[h][i] = __fadd_rn(acc[h][i], __shfl_xor_sync(kAllLanes, acc[h][i], 16));
    }
    if (lane < LANES && has_dims) {
      float4* to = reinterpret_cast<float4*>(shared.sum(warp, h, call.dim) + dims);
      to[0] = make_float4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
      to[1] = make_float4(acc[h][4], acc[h][5], acc[h][6], acc[h][7]);
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

// All chunks of this block's heads. In shared memory: `shares` [heads][splits], from maxima and totals what each chunk counts;
// `totals` [heads][splits]; `parts`, the sums of threads that share four outputs.
__device__ __forceinline__ void join_chunks(const AttendCall& call, const Place& place, int splits, float4* parts) {
  constexpr int kAhead = 10;  // chunks that a thread asks for before it knows what they count
  float* shares = reinterpret_cast<float*>(parts + kAttendThreads);
  float* totals = shares + kHeadsPerBlock * call.splits;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t head0 = static_cast<int64_t>(place.batch) * call.heads + place.first_head;
  const int quads = place.heads * call.dim / 4;
  const int sharing = max(1, kAttendThreads / quads);  // threads that share four outputs: every sharing-th chunk each
  const int quad = static_cast<int>(threadIdx.x) % quads, part = static_cast<int>(threadIdx.x) / quads;
  const int h = quad / (call.dim / 4), d = quad % (call.dim / 4) * 4;
  const float* sums = call.sums + (head0 + h) * call.splits * call.dim + d;
  const bool takes = part < sharing;
  float4 ahead[kAhead];
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    const int i = part + j * sharing;
    ahead[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (takes && i < splits) ahead[j] = load_fresh(reinterpret_cast<const float4*>(sums + static_cast<int64_t>(i) * call.dim));
  }
  if (warp < place.heads) {
    const float2* maxima = reinterpret_cast<const float2*>(call.maxima) + (head0 + warp) * call.splits;
    float* share = shares + warp * call.splits;
    float largest = kNothing, total = 0.0f;
    for (int i = lane; i < splits; i += 32) {
      const float2 found = load_fresh(&maxima[i]);
      share[i] = found.x;
      totals[warp * call.splits + i] = found.y;
      largest = larger(largest, found.x);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      largest = larger(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    for (int i = lane; i < splits; i += 32) {
      share[i] = share_of(share[i], largest);
      total = __fmaf_rn(share[i], totals[warp * call.splits + i], total);
    }
    total = warp_sum(total);
    for (int i = lane; i < splits; i += 32) share[i] = __fdiv_rn(share[i], total);
  }
  __syncthreads();
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (takes) {
    const float* share = shares + h * call.splits;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = part + j * sharing;
      if (i < splits) sum = weighted(ahead[j], share[i], sum);
    }
#pragma unroll 8
    for (int i = part + kAhead * sharing; i < splits; i += sharing) {
      sum = weighted(load_fresh(reinterpret_cast<const float4*>(sums + static_cast<int64_t>(i) * call.dim)), share[i], sum);
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
  const size_t join = kAttendThreads * sizeof(float4) + 2ull * kHeadsPerBlock * call.splits * sizeof(float);
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
  join_chunks(call, place, splits, memory);
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
