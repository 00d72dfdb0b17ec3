// The NVFP4 kernels over emulated CUDA, behind a C interface for ctypes.
#include <cstring>
#include <string>

#include "experts_base_deep.cu"  // compiled as C++, all instances in one file
#include "experts_base_regs.cu"
#include "experts_base_ring.cu"
#include "experts_half_deep.cu"
#include "experts_half_regs.cu"
#include "experts_half_ring.cu"
#include "experts_quarter_deep.cu"
#include "experts_quarter_regs.cu"
#include "experts_quarter_ring.cu"
#include "experts_waves_deep.cu"
#include "experts_waves_regs.cu"
#include "experts_waves_ring.cu"

#include "launch.cu"

extern "C" {

struct EmulatedNvfp4Matrix {
  const uint8_t* tiles;
  const float* scale;
  int32_t columns, inputs;
};

static char nvfp4_error_text[512];
static std::string nvfp4_launch_text;

const char* emulated_nvfp4_error() { return nvfp4_error_text; }
const char* emulated_nvfp4_launches() { return nvfp4_launch_text.c_str(); }

static nvfp4::Matrix view_nvfp4(const EmulatedNvfp4Matrix& from) {
  const int slots = (from.inputs + nvfp4::kSlotColumns - 1) / nvfp4::kSlotColumns;
  return {from.tiles, from.scale, from.columns, from.inputs, slots};
}

// n: tokens, top_k, experts, gated, mask_invalid, x_stride, id strides, weight strides, schedule, pipeline, warps, depth,
// item_rows, blocks, expert output bf16, shared bytes, order, which, x's element stride, KiB ahead.
static nvfp4::MoeCall read_nvfp4(const EmulatedNvfp4Matrix* gate_up, const EmulatedNvfp4Matrix* down, const int64_t* n) {
  nvfp4::MoeCall call = {};
  call.gate_up = view_nvfp4(*gate_up);
  call.down = view_nvfp4(*down);
  call.tokens = static_cast<int>(n[0]);
  call.top_k = static_cast<int>(n[1]);
  call.experts = static_cast<int>(n[2]);
  call.gated = n[3] != 0;
  call.mask_invalid = n[4] != 0;
  call.x_stride = n[5];
  call.id_strides[0] = n[6];
  call.id_strides[1] = n[7];
  call.weight_strides[0] = n[8];
  call.weight_strides[1] = n[9];
  nvfp4::MoeConfig config;
  config.schedule = static_cast<int>(n[10]);
  config.item_rows = static_cast<int>(n[14]);
  call.item_rows = nvfp4::item_rows_for(config, n[0], n[1], n[2]);
  call.expert_out_bf16 = n[16] != 0;
  return call;
}

int64_t emulated_nvfp4_workspace(const EmulatedNvfp4Matrix* gate_up, const EmulatedNvfp4Matrix* down, const int64_t* n) {
  try {
    nvfp4::MoeCall call = read_nvfp4(gate_up, down, n);
    return static_cast<int64_t>(nvfp4::carve_workspace(call, nullptr));
  } catch (const std::exception& failure) {
    std::strncpy(nvfp4_error_text, failure.what(), sizeof(nvfp4_error_text) - 1);
    return -1;
  }
}

// Warps, stages and shared-memory bytes of gate-up and of down on an H200, from sizes alone.
void emulated_nvfp4_choice(const EmulatedNvfp4Matrix* gate_up, const EmulatedNvfp4Matrix* down, const int64_t* n, int32_t* out) {
  const nvfp4::MoeCall call = read_nvfp4(gate_up, down, n);
  nvfp4::MoeConfig config;
  config.schedule = static_cast<int>(n[10]);
  config.pipeline = static_cast<int>(n[11]);
  for (int i = 0; i < 2; ++i) {
    const nvfp4::Chosen chosen = nvfp4::choose(call, config, nvfp4::DeviceLimits(), i == 1);
    out[3 * i] = chosen.warps;
    out[3 * i + 1] = chosen.depth;
    out[3 * i + 2] = chosen.shared_bytes;
  }
}

// 0 on success; otherwise the reason is in emulated_nvfp4_error(). *plan receives where the plan lies in the workspace.
int emulated_nvfp4(const EmulatedNvfp4Matrix* gate_up, const EmulatedNvfp4Matrix* down, const int64_t* n, float limit,
                   const uint16_t* x, const int64_t* ids, const float* weights, uint16_t* out, void* expert_out,
                   unsigned long long* errors, char* workspace, int64_t* plan) {
  emulation::Machine& machine = emulation::machine();
  machine.launches.clear();
  try {
    nvfp4::MoeCall call = read_nvfp4(gate_up, down, n);
    call.limit = limit;
    call.x = x;
    call.ids = ids;
    call.weights = weights;
    call.out = out;
    call.expert_out = expert_out;
    call.errors = errors;
    nvfp4::carve_workspace(call, workspace, n[20]);
    *plan = reinterpret_cast<char*>(call.plan) - workspace;
    nvfp4::MoeConfig config;
    config.schedule = static_cast<int>(n[10]);
    config.pipeline = static_cast<int>(n[11]);
    config.warps = static_cast<int>(n[12]);
    config.depth = static_cast<int>(n[13]);
    config.blocks = static_cast<int>(n[15]);
    config.ahead_kib = static_cast<int>(n[21]);
    nvfp4::DeviceLimits limits;
    limits.shared_bytes = static_cast<size_t>(n[17]);
    machine.order = static_cast<emulation::Order>(n[18]);
    nvfp4::fault() = nullptr;
    nvfp4::launch_moe(call, config, limits, static_cast<int>(n[19]), nullptr);
    if (nvfp4::fault() != nullptr) throw std::runtime_error(nvfp4::fault());
  } catch (const std::exception& failure) {
    std::strncpy(nvfp4_error_text, failure.what(), sizeof(nvfp4_error_text) - 1);
    return 1;
  }
  nvfp4_launch_text.clear();
  for (const std::string& name : machine.launches) nvfp4_launch_text += name + "\n";
  return 0;
}

}  // extern "C"
