// The fused kernels over emulated CUDA, behind a C interface for ctypes.
#include <cstring>
#include <string>

#include "fused_exact.cu"  // compiled as C++, all instances in one file
#include "fused_fast.cu"
#include "fused_launch.cu"

extern "C" {

struct EmulatedFusedMatrix {
  int32_t stages, small, rows, cols, split_blocks;
  const uint32_t* codes[4];
  const float* scales[4];
  const uint16_t* sv;
  const uint16_t* su;
};

static char fused_error_text[512];
static std::string fused_launch_text;

const char* emulated_fused_error() { return fused_error_text; }
const char* emulated_fused_launches() { return fused_launch_text.c_str(); }

static glq::FusedMatrix view_fused(const EmulatedFusedMatrix& from) {
  glq::FusedMatrix m = {};
  for (int s = 0; s < from.stages; ++s) {
    m.codes[s] = from.codes[s];
    m.scale[s] = from.scales[s];
  }
  m.sv = from.sv;
  m.su = from.su;
  m.stages = from.stages;
  m.small = from.small != 0;
  glq::set_sizes(m, from.rows, from.cols, from.split_blocks);
  return m;
}

// Integers: tokens, top_k, experts, activation, mask_invalid, table_words, small_word, fold, token stride,
// element stride, id strides, weight strides; then the configuration: fast, blocks, shared bytes, thread
// order, one launch, capability, seed of random orders. `workspace`: empty at first, as large as emulated_fused_workspace says.
int emulated_fused(const EmulatedFusedMatrix* up, const EmulatedFusedMatrix* down, const uint32_t* table, const int64_t* n,
                   float limit, const uint16_t* x, const int64_t* ids, const float* weights, uint16_t* out,
                   unsigned long long* overflow, unsigned long long* errors, char* workspace) {
  emulation::Machine& machine = emulation::machine();
  machine.launches.clear();
  try {
    glq::FusedCall call = {};
    call.matrix[0] = view_fused(*up);
    call.matrix[1] = view_fused(*down);
    call.table = table;
    call.tokens = static_cast<int>(n[0]);
    call.top_k = static_cast<int>(n[1]);
    call.experts = n[2];
    call.activation = static_cast<int>(n[3]);
    call.mask_invalid = n[4] != 0;
    call.table_words = static_cast<int>(n[5]);
    call.fold_bytes = static_cast<uint32_t>(4 * n[7]);
    call.token_stride = n[8];
    call.element_stride = n[9];
    call.id_strides[0] = n[10];
    call.id_strides[1] = n[11];
    call.weight_strides[0] = n[12];
    call.weight_strides[1] = n[13];
    call.limit = limit;
    call.x = x;
    call.ids = ids;
    call.wide_ids = true;
    call.weights = weights;
    call.out = out;
    call.overflow = overflow;
    call.errors = errors;
    glq::FusedConfig config;
    config.fast = n[14] != 0;
    glq::DeviceLimits limits;
    limits.multiprocessors = static_cast<int>(n[15]);
    limits.shared_bytes = static_cast<size_t>(n[16]);
    machine.order = static_cast<emulation::Order>(n[17]);
    config.one_launch = n[18] != 0;
    limits.cooperative = true;
    limits.capability = static_cast<int>(n[19]);
    machine.random_state = static_cast<uint64_t>(n[20]);
    glq::carve_workspace(call, workspace, call.tokens * call.top_k);
    glq::launch_fused(call, config, limits, nullptr);
  } catch (const std::exception& failure) {
    std::strncpy(fused_error_text, failure.what(), sizeof(fused_error_text) - 1);
    return 1;
  }
  fused_launch_text.clear();
  for (const std::string& name : machine.launches) fused_launch_text += name + "\n";
  return 0;
}

int64_t emulated_fused_workspace(const EmulatedFusedMatrix* up, const EmulatedFusedMatrix* down, int32_t slots) {
  glq::FusedCall call = {};
  call.matrix[0] = view_fused(*up);
  call.matrix[1] = view_fused(*down);
  return static_cast<int64_t>(glq::carve_workspace(call, nullptr, slots));
}

}  // extern "C"
