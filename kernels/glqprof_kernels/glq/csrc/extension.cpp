// The torch side of the GLQ kernels: checks tensors, reads what a variant reads from the device, runs its host loop on
// the current stream.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include <stdexcept>
#include <string>
#include <vector>

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
}
