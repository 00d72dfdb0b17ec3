// The greedy token: the row of the head with the largest product, after rounding to bf16; the last block compares the others'.
#include "launch.h"
#include "matvec_plan.cuh"

namespace step {

namespace {

// Larger for a larger value, and for a lower row where values are equal; 0 is below all.
__device__ __forceinline__ uint64_t key_of(float value, int row) {
  return static_cast<uint64_t>(ordered(value)) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(row));
}
__device__ __forceinline__ int64_t row_of_key(uint64_t key) { return 0xFFFFFFFFu - static_cast<uint32_t>(key); }

__device__ __forceinline__ uint64_t warp_largest(uint64_t key) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint32_t high = __shfl_xor_sync(kAllLanes, static_cast<uint32_t>(key >> 32), distance);
    const uint32_t low = __shfl_xor_sync(kAllLanes, static_cast<uint32_t>(key), distance);
    const uint64_t other = static_cast<uint64_t>(high) << 32 | low;
    key = other > key ? other : key;
  }
  return key;
}

constexpr int kBestOfRow = Wide::kReducers * kTileRows;  // of a batch row: each lane that adds sums up keeps its largest

struct HeadLook {
  const uint16_t* weight;
  int inputs;
  __device__ __forceinline__ const uint16_t* operator()(int row) const { return weight + static_cast<int64_t>(row) * inputs; }
};

struct HeadEpilogue {
  const HeadCall* call;
  uint64_t* best;  // this lane's, kBestOfRow apart
  __device__ __forceinline__ void at(int b, int row, float sum) const {
    const uint16_t bits = float_to_bf16(sum);
    if (call->logits != nullptr) call->logits[b * call->logits_stride + row] = bits;
    const uint64_t key = key_of(bf16_to_float(bits), row);
    if (key > best[b * kBestOfRow]) best[b * kBestOfRow] = key;
  }
};

}  // namespace

// grid: up to kMaxBlocks blocks of S::kThreads.
template <class S>
__global__ void STEP_LAUNCH_BOUNDS(S::kThreads, S::kBlocksAtOnce)
    step_head_argmax_kernel(const GLQ_KERNEL_PARAMETER HeadCall call, int best_at) {
  GLQ_DYNAMIC_SHARED(unsigned char, shared);
  const int batch = call.m.batch, lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  uint64_t* best = reinterpret_cast<uint64_t*>(shared + best_at);
  for (int i = threadIdx.x; i < batch * kBestOfRow; i += S::kThreads) best[i] = 0;
  const int reducer = S::kWarps - 1 - warp;
  HeadEpilogue epilogue{&call, best + reducer % S::kReducers * kTileRows + lane % kTileRows};
  multiply_rows<S>(call.m, HeadLook{call.weight, call.m.inputs}, shared, epilogue);
  __syncthreads();
  if (warp != 0) return;
  for (int b = 0; b < batch; ++b) {
    uint64_t key = 0;
    for (int i = lane; i < kBestOfRow; i += 32) key = best[b * kBestOfRow + i] > key ? best[b * kBestOfRow + i] : key;
    key = warp_largest(key);
    if (lane == 0) call.best[static_cast<int64_t>(blockIdx.x) * batch + b] = key;
  }
  int before = 0;
  if (lane == 0) before = glq::add_acquire_release(call.counter, 1);
  before = __shfl_sync(kAllLanes, before, 0);
  if (before != static_cast<int>(gridDim.x) - 1) return;
  for (int b = 0; b < batch; ++b) {
    uint64_t key = 0;
    for (int i = lane; i < static_cast<int>(gridDim.x); i += 32) {
      const uint64_t other = load_fresh(&call.best[static_cast<int64_t>(i) * batch + b]);
      key = other > key ? other : key;
    }
    key = warp_largest(key);
    if (lane == 0) call.token[b] = row_of_key(key);
  }
  if (lane == 0) *call.counter = 0;
}

void launch_head_argmax(HeadCall call, const Tuning& tuning, const DeviceLimits& limits, cudaStream_t stream) {
  const size_t best_bytes = static_cast<size_t>(call.m.batch) * kBestOfRow * sizeof(uint64_t);
  by_inputs(call.m.inputs, [&](auto shape) {
    using S = decltype(shape);
    const Launch plan = plan_matvec<S>(call.m, tuning, limits, best_bytes);
    const int best_at = static_cast<int>(matvec_shared_bytes(S::kWarps, call.m.batch, call.m.ring, call.m.inputs));
    STEP_START((step_head_argmax_kernel<S>), plan, stream, call, best_at);
  });
}

}  // namespace step
