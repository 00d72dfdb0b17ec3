// The torch side of the NVFP4 kernels: checks tensors and launches on the current stream.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include <stdexcept>
#include <string>
#include <vector>

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

void check_tensor(const Tensor& t, const char* name, c10::ScalarType dtype, c10::IntArrayRef shape,
                  const c10::Device& device) {
  require(t.scalar_type() == dtype, name, " must be ", dtype, ", not ", t.scalar_type());
  require(t.device() == device, name, " is on ", t.device(), ", the weights on ", device);
  require(t.sizes() == shape, name, " has shape ", t.sizes(), ", not ", shape);
  require(t.is_contiguous(), name, " must be contiguous");
}

// A packed matrix of all experts (tiles.py): tiles uint8 [E, columns / 16 (gated: / 8), slots, 576], scale fp32 [E].
struct MatrixTensors {
  Tensor tiles;
  Tensor scale;
  int64_t columns;
  int64_t inputs;

  nvfp4::Matrix view(int64_t experts, bool gated) const {
    require(columns >= 32 && inputs >= 32 && columns % 32 == 0 && inputs % 32 == 0, "a matrix of ", columns, " x ", inputs,
            ": both must be multiples of 32");
    require(columns <= (1 << 20) && inputs <= (1 << 20), "sizes beyond 1048576 are not supported");
    const int64_t slots = (inputs + nvfp4::kSlotColumns - 1) / nvfp4::kSlotColumns;
    const c10::Device device = tiles.device();
    check_tensor(tiles, "tiles", torch::kUInt8,
                 {experts, columns * (gated ? 2 : 1) / nvfp4::kAtomRows, slots, nvfp4::kSlotBytes}, device);
    check_tensor(scale, "the experts' scale", torch::kFloat32, {experts}, device);
    require(reinterpret_cast<uintptr_t>(tiles.data_ptr()) % 16 == 0, "tiles must be 16-byte aligned");
    return {tiles.data_ptr<uint8_t>(), scale.data_ptr<float>(), static_cast<int>(columns), static_cast<int>(inputs),
            static_cast<int>(slots)};
  }
};

class Layer {
 public:
  Layer(MatrixTensors gate_up, MatrixTensors down, bool gated, double limit, Tensor errors)
      : gate_up_(std::move(gate_up)), down_(std::move(down)), errors_(std::move(errors)) {
    require(gate_up_.tiles.dim() == 4, "tiles have shape [experts, atoms, slots, bytes]");
    const c10::Device device = gate_up_.tiles.device();
    const int64_t experts = gate_up_.tiles.size(0);
    require(device.is_cuda(), "the CUDA kernels need weights on a GPU, not on ", device);
    require(experts >= 1 && experts <= nvfp4::kMaxExperts, experts, " experts; the kernels take 1 to ", nvfp4::kMaxExperts);
    require(down_.tiles.device() == device, "gate_up and down are on different devices");
    call_.gate_up = gate_up_.view(experts, gated);
    call_.down = down_.view(experts, false);
    require(call_.gate_up.columns == call_.down.inputs && call_.gate_up.inputs == call_.down.columns,
            "gate_up and down do not fit each other");
    check_tensor(errors_, "errors", torch::kInt64, {1}, device);
    call_.experts = static_cast<int>(experts);
    call_.gated = gated;
    call_.limit = static_cast<float>(limit);
    call_.errors = reinterpret_cast<unsigned long long*>(errors_.data_ptr<int64_t>());
    int value = 0;
    auto attribute = [&](cudaDeviceAttr which) {
      C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device.index()));
      return value;
    };
    limits_.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    limits_.shared_bytes = static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    limits_.capability =
        10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
  }

  int64_t workspace_bytes(int64_t tokens, int64_t top_k) const {
    check_slots(tokens, top_k);
    // The fewest rows an item are the most items.
    nvfp4::MoeCall call = call_;
    call.tokens = static_cast<int>(tokens);
    call.top_k = static_cast<int>(top_k);
    call.item_rows = 1;
    return static_cast<int64_t>(nvfp4::carve_workspace(call, nullptr));
  }

  // Nothing is allocated, read back or waited for: the call can be captured. Calls that share a workspace must follow each
  // other. `out`: bf16 [tokens, hidden]; or, without the weighted sum, bf16 or fp32 [tokens, top_k, hidden].
  void run(const Tensor& x, const Tensor& ids, const Tensor& weights, bool mask_invalid, const Tensor& out,
           const Tensor& workspace, const nvfp4::MoeConfig& config, int64_t which) const {
    const c10::Device device = gate_up_.tiles.device();
    nvfp4::MoeCall call = prepared(x, ids, weights, config);
    call.mask_invalid = mask_invalid;
    if (out.dim() == 3) {
      const bool narrow = out.scalar_type() == torch::kBFloat16;
      check_tensor(out, "out", narrow ? torch::kBFloat16 : torch::kFloat32, {call.tokens, call.top_k, call.down.columns},
                   device);
      call.expert_out = out.data_ptr();
      call.expert_out_bf16 = narrow;
      which &= 7;
    } else {
      check_tensor(out, "out", torch::kBFloat16, {call.tokens, call.down.columns}, device);
      require(reinterpret_cast<uintptr_t>(out.data_ptr()) % 8 == 0, "out must be 8-byte aligned");
      call.out = static_cast<uint16_t*>(out.data_ptr());
    }
    if (call.tokens == 0) return;
    require(workspace.scalar_type() == torch::kUInt8 && workspace.device() == device && workspace.is_contiguous() &&
                workspace.numel() >= workspace_bytes(call.tokens, call.top_k),
            "the workspace is too small for ", call.tokens, " tokens");
    const c10::cuda::CUDAGuard guard(device);
    nvfp4::carve_workspace(call, static_cast<char*>(workspace.data_ptr()), x.stride(1));
    nvfp4::launch_moe(call, config, limits_, static_cast<int>(which), c10::cuda::getCurrentCUDAStream());
  }

  // Where the plan of a call of these sizes lies in the workspace, in bytes.
  int64_t plan_offset(int64_t tokens, int64_t top_k, const nvfp4::MoeConfig& config) const {
    nvfp4::MoeCall call = call_;
    call.tokens = static_cast<int>(tokens);
    call.top_k = static_cast<int>(top_k);
    call.item_rows = rows_of(config, tokens, top_k);
    char* const base = reinterpret_cast<char*>(uintptr_t{256});
    nvfp4::carve_workspace(call, base);
    return reinterpret_cast<char*>(call.plan) - base;
  }

  // (warps a block, stages a warp, shared memory bytes a block) of gate-up and of down.
  std::vector<std::vector<int64_t>> choice(int64_t tokens, int64_t top_k, const nvfp4::MoeConfig& config) const {
    nvfp4::MoeCall call = call_;
    call.tokens = static_cast<int>(tokens);
    call.top_k = static_cast<int>(top_k);
    call.item_rows = rows_of(config, tokens, top_k);
    std::vector<std::vector<int64_t>> found;
    for (const bool down : {false, true}) {
      const nvfp4::Chosen c = nvfp4::choose(call, config, limits_, down);
      found.push_back({c.warps, c.depth, c.shared_bytes});
    }
    return found;
  }

 private:
  int rows_of(const nvfp4::MoeConfig& config, int64_t tokens, int64_t top_k) const {
    return nvfp4::item_rows_for(config, tokens, top_k, call_.experts);
  }

  static void check_slots(int64_t tokens, int64_t top_k) {
    require(top_k >= 1 && tokens >= 0 && top_k <= nvfp4::kMaxSlots && tokens <= nvfp4::kMaxSlots / top_k, tokens,
            " tokens of ", top_k, " experts; one call takes ", nvfp4::kMaxSlots, " (token, expert) pairs");
  }

  nvfp4::MoeCall prepared(const Tensor& x, const Tensor& ids, const Tensor& weights, const nvfp4::MoeConfig& config) const {
    const c10::Device device = gate_up_.tiles.device();
    const int64_t hidden = call_.gate_up.inputs;
    require(x.dim() == 2 && x.size(1) == hidden, "x must be [tokens, ", hidden, "], not ", x.sizes());
    require(x.scalar_type() == torch::kBFloat16, "x must be bf16, not ", x.scalar_type());
    require(ids.dim() == 2 && ids.size(0) == x.size(0), "ids must be [tokens, top_k], not ", ids.sizes());
    require(ids.scalar_type() == torch::kInt64, "ids must be int64, not ", ids.scalar_type());
    require(weights.sizes() == ids.sizes(), "weights have shape ", weights.sizes(), ", ids ", ids.sizes());
    require(weights.scalar_type() == torch::kFloat32, "weights must be fp32, not ", weights.scalar_type());
    require(x.device() == device && ids.device() == device && weights.device() == device,
            "x, ids and weights must be on ", device);
    check_slots(ids.size(0), ids.size(1));
    require((config.item_rows >= 0 && config.item_rows <= 2) || config.item_rows == 4 || config.item_rows == 8 || config.item_rows == 16,
            "item_rows is ", config.item_rows, "; it must be 1, 2, 4, 8 or 16");
    const int d = config.depth;
    require(d == 0 || d == 4 || d == 6 || d == 8 || d == 12 || d == 16 || (limits_.capability >= 90 && d >= 2 && d <= 16),
            "depth is ", d, "; it must be 4, 6, 8, 12 or 16, from sm_90 on 2 to 16");
    nvfp4::MoeCall call = call_;
    call.tokens = static_cast<int>(x.size(0));
    call.top_k = static_cast<int>(ids.size(1));
    call.item_rows = rows_of(config, x.size(0), ids.size(1));
    call.x = static_cast<const uint16_t*>(x.data_ptr());
    call.x_stride = x.stride(0);
    call.ids = ids.data_ptr<int64_t>();
    call.weights = weights.data_ptr<float>();
    for (int axis = 0; axis < 2; ++axis) {
      call.id_strides[axis] = ids.stride(axis);
      call.weight_strides[axis] = weights.stride(axis);
    }
    return call;
  }

  MatrixTensors gate_up_;
  MatrixTensors down_;
  Tensor errors_;
  nvfp4::MoeCall call_ = {};
  nvfp4::DeviceLimits limits_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::class_<nvfp4::MoeConfig>(m, "Config")
      .def(pybind11::init<>())
      .def_readwrite("schedule", &nvfp4::MoeConfig::schedule)
      .def_readwrite("pipeline", &nvfp4::MoeConfig::pipeline)
      .def_readwrite("warps", &nvfp4::MoeConfig::warps)
      .def_readwrite("depth", &nvfp4::MoeConfig::depth)
      .def_readwrite("shared_kib", &nvfp4::MoeConfig::shared_kib)
      .def_readwrite("item_rows", &nvfp4::MoeConfig::item_rows)
      .def_readwrite("blocks", &nvfp4::MoeConfig::blocks)
      .def_readwrite("ahead_kib", &nvfp4::MoeConfig::ahead_kib)
      .def_readwrite("dependent", &nvfp4::MoeConfig::dependent);
  pybind11::class_<MatrixTensors>(m, "Matrix")
      .def(pybind11::init([](Tensor tiles, Tensor scale, int64_t columns, int64_t inputs) {
        return MatrixTensors{std::move(tiles), std::move(scale), columns, inputs};
      }));
  pybind11::class_<Layer>(m, "Layer")
      .def(pybind11::init<MatrixTensors, MatrixTensors, bool, double, Tensor>())
      .def("workspace_bytes", &Layer::workspace_bytes)
      .def("plan_offset", &Layer::plan_offset)
      .def("choice", &Layer::choice)
      .def("run", &Layer::run);
}
