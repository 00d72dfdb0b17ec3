"""Every shape of nsys export that there was: the same recording reads as the same facts, counted by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import glqprof
from glqprof import Trace
from support.cli import glqprof as run
from support.nsys_builder import (
    CATEGORY,
    D2D,
    D2H,
    DOMAIN,
    H2D,
    MARK,
    P2P,
    PID,
    SHAPES,
    START_END,
    TID,
    TWO_TOKENS,
    NsysExport,
    two_token_decode,
)


def read(export: NsysExport, tmp_path, name: str = "made.sqlite") -> Trace:
    return glqprof.load(export.write(tmp_path / name)).trace


def column(frame: pd.DataFrame, name: str) -> list:
    return frame[name].tolist()


@pytest.mark.parametrize("schema", SHAPES)
@pytest.mark.parametrize("registered", [False, True], ids=["inline", "registered"])
def test_two_tokens_read_as_the_rows_that_were_put_in(tmp_path, schema, registered) -> None:
    trace = read(two_token_decode(schema, registered=registered), tmp_path)
    assert (trace.info.tool, trace.info.schema_version) == ("nsys", schema)
    assert trace.info.tool_version == f"made for {schema}"
    kernels = trace.kernels
    assert column(kernels, "start_ns") == [3_000, 12_500, 13_600]
    assert column(kernels, "end_ns") == [5_000, 13_500, 14_600]
    assert column(kernels, "correlation_id") == [1, 5, 6]
    matvec = "void glq_moe_matvec<(int)4>(int)"
    assert column(kernels, "name") == [matvec, "nvjet_tst_64x8(int)", matvec]
    assert set(column(kernels, "process")) == {PID}  # 2.7.0 says it through its only process's calls
    assert set(column(kernels, "device")) == {0}
    assert set(column(kernels, "context")) == {1}
    assert set(column(kernels, "stream")) == {7}
    assert set(column(kernels, "graph_node_id")) == {-1}
    assert [column(kernels, c)[0] for c in ("grid_x", "grid_y", "grid_z", "block_x")] == [8, 2, 1, 256]
    assert trace.copies.iloc[0][["bytes", "copy_kind", "src_kind", "dst_kind"]].tolist() == [
        4096,
        "DtoH",
        "Device",
        "Pageable",
    ]
    assert column(trace.memsets, "bytes") == [64]
    assert column(trace.api, "name") == [
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
        "cudaStreamSynchronize",
        "cuLaunchKernelEx",
        "cudaLaunchCooperativeKernel",
        "cudaLaunchHostFunc",
        "cudaDeviceSynchronize",
    ]
    assert set(column(trace.api, "process")) == {PID}
    assert set(column(trace.api, "thread")) == {TID}
    assert column(trace.ranges, "name") == ["decode_token_0", "decode_token_1", "layer_00_E", "layer_00_E"]
    assert not trace.ranges["is_open"].any()
    assert not trace.ranges["crosses_threads"].any()
    has_diagnostics = tuple(map(int, schema.split("."))) >= (3, 11)
    assert column(trace.diagnostics, "text") == (["Profiling has started."] if has_diagnostics else [])
    assert column(trace.devices, "name") == ["NVIDIA Test GPU"]
    assert column(trace.devices, "sm_count") == [100]
    assert trace.info.recorded == {"api", "sync", "ranges"}


@pytest.mark.parametrize("schema", SHAPES)
def test_account_of_every_shape_equals_the_hand_count(tmp_path, schema) -> None:
    path = two_token_decode(schema).write(tmp_path / "made.sqlite")
    found = run("breakdown", path, "--format", "json").json
    (device,) = found["devices"]
    assert found["window"]["wall_ns"] == TWO_TOKENS["wall_ns"]
    assert (found["window"]["steps"], found["window"]["tokens"]) == (2, 2)
    assert {(row["row"], row["kind"]): row["ns"] for row in device["wall"]} == TWO_TOKENS["rows"]
    assert device["kernels"] == {
        "count": TWO_TOKENS["kernels"],
        "sum_ms": TWO_TOKENS["kernel_ns"] / 1e6,
        "per_token": 1.5,
    }
    for key in ("sync", "blocking_copies", "launch"):
        calls, ns = TWO_TOKENS[key]
        assert (found["host"][key]["calls"], found["host"][key]["ms"]) == (calls, pytest.approx(ns / 1e6))
    # With the GPU idle: the syncs all but the memset's 100 ns, the copy call all but the copy's 1,000 ns.
    assert found["host"]["sync"]["idle_ms"] == pytest.approx(0.0054)
    assert found["host"]["blocking_copies"]["idle_ms"] == pytest.approx(0.0006)
    assert found["answers"]["host_blame"]["answer"] == "yes"


@pytest.mark.parametrize("schema", SHAPES)
def test_gzipped_equals_bare(tmp_path, schema) -> None:
    bare = read(two_token_decode(schema), tmp_path, "made.sqlite")
    packed = read(two_token_decode(schema), tmp_path, "made.sqlite.gz")
    assert packed.info == bare.info
    for frame in ("kernels", "copies", "memsets", "graphs", "api", "ranges", "devices", "streams", "processes"):
        pd.testing.assert_frame_equal(getattr(packed, frame), getattr(bare, frame))


def test_a_table_that_was_never_written_is_empty_not_an_error(tmp_path) -> None:
    trace = read(NsysExport().kernel(10, 20), tmp_path)
    assert len(trace.kernels) == 1
    for frame in ("copies", "memsets", "graphs", "api", "ranges", "overheads", "os_calls", "graph_nodes", "devices"):
        assert len(getattr(trace, frame)) == 0, frame
    assert trace.info.recorded == frozenset()


def test_nullable_columns_that_are_null(tmp_path) -> None:
    trace = read(NsysExport().kernel(10, 20, pid=None).copy(30, 40, source=None, target=None, pid=None), tmp_path)
    assert column(trace.kernels, "correlation_id") == [-1]
    assert column(trace.kernels, "process") == [-1]
    assert column(trace.copies, "src_kind") == ["unknown"]
    assert column(trace.copies, "dst_kind") == ["unknown"]


def test_correlation_ids_that_repeat_across_processes_join_within_theirs(tmp_path) -> None:
    export = NsysExport()
    for pid, shift in ((10, 0), (20, 1_000)):
        export.api(100 + shift, 200 + shift, "cudaLaunchKernel", correlation=1, pid=pid, tid=pid)
        export.kernel(300 + shift, 400 + shift, f"of_{pid}", correlation=1, pid=pid, device=pid // 10 - 1)
    path = export.write(tmp_path / "made.sqlite")
    found = run("breakdown", path, "--window", "0:0.0000013", "--format", "json").json
    # From the first event, at 100: GPU 0 waits 100 in the launch and 100 for the launch to arrive, then runs 100.
    rows = [{r["row"]: r["ns"] for r in d["wall"]} for d in found["devices"]]
    assert rows[0] == {"other": 100, "host-launch": 100, "launch-latency": 100, "host-code": 1_000}
    # GPU 1's call starts 1,000 later; were it joined to the other process's call, all of it would be launch-latency.
    assert rows[1] == {"other": 100, "host-launch": 100, "launch-latency": 100, "host-code": 1_000}


def test_processes_that_see_other_gpus_as_their_number_0(tmp_path) -> None:
    export = NsysExport().gpu(0).gpu(1).gpu(2).gpu(3)
    # Process 10 sees GPU 2 as 0; process 20 sees GPU 3 as 0 and GPU 2 as 1.
    export.visible(2, cuda=0, pid=10).visible(3, cuda=0, pid=20).visible(2, cuda=1, pid=20)
    export.kernel(10, 20, "a", pid=10, device=0).kernel(10, 30, "b", pid=20, device=0)
    export.kernel(40, 50, "c", pid=20, device=1).memset(60, 70, pid=10, device=0)
    trace = read(export, tmp_path)
    assert dict(zip(column(trace.kernels, "name"), column(trace.kernels, "device"), strict=True)) == {
        "a": 2,
        "b": 3,
        "c": 2,
    }
    assert column(trace.memsets, "device") == [2]


@pytest.mark.parametrize(
    "kinds", [{"Pageable": 0, "Pinned": 1, "Device": 2}, {"Pageable": 1, "Pinned": 2, "Device": 3}]
)
def test_memory_kinds_mean_what_their_table_says(tmp_path, kinds) -> None:
    export = NsysExport(memory_kinds=kinds)
    for i, (source, target) in enumerate((("Pageable", "Device"), ("Pinned", "Device"), ("Device", "Pinned"))):
        export.copy(10 * i, 10 * i + 5, kind=H2D if i < 2 else D2H, source=source, target=target, correlation=i)
        export.api(10 * i, 10 * i + 4, "cudaMemcpyAsync", correlation=i)
    path = export.write(tmp_path / "made.sqlite")
    trace = glqprof.load(path).trace
    assert column(trace.copies, "src_kind") == ["Pageable", "Pinned", "Device"]
    assert column(trace.copies, "dst_kind") == ["Device", "Device", "Pinned"]
    # One of them is of pageable memory: it alone blocks.
    assert run("breakdown", path, "--format", "json").json["host"]["blocking_copies"]["calls"] == 1


@pytest.mark.parametrize("schema", SHAPES)
def test_copy_kinds(tmp_path, schema) -> None:
    export = NsysExport(schema)
    for i, kind in enumerate((H2D, D2H, D2D, P2P)):
        export.copy(10 * i, 10 * i + 5, kind=kind)
    assert column(read(export, tmp_path).copies, "copy_kind") == ["HtoD", "DtoH", "DtoD", "PtoP"]


def test_only_ranges_are_ranges(tmp_path) -> None:
    export = (
        NsysExport()
        .kernel(0, 100)
        .nvtx(-5_000, None, "a domain", kind=DOMAIN, domain=3)
        .nvtx(0, None, "a category", kind=CATEGORY)
        .nvtx(50, None, "a mark", kind=MARK)
        .nvtx(10, 90, "pushed")
        .nvtx(20, 80, "started", kind=START_END)
    )
    trace = read(export, tmp_path)
    assert column(trace.ranges, "name") == ["pushed", "started"]
    assert trace.span_ns() == (0, 100)  # a domain's negative start is no moment of the trace


def test_open_ranges_end_with_the_last_event(tmp_path) -> None:
    export = NsysExport().kernel(100, 900).nvtx(50, None, "outer").nvtx(200, 300, "closed")
    trace = read(export, tmp_path)
    assert column(trace.ranges, "is_open") == [True, False]
    assert column(trace.ranges, "end_ns") == [900, 300]


def test_an_open_range_never_ends_before_it_starts(tmp_path) -> None:
    # The last to start is not the last row: nsys writes domains one after the other.
    export = NsysExport().kernel(100, 200).nvtx(5_000, None, "late").nvtx(50, None, "early")
    trace = read(export, tmp_path)
    assert column(trace.ranges, "end_ns") == [5_000, 5_000]


def test_a_range_that_ends_on_another_thread_encloses_no_call(tmp_path) -> None:
    export = (
        NsysExport()
        .nvtx(0, 1_000, "layer_00_M", kind=START_END, end_tid=TID + 1)
        .nvtx(0, 1_000, "layer_01_M", kind=START_END, end_tid=TID)
        .api(100, 200, "cudaLaunchKernel", correlation=1)
        .kernel(300, 400, correlation=1)
    )
    path = export.write(tmp_path / "made.sqlite")
    trace = glqprof.load(path).trace
    assert column(trace.ranges, "crosses_threads") == [True, False]
    layers = glqprof.breakdown(glqprof.load(path), window="all").layers
    assert dict(zip(layers["layer"], layers["launches"], strict=True)) == {"layer_00_M": 0, "layer_01_M": 1}


def test_inline_text_wins_over_an_empty_registered_one_and_both_mix(tmp_path) -> None:
    export = NsysExport().kernel(0, 10)
    export.nvtx(0, 1, "inline").nvtx(2, 3, "registered", registered=True).nvtx(4, 5, "inline", registered=True)
    assert column(read(export, tmp_path).ranges, "name") == ["inline", "registered", "inline"]


def test_names_that_are_not_utf8_do_not_stop_the_reading(tmp_path) -> None:
    export = NsysExport("2.8.1").environment("WHO", b"J\xfcrgen").kernel(0, 10)
    export.rows["NVTX_EVENTS"] = [{"start": 0, "end": 5, "eventType": 59, "text": b"gr\xfc\xdfe", "globalTid": 1}]
    export.api(0, 1, "cudaLaunchKernel")
    export.strings[b"br\xfccke"] = export.strings.pop("kernel")
    trace = read(export, tmp_path)
    assert column(trace.ranges, "name") == ["gr\ufffd\ufffde"]
    assert column(trace.kernels, "name") == ["br\ufffdcke"]


@pytest.mark.parametrize("schema", ["3.20.3", "3.25.0"])
def test_profiler_overhead_is_read_from_the_table_of_its_time(tmp_path, schema) -> None:
    export = (
        NsysExport(schema)
        .overhead(100, 250, "Buffer flush")
        .api(300, 400, "cudaLaunchKernel", correlation=1)
        .kernel(500, 600, correlation=1)
    )
    path = export.write(tmp_path / "made.sqlite")
    trace = glqprof.load(path).trace
    assert column(trace.overheads, "name") == ["Buffer flush"]
    found = run("breakdown", path, "--window", "0:0.0000003", "--format", "json").json
    # From the first call, at 300: nothing of the overhead. Over all from the kernel back to 100: 150 of it.
    assert {r["row"] for r in found["devices"][0]["wall"]} == {"other", "host-launch", "launch-latency"}
    found = run("breakdown", export.nvtx(100, 600, "decode_token_0").write(tmp_path / "b.sqlite"), "-f", "json").json
    rows = {r["row"]: r["ns"] for r in found["devices"][0]["wall"]}
    assert rows == {"other": 100, "profiler": 150, "host-code": 50, "host-launch": 100, "launch-latency": 100}


def test_os_runtime_calls_explain_waits_outside_cuda_calls_only(tmp_path) -> None:
    export = (
        NsysExport()
        .nvtx(0, 1_000, "decode_token_0")
        .os_call(100, 300, "pthread_cond_wait")
        .api(400, 600, "cudaStreamSynchronize", correlation=1)
        .os_call(450, 550, "poll")
        .api(700, 800, "cudaLaunchKernel", correlation=2)
        .kernel(800, 1_000, correlation=2)
    )
    found = run("breakdown", export.write(tmp_path / "made.sqlite"), "-f", "json").json
    rows = {r["row"]: r["ns"] for r in found["devices"][0]["wall"]}
    assert rows == {"other": 200, "host-wait": 200, "host-sync": 200, "host-launch": 100, "host-code": 300}


def test_what_counts_as_a_launch(tmp_path) -> None:
    launches = (
        "cudaLaunchKernel_v7000",
        "cudaLaunchKernelExC_v11060_ptsz",
        "cudaLaunchCooperativeKernel_v9000",
        "cudaLaunchCooperativeKernelMultiDevice_v9000",
        "cuLaunchKernel",
        "cuLaunchKernelEx_ptsz",
        "cuLaunchCooperativeKernel",
        "cudaGraphLaunch_v10000",
        "cuGraphLaunch_ptds",
    )
    others = ("cudaLaunchHostFunc_v10000", "cuLaunchHostFunc", "cudaGraphInstantiate_v12000", "cudaEventRecord_v3020")
    export = NsysExport().kernel(0, 10_000)
    for i, name in enumerate((*launches, *others)):
        export.api(10 * i, 10 * i + 1, name, correlation=i)
    found = run("breakdown", export.write(tmp_path / "made.sqlite"), "-f", "json").json
    assert found["host"]["launch"]["calls"] == len(launches)
    names = {api["name"] for api in found["host"]["apis"]}
    assert {"cudaLaunchKernelExC", "cudaGraphLaunch", "cuGraphLaunch", "cuLaunchKernelEx"} <= names
    assert not any(name.endswith(("_ptsz", "_ptds", "_v7000", "_v10000")) for name in names)


def test_a_sync_is_known_by_its_name_and_counts_for_the_gpu_of_its_process(tmp_path) -> None:
    export = NsysExport()
    # Process 20 works on GPU 1; its sync record says device 0, as nsys writes it.
    export.nvtx(0, 1_000, "decode_token_0", pid=20, tid=20)
    export.api(100, 200, "cudaLaunchKernel", correlation=1, pid=20, tid=20)
    export.kernel(200, 600, correlation=1, pid=20, device=1, context=2)
    export.api(300, 900, "cudaDeviceSynchronize", correlation=2, pid=20, tid=20)
    export.sync(300, 900, correlation=2, pid=20, context=2, kind=0)
    found = run("breakdown", export.write(tmp_path / "made.sqlite"), "-f", "json").json
    assert [d["device"] for d in found["devices"]] == [1]
    assert found["host"]["sync"] == {"calls": 1, "ms": 0.0006, "share": 0.6, "idle_ms": 0.0003}


def graph_capture(schema: str = "3.20.3") -> NsysExport:
    """A graph of two nodes, made inside layer_03_E (node 1) and layer_04_M (node 2), instantiated, launched twice."""
    export = NsysExport(schema)
    export.nvtx(0, 400, "layer_03_E").nvtx(500, 900, "layer_04_M")
    export.node_event(100, 1).node_event(600, 2)
    export.node_event(1_000, 11).node_event(1_001, 11, original=1).node_event(1_002, 12).node_event(
        1_003, 12, original=2
    )
    for i, at in enumerate((2_000, 3_000)):
        export.nvtx(at, at + 1_000, f"decode_token_{i}")
        export.api(at + 100, at + 200, "cudaGraphLaunch_v10000", correlation=50 + i)
        export.kernel(at + 300, at + 400, "first", correlation=50 + i, node=11)
        export.kernel(at + 400, at + 600, "second", correlation=50 + i, node=12)
    return export


def test_graph_kernels_take_the_token_from_the_launch_and_the_layer_from_the_capture(tmp_path) -> None:
    path = graph_capture().write(tmp_path / "made.sqlite")
    b = glqprof.breakdown(glqprof.load(path))
    assert b.answers["layers"].answer == "yes"
    work, forest = b.prepared.work, b.prepared.forest
    layer = forest.name.iloc[b.prepared.attribution.layer].tolist()
    step = forest.name.iloc[b.prepared.attribution.step].tolist()
    assert layer == ["layer_03_E", "layer_04_M"] * 2
    assert step == ["decode_token_0"] * 2 + ["decode_token_1"] * 2
    assert np.array_equal(work.start, [2_300, 2_400, 3_300, 3_400])
    # A kernel of a layer_*_M range is the Mamba layer's.
    assert b.devices[0].buckets.set_index("bucket")["sum_ns"].to_dict() == {"ssm": 400, "other": 200}


def test_without_the_original_node_there_is_no_layer_to_lead_to(tmp_path) -> None:
    path = graph_capture("3.4.0").write(tmp_path / "made.sqlite")  # originalGraphNodeId came later
    b = glqprof.breakdown(glqprof.load(path))
    assert b.answers["layers"].answer == "no"
    assert (b.prepared.attribution.step >= 0).all()


def opaque(start: int, end: int) -> NsysExport:
    return (
        NsysExport()
        .nvtx(0, 1_000, "decode_token_0")
        .api(100, 200, "cudaGraphLaunch_v10000", correlation=1)
        .graph(start, end, correlation=1)
        .api(600, 700, "cudaLaunchKernel", correlation=2)
        .kernel(800, 900, correlation=2)
    )


def test_an_opaque_timed_graph_is_busy_time_in_row_graph(tmp_path) -> None:
    found = run("breakdown", opaque(300, 500).write(tmp_path / "made.sqlite"), "-f", "json").json
    rows = {r["row"]: r["ns"] for r in found["devices"][0]["wall"]}
    # Idle: 0-100 code, launch to 200, latency to 300; 500-600 code, launch to 700, latency to 800; 900-1,000 code.
    assert rows == {"graph": 200, "other": 100, "host-code": 300, "host-launch": 200, "launch-latency": 200}
    assert found["answers"]["gpu_idle"]["answer"] == "partly"
    assert found["answers"]["gpu_time"]["answer"] == "partly"
    assert found["devices"][0]["kernels"]["count"] == 1


def test_an_opaque_untimed_graph_forbids_every_idle_number(tmp_path) -> None:
    found = run("breakdown", opaque(0, 0).write(tmp_path / "made.sqlite"), "-f", "json").json
    (device,) = found["devices"]
    assert found["answers"]["gpu_idle"]["answer"] == "no"
    assert device["wall"] == []
    assert device["gpu_idle_ms"] is device["gpu_busy_ms"] is found["verdict"] is None
    assert found["host"]["sync"]["idle_ms"] is None
    assert device["kernels"]["sum_ms"] == pytest.approx(0.0001)  # what was timed is still told


def test_an_untimed_graph_is_no_first_event(tmp_path) -> None:
    export = NsysExport().graph(0, 0, correlation=9).api(5_000, 5_100, "cudaLaunchKernel", correlation=1)
    trace = read(export.kernel(6_000, 7_000, correlation=1), tmp_path)
    assert trace.span_ns() == (5_000, 7_000)


def test_gpu_table_missing_or_zero(tmp_path) -> None:
    assert len(read(NsysExport().kernel(0, 1), tmp_path).devices) == 0
    zeros = NsysExport().gpu(0, None, sms=0, l2=0, memory=0, capability=(0, 0)).kernel(0, 1)
    (device,) = read(zeros, tmp_path, "zeros.sqlite").devices.to_dict("records")
    assert (device["name"], device["sm_count"], device["compute_capability"]) == ("", 0, "")
    found = run("breakdown", tmp_path / "zeros.sqlite", "-f", "json").json
    assert found["capture"]["gpu"] == [""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUPTI events dropped: 12", "no"),
        ("1423 events were lost", "no"),
        ("Not all CUDA events might have been collected.", "yes"),  # stands in good captures too
        ("0 events dropped", "yes"),
    ],
)
def test_lost_records_forbid_idle_numbers(tmp_path, text, expected) -> None:
    export = two_token_decode().diagnostic(text)
    found = run("breakdown", export.write(tmp_path / "made.sqlite"), "-f", "json").json
    assert found["answers"]["gpu_idle"]["answer"] == expected
    assert bool(found["devices"][0]["wall"]) == (expected == "yes")


def test_a_fatal_api_error_makes_the_capture_incomplete(tmp_path) -> None:
    export = two_token_decode().api(20_500, 20_600, "cudaStreamSynchronize", returned=700)
    found = run("breakdown", export.write(tmp_path / "made.sqlite"), "-f", "json").json
    assert found["answers"]["complete"]["answer"] == "no"
    assert "700" in found["answers"]["complete"]["why"]
