// What the SSM step kernels are launched with: plain structs, no torch, no device code.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(GLQ_EMULATE)
#include "cuda_emulation.h"
#else
#include <cuda_runtime_api.h>
#endif

namespace ssm {

constexpr int kMaxTaps = 4;
constexpr int kChunkRows = 32;   // rows of the state (channels of x) whose squares one warp adds up
constexpr int kMaxChunks = 128;  // of a group
constexpr int kMaxCluster = 16;  // thread blocks of a cluster, on sm_90 and sm_100

// Which of the small parameters are binary32; the others are bf16.
enum Wide : int { kWideConvBias = 1, kWideDtBias = 2, kWideD = 4, kWideNorm = 8 };

// How the thread blocks of a group tell each other their sums of squares.
enum Exchange : int { kCluster = 0, kCounter = 1 };

// One token of one layer. Row i of the state is channel i of x: head i / head_dim. Strides are elements from one sequence of
// the batch to the next; within a sequence everything is contiguous.
struct StepCall {
  const uint16_t* projected;  // bf16: gate | x, B, C | dt
  int64_t projected_stride;
  const uint16_t* conv_state;  // bf16 [conv_dim, taps]
  uint16_t* conv_state_out;    // may be the same
  int64_t conv_stride, conv_out_stride;
  const void* state;  // binary32 or bf16 [inter, state_size]
  void* state_out;    // may be the same
  int64_t state_stride, state_out_stride;
  uint16_t* out;  // bf16 [inter]
  int64_t out_stride;

  const uint16_t* conv_weight;  // bf16 [conv_dim, taps]
  const void* conv_bias;        // [conv_dim] or null
  const void* dt_bias;          // [heads]
  const float* a;               // [heads]
  const void* d;                // [heads]
  const void* norm_weight;      // [inter]
  int wide;
  float eps;

  int batch, heads, head_dim, state_size, groups, taps;
  int inter;          // heads * head_dim
  int conv_dim;       // inter + 2 * groups * state_size
  int group_rows;     // inter / groups
  int chunks;         // ceil(group_rows / kChunkRows)
  bool narrow_state;  // bf16
  bool early_state;   // states may be read before the kernel ahead has ended

  // Workspace: of the unfused kernels the first two, of the exchange by counters the others.
  uint16_t* channels;  // bf16 [batch, conv_dim]: x, B, C after the convolution
  uint16_t* y;         // bf16 [batch, inter]
  float* gated;        // [batch, inter]
  float* squares;      // [batch, groups, chunks]
  int* counters;       // [batch, groups], zero between calls
};

// From heads, head_dim, state_size and groups.
inline void derive_sizes(StepCall& call) {
  call.inter = call.heads * call.head_dim;
  call.conv_dim = call.inter + 2 * call.groups * call.state_size;
  call.group_rows = call.inter / call.groups;
  call.chunks = (call.group_rows + kChunkRows - 1) / kChunkRows;
}

// How a step is launched. Negative and 0: chosen by the sizes and the device.
struct StepConfig {
  int exchange = -1;
  int chunks = 0;  // of a thread block
  bool dependent = true;
};

struct DeviceLimits {
  int capability = 90;
  int largest_cluster = kMaxCluster;  // that the device can hold
};

inline size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Sets the workspace pointers within `base` (256-byte aligned; null only measures); returns the bytes. Counters come first.
inline size_t carve_workspace(StepCall& call, char* base) {
  const size_t batch = static_cast<size_t>(call.batch);
  size_t at = 0;
  auto take = [&](size_t bytes) {
    char* const here = base == nullptr ? nullptr : base + at;
    at += aligned(bytes);
    return here;
  };
  call.counters = reinterpret_cast<int*>(take(batch * call.groups * sizeof(int)));
  call.squares = reinterpret_cast<float*>(take(batch * call.groups * call.chunks * sizeof(float)));
  call.gated = reinterpret_cast<float*>(take(batch * call.inter * sizeof(float)));
  call.channels = reinterpret_cast<uint16_t*>(take(batch * call.conv_dim * sizeof(uint16_t)));
  call.y = reinterpret_cast<uint16_t*>(take(batch * call.inter * sizeof(uint16_t)));
  return at;
}

}  // namespace ssm
