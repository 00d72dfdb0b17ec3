// Arguments of the step kernels, as the host fills them in.
#pragma once

#include <cstddef>
#include <cstdint>

namespace step {

constexpr int kMaxBatch = 8;
constexpr int kMaxSegments = 4;
constexpr int kMaxBlocks = 1024;  // workspace.py: MAX_BLOCKS
constexpr int kChunk = 64;        // positions a block of attend; workspace.py: CHUNK
constexpr int kHeadsPerBlock = 4;

// Counters first (zero between calls), then what blocks hand to the last of them; workspace.py: COUNTER_BYTES.
constexpr size_t kCounterBytes = 4096;

// Weights one below the other, all of the same inputs: rows first[i] to first[i + 1] are those of weight[i]; where there is no
// weight i, first[i] is past all rows.
struct Segments {
  const uint16_t* weight[kMaxSegments];
  uint16_t* out[kMaxSegments];
  const uint16_t* bias[kMaxSegments];  // or null
  int64_t out_stride[kMaxSegments];
  int first[kMaxSegments];
};

struct Matvec {
  const uint16_t* x;
  int64_t x_stride;
  int batch;
  int inputs;   // a multiple of 8
  int outputs;  // of all segments
  int ring;     // pairs of rows that fit in shared memory
  uint64_t* clocks;  // or null: [blocks, 4], nanoseconds of a block's start, of the end of its wait and of its last sum; its place
};

struct LinearCall {
  Matvec m;
  Segments s;
  bool relu2;
};

struct HeadCall {
  Matvec m;
  const uint16_t* weight;
  uint16_t* logits;  // or null
  int64_t logits_stride;
  int64_t* token;
  uint64_t* best;  // [blocks, batch]
  int* counter;
};

struct EmbedCall {
  const uint16_t* table;
  const int64_t* token;
  uint16_t* out;
  int64_t vocab;
  int hidden;
};

struct NormCall {
  uint16_t* residual;
  const uint16_t* addend;  // or null
  const uint16_t* second;  // or null
  const void* weight;
  uint16_t* out;
  uint16_t* out_fp16;  // or null
  float eps;
  int hidden;
  bool addend_fp16;
  bool weight_fp32;
};

struct RouteCall {
  const uint16_t* x;
  int64_t x_stride;
  const void* weight;
  const float* bias;
  int64_t* ids;
  float* weights;
  float* scores;  // [batch, experts]
  int* counter;
  float scaling;
  int batch;
  int hidden;
  int experts;
  int top_k;
  bool normalise;
  bool weight_fp32;
};

struct AttendCall {
  const uint16_t* q;
  const uint16_t* k_new;
  const uint16_t* v_new;
  uint16_t* k_cache;
  uint16_t* v_cache;
  const int64_t* position;
  uint16_t* out;
  float* sums;     // [batch, heads, splits, dim]
  float* maxima;   // [batch, heads, splits, 2]: the largest score of a chunk and the sum of its exponentials
  int* counters;   // [batch, kv_heads, head groups]
  int64_t q_stride, k_stride, v_stride, out_stride;
  int64_t capacity;
  float scale;
  int batch;
  int heads;
  int kv_heads;
  int dim;
  int splits;  // of a full cache
};

// What a launch may use; of an H200 unless said.
struct DeviceLimits {
  int multiprocessors = 132;
  size_t block_shared_bytes = 227 * 1024;
  size_t shared_bytes = 228 * 1024;  // of a multiprocessor
  int capability = 90;
};

// The share of a multiprocessor's shared memory that a block of linear or head_argmax takes.
enum Share : int {
  kLarger = 0,   // more than half: two blocks of one launch never share a multiprocessor
  kSmaller = 1,  // what kLarger leaves: no two blocks of one launch where a block of another that took kLarger still is
  kWhole = 2,
};

// How linear and head_argmax are launched; no value changes a byte of the result.
struct Tuning {
  int share = kLarger;
  int shared_kib = 0;   // above 0: in the place of `share`
  int blocks = 0;       // 0: one a multiprocessor
  bool dependent = true;
  uint64_t* clocks = nullptr;
};

}  // namespace step
