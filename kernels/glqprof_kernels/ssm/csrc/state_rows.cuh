// The rows of the state that one warp updates: each row is read and written once, 16 bytes a lane.
#pragma once

#include "arithmetic.cuh"

namespace ssm {

constexpr int kStateWarps = 8;  // that share a chunk

__device__ __forceinline__ float4 unpacked(const uint4& v) {
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
__device__ __forceinline__ float4 unpacked(const uint2& v) {
  return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000u), __uint_as_float(v.y << 16),
                     __uint_as_float(v.y & 0xFFFF0000u));
}
__device__ __forceinline__ void pack(const float4& v, uint4& to) {
  to = make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
}
__device__ __forceinline__ void pack(const float4& v, uint2& to) {
  to.x = float_to_bf16(v.x) | static_cast<uint32_t>(float_to_bf16(v.y)) << 16;
  to.y = float_to_bf16(v.z) | static_cast<uint32_t>(float_to_bf16(v.w)) << 16;
}

template <bool NARROW>
struct PackedQuad {
  using Type = uint4;
};
template <>
struct PackedQuad<true> {
  using Type = uint2;
};

// A row of STATE elements lies across kLanes lanes, four elements a quad; a warp holds kAtOnce rows a pass.
template <int STATE, bool NARROW>
struct StateRows {
  using Quad = typename PackedQuad<NARROW>::Type;
  static constexpr int kLanes = STATE >= 128 ? 32 : STATE / 4;
  static constexpr int kQuads = STATE / (4 * kLanes);
  static constexpr int kAtOnce = 32 / kLanes;
  static constexpr int kPasses = (kChunkRows + kStateWarps * kAtOnce - 1) / (kStateWarps * kAtOnce);

  Quad quads[kPasses][kQuads];
  int first;  // the lane's row of pass 0, in the chunk
  int lane;   // among those of its row
  int rows;   // of the chunk
  int64_t at;  // of the lane's first element of the chunk's row 0, within a sequence

  // `row`: the chunk's first row of the state. `warp`: of the chunk.
  __device__ __forceinline__ StateRows(int warp, int thread, int row, int rows_)
      : first(warp * kAtOnce + thread % 32 / kLanes), lane(thread % kLanes), rows(rows_), at(static_cast<int64_t>(row) * STATE) {}

  __device__ __forceinline__ int row(int pass) const { return first + pass * kStateWarps * kAtOnce; }
  __device__ __forceinline__ int64_t element(int pass, int quad) const {
    return at + row(pass) * STATE + (quad * kLanes + lane) * 4;
  }

  __device__ __forceinline__ void load(const StepCall& call, int sequence) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        quads[p][q] = {};
        if (row(p) < rows) {
          quads[p][q] = load_state(static_cast<const Quad*>(call.state) + (sequence * call.state_stride + element(p, q)) / 4);
        }
      }
    }
  }

  // One lane a line of 128 bytes.
  __device__ __forceinline__ void prefetch(const StepCall& call, int sequence) const {
    constexpr int kOfLine = 128 / static_cast<int>(sizeof(Quad));
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (row(p) < rows && (threadIdx.x % kOfLine == 0 || kLanes < kOfLine)) {
          glq::prefetch_l2(static_cast<const Quad*>(call.state) + (sequence * call.state_stride + element(p, q)) / 4);
        }
      }
    }
  }

  // state = step * B + state * decay, stored; dot[row] = sum of state * C. Called by whole warps.
  __device__ __forceinline__ void update(const StepCall& call, int sequence, const float* b, const float* c, const float* step,
                                         const float* decay, float* dot) const {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const bool valid = row(p) < rows;
      const float scale = valid ? decay[row(p)] : 0.0f;
      const float x = valid ? step[row(p)] : 0.0f;
      float sum = 0.0f;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float4 in = reinterpret_cast<const float4*>(b)[q * kLanes + lane];
        const float4 out = reinterpret_cast<const float4*>(c)[q * kLanes + lane];
        float4 s = unpacked(quads[p][q]);
        s.x = fma_once(x, in.x, mul(s.x, scale));
        s.y = fma_once(x, in.y, mul(s.y, scale));
        s.z = fma_once(x, in.z, mul(s.z, scale));
        s.w = fma_once(x, in.w, mul(s.w, scale));
        if (valid) {
          Quad packed;
          pack(s, packed);
          *(static_cast<Quad*>(call.state_out) + (sequence * call.state_out_stride + element(p, q)) / 4) = packed;
        }
        float part = mul(s.x, out.x);
        part = fma_once(s.y, out.y, part);
        part = fma_once(s.z, out.z, part);
        part = fma_once(s.w, out.w, part);
        sum = q == 0 ? part : add(sum, part);
      }
      sum = tree_sum<kLanes>(sum);
      if (valid && lane == 0) dot[row(p)] = sum;
    }
  }
};

}  // namespace ssm
