// The SSM step over emulated CUDA, behind a C interface for ctypes.
#include <cstring>
#include <string>

#include "fused_cluster.cu"  // compiled as C++, all in one file
#include "fused_counter.cu"
#include "launch.cpp"
#include "unfused.cu"

extern "C" {

static char ssm_error_text[512];
static std::string ssm_launch_text;

const char* emulated_ssm_error() { return ssm_error_text; }
const char* emulated_ssm_launches() { return ssm_launch_text.c_str(); }

float emulated_ssm_softplus(float z) { return ssm::softplus(z); }

// n: batch, heads, head_dim, state, groups, taps, wide, narrow state, early state, exchange, chunks, fused, capability, largest
// cluster, thread order, strides of projected, conv state, its output, state, its output, out.
static ssm::StepCall read_ssm(const int64_t* n) {
  ssm::StepCall call = {};
  call.batch = static_cast<int>(n[0]);
  call.heads = static_cast<int>(n[1]);
  call.head_dim = static_cast<int>(n[2]);
  call.state_size = static_cast<int>(n[3]);
  call.groups = static_cast<int>(n[4]);
  call.taps = static_cast<int>(n[5]);
  call.wide = static_cast<int>(n[6]);
  call.narrow_state = n[7] != 0;
  call.early_state = n[8] != 0;
  call.projected_stride = n[15];
  call.conv_stride = n[16];
  call.conv_out_stride = n[17];
  call.state_stride = n[18];
  call.state_out_stride = n[19];
  call.out_stride = n[20];
  ssm::derive_sizes(call);
  return call;
}

int64_t emulated_ssm_workspace(const int64_t* n) {
  ssm::StepCall call = read_ssm(n);
  return static_cast<int64_t>(ssm::carve_workspace(call, nullptr));
}

// p: projected, conv state, its output, state, its output, out, conv weight, conv bias, dt bias, a, d, norm weight, workspace.
// 0 on success; otherwise the reason is in emulated_ssm_error().
int emulated_ssm(const int64_t* n, void* const* p, float eps) {
  emulation::Machine& machine = emulation::machine();
  machine.launches.clear();
  try {
    ssm::StepCall call = read_ssm(n);
    call.eps = eps;
    call.projected = static_cast<const uint16_t*>(p[0]);
    call.conv_state = static_cast<const uint16_t*>(p[1]);
    call.conv_state_out = static_cast<uint16_t*>(p[2]);
    call.state = p[3];
    call.state_out = p[4];
    call.out = static_cast<uint16_t*>(p[5]);
    call.conv_weight = static_cast<const uint16_t*>(p[6]);
    call.conv_bias = p[7];
    call.dt_bias = p[8];
    call.a = static_cast<const float*>(p[9]);
    call.d = p[10];
    call.norm_weight = p[11];
    ssm::carve_workspace(call, static_cast<char*>(p[12]));
    ssm::StepConfig config;
    config.exchange = static_cast<int>(n[9]);
    config.chunks = static_cast<int>(n[10]);
    ssm::DeviceLimits limits;
    limits.capability = static_cast<int>(n[12]);
    limits.largest_cluster = static_cast<int>(n[13]);
    machine.order = static_cast<emulation::Order>(n[14]);
    if (n[11] != 0) {
      ssm::launch_fused(call, config, limits, nullptr);
    } else {
      ssm::launch_unfused(call, config, limits, nullptr);
    }
  } catch (const std::exception& failure) {
    std::strncpy(ssm_error_text, failure.what(), sizeof(ssm_error_text) - 1);
    return 1;
  }
  ssm_launch_text.clear();
  for (const std::string& name : machine.launches) ssm_launch_text += name + "\n";
  return 0;
}

}  // extern "C"
