// The torch side of the GLQ kernels: checks tensors, reads what a variant reads from the device, runs its host loop on
// the current stream.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fused_launch.h"
#include "host_loop.h"

namespace {

using torch::Tensor;

std::string text(const char* s) { return s; }
std::string text(int64_t n) { return std::to_string(n); }
std::string text(int n) { return std::to_string(n); }
std::string text(size_t n) { return std::to_string(n); }
std::string text(c10::ScalarType t) { return c10::toString(t); }
std::string text(const c10::Device& d) { return d.str(); }
std::string text(c10::IntArrayRef shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

// ValueError in Python. Not TORCH_CHECK_VALUE: its exception ended the process on torch 2.11 (H200), while the standard
// exceptions, which pybind11 translates by itself, arrive.
template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) throw std::invalid_argument((text(parts) + ...));
}

void check_tensor(const Tensor& t, const char* name, c10::ScalarType dtype, c10::IntArrayRef shape,
                  const c10::Device& device) {
  require(t.scalar_type() == dtype, name, " must be ", dtype, ", not ", t.scalar_type());
  require(t.device() == device, name, " is on ", t.device(), ", x on ", device);
  require(t.sizes() == shape, name, " has shape ", t.sizes(), ", not ", shape);
  require(t.is_contiguous(), name, " must be contiguous");
}

// One matrix of all experts: planes[s] [E, M, N/8] int16, tables[s] [entries, 8] fp16, scales = wscale, r of each later
// stage, each [E] fp32; sv [N], su [E, M] fp16. Only the stages present are listed.
struct MatrixTensors {
  std::vector<Tensor> planes;
  std::vector<Tensor> tables;
  std::vector<Tensor> scales;
  Tensor sv;
  Tensor su;
  int64_t split_blocks;

  glq::Matrix view() const {
    const size_t stages = planes.size();
    require(stages >= 1 && stages <= glq::kMaxStages, "a GLQ matrix has 1 to 4 stages, not ", stages);
    require(tables.size() == stages && scales.size() == stages, "planes, tables and scales differ in number");
    require(split_blocks == 16 || split_blocks == 32 || split_blocks == 64,
                      "split_blocks must be 16, 32 or 64, not ", split_blocks);
    require(planes[0].dim() == 3, "an index plane has shape [experts, rows, columns / 8]");
    const c10::Device device = planes[0].device();
    const int64_t experts = planes[0].size(0);
    const int64_t rows = planes[0].size(1);
    const int64_t cols = planes[0].size(2) * 8;
    // The transforms hold a vector in shared memory; 227 KiB of it on sm_90.
    require(rows >= 1 && cols >= 8 && rows <= 49152 && cols <= 49152, "sizes beyond 49152 are not supported");
    glq::Matrix m;
    m.stages = static_cast<int>(stages);
    for (size_t s = 0; s < stages; ++s) {
      check_tensor(planes[s], "an index plane", torch::kInt16, {experts, rows, cols / 8}, device);
      check_tensor(scales[s], "wscale or r", torch::kFloat32, {experts}, device);
      check_tensor(tables[s], "a codebook", torch::kFloat16, {tables[s].size(0), 8}, device);
      require(reinterpret_cast<uintptr_t>(tables[s].data_ptr()) % 16 == 0, "a codebook must be 16-byte aligned");
      m.plane[s] = reinterpret_cast<const uint16_t*>(planes[s].data_ptr());
      m.table[s] = tables[s].data_ptr();
    }
    check_tensor(sv, "sv", torch::kFloat16, {cols}, device);
    check_tensor(su, "su", torch::kFloat16, {experts, rows}, device);
    m.sv = reinterpret_cast<const uint16_t*>(sv.data_ptr());
    m.su = reinterpret_cast<const uint16_t*>(su.data_ptr());
    m.experts = experts;
    m.rows = static_cast<int>(rows);
    m.cols = static_cast<int>(cols);
    m.split_blocks = static_cast<int>(split_blocks);
    return m;
  }
};

// Every scalar read by its own .item(): what v0.2.12 did, each a wait for all work so far.
struct ItemScalars {
  const MatrixTensors* matrices[2];
  float operator()(glq::Which which, int s, int64_t e) const {
    return matrices[static_cast<int>(which)]->scales[s][e].item<float>();
  }
};

// All scalars of the layer copied to the host before the loop.
struct CopiedScalars {
  std::vector<Tensor> copies[2];
  explicit CopiedScalars(const MatrixTensors& up, const MatrixTensors& down) {
    for (const Tensor& t : up.scales) copies[0].push_back(t.to(torch::kCPU));
    for (const Tensor& t : down.scales) copies[1].push_back(t.to(torch::kCPU));
  }
};

struct HostScalars {
  const float* values[2][glq::kMaxStages];
  explicit HostScalars(const CopiedScalars& copied) {
    for (int m = 0; m < 2; ++m) {
      for (size_t s = 0; s < copied.copies[m].size(); ++s) values[m][s] = copied.copies[m][s].data_ptr<float>();
    }
  }
  float operator()(glq::Which which, int s, int64_t e) const { return values[static_cast<int>(which)][s][e]; }
};

class Layer {
 public:
  Layer(MatrixTensors up, MatrixTensors down, int64_t activation, double limit, Tensor overflow)
      : up_(std::move(up)), down_(std::move(down)), overflow_(std::move(overflow)) {
    moe_.up = up_.view();
    moe_.down = down_.view();
    const c10::Device device = up_.planes[0].device();
    require(device.is_cuda(), "the CUDA kernels need weights on a GPU, not on ", device);
    require(down_.planes[0].device() == device, "up and down are on different devices");
    require(moe_.up.experts == moe_.down.experts, "up and down differ in experts");
    require(moe_.up.cols == moe_.down.rows, "up reads ", moe_.up.cols, " values, down writes ", moe_.down.rows);
    const int factor = activation == 1 ? 2 : 1;
    require(moe_.up.rows == factor * moe_.down.cols, "up writes ", moe_.up.rows, " values, down reads ",
                      moe_.down.cols);
    check_tensor(overflow_, "overflow", torch::kInt64, {1}, device);
    moe_.activation = static_cast<int>(activation);
    moe_.limit = static_cast<float>(limit);
    moe_.overflow = reinterpret_cast<unsigned long long*>(overflow_.data_ptr<int64_t>());
  }

  // Raises ValueError for inputs that the kernels cannot take; `run` relies on it having been called.
  void check_inputs(const Tensor& x, const Tensor& ids, const Tensor& weights, const Tensor& out) const {
    const c10::Device device = up_.planes[0].device();
    require(x.dim() == 2 && x.size(1) == moe_.up.cols, "x must be [tokens, ", moe_.up.cols, "], not ", x.sizes());
    require(x.scalar_type() == torch::kFloat16, "x must be fp16, not ", x.scalar_type());
    require(x.device() == device, "x is on ", x.device(), ", the weights on ", device);
    require(ids.dim() == 2 && ids.size(0) == x.size(0), "ids must be [tokens, top_k], not ", ids.sizes());
    require(ids.scalar_type() == torch::kInt64 || ids.scalar_type() == torch::kInt32, "ids must be integers, not ",
                      ids.scalar_type());
    require(weights.sizes() == ids.sizes(), "weights have shape ", weights.sizes(), ", ids ", ids.sizes());
    require(weights.scalar_type() == torch::kFloat32, "weights must be fp32, not ", weights.scalar_type());
    check_tensor(out, "out", torch::kFloat16, {x.size(0), moe_.down.rows}, device);
    require(reinterpret_cast<uintptr_t>(out.data_ptr()) % 4 == 0, "out must be 4-byte aligned");
    const c10::cuda::CUDAGuard guard(device);
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(), &capturing));
    if (capturing != cudaStreamCaptureStatusNone) {
      throw std::runtime_error("this GLQ variant reads expert ids back to the host and cannot be captured in a CUDA graph");
    }
  }

  void run(int64_t variant, const Tensor& x, const Tensor& ids, const Tensor& weights, bool mask_invalid,
           const Tensor& out) const {
    const c10::Device device = up_.planes[0].device();
    const c10::cuda::CUDAGuard guard(device);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    if (x.size(0) == 0) return;

    // The host copies live until the loop has ended. Pageable, hence blocking: two in every variant.
    const Tensor host_ids = ids.to(torch::kCPU).to(torch::kInt64).contiguous();
    const Tensor host_weights = weights.to(torch::kCPU).contiguous();
    glq::Call call;
    call.x = reinterpret_cast<const uint16_t*>(x.data_ptr());
    call.token_stride = x.stride(0);
    call.element_stride = x.stride(1);
    call.tokens = static_cast<int>(x.size(0));
    call.top_k = static_cast<int>(ids.size(1));
    call.ids = host_ids.data_ptr<int64_t>();
    call.weights = host_weights.data_ptr<float>();
    call.mask_invalid = mask_invalid;
    call.out = reinterpret_cast<uint16_t*>(out.data_ptr());
    glq::check_ids(call, moe_.up.experts);

    glq::Workspace workspace;
    const size_t bytes = workspace.carve(nullptr, moe_, call.tokens);
    const Tensor memory =
        torch::empty({static_cast<int64_t>(bytes)}, torch::TensorOptions().dtype(torch::kUInt8).device(device));
    workspace.carve(static_cast<char*>(memory.data_ptr()), moe_, call.tokens);

    const auto chosen = static_cast<glq::Variant>(variant);
    if (chosen == glq::Variant::kV0_2_12) {
      glq::run_variant(chosen, moe_, call, workspace, ItemScalars{{&up_, &down_}}, stream);
    } else {
      const CopiedScalars copied(up_, down_);
      glq::run_variant(chosen, moe_, call, workspace, HostScalars(copied), stream);
    }
  }

 private:
  MatrixTensors up_;
  MatrixTensors down_;
  Tensor overflow_;
  glq::Moe moe_;
};

// A packed matrix of all experts (fused.py); codes[s] [E, groups, chunks, 32, 4] int32, scales as in MatrixTensors.
struct FusedMatrixTensors {
  std::vector<Tensor> codes;
  std::vector<Tensor> scales;
  Tensor sv;
  Tensor su;
  int64_t split_blocks;
  bool small;

  glq::FusedMatrix view() const {
    require(!codes.empty() && codes.size() <= glq::kFusedStages && codes.size() == scales.size(),
                      "a fused matrix has 1 to 4 stages and as many scales");
    require(sv.dim() == 1 && su.dim() == 2 && sv.size(0) % 8 == 0 && su.size(1) % 8 == 0,
                      "a fused matrix has rows and columns in eights");
    require(sv.size(0) <= 49152 && su.size(1) <= 49152, "sizes beyond 49152 are not supported");
    require(split_blocks == 16 || split_blocks == 32 || split_blocks == 64,
                      "split_blocks must be 16, 32 or 64, not ", split_blocks);
    const c10::Device device = su.device();
    glq::FusedMatrix m = {};
    m.stages = static_cast<int>(codes.size());
    m.small = small;
    glq::set_sizes(m, static_cast<int>(su.size(1)), static_cast<int>(sv.size(0)), static_cast<int>(split_blocks));
    for (size_t s = 0; s < codes.size(); ++s) {
      check_tensor(codes[s], "packed codes", torch::kInt32, {su.size(0), m.groups, m.chunks, glq::kGroupRows, 4}, device);
      check_tensor(scales[s], "wscale or r", torch::kFloat32, {su.size(0)}, device);
      check_aligned(codes[s], "packed codes");
      m.codes[s] = reinterpret_cast<const uint32_t*>(codes[s].data_ptr());
      m.scale[s] = scales[s].data_ptr<float>();
    }
    check_tensor(sv, "sv", torch::kFloat16, {sv.size(0)}, device);
    check_tensor(su, "su", torch::kFloat16, {su.size(0), su.size(1)}, device);
    check_aligned(sv, "sv");
    check_aligned(su, "su");
    m.sv = reinterpret_cast<const uint16_t*>(sv.data_ptr());
    m.su = reinterpret_cast<const uint16_t*>(su.data_ptr());
    return m;
  }

 private:
  static void check_aligned(const Tensor& tensor, const char* name) {
    require(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0, name, " must be 16-byte aligned");
  }
};

class FusedLayer {
 public:
  FusedLayer(FusedMatrixTensors up, FusedMatrixTensors down, Tensor table, int64_t entries, int64_t small_word,
             int64_t activation, double limit, Tensor overflow, Tensor errors)
      : up_(std::move(up)),
        down_(std::move(down)),
        table_(std::move(table)),
        overflow_(std::move(overflow)),
        errors_(std::move(errors)) {
    call_.matrix[0] = up_.view();
    call_.matrix[1] = down_.view();
    const c10::Device device = up_.su.device();
    require(device.is_cuda(), "the CUDA kernels need weights on a GPU, not on ", device);
    require(down_.su.device() == device && up_.su.size(0) == down_.su.size(0), "up and down differ in experts");
    const int factor = activation == 1 ? 2 : 1;
    require(call_.matrix[0].cols == call_.matrix[1].rows &&
                          call_.matrix[0].rows == factor * call_.matrix[1].cols,
                      "up and down do not fit each other");
    check_tensor(table_, "the table", torch::kInt32, {small_word + glq::kSmallEntries}, device);
    check_tensor(overflow_, "overflow", torch::kInt64, {1}, device);
    check_tensor(errors_, "errors", torch::kInt64, {1}, device);
    call_.table = reinterpret_cast<const uint32_t*>(table_.data_ptr());
    call_.table_words = static_cast<int>(table_.numel());
    call_.fold_bytes = static_cast<uint32_t>(4 * entries);
    call_.experts = up_.su.size(0);
    call_.activation = static_cast<int>(activation);
    call_.limit = static_cast<float>(limit);
    call_.overflow = reinterpret_cast<unsigned long long*>(overflow_.data_ptr<int64_t>());
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
    limits_.cooperative = attribute(cudaDevAttrCooperativeLaunch) != 0;
  }

  // Bytes of a workspace for `tokens` tokens of `top_k` slots; more tokens than a launch takes share it.
  int64_t workspace_bytes(int64_t tokens, int64_t top_k) const {
    glq::FusedCall call = call_;
    return static_cast<int64_t>(glq::carve_workspace(call, nullptr, static_cast<int>(std::min(tokens, at_once(top_k)) * top_k)));
  }

  // Nothing is allocated, read back or waited for: the call can be captured. `workspace`: uint8, its first bytes (the
  // counters) zero before the first call; calls that share one must follow each other.
  void run(const Tensor& x, const Tensor& ids, const Tensor& weights, bool mask_invalid, const Tensor& out,
           const Tensor& workspace, const glq::FusedConfig& config, const std::optional<Tensor>& timeline) const {
    const c10::Device device = up_.su.device();
    const c10::cuda::CUDAGuard guard(device);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    const int64_t hidden = call_.matrix[0].cols;
    require(x.dim() == 2 && x.size(1) == hidden, "x must be [tokens, ", hidden, "], not ", x.sizes());
    require(x.scalar_type() == torch::kFloat16, "x must be fp16, not ", x.scalar_type());
    require(ids.dim() == 2 && ids.size(0) == x.size(0), "ids must be [tokens, top_k], not ", ids.sizes());
    require(ids.scalar_type() == torch::kInt64 || ids.scalar_type() == torch::kInt32, "ids must be integers, not ",
                      ids.scalar_type());
    require(weights.sizes() == ids.sizes(), "weights have shape ", weights.sizes(), ", ids ", ids.sizes());
    require(weights.scalar_type() == torch::kFloat32, "weights must be fp32, not ", weights.scalar_type());
    require(x.device() == device && ids.device() == device && weights.device() == device,
                      "x, ids and weights must be on ", device);
    check_tensor(out, "out", torch::kFloat16, {x.size(0), hidden}, device);
    if (x.size(0) == 0) return;
    const int64_t top_k = ids.size(1);
    require(top_k >= 1 && top_k <= glq::kFusedSlots, "top_k is ", top_k, "; it must be 1 to ", glq::kFusedSlots);
    require(workspace.scalar_type() == torch::kUInt8 && workspace.device() == device && workspace.is_contiguous() &&
                          workspace.numel() >= workspace_bytes(x.size(0), top_k),
                      "the workspace is too small for ", x.size(0), " tokens");
    for (int64_t first = 0; first < x.size(0); first += at_once(top_k)) {
      glq::FusedCall call = call_;
      call.mask_invalid = mask_invalid;
      call.tokens = static_cast<int>(std::min(at_once(top_k), x.size(0) - first));
      call.top_k = static_cast<int>(top_k);
      call.token_stride = x.stride(0);
      call.element_stride = x.stride(1);
      call.x = reinterpret_cast<const uint16_t*>(x.data_ptr()) + first * x.stride(0);
      call.wide_ids = ids.scalar_type() == torch::kInt64;
      call.ids = static_cast<const char*>(ids.data_ptr()) + first * ids.stride(0) * ids.element_size();
      call.weights = weights.data_ptr<float>() + first * weights.stride(0);
      for (int axis = 0; axis < 2; ++axis) {
        call.id_strides[axis] = ids.stride(axis);
        call.weight_strides[axis] = weights.stride(axis);
      }
      call.out = reinterpret_cast<uint16_t*>(out.data_ptr()) + first * hidden;
      if (timeline.has_value()) {
        const int64_t blocks = config.blocks > 0 ? config.blocks : limits_.multiprocessors;
        check_tensor(*timeline, "timeline", torch::kInt64, {2, blocks, glq::kMarks, 2}, device);
        call.timeline = reinterpret_cast<unsigned long long*>(timeline->data_ptr<int64_t>());
      }
      glq::carve_workspace(call, static_cast<char*>(workspace.data_ptr()), static_cast<int>(call.tokens * top_k));
      glq::launch_fused(call, config, limits_, stream);
    }
  }

 private:
  static int64_t at_once(int64_t top_k) { return std::max<int64_t>(1, glq::kFusedSlots / top_k); }

  FusedMatrixTensors up_;
  FusedMatrixTensors down_;
  Tensor table_;
  Tensor overflow_;
  Tensor errors_;
  glq::FusedCall call_ = {};
  glq::DeviceLimits limits_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::class_<MatrixTensors>(m, "Matrix")
      .def(pybind11::init([](std::vector<Tensor> planes, std::vector<Tensor> tables, std::vector<Tensor> scales, Tensor sv,
                             Tensor su, int64_t split_blocks) {
        return MatrixTensors{std::move(planes), std::move(tables), std::move(scales), std::move(sv), std::move(su),
                             split_blocks};
      }));
  pybind11::class_<Layer>(m, "Layer")
      .def(pybind11::init<MatrixTensors, MatrixTensors, int64_t, double, Tensor>())
      .def("run", [](const Layer& layer, int64_t variant, const Tensor& x, const Tensor& ids, const Tensor& weights,
                     bool mask_invalid, const Tensor& out) {
        layer.check_inputs(x, ids, weights, out);
        // The loop waits for the GPU: other Python threads may run meanwhile.
        const pybind11::gil_scoped_release release;
        layer.run(variant, x, ids, weights, mask_invalid, out);
      });
  pybind11::class_<glq::FusedConfig>(m, "FusedConfig")
      .def(pybind11::init<>())
      .def_readwrite("fast", &glq::FusedConfig::fast)
      .def_readwrite("one_launch", &glq::FusedConfig::one_launch)
      .def_readwrite("dependent", &glq::FusedConfig::dependent)
      .def_readwrite("blocks", &glq::FusedConfig::blocks)
      .def_readwrite("cluster", &glq::FusedConfig::cluster);
  pybind11::class_<FusedMatrixTensors>(m, "FusedMatrix")
      .def(pybind11::init([](std::vector<Tensor> codes, std::vector<Tensor> scales, Tensor sv, Tensor su,
                             int64_t split_blocks, bool small) {
        return FusedMatrixTensors{std::move(codes), std::move(scales), std::move(sv), std::move(su), split_blocks, small};
      }));
  pybind11::class_<FusedLayer>(m, "FusedLayer")
      .def(pybind11::init<FusedMatrixTensors, FusedMatrixTensors, Tensor, int64_t, int64_t, int64_t, double, Tensor,
                          Tensor>())
      .def("workspace_bytes", &FusedLayer::workspace_bytes)
      .def("run", &FusedLayer::run, pybind11::arg("x"), pybind11::arg("ids"), pybind11::arg("weights"),
           pybind11::arg("mask_invalid"), pybind11::arg("out"), pybind11::arg("workspace"), pybind11::arg("config"),
           pybind11::arg("timeline") = pybind11::none());
}
