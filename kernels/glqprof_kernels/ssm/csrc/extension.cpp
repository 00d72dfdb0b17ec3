// The torch side of the SSM step: checks tensors and launches on the current stream.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "launch.h"

namespace {

using torch::Tensor;

std::string text(const char* s) { return s; }
std::string text(int64_t n) { return std::to_string(n); }
std::string text(int n) { return std::to_string(n); }
std::string text(c10::ScalarType t) { return c10::toString(t); }
std::string text(const c10::Device& d) { return d.str(); }
std::string text(c10::IntArrayRef shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

// ValueError in Python, through a standard exception: pybind11 translates these by itself, while c10's ended the process on
// torch 2.11.
template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) throw std::invalid_argument((text(parts) + ...));
}

bool aligned_to(const Tensor& t, size_t bytes) { return reinterpret_cast<uintptr_t>(t.data_ptr()) % bytes == 0; }

// One sequence after the other, each contiguous, at a distance that leaves room for it: expanded or overlapping ones would be
// written twice.
void check_rows(const Tensor& t, const char* name, c10::ScalarType dtype, c10::IntArrayRef shape, const c10::Device& device,
                size_t alignment) {
  require(t.scalar_type() == dtype, name, " must be ", dtype, ", not ", t.scalar_type());
  require(t.device() == device, name, " is on ", t.device(), ", the weights on ", device);
  require(t.sizes() == shape, name, " must be ", shape, ", not ", t.sizes());
  if (t.numel() == 0) return;
  const Tensor row = t.select(0, 0);
  require(row.is_contiguous(), name, " must be contiguous within each sequence of the batch; its strides are ", t.strides());
  require(t.size(0) == 1 || t.stride(0) >= row.numel(), name, " has sequences that overlap; its strides are ", t.strides());
  const size_t step = static_cast<size_t>(t.size(0) == 1 ? 0 : t.stride(0)) * t.element_size();
  require(aligned_to(t, alignment) && step % alignment == 0, name, " must lie at multiples of ", static_cast<int64_t>(alignment),
          " bytes");
}

int64_t distance(const Tensor& t) { return t.size(0) <= 1 ? 0 : t.stride(0); }

class Layer {
 public:
  Layer(Tensor conv_weight, std::optional<Tensor> conv_bias, Tensor dt_bias, Tensor a, Tensor d, Tensor norm_weight, double eps,
        int64_t heads, int64_t head_dim, int64_t state, int64_t groups)
      : tensors_{std::move(conv_weight), std::move(dt_bias), std::move(a), std::move(d), std::move(norm_weight)} {
    const Tensor& weight = tensors_[0];
    const c10::Device device = weight.device();
    require(device.is_cuda(), "the CUDA kernels need weights on a GPU, not on ", device);
    require(heads >= 1 && head_dim >= 1 && groups >= 1 && heads % groups == 0 && heads * head_dim <= (1 << 20) && groups <= 65535,
            heads, " heads of ", head_dim, " in ", groups, " groups are not supported");
    require(weight.dim() == 2 && weight.size(1) >= 1 && weight.size(1) <= ssm::kMaxTaps, "the convolution must have 1 to ",
            ssm::kMaxTaps, " taps");
    call_.heads = static_cast<int>(heads);
    call_.head_dim = static_cast<int>(head_dim);
    call_.state_size = static_cast<int>(state);
    call_.groups = static_cast<int>(groups);
    call_.taps = static_cast<int>(weight.size(1));
    call_.eps = static_cast<float>(eps);
    require(state == 16 || state == 32 || state == 64 || state == 128 || state == 256,
            "the state's width must be 16, 32, 64, 128 or 256, not ", state);
    ssm::derive_sizes(call_);
    require(call_.chunks <= ssm::kMaxChunks, "a group of ", call_.group_rows, " channels; the kernels take up to ",
            ssm::kMaxChunks * ssm::kChunkRows);

    auto parameter = [&](const Tensor& t, const char* name, int64_t size, int wide) {
      require(t.scalar_type() == torch::kBFloat16 || (wide != 0 && t.scalar_type() == torch::kFloat32), name,
              " must be bf16", wide != 0 ? " or fp32" : "", ", not ", t.scalar_type());
      require(t.device() == device, name, " is on ", t.device(), ", conv_weight on ", device);
      require(t.numel() == size && t.is_contiguous(), name, " must be contiguous and have ", size, " elements");
      if (t.scalar_type() == torch::kFloat32) call_.wide |= wide;
      return static_cast<const void*>(t.data_ptr());
    };
    call_.conv_weight = static_cast<const uint16_t*>(
        parameter(weight, "conv_weight", static_cast<int64_t>(call_.conv_dim) * call_.taps, 0));
    require(aligned_to(weight, 8), "conv_weight must lie at multiples of 8 bytes");
    if (conv_bias.has_value()) {
      tensors_[5] = *conv_bias;
      call_.conv_bias = parameter(tensors_[5], "conv_bias", call_.conv_dim, ssm::kWideConvBias);
    }
    call_.dt_bias = parameter(tensors_[1], "dt_bias", heads, ssm::kWideDtBias);
    require(tensors_[2].scalar_type() == torch::kFloat32 && tensors_[2].device() == device && tensors_[2].numel() == heads &&
                tensors_[2].is_contiguous(),
            "a must be fp32, contiguous and on ", device);
    call_.a = tensors_[2].data_ptr<float>();
    call_.d = parameter(tensors_[3], "d", heads, ssm::kWideD);
    call_.norm_weight = parameter(tensors_[4], "norm_weight", call_.inter, ssm::kWideNorm);

    const c10::cuda::CUDAGuard guard(device);
    int major = 0, minor = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index()));
    limits_.capability = 10 * major + minor;
    limits_.largest_cluster = limits_.capability >= 90 ? ssm::largest_cluster() : 1;
  }

  int64_t workspace_bytes(int64_t batch) const {
    ssm::StepCall call = call_;
    call.batch = static_cast<int>(batch);
    return static_cast<int64_t>(ssm::carve_workspace(call, nullptr));
  }

  // (exchange, chunks a block) of the fused kernel with this configuration.
  std::pair<int, int> choice(const ssm::StepConfig& config) const {
    const ssm::Chosen chosen = ssm::choose(call_, config, limits_);
    return {chosen.exchange, chosen.chunks};
  }

  int largest_cluster() const { return limits_.largest_cluster; }

  // Nothing is allocated, read back or waited for: the call can be captured. `workspace`: of the unfused step and of the
  // exchange by counters, its counters zero; calls that share it must follow each other.
  void run(const Tensor& projected, const Tensor& conv_state, const Tensor& state, const Tensor& conv_state_out,
           const Tensor& state_out, const Tensor& out, const std::optional<Tensor>& workspace, bool fused, bool early_state,
           const ssm::StepConfig& config) const {
    const c10::Device device = tensors_[0].device();
    ssm::StepCall call = call_;
    require(projected.dim() == 2, "projected must be [batch, ", int64_t{call.inter} + call.conv_dim + call.heads, "], not ",
            projected.sizes());
    const int64_t batch = projected.size(0);
    require(batch <= 65535, "a batch of ", batch, "; the kernels take up to 65535");
    call.batch = static_cast<int>(batch);
    check_rows(projected, "projected", torch::kBFloat16, {batch, int64_t{call.inter} + call.conv_dim + call.heads}, device, 2);
    const size_t column_bytes = call.taps == 4 ? 8 : 2;
    check_rows(conv_state, "conv_state", torch::kBFloat16, {batch, call.conv_dim, call.taps}, device, column_bytes);
    check_rows(conv_state_out, "conv_state_out", torch::kBFloat16, {batch, call.conv_dim, call.taps}, device, column_bytes);
    call.narrow_state = state.scalar_type() == torch::kBFloat16;
    const c10::ScalarType state_type = call.narrow_state ? torch::kBFloat16 : torch::kFloat32;
    check_rows(state, "state", state_type, {batch, call.heads, call.head_dim, call.state_size}, device, call.narrow_state ? 8 : 16);
    check_rows(state_out, "state_out", state_type, {batch, call.heads, call.head_dim, call.state_size}, device,
               call.narrow_state ? 8 : 16);
    check_rows(out, "out", torch::kBFloat16, {batch, call.inter}, device, 2);
    if (batch == 0) return;

    call.projected = static_cast<const uint16_t*>(projected.data_ptr());
    call.projected_stride = distance(projected);
    call.conv_state = static_cast<const uint16_t*>(conv_state.data_ptr());
    call.conv_state_out = static_cast<uint16_t*>(conv_state_out.data_ptr());
    call.conv_stride = distance(conv_state);
    call.conv_out_stride = distance(conv_state_out);
    call.state = state.data_ptr();
    call.state_out = state_out.data_ptr();
    call.state_stride = distance(state);
    call.state_out_stride = distance(state_out);
    call.out = static_cast<uint16_t*>(out.data_ptr());
    call.out_stride = distance(out);
    call.early_state = early_state && config.dependent && limits_.capability >= 90;

    const bool needs_workspace = !fused || ssm::choose(call, config, limits_).exchange == ssm::kCounter;
    if (needs_workspace) {
      require(workspace.has_value(), "this step needs a workspace");
      require(workspace->scalar_type() == torch::kUInt8 && workspace->device() == device && workspace->is_contiguous() &&
                  workspace->numel() >= workspace_bytes(batch) && aligned_to(*workspace, 256),
              "the workspace must be ", workspace_bytes(batch), " bytes of uint8 on ", device, " at a multiple of 256");
      ssm::carve_workspace(call, static_cast<char*>(workspace->data_ptr()));
    }
    const c10::cuda::CUDAGuard guard(device);
    (fused ? ssm::launch_fused : ssm::launch_unfused)(call, config, limits_, c10::cuda::getCurrentCUDAStream());
  }

 private:
  Tensor tensors_[6];  // keep the memory
  ssm::StepCall call_ = {};
  ssm::DeviceLimits limits_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::class_<ssm::StepConfig>(m, "Config")
      .def(pybind11::init<>())
      .def_readwrite("exchange", &ssm::StepConfig::exchange)
      .def_readwrite("chunks", &ssm::StepConfig::chunks)
      .def_readwrite("dependent", &ssm::StepConfig::dependent);
  pybind11::class_<Layer>(m, "Layer")
      .def(pybind11::init<Tensor, std::optional<Tensor>, Tensor, Tensor, Tensor, Tensor, double, int64_t, int64_t, int64_t,
                          int64_t>())
      .def("workspace_bytes", &Layer::workspace_bytes)
      .def("choice", &Layer::choice)
      .def("largest_cluster", &Layer::largest_cluster)
      .def("run", &Layer::run);
}
