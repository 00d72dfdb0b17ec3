// The host side of each GLQ variant: a loop over (token, expert) that launches separate kernels. No torch here: scalars
// come through `Scalars`, so that the loops also run in the tests, over emulated kernels.
//
// The variants differ in what they read from the device, and when, and in which kernels they launch; KERNELS.md's names.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "launch.h"

namespace glq {

enum class Variant : int { kV0_2_12 = 0, kV3a = 1, kV3b = 2, kV3bFp32Act = 3 };

// One layer. `activation` as in activation.cuh; down.cols is up.rows, or half of it for SwiGLU.
struct Moe {
  Matrix up;
  Matrix down;
  int activation = 0;
  float limit = 0.0f;
  unsigned long long* overflow = nullptr;  // device counter of activations that became infinite; may be null
};

// One call. x is on the device (fp16, element strides); ids and weights are host copies, [tokens, top_k].
struct Call {
  const uint16_t* x = nullptr;
  int64_t token_stride = 0;
  int64_t element_stride = 1;
  int tokens = 0;
  int top_k = 0;
  const int64_t* ids = nullptr;
  const float* weights = nullptr;
  bool mask_invalid = false;
  uint16_t* out = nullptr;  // device, contiguous [tokens, hidden]
};

// Which matrix a scalar belongs to.
enum class Which : int { kUp = 0, kDown = 1 };

// Device scratch of one call, carved from one allocation; every part starts at a multiple of 256 bytes.
struct Workspace {
  float* transformed_x = nullptr;  // [tokens, hidden], before the cast
  uint16_t* x = nullptr;           // [tokens, hidden]
  float* partial = nullptr;        // [splits, rows] of the larger matrix
  float* y = nullptr;              // [rows] of the larger matrix
  uint16_t* h = nullptr;           // [up.rows]
  uint16_t* activated = nullptr;   // [down.cols]
  float* transformed = nullptr;    // [down.cols], before the cast
  uint16_t* down_x = nullptr;      // [down.cols]
  uint16_t* expert_out = nullptr;  // [down.rows]

  // Sets the parts within `base` (256-byte aligned; null only measures); returns the bytes needed.
  size_t carve(char* base, const Moe& moe, int tokens) {
    size_t used = 0;
    auto part = [&](auto*& pointer, size_t count) {
      pointer = base == nullptr ? nullptr : reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + used);
      used += (count * sizeof(*pointer) + 255) / 256 * 256;
    };
    const size_t x_count = static_cast<size_t>(tokens) * moe.up.cols;
    part(transformed_x, x_count);
    part(x, x_count);
    part(partial, std::max(static_cast<size_t>(moe.up.splits()) * moe.up.rows,
                           static_cast<size_t>(moe.down.splits()) * moe.down.rows));
    part(y, std::max(moe.up.rows, moe.down.rows));
    part(h, moe.up.rows);
    part(activated, moe.down.cols);
    part(transformed, moe.down.cols);
    part(down_x, moe.down.cols);
    part(expert_out, moe.down.rows);
    return used;
  }
};

// Refuses an id that names no expert, also in a slot of weight 0: such an id means that the router is wrong.
inline void check_ids(const Call& call, int64_t experts) {
  if (call.mask_invalid) return;
  for (int t = 0; t < call.tokens; ++t) {
    for (int k = 0; k < call.top_k; ++k) {
      const int64_t id = call.ids[static_cast<int64_t>(t) * call.top_k + k];
      if (id < 0 || id >= experts) {
        throw std::invalid_argument("ids[" + std::to_string(t) + ", " + std::to_string(k) + "] is " +
                                    std::to_string(id) + ", but the experts are 0 .. " + std::to_string(experts - 1) +
                                    "; pass mask_invalid=True to skip such slots");
      }
    }
  }
}

// Calls body(token, expert, weight) for every slot that takes part, in top-k order.
template <typename Body>
void for_each_slot(const Call& call, int64_t experts, Body body) {
  for (int t = 0; t < call.tokens; ++t) {
    for (int k = 0; k < call.top_k; ++k) {
      const int64_t at = static_cast<int64_t>(t) * call.top_k + k;
      const int64_t id = call.ids[at];
      const float weight = call.weights[at];
      if (weight == 0.0f || id < 0 || id >= experts) continue;
      body(t, id, weight);
    }
  }
}

// The three launches of a call: the input transform of all tokens, its rounding, and the zeroed output.
inline void start_call(const Moe& moe, const Call& call, const Workspace& ws, cudaStream_t stream) {
  const int hidden = moe.up.cols;
  const int64_t count = static_cast<int64_t>(call.tokens) * hidden;
  launch_input_rht(call.x, call.tokens, call.token_stride, call.element_stride, moe.up.sv, ws.transformed_x, hidden,
                   stream);
  launch_cast(ws.transformed_x, ws.x, count, stream);
  launch_fill_zero(call.out, count * 2, stream);
}

// v0.2.12 and v3a: twelve launches an expert, among them two fills whose zeros the reduction overwrites.
// `scalars(which, s, e)`: wscale of expert e for s = 0, r of the s-th later stage present otherwise.
template <typename Scalars>
void run_separate(const Moe& moe, const Call& call, const Workspace& ws, Scalars scalars, cudaStream_t stream) {
  start_call(moe, call, ws, stream);
  auto matrix_vector = [&](const Matrix& matrix, Which which, int64_t e, const uint16_t* x) {
    launch_fill_zero(ws.y, static_cast<int64_t>(matrix.rows) * 4, stream);
    Scales scales;
    scales.wscale = scalars(which, 0, e);
    for (int s = 1; s < matrix.stages; ++s) scales.r[s - 1] = scalars(which, s, e);
    launch_matvec(matrix, e, scales, x, ws.partial, stream);
    launch_reduce_splits(ws.partial, ws.y, matrix.rows, matrix.splits(), stream);
  };
  for_each_slot(call, moe.up.experts, [&](int t, int64_t e, float weight) {
    const Matrix& up = moe.up;
    const Matrix& down = moe.down;
    matrix_vector(up, Which::kUp, e, ws.x + static_cast<int64_t>(t) * up.cols);
    launch_output_rht(ws.y, up.su + e * up.rows, ws.h, up.rows, stream);
    launch_activation(ws.h, ws.activated, down.cols, moe.activation, moe.limit, moe.overflow, stream);
    launch_input_rht(ws.activated, 1, down.cols, 1, down.sv, ws.transformed, down.cols, stream);
    launch_cast(ws.transformed, ws.down_x, down.cols, stream);
    matrix_vector(down, Which::kDown, e, ws.down_x);
    launch_output_rht(ws.y, down.su + e * down.rows, ws.expert_out, down.rows, stream);
    launch_weighted_add(call.out + static_cast<int64_t>(t) * down.rows, ws.expert_out, weight, down.rows, stream);
  });
}

// v3b and v3b-fp32act: nine launches an expert; no fills, the activation in the output transform's store.
template <typename Scalars>
void run_fused_activation(const Moe& moe, const Call& call, const Workspace& ws, Scalars scalars, bool round_first,
                          cudaStream_t stream) {
  start_call(moe, call, ws, stream);
  auto matrix_vector = [&](const Matrix& matrix, Which which, int64_t e, const uint16_t* x) {
    Scales scales;
    scales.wscale = scalars(which, 0, e);
    for (int s = 1; s < matrix.stages; ++s) scales.r[s - 1] = scalars(which, s, e);
    launch_matvec(matrix, e, scales, x, ws.partial, stream);
    launch_reduce_splits(ws.partial, ws.y, matrix.rows, matrix.splits(), stream);
  };
  for_each_slot(call, moe.up.experts, [&](int t, int64_t e, float weight) {
    const Matrix& up = moe.up;
    const Matrix& down = moe.down;
    matrix_vector(up, Which::kUp, e, ws.x + static_cast<int64_t>(t) * up.cols);
    launch_output_rht_act(ws.y, up.su + e * up.rows, ws.activated, up.rows, moe.activation, round_first, moe.limit,
                          moe.overflow, stream);
    launch_input_rht(ws.activated, 1, down.cols, 1, down.sv, ws.transformed, down.cols, stream);
    launch_cast(ws.transformed, ws.down_x, down.cols, stream);
    matrix_vector(down, Which::kDown, e, ws.down_x);
    launch_output_rht(ws.y, down.su + e * down.rows, ws.expert_out, down.rows, stream);
    launch_weighted_add(call.out + static_cast<int64_t>(t) * down.rows, ws.expert_out, weight, down.rows, stream);
  });
}

// Runs `variant`; call.tokens > 0 and the ids were checked.
template <typename Scalars>
void run_variant(Variant variant, const Moe& moe, const Call& call, const Workspace& ws, Scalars scalars,
                 cudaStream_t stream) {
  switch (variant) {
    case Variant::kV0_2_12:
    case Variant::kV3a: return run_separate(moe, call, ws, scalars, stream);
    case Variant::kV3b: return run_fused_activation(moe, call, ws, scalars, true, stream);
    case Variant::kV3bFp32Act: return run_fused_activation(moe, call, ws, scalars, false, stream);
  }
  throw std::invalid_argument("unknown GLQ variant");
}

}  // namespace glq
