// Grids and template choices of the GLQ kernels. Compiled by nvcc alone, so that it needs no torch.
#include "launch.h"

#include <stdexcept>

#include "elementwise_kernels.cuh"
#include "matvec.cuh"
#include "rht_kernels.cuh"

namespace glq {
namespace {

constexpr int kThreads = 256;

unsigned int blocks_for(int64_t count) { return static_cast<unsigned int>((count + kThreads - 1) / kThreads); }

template <int STAGES>
void launch_matvec_stages(const Matrix& matrix, int64_t expert, const Scales& scales, const uint16_t* x, float* partial,
                          cudaStream_t stream) {
  StageSet<STAGES> set;
  bool word_aligned = matrix.blocks() % 2 == 0;
  for (int s = 0; s < STAGES; ++s) {
    set.plane[s] = matrix.plane[s] + matrix.plane_offset(expert);
    set.table[s] = static_cast<const uint4*>(matrix.table[s]);
    set.scale[s] = s == 0 ? 1.0f : scales.r[s - 1];
    word_aligned = word_aligned && reinterpret_cast<uintptr_t>(set.plane[s]) % 4 == 0;
  }
  constexpr int rows_per_block = kMatvecWarps * kWarpRows;
  const dim3 grid(static_cast<unsigned int>((matrix.rows + rows_per_block - 1) / rows_per_block),
                  static_cast<unsigned int>((matrix.blocks() + kWindowBlocks - 1) / kWindowBlocks));
  GLQ_LAUNCH((glq_matvec_splitk_kernel<STAGES>), grid, dim3(kMatvecWarps * 32), 0, stream, set, x, scales.wscale,
             partial, matrix.rows, matrix.blocks(), matrix.split_blocks, word_aligned);
}

}  // namespace

void launch_fill_zero(void* words, int64_t bytes, cudaStream_t stream) {
  const int64_t count = bytes / 4;
  GLQ_LAUNCH((glq_fill_zero_kernel), dim3(blocks_for(count)), dim3(kThreads), 0, stream,
             static_cast<uint32_t*>(words), count);
}

void launch_cast(const float* from, uint16_t* to, int64_t count, cudaStream_t stream) {
  GLQ_LAUNCH((glq_cast_kernel), dim3(blocks_for(count)), dim3(kThreads), 0, stream, from, to, count);
}

void launch_input_rht(const uint16_t* x, int vectors, int64_t vector_stride, int64_t element_stride,
                      const uint16_t* sv, float* y, int n, cudaStream_t stream) {
  GLQ_LAUNCH((glq_input_rht_kernel), dim3(static_cast<unsigned int>(vectors)),
             dim3(static_cast<unsigned int>(hadamard_threads(n))), hadamard_shared_bytes(n), stream, x, vector_stride,
             element_stride, sv, y, n);
}

void launch_matvec(const Matrix& matrix, int64_t expert, const Scales& scales, const uint16_t* x, float* partial,
                   cudaStream_t stream) {
  switch (matrix.stages) {
    case 1: return launch_matvec_stages<1>(matrix, expert, scales, x, partial, stream);
    case 2: return launch_matvec_stages<2>(matrix, expert, scales, x, partial, stream);
    case 3: return launch_matvec_stages<3>(matrix, expert, scales, x, partial, stream);
    case 4: return launch_matvec_stages<4>(matrix, expert, scales, x, partial, stream);
    default: throw std::runtime_error("a GLQ matrix has 1 to 4 stages");
  }
}

void launch_reduce_splits(const float* partial, float* y, int rows, int splits, cudaStream_t stream) {
  GLQ_LAUNCH((glq_reduce_splits_kernel), dim3(blocks_for(rows)), dim3(kThreads), 0, stream, partial, y, rows, splits);
}

void launch_output_rht(const float* y, const uint16_t* su, uint16_t* h, int n, cudaStream_t stream) {
  GLQ_LAUNCH((glq_output_rht_kernel), dim3(1), dim3(static_cast<unsigned int>(hadamard_threads(n))),
             hadamard_shared_bytes(n), stream, y, su, h, n);
}

void launch_output_rht_act(const float* y, const uint16_t* su, uint16_t* a, int n, int activation, bool round_first,
                           float limit, unsigned long long* overflow, cudaStream_t stream) {
  const dim3 grid(1);
  const dim3 block(static_cast<unsigned int>(hadamard_threads(n)));
  const size_t shared = hadamard_shared_bytes(n);
  if (activation == kSwiglu && round_first) {
    GLQ_LAUNCH((glq_output_rht_act_kernel<kSwiglu, true>), grid, block, shared, stream, y, su, a, n, limit, overflow);
  } else if (activation == kSwiglu) {
    GLQ_LAUNCH((glq_output_rht_act_kernel<kSwiglu, false>), grid, block, shared, stream, y, su, a, n, limit, overflow);
  } else if (round_first) {
    GLQ_LAUNCH((glq_output_rht_act_kernel<kRelu2, true>), grid, block, shared, stream, y, su, a, n, limit, overflow);
  } else {
    GLQ_LAUNCH((glq_output_rht_act_kernel<kRelu2, false>), grid, block, shared, stream, y, su, a, n, limit, overflow);
  }
}

void launch_activation(const uint16_t* h, uint16_t* a, int n, int activation, float limit, unsigned long long* overflow,
                       cudaStream_t stream) {
  if (activation == kSwiglu) {
    GLQ_LAUNCH((glq_swiglu_kernel), dim3(blocks_for(n)), dim3(kThreads), 0, stream, h, a, n, limit, overflow);
  } else {
    GLQ_LAUNCH((glq_relu2_kernel), dim3(blocks_for(n)), dim3(kThreads), 0, stream, h, a, n, overflow);
  }
}

void launch_weighted_add(uint16_t* out, const uint16_t* e, float w, int n, cudaStream_t stream) {
  GLQ_LAUNCH((glq_weighted_add_kernel), dim3(blocks_for(n)), dim3(kThreads), 0, stream, out, e, w, n);
}

}  // namespace glq
