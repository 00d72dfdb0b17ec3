// The GLQ kernels and host loops over emulated CUDA, behind a C interface for ctypes.
#include <cstring>
#include <string>
#include <vector>

#include "launch.cu"  // compiled as C++: GLQ_LAUNCH and the intrinsics come from cuda_emulation.h

#include "host_loop.h"

extern "C" {

struct EmulatedMatrix {
  int32_t stages;
  int32_t rows;
  int32_t cols;
  int32_t split_blocks;
  int64_t experts;
  const uint16_t* plane[4];
  const void* table[4];
  const float* scales[4];  // wscale, r of each later stage; [experts]
  const uint16_t* sv;
  const uint16_t* su;
};

static glq::Matrix view(const EmulatedMatrix& from) {
  glq::Matrix m;
  m.stages = from.stages;
  for (int s = 0; s < from.stages; ++s) {
    m.plane[s] = from.plane[s];
    m.table[s] = from.table[s];
  }
  m.sv = from.sv;
  m.su = from.su;
  m.experts = from.experts;
  m.rows = from.rows;
  m.cols = from.cols;
  m.split_blocks = from.split_blocks;
  return m;
}

static char error_text[512];
static std::string launch_text;

const char* emulated_error() { return error_text; }
// Kernel expressions launched by the last call, one a line.
const char* emulated_launches() { return launch_text.c_str(); }

int64_t emulated_plane_offset(int64_t expert, int32_t rows, int32_t cols) {
  glq::Matrix m;
  m.rows = rows;
  m.cols = cols;
  return m.plane_offset(expert);
}

// y[n] = output of the transform in fp32, before rounding; x fp16, sv fp16.
int emulated_input_rht(const uint16_t* x, const uint16_t* sv, float* y, int32_t n, int32_t order) {
  emulation::machine().order = static_cast<emulation::Order>(order);
  glq::launch_input_rht(x, 1, n, 1, sv, y, n, nullptr);
  return 0;
}

float emulated_exp(float t) { return glq::stated_exp(t); }
uint16_t emulated_round_to_half(float v) { return glq::round_to_half(v); }

// 0 on success; otherwise the reason is in emulated_error().
int emulated_moe(int32_t variant, const EmulatedMatrix* up, const EmulatedMatrix* down, int32_t activation, float limit,
                 const uint16_t* x, int64_t token_stride, int64_t element_stride, int32_t tokens, int32_t top_k,
                 const int64_t* ids, const float* weights, int32_t mask_invalid, uint16_t* out,
                 unsigned long long* overflow, int32_t order) {
  emulation::Machine& machine = emulation::machine();
  machine.order = static_cast<emulation::Order>(order);
  machine.launches.clear();
  try {
    glq::Moe moe;
    moe.up = view(*up);
    moe.down = view(*down);
    moe.activation = activation;
    moe.limit = limit;
    moe.overflow = overflow;
    glq::Call call;
    call.x = x;
    call.token_stride = token_stride;
    call.element_stride = element_stride;
    call.tokens = tokens;
    call.top_k = top_k;
    call.ids = ids;
    call.weights = weights;
    call.mask_invalid = mask_invalid != 0;
    call.out = out;
    glq::check_ids(call, moe.up.experts);
    glq::Workspace workspace;
    std::vector<char> memory(workspace.carve(nullptr, moe, tokens) + 256, static_cast<char>(0xA5));
    const uintptr_t start = (reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256;
    workspace.carve(reinterpret_cast<char*>(start), moe, tokens);
    auto scalars = [&](glq::Which which, int s, int64_t e) {
      return (which == glq::Which::kUp ? up : down)->scales[s][e];
    };
    glq::run_variant(static_cast<glq::Variant>(variant), moe, call, workspace, scalars, nullptr);
  } catch (const std::exception& failure) {
    std::strncpy(error_text, failure.what(), sizeof(error_text) - 1);
    return 1;
  }
  launch_text.clear();
  for (const std::string& name : machine.launches) launch_text += name + "\n";
  return 0;
}

}  // extern "C"
