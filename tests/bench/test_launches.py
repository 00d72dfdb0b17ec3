"""Reading torch.profiler's Chrome traces: on invented events, so that every rule is tried without a GPU."""

from __future__ import annotations

import pytest

from glqprof.bench.device import Observed
from glqprof.bench.launches import AFTER_RANGE, CALL_RANGE, judge, read_call
from glqprof.bench.reasons import Findings


def annotation(name, ts, dur):
    return {"cat": "user_annotation", "name": name, "ts": ts, "dur": dur}


def runtime(name, ts, correlation, cat="cuda_runtime"):
    return {"cat": cat, "name": name, "ts": ts, "dur": 2, "args": {"correlation": correlation}}


def gpu(name, ts, dur, correlation, stream=7, cat="kernel"):
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"correlation": correlation, "stream": stream}}


def trace(*events):
    """A call from 100 to 200, behind a copy that runs until 150, and the copy after it at 300."""
    return [
        {"ph": "M", "name": "process_name"},
        runtime("cudaDeviceSynchronize", 40, 1),
        runtime("cudaMemcpyAsync", 50, 2),
        gpu("Memcpy DtoD", 52, 98, 2, cat="gpu_memcpy"),
        annotation(CALL_RANGE, 100, 100),
        {**annotation(CALL_RANGE, 150, 60), "cat": "gpu_user_annotation"},
        *events,
        annotation(AFTER_RANGE, 210, 10),
        runtime("cudaMemcpyAsync", 212, 90),
        gpu("Memcpy DtoD", 300, 1, 90, cat="gpu_memcpy"),
        runtime("cudaDeviceSynchronize", 240, 91),
    ]


def test_kernels_are_those_launched_in_the_range_in_order():
    observed = read_call(
        trace(
            gpu("before", 60, 5, 3),
            runtime("cudaLaunchKernel", 90, 3),
            runtime("cudaLaunchKernel", 110, 4),
            runtime("cuLaunchKernelEx", 120, 5, cat="cuda_driver"),
            gpu("second", 170, 5, 5),
            gpu("first", 160, 5, 4),
            gpu("Memset (Device)", 180, 1, 6, cat="gpu_memset"),
            runtime("cudaMemsetAsync", 130, 6),
        )
    )
    assert observed == Observed(("first", "second"), 0, ())


def test_every_wait_of_the_host_counts_once():
    observed = read_call(
        trace(
            runtime("cudaMemcpyAsync", 110, 10),
            runtime("cudaStreamSynchronize", 112, 11),
            runtime("cudaEventSynchronize", 120, 12),
            runtime("cudaMemcpy", 130, 13),
            runtime("cudaEventQuery", 140, 14),
            runtime("cudaMemcpyToSymbolAsync", 150, 15),
        )
    )
    assert observed.syncs == 3


def test_graph_kernels_belong_to_the_graph_launch():
    observed = read_call(
        trace(runtime("cudaGraphLaunch", 110, 20), gpu("node", 160, 5, 20), gpu("node", 140, 5, 20, stream=33)),
        graph=True,
    )
    assert observed.kernels == ("node", "node")
    assert observed.side_stream == ()


@pytest.mark.parametrize(
    ("start", "duration", "unjoined"),
    [(120, 10, True), (160, 200, True), (160, 40, False)],
    ids=["does not wait for work before the call", "is not waited for", "forked and joined"],
)
def test_a_kernel_on_another_stream_is_named_when_nothing_orders_it(start, duration, unjoined):
    events = trace(runtime("cudaLaunchKernel", 110, 30), gpu("stray", start, duration, 30, stream=13))
    assert read_call(events).side_stream == (("stray",) if unjoined else ())


def test_a_missing_range_is_an_error_and_not_a_zero():
    with pytest.raises(ValueError, match="no range"):
        read_call([runtime("cudaLaunchKernel", 1, 1)])


def found(observed, expected, waits=0, graph=False):
    findings = Findings()
    judge(observed, expected, waits, findings, graph)
    return {reason.code: reason.detail for reason in findings.reasons()}


def test_the_declaration_is_held_to_the_letter():
    observed = Observed(("glq_matvec<3>", "glq_matvec<2>", "glq_reduce"), 4)
    assert found(observed, {"glq_matvec": 2, "glq_reduce": 1}, waits=4) == {}
    assert found(observed, {"glq_matvec": 3, "glq_reduce": 1}, waits=4) == {
        "launch-count": "glq_matvec ran 2×, declared 3×"
    }
    assert set(found(observed, {"glq_matvec": 2}, waits=3)) == {"fallback", "sync-count"}


def test_any_number_of_a_librarys_kernels_may_be_declared():
    observed = Observed(("cutlass::GroupProblemShape", "at::native::sort"), 0)
    assert found(observed, {"GroupProblemShape": 1, ".*": -1}) == {}
    assert set(found(Observed(("at::native::sort",), 0), {"GroupProblemShape": 1, ".*": -1})) == {"launch-count"}


def test_a_declared_zero_is_a_promise():
    assert set(found(Observed(("fill", "k"), 0), {"fill": 0, "k": 1})) == {"launch-count"}


def test_missing_launches_of_a_replay_stayed_outside_the_graph():
    assert set(found(Observed(("k",), 0), {"k": 2}, graph=True)) == {"outside-capture"}
    assert set(found(Observed(("k",) * 3, 0), {"k": 2}, graph=True)) == {"launch-count"}


def test_findings_keep_the_first_detail_and_count_the_rest():
    findings = Findings()
    for detail in ("one", "two", "three"):
        findings.add("fallback", detail)
    assert [str(reason) for reason in findings.reasons()] == ["fallback: one (and 2 more)"]
    with pytest.raises(ValueError, match="unknown reason code"):
        findings.add("typo", "")
