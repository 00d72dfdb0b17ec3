// The sigmoid router: a thread block an expert's logit, and the last of them chooses.
#include "launch.cuh"
#include "launch.h"

namespace step {

namespace {

constexpr int kRouteThreads = 256;
constexpr int kRouteWarps = kRouteThreads / 32;
constexpr int kHeld = 3;  // quads of weights that a thread asks for before it waits: 2688 inputs are 672 quads

__device__ __forceinline__ float4 load_quad(const RouteCall& call, int64_t at) {
  if (call.weight_fp32) return __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(call.weight) + at));
  const uint2 words = __ldg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(call.weight) + at));
  const float2 low = bf16_pair(words.x), high = bf16_pair(words.y);
  return make_float4(low.x, low.y, high.x, high.y);
}

__device__ __forceinline__ float dot_quad(const float4& w, const uint2& x, float sum) {
  const float2 low = bf16_pair(x.x), high = bf16_pair(x.y);
  sum = __fmaf_rn(w.x, low.x, sum);
  sum = __fmaf_rn(w.y, low.y, sum);
  sum = __fmaf_rn(w.z, high.x, sum);
  return __fmaf_rn(w.w, high.y, sum);
}

// One warp chooses one token's experts. `keys` [experts]: what is left to choose from; 0 is taken. `scores` [experts].
__device__ __forceinline__ void choose(const RouteCall& call, int row, uint32_t* keys, float* scores) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* from = call.scores + static_cast<int64_t>(row) * call.experts;
#pragma unroll 4
  for (int e = lane; e < call.experts; e += 32) {
    scores[e] = load_fresh(&from[e]);
    keys[e] = ordered(__fadd_rn(scores[e], __ldg(&call.bias[e])));
  }
  uint32_t best = 0;
  int best_at = 0;
  auto look = [&] {
    best = 0;
    for (int e = lane; e < call.experts; e += 32) {
      if (keys[e] > best) {
        best = keys[e];
        best_at = e;
      }
    }
  };
  look();
  float mine = 0.0f;  // the score of this lane's slot
  int chosen = 0;
  for (int slot = 0; slot < call.top_k; ++slot) {
    const uint32_t largest = __reduce_max_sync(kAllLanes, best);
    const uint32_t id = call.experts - __reduce_max_sync(kAllLanes, best == largest ? static_cast<uint32_t>(call.experts - best_at) : 0);
    if (static_cast<int>(id) % 32 == lane) {
      keys[id] = 0;
      look();
    }
    if (slot == lane) chosen = static_cast<int>(id);
  }
  __syncwarp();  // other lanes wrote what this one chose
  if (lane < call.top_k) mine = scores[chosen];
  if (call.normalise) {
    float total = 0.0f;
    for (int slot = 0; slot < call.top_k; ++slot) total = __fadd_rn(total, __shfl_sync(kAllLanes, mine, slot));
    mine = __fdiv_rn(mine, __fadd_rn(total, 1e-20f));
  }
  if (lane < call.top_k) {
    call.ids[row * call.top_k + lane] = chosen;
    call.weights[row * call.top_k + lane] = __fmul_rn(mine, call.scaling);
  }
}

}  // namespace

// grid: a block an expert.
__global__ void STEP_LAUNCH_BOUNDS(kRouteThreads, 1) step_route_kernel(const GLQ_KERNEL_PARAMETER RouteCall call) {
  GLQ_DYNAMIC_SHARED(uint32_t, keys);  // [batch, experts], and as many scores
  __shared__ float sums[kRouteWarps][kMaxBatch];
  __shared__ int last;
  const int quads = call.hidden / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t weights = static_cast<int64_t>(blockIdx.x) * call.hidden;
  float4 held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int quad = static_cast<int>(threadIdx.x) + i * kRouteThreads;
    held[i] = quad < quads ? load_quad(call, weights + 4 * quad) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  glq::let_next_kernel_start();
  glq::wait_for_previous_kernel();
  for (int b = 0; b < call.batch; ++b) {
    const uint16_t* x = call.x + b * call.x_stride;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int quad = static_cast<int>(threadIdx.x) + i * kRouteThreads;
      if (quad < quads) sum = dot_quad(held[i], load_fresh(reinterpret_cast<const uint2*>(x + 4 * quad)), sum);
    }
    for (int quad = static_cast<int>(threadIdx.x) + kHeld * kRouteThreads; quad < quads; quad += kRouteThreads) {
      sum = dot_quad(load_quad(call, weights + 4 * quad), load_fresh(reinterpret_cast<const uint2*>(x + 4 * quad)), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[warp][b] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    if (lane < call.batch) {
      float logit = 0.0f;
#pragma unroll
      for (int i = 0; i < kRouteWarps; ++i) logit = __fadd_rn(logit, sums[i][lane]);
      const float score = __fdiv_rn(1.0f, __fadd_rn(1.0f, exponential(-logit)));
      call.scores[static_cast<int64_t>(lane) * call.experts + blockIdx.x] = score;
    }
    __syncwarp();
    if (lane == 0) last = glq::add_acquire_release(call.counter, 1) == static_cast<int>(gridDim.x) - 1;
  }
  __syncthreads();
  if (!last) return;
  if (threadIdx.x == 0) *call.counter = 0;
  float* scores = reinterpret_cast<float*>(keys + call.batch * call.experts);
  if (warp < call.batch) choose(call, warp, keys + warp * call.experts, scores + warp * call.experts);
}

void launch_route(const RouteCall& call, bool dependent, cudaStream_t stream) {
  const size_t bytes = 2 * sizeof(uint32_t) * static_cast<size_t>(call.batch) * static_cast<size_t>(call.experts);
  const Launch plan{dim3(static_cast<unsigned int>(call.experts)), kRouteThreads, bytes, dependent};
  STEP_START((step_route_kernel), plan, stream, call);
}

}  // namespace step
