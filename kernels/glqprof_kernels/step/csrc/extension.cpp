// The torch side of the step kernels: fills in their arguments and launches on the current stream. ops.py checks the tensors.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include <climits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "launch.h"

namespace {

using torch::Tensor;
using MaybeTensor = std::optional<Tensor>;

const uint16_t* words(const Tensor& t) { return static_cast<const uint16_t*>(t.data_ptr()); }
uint16_t* words_out(const Tensor& t) { return static_cast<uint16_t*>(t.data_ptr()); }
const uint16_t* words(const MaybeTensor& t) { return t.has_value() ? words(*t) : nullptr; }
uint16_t* words_out(const MaybeTensor& t) { return t.has_value() ? words_out(*t) : nullptr; }

// The device and the stream of a call.
struct Here {
  explicit Here(const Tensor& t) : guard(t.device()), stream(c10::cuda::getCurrentCUDAStream()), index(t.device().index()) {}

  int attribute(cudaDeviceAttr which) const {
    int value = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, index));
    return value;
  }

  step::DeviceLimits limits() const {
    step::DeviceLimits limits;
    limits.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    limits.block_shared_bytes = static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    limits.shared_bytes = static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
    limits.capability = attribute(cudaDevAttrComputeCapabilityMajor) * 10 + attribute(cudaDevAttrComputeCapabilityMinor);
    return limits;
  }

  bool early(bool dependent) const { return dependent && attribute(cudaDevAttrComputeCapabilityMajor) >= 9; }

  c10::cuda::CUDAGuard guard;
  cudaStream_t stream;
  int index;
};

int* counters(const Tensor& workspace) { return static_cast<int*>(workspace.data_ptr()); }
template <typename T>
T* partials(const Tensor& workspace) {
  return reinterpret_cast<T*>(static_cast<char*>(workspace.data_ptr()) + step::kCounterBytes);
}

// The other share than the call before had: calls that follow each other share multiprocessors. A captured graph keeps them.
int next_share() {
  thread_local int share = step::kSmaller;
  share = share == step::kSmaller ? step::kLarger : step::kSmaller;
  return share;
}

step::Matvec matvec(const Tensor& x, int64_t outputs) {
  if (outputs >= INT_MAX) throw std::invalid_argument("more than 2147483646 outputs");
  return {words(x), x.stride(0), static_cast<int>(x.size(0)), static_cast<int>(x.size(1)), static_cast<int>(outputs), 0, nullptr};
}

void embed(const Tensor& table, const Tensor& token, const Tensor& out, bool dependent) {
  const Here here(out);
  const step::EmbedCall call{words(table), token.data_ptr<int64_t>(), words_out(out), table.size(0),
                             static_cast<int>(table.size(1))};
  step::launch_embed(call, static_cast<int>(token.size(0)), here.early(dependent), here.stream);
}

void add_rms_norm(const Tensor& residual, const MaybeTensor& addend, const MaybeTensor& second, const Tensor& weight, double eps,
                  const Tensor& out, const MaybeTensor& out_fp16, bool dependent) {
  const Here here(residual);
  step::NormCall call = {};
  call.residual = words_out(residual);
  call.addend = words(addend);
  call.second = words(second);
  call.weight = weight.data_ptr();
  call.out = words_out(out);
  call.out_fp16 = words_out(out_fp16);
  call.eps = static_cast<float>(eps);
  call.hidden = static_cast<int>(residual.size(1));
  call.addend_fp16 = addend.has_value() && addend->scalar_type() == torch::kFloat16;
  call.weight_fp32 = weight.scalar_type() == torch::kFloat32;
  step::launch_add_rms_norm(call, static_cast<int>(residual.size(0)), here.early(dependent), here.stream);
}

void route(const Tensor& x, const Tensor& weight, const Tensor& bias, double scaling, bool normalise, const Tensor& ids,
           const Tensor& weights, const Tensor& workspace, bool dependent) {
  const Here here(x);
  step::RouteCall call = {};
  call.x = words(x);
  call.x_stride = x.stride(0);
  call.weight = weight.data_ptr();
  call.bias = bias.data_ptr<float>();
  call.ids = ids.data_ptr<int64_t>();
  call.weights = weights.data_ptr<float>();
  call.scores = partials<float>(workspace);
  call.counter = counters(workspace);
  call.scaling = static_cast<float>(scaling);
  call.batch = static_cast<int>(x.size(0));
  call.hidden = static_cast<int>(x.size(1));
  call.experts = static_cast<int>(weight.size(0));
  call.top_k = static_cast<int>(ids.size(1));
  call.normalise = normalise;
  call.weight_fp32 = weight.scalar_type() == torch::kFloat32;
  step::launch_route(call, here.early(dependent), here.stream);
}

void linear(const Tensor& x, const std::vector<Tensor>& weights, const std::vector<Tensor>& outs,
            const std::vector<MaybeTensor>& biases, bool relu2, step::Tuning tuning) {
  const Here here(x);
  if (tuning.share < 0) tuning.share = next_share();
  step::LinearCall call = {};
  int64_t outputs = 0;
  for (int i = 0; i < step::kMaxSegments; ++i) {
    call.s.first[i] = INT_MAX;
    if (i >= static_cast<int>(weights.size())) continue;
    call.s.weight[i] = words(weights[i]);
    call.s.out[i] = words_out(outs[i]);
    call.s.bias[i] = words(biases[i]);
    call.s.out_stride[i] = outs[i].stride(0);
    call.s.first[i] = static_cast<int>(outputs);
    outputs += weights[i].size(0);
  }
  call.m = matvec(x, outputs);
  call.relu2 = relu2;
  step::launch_linear(call, tuning, here.limits(), here.stream);
}

void attend(const Tensor& q, const Tensor& k_new, const Tensor& v_new, const Tensor& k_cache, const Tensor& v_cache,
            const Tensor& position, double scale, const Tensor& out, const Tensor& workspace, int64_t splits, bool dependent) {
  const Here here(q);
  step::AttendCall call = {};
  call.q = words(q);
  call.k_new = words(k_new);
  call.v_new = words(v_new);
  call.k_cache = words_out(k_cache);
  call.v_cache = words_out(v_cache);
  call.position = position.data_ptr<int64_t>();
  call.out = words_out(out);
  call.q_stride = q.stride(0);
  call.k_stride = k_new.stride(0);
  call.v_stride = v_new.stride(0);
  call.out_stride = out.stride(0);
  call.capacity = k_cache.size(2);
  call.scale = static_cast<float>(scale);
  call.batch = static_cast<int>(k_cache.size(0));
  call.kv_heads = static_cast<int>(k_cache.size(1));
  call.dim = static_cast<int>(k_cache.size(3));
  call.heads = static_cast<int>(q.size(1) / call.dim);
  call.splits = static_cast<int>(splits);
  call.sums = partials<float>(workspace);
  call.maxima = call.sums + static_cast<int64_t>(call.batch) * call.heads * splits * call.dim;
  call.counters = counters(workspace);
  step::launch_attend(call, here.early(dependent), here.stream);
}

void head_argmax(const Tensor& x, const Tensor& weight, const Tensor& token, const MaybeTensor& logits, const Tensor& workspace,
                 step::Tuning tuning) {
  const Here here(x);
  if (tuning.share < 0) tuning.share = step::kWhole;
  step::HeadCall call = {};
  call.m = matvec(x, weight.size(0));
  call.weight = words(weight);
  call.logits = words_out(logits);
  call.logits_stride = logits.has_value() ? logits->stride(0) : 0;
  call.token = token.data_ptr<int64_t>();
  call.best = partials<uint64_t>(workspace);
  call.counter = counters(workspace);
  step::launch_head_argmax(call, tuning, here.limits(), here.stream);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::class_<step::Tuning>(m, "Tuning")
      .def(pybind11::init<>())
      .def_readwrite("share", &step::Tuning::share)
      .def_readwrite("shared_kib", &step::Tuning::shared_kib)
      .def_readwrite("blocks", &step::Tuning::blocks)
      .def_readwrite("dependent", &step::Tuning::dependent)
      .def_property(
          "clocks", [](const step::Tuning& t) { return reinterpret_cast<uintptr_t>(t.clocks); },
          [](step::Tuning& t, uintptr_t address) { t.clocks = reinterpret_cast<uint64_t*>(address); });
  m.def("embed", &embed);
  m.def("add_rms_norm", &add_rms_norm);
  m.def("route", &route);
  m.def("linear", &linear);
  m.def("attend", &attend);
  m.def("head_argmax", &head_argmax);
}
