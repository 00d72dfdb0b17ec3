"""Kernels to ranges by their launch call; graph kernels by their capture; buckets by rule order."""

from __future__ import annotations

import re

import pandas as pd

from analysis.by_hand import Activity, Call, Recording
from analysis.make_trace import make_trace
from glqprof.analysis.gpu_time import sum_by_layer
from glqprof.analysis.prepared import Prepared, prepare
from glqprof.traces.schema.buckets import BucketRule, load_bucket_rules
from glqprof.traces.schema.trace import Trace, TraceInfo


def layer_names(prepared: Prepared) -> list[str]:
    names = prepared.forest.name
    return [str(names.iloc[i]) if i >= 0 else "" for i in prepared.attribution.layer.tolist()]


def test_a_kernel_belongs_to_the_range_of_its_launch_not_of_its_run() -> None:
    """Launched in layer_00, running while layer_01 is open; another thread's range at the same time does not count."""
    calls = [Call(1, 10, 10, 12, "cudaLaunchKernel", 0), Call(1, 10, 30, 32, "cudaLaunchKernel", 1)]
    kernels = [Activity(0, 35, 50, 7, 1, 0), Activity(0, 50, 60, 7, 1, 1)]
    ranges = [
        (0, 20, "layer_00_M", 1, 10),
        (21, 40, "layer_01_E", 1, 10),
        (25, 38, "library_range", 1, 10),
        (0, 100, "layer_77_X", 1, 11),
    ]
    prepared = prepare(make_trace(Recording(kernels, calls), ranges), [], "all")
    assert layer_names(prepared) == ["layer_00_M", "layer_01_E"]  # the library's range inside is looked through
    inner = int(prepared.attribution.range_index[1])
    assert prepared.forest.path(inner) == "layer_01_E > library_range"


def test_a_range_that_ends_during_the_call_does_not_enclose_it() -> None:
    calls = [Call(1, 10, 10, 30, "cudaLaunchKernel", 0)]
    ranges = [(0, 100, "layer_00_M", 1, 10), (5, 20, "layer_01_E", 1, 10)]
    prepared = prepare(make_trace(Recording([Activity(0, 40, 50, 7, 1, 0)], calls), ranges), [], "all")
    assert layer_names(prepared) == ["layer_00_M"]


def graph_trace(with_nodes: bool) -> Trace:
    """A graph captured inside layer_03_E (node 100), instantiated as node 500, replayed in decode_token_0."""
    frames = {
        "kernels": {
            "start_ns": [1000],
            "end_ns": [1010],
            "process": [1],
            "correlation_id": [9],
            "name": pd.Categorical(["k"]),
            "graph_node_id": [500],
        },
        "api": {
            "start_ns": [20, 950],
            "end_ns": [25, 960],
            "process": [1, 1],
            "thread": [10, 10],
            "correlation_id": [1, 9],
            "name": pd.Categorical(["cudaLaunchKernel", "cudaGraphLaunch"]),
        },
        "ranges": {
            "start_ns": [10, 900],
            "end_ns": [50, 1000],
            "process": [1, 1],
            "thread": [10, 10],
            "name": pd.Categorical(["layer_03_E", "decode_token_0"]),
        },
    }
    if with_nodes:
        frames["graph_nodes"] = {
            "graph_node_id": [100, 500],
            "original_graph_node_id": [-1, 100],
            "process": [1, 1],
            "thread": [10, 10],
            "start_ns": [22, 400],
        }
    return Trace.from_columns(TraceInfo("graph", "nsys", "0", "0"), frames)


def test_graph_kernels_take_the_layer_of_their_capture_and_the_token_of_their_launch() -> None:
    prepared = prepare(graph_trace(with_nodes=True), [], "all")
    assert layer_names(prepared) == ["layer_03_E"]
    assert str(prepared.forest.name.iloc[int(prepared.attribution.step[0])]) == "decode_token_0"


def test_a_layer_captured_before_the_window_is_listed_with_its_replays() -> None:
    """In decode_token_0 no layer range opens: the graph's layer still has its kernel of 10 ns, and no call."""
    (row,) = sum_by_layer(prepare(graph_trace(with_nodes=True), [], "0.00000089:0.0000011")).itertuples()
    assert (row.layer, row.calls, row.gpu_ns, row.launches) == ("layer_03_E", 0, 10, 1)


def test_graph_kernels_without_node_events_have_no_layer() -> None:
    prepared = prepare(graph_trace(with_nodes=False), [], "all")
    assert layer_names(prepared) == [""]
    assert str(prepared.forest.name.iloc[int(prepared.attribution.step[0])]) == "decode_token_0"


def test_the_first_matching_rule_wins_and_an_nvtx_rule_needs_its_range() -> None:
    rules = [
        BucketRule("ssm", re.compile("."), "layer_*_M"),
        BucketRule("first", re.compile("a_ker")),
        BucketRule("second", re.compile("a_kernel")),
    ]
    calls = [Call(1, 10, 10, 12, "cudaLaunchKernel", 0), Call(1, 10, 30, 32, "cudaLaunchKernel", 1)]
    kernels = [Activity(0, 12, 20, 7, 1, 0), Activity(0, 32, 40, 7, 1, 1), Activity(0, 45, 50, 7, 1, -1, "copy")]
    ranges = [(0, 20, "layer_00_M", 1, 10)]
    prepared = prepare(make_trace(Recording(kernels, calls), ranges), rules, "all")
    names = prepared.attribution.bucket_names
    assert [names[b] for b in prepared.attribution.bucket] == ["ssm", "first", "copy"]


# The kernels as profilers write them, and the bucket in which an engineer would look for each.
BY_NAME = {
    "void glq_matvec_splitk_scratch_kernel<(int)3>(float *, const __half *)": "matvec",
    "glq_input_rht_multiblock_kernel(const __half *)": "rht",
    "glq_reduce_splits_kernel(float *, const float *, int, int)": "reduce",
    "weighted_add_kernel(__half *, const __half *, float, int)": "moe",
    "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT": "gemm",
    "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float>(cublasLt::cublasSplitKParams<T6>)": "gemm",
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 10, 11, false>(cublasGemmSmallNParams<float>)": "gemm",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3": "gemm",
    "void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t>()": "moe",
    "void at::native::sbtopk::gatherTopK<float, unsigned int, (int)1, (bool)0>()": "router",
    "void at::native::bitonicSortKVInPlace<(int)-2, (int)-1>()": "router",
    "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35": "attention",
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)": "attention",
    "_selective_scan_update_kernel": "ssm",
    "void causal_conv1d_update_kernel<Causal_conv1d_update_kernel_traits<64, 4>>()": "ssm",
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>>(int, T2, T3)": "memset",
    "void at::native::vectorized_elementwise_kernel<4, at::native::<unnamed>::masked_fill_kernel>()": "elementwise",
    "void at::native::<unnamed>::indexSelectSmallIndex<c10::BFloat16, long>()": "copy",
    "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *)": "copy",
    "void at::native::<unnamed>::CatArrayBatchedCopy_vectorized<at::native::<unnamed>::OpaqueType<2>>()": "copy",
    "void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)0>()": "norm",
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::rsqrt_kernel_cuda()>()": "norm",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>()": "sampling",
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>>()": "elementwise",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "comm",
    # this project's kernels, as nsys names them in a recorded decode
    "void glq::glq_fused_kernel<glq::ExactTraits<(int)512, (bool)1>>(glq::FusedCall)": "moe",
    "nvfp4::nvfp4_plan_kernel(nvfp4::PlanCall)": "moe",
    "void ssm::ssm_fused_kernel<(int)128, (bool)0, (int)1, (int)0>(ssm::StepCall)": "ssm",
    "void step::step_linear_kernel<step::Shape<(int)8, (int)11>>(step::LinearCall)": "gemm",
    "void step::step_head_argmax_kernel<step::Shape<(int)8, (int)11>>(step::HeadCall, int)": "gemm",
    "void step::step_add_rms_norm_kernel<(int)1>(step::NormCall)": "norm",
    "step::step_route_kernel(step::RouteCall)": "router",
    "void step::step_attend_kernel<(int)16>(step::AttendCall)": "attention",
    "step::step_embed_kernel(step::EmbedCall)": "copy",
    "my_linear_kernel(float *)": "other",  # "ne" is a comparison's name, and not here
    "my_very_own_kernel(float *)": "other",
    "void at::native::some_kernel_of_the_future<float>()": "other",
}


def test_bundled_rules_put_kernels_where_an_engineer_looks() -> None:
    rules = load_bucket_rules()
    found = {
        name: next((r.bucket for r in rules if r.nvtx is None and r.kernel.search(name)), "other") for name in BY_NAME
    }
    assert found == BY_NAME


def test_no_bundled_rule_catches_everything() -> None:
    for rule in load_bucket_rules():
        assert rule.nvtx is not None or not rule.kernel.search("zzz_unheard_of_9")
