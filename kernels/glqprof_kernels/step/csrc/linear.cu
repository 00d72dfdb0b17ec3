// out = bf16(x W^T + bias), for up to four W in one launch; relu2 of the rounded value, rounded again.
#include "launch.h"
#include "matvec_plan.cuh"

namespace step {

namespace {

struct SegmentRow {
  const Segments* s;
  __device__ __forceinline__ int segment_of(int row) const {
    return (row >= s->first[1] ? 1 : 0) + (row >= s->first[2] ? 1 : 0) + (row >= s->first[3] ? 1 : 0);
  }
};

struct SegmentLook : SegmentRow {
  int inputs;
  __device__ __forceinline__ const uint16_t* operator()(int row) const {
    const int i = segment_of(row);
    return s->weight[i] + static_cast<int64_t>(row - s->first[i]) * inputs;
  }
};

struct LinearEpilogue : SegmentRow {
  bool relu2;
  __device__ __forceinline__ void at(int b, int row, float sum) const {
    const int i = segment_of(row);
    const int column = row - s->first[i];
    if (s->bias[i] != nullptr) sum = __fadd_rn(sum, bf16_to_float(s->bias[i][column]));
    float value = rounded_to_bf16(sum);
    if (relu2) {
      value = value < 0.0f ? 0.0f : value;  // NaN stays NaN
      value = __fmul_rn(value, value);
    }
    s->out[i][b * s->out_stride[i] + column] = float_to_bf16(value);
  }
};

}  // namespace

// grid: up to kMaxBlocks blocks of S::kThreads.
template <class S>
__global__ void STEP_LAUNCH_BOUNDS(S::kThreads, S::kBlocksAtOnce) step_linear_kernel(const GLQ_KERNEL_PARAMETER LinearCall call) {
  GLQ_DYNAMIC_SHARED(unsigned char, shared);
  SegmentLook look;
  look.s = &call.s;
  look.inputs = call.m.inputs;
  LinearEpilogue epilogue;
  epilogue.s = &call.s;
  epilogue.relu2 = call.relu2;
  multiply_rows<S>(call.m, look, shared, epilogue);
}

void launch_linear(LinearCall call, const Tuning& tuning, const DeviceLimits& limits, cudaStream_t stream) {
  by_inputs(call.m.inputs, [&](auto shape) {
    using S = decltype(shape);
    const Launch plan = plan_matvec<S>(call.m, tuning, limits, 0);
    STEP_START((step_linear_kernel<S>), plan, stream, call);
  });
}

}  // namespace step
