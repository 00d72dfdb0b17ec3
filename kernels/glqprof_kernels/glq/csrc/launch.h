// Launch functions of the GLQ kernels: plain pointers and sizes, no torch. Each checks its own launch and throws
// std::runtime_error with the kernel's name. All work goes to `stream`.
#pragma once

#include <cstdint>

#if defined(GLQ_EMULATE)
#include "cuda_emulation.h"
#else
#include <cuda_runtime_api.h>
#endif

namespace glq {

constexpr int kMaxStages = 4;

// One matrix of all experts of a layer; device pointers. Only the stages present are listed, in order.
struct Matrix {
  int stages = 0;
  const uint16_t* plane[kMaxStages] = {};  // [experts, rows, cols / 8]
  const void* table[kMaxStages] = {};      // fp16 codebook of the stage, 16 bytes an entry, 16-byte aligned
  const uint16_t* sv = nullptr;            // fp16 signs [cols]
  const uint16_t* su = nullptr;            // fp16 signs [experts, rows]
  int64_t experts = 0;
  int rows = 0;
  int cols = 0;
  int split_blocks = 64;

  int blocks() const { return cols / 8; }
  int splits() const { return (blocks() + split_blocks - 1) / split_blocks; }
  // Elements before expert e in a plane: 64-bit, since experts * rows * blocks can pass 2^31.
  int64_t plane_offset(int64_t e) const { return e * rows * static_cast<int64_t>(blocks()); }
};

// The per-expert factors of one matrix: wscale, then r of each stage after the first.
struct Scales {
  float wscale = 0.0f;
  float r[kMaxStages] = {};
};

void launch_fill_zero(void* words, int64_t bytes, cudaStream_t stream);  // bytes: a multiple of four
void launch_cast(const float* from, uint16_t* to, int64_t count, cudaStream_t stream);
void launch_input_rht(const uint16_t* x, int vectors, int64_t vector_stride, int64_t element_stride,
                      const uint16_t* sv, float* y, int n, cudaStream_t stream);
void launch_matvec(const Matrix& matrix, int64_t expert, const Scales& scales, const uint16_t* x, float* partial,
                   cudaStream_t stream);
void launch_reduce_splits(const float* partial, float* y, int rows, int splits, cudaStream_t stream);
void launch_output_rht(const float* y, const uint16_t* su, uint16_t* h, int n, cudaStream_t stream);
void launch_output_rht_act(const float* y, const uint16_t* su, uint16_t* a, int n, int activation, bool round_first,
                           float limit, unsigned long long* overflow, cudaStream_t stream);
// a: [n]; h: [n] for relu2, [2n] for SwiGLU.
void launch_activation(const uint16_t* h, uint16_t* a, int n, int activation, float limit, unsigned long long* overflow,
                       cudaStream_t stream);
void launch_weighted_add(uint16_t* out, const uint16_t* e, float w, int n, cudaStream_t stream);

}  // namespace glq
