// The step kernels over emulated CUDA, behind a C interface for ctypes.
#include <cstring>
#include <string>

#include "attend.cu"  // compiled as C++, all in one file
#include "head_argmax.cu"
#include "linear.cu"
#include "norm.cu"
#include "route.cu"

static char step_error_text[512];
static std::string step_launch_text;

// Runs `launch`; 0 on success, otherwise the reason is in emulated_step_error().
template <typename Launch>
static int run_step(int order, Launch launch) {
  emulation::Machine& machine = emulation::machine();
  machine.launches.clear();
  machine.order = static_cast<emulation::Order>(order);
  nvfp4::fault() = nullptr;
  try {
    launch();
    if (nvfp4::fault() != nullptr) throw std::runtime_error(nvfp4::fault());
  } catch (const std::exception& failure) {
    std::strncpy(step_error_text, failure.what(), sizeof(step_error_text) - 1);
    return 1;
  }
  step_launch_text.clear();
  for (const std::string& name : machine.launches) step_launch_text += name + "\n";
  return 0;
}

static step::Tuning tuning_of(const int64_t* n) {
  step::Tuning tuning;
  tuning.shared_kib = static_cast<int>(n[0]);
  tuning.blocks = static_cast<int>(n[1]);
  tuning.share = static_cast<int>(n[2]);
  tuning.clocks = reinterpret_cast<uint64_t*>(static_cast<uintptr_t>(n[3]));
  return tuning;
}

extern "C" {

const char* emulated_step_error() { return step_error_text; }
const char* emulated_step_launches() { return step_launch_text.c_str(); }

int emulated_step_embed(int order, const step::EmbedCall* call, int batch) {
  return run_step(order, [&] { step::launch_embed(*call, batch, true, nullptr); });
}
int emulated_step_add_rms_norm(int order, const step::NormCall* call, int batch) {
  return run_step(order, [&] { step::launch_add_rms_norm(*call, batch, true, nullptr); });
}
int emulated_step_route(int order, const step::RouteCall* call) {
  return run_step(order, [&] { step::launch_route(*call, true, nullptr); });
}
int emulated_step_attend(int order, const step::AttendCall* call) {
  return run_step(order, [&] { step::launch_attend(*call, true, nullptr); });
}
// tuning: shared_kib, blocks, share, address of clocks.
int emulated_step_linear(int order, const step::LinearCall* call, const int64_t* tuning) {
  return run_step(order, [&] { step::launch_linear(*call, tuning_of(tuning), step::DeviceLimits(), nullptr); });
}
int emulated_step_head_argmax(int order, const step::HeadCall* call, const int64_t* tuning) {
  return run_step(order, [&] { step::launch_head_argmax(*call, tuning_of(tuning), step::DeviceLimits(), nullptr); });
}

}  // extern "C"
