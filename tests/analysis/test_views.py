"""The conventional views, on values counted by hand."""

from __future__ import annotations

import pandas as pd
import pytest

import glqprof
from analysis.by_hand import Activity, Call, Recording
from analysis.make_trace import make_trace
from analysis.test_windows import FakeCapture
from glqprof.analysis.answers import NO, PARTLY, YES
from glqprof.errors import InputError
from glqprof.traces.schema.trace import Trace, TraceInfo

# Two steps of 1,000 ns. Launch at +10..+20, kernel +50..+150; sync +100..+400; the second step launches late.
CALLS = [
    Call(1, 10, 10, 20, "cudaLaunchKernel", 0),
    Call(1, 10, 100, 400, "cudaStreamSynchronize", 1),
    Call(1, 10, 1700, 1720, "cudaLaunchKernel", 2),
    Call(1, 10, 1750, 1900, "cudaDeviceSynchronize", 3),
]
KERNELS = [Activity(0, 50, 150, 7, 1, 0), Activity(0, 1710, 1800, 7, 1, 2)]
RANGES = [
    (0, 1000, "decode_token_0", 1, 10),
    (5, 500, "layer_00_M", 1, 10),
    (1000, 2000, "decode_token_1", 1, 10),
    (1600, 1950, "layer_00_M", 1, 10),
]


@pytest.fixture
def result() -> glqprof.analysis.breakdown.Breakdown:  # type: ignore[name-defined]
    return glqprof.breakdown(FakeCapture("hand", make_trace(Recording(KERNELS, CALLS), RANGES)), buckets=[])


def test_syncs_and_the_idle_time_within_them(result) -> None:  # type: ignore[no-untyped-def]
    # Both calls: 300 + 150 ns; idle in them: +150..+400 and +1800..+1900.
    assert (result.host.sync.calls, result.host.sync.ns, result.host.sync.idle_ns) == (2, 450, 350)
    assert (result.host.launch.calls, result.host.launch.ns) == (2, 30)


def test_launch_latency_is_signed(result) -> None:  # type: ignore[no-untyped-def]
    # +50 − +20 = 30 ns, and +1710 − +1720 = −10 ns: the kernel ran before its call had returned.
    (row,) = result.latency.itertuples()
    assert (row.kernels, row.max_us, row.started_before_return_pct) == (2, 0.030, 50.0)
    assert row.median_us == pytest.approx(0.010)


def test_the_largest_gap_names_its_neighbours_and_the_host(result) -> None:  # type: ignore[no-untyped-def]
    gap = result.gaps(1).iloc[0]
    assert gap["idle_us"] == pytest.approx(1.560)  # +150 to +1710
    assert (gap["before"], gap["after"]) == ("a_kernel", "a_kernel")
    assert gap["host"] == "host-code"  # 250 of sync, 10 of launch, 1,300 of neither
    assert gap["host_call"] == "cudaStreamSynchronize"
    assert gap["range"] == "decode_token_1 > layer_00_M"


def test_layers_count_calls_wall_and_what_was_launched_in_them(result) -> None:  # type: ignore[no-untyped-def]
    (row,) = result.layers.itertuples()
    assert (row.layer, row.calls, row.wall_ns, row.gpu_ns, row.launches) == ("layer_00_M", 2, 495 + 350, 190, 2)


def test_steps_and_the_slowest(result) -> None:  # type: ignore[no-untyped-def]
    assert result.steps["wall_ns"].tolist() == [1000, 1000]
    assert result.steps["gpu_ns"].tolist() == [100, 90]
    assert result.steps["launches"].tolist() == [1, 1]


def test_savings_are_bounds(result) -> None:  # type: ignore[no-untyped-def]
    sync, graph = result.savings["at_most_ms"]
    # Idle in host-sync: +150..+400 before the second launch, +1800..+1900 after the last kernel.
    assert sync == pytest.approx(350e-6)
    assert graph == pytest.approx((2000 - 190) / 1e6)  # all that is idle
    assert sync <= graph


def answers_of(**frames: object) -> dict[str, str]:
    return {q: a.answer for q, a in glqprof.breakdown(FakeCapture("x", trace_of(**frames))).answers.items()}


def trace_of(**frames: object) -> Trace:
    base = {
        "kernels": {
            "start_ns": [50],
            "end_ns": [60],
            "process": [1],
            "correlation_id": [0],
            "name": pd.Categorical(["k"]),
        },
        "api": {
            "start_ns": [10],
            "end_ns": [20],
            "process": [1],
            "thread": [1],
            "correlation_id": [0],
            "name": pd.Categorical(["cudaLaunchKernel"]),
        },
    }
    return Trace.from_columns(TraceInfo("x", "nsys", "0", "0"), base | frames)  # type: ignore[arg-type]


def graph_launch(start: int) -> dict[str, object]:
    return {
        "start_ns": [10, start],
        "end_ns": [20, start + 5],
        "process": [1, 1],
        "thread": [1, 1],
        "correlation_id": [0, 5],
        "name": pd.Categorical(["cudaLaunchKernel", "cudaGraphLaunch"]),
    }


def test_a_plain_capture_answers_yes_where_it_can() -> None:
    found = answers_of()
    assert found["gpu_time"] == found["gpu_idle"] == found["host_blame"] == found["complete"] == YES
    assert found["layers"] == NO
    assert found["wall_time"] == PARTLY


def test_a_graph_launch_that_left_no_record_makes_idle_unanswerable() -> None:
    result = glqprof.breakdown(FakeCapture("x", trace_of(api=graph_launch(52))))
    assert result.answers["gpu_idle"].answer == NO
    assert "node" in result.answers["gpu_idle"].fix
    assert len(result.wall) == 0
    assert result.verdict is None
    assert result.devices[0].account is None
    with pytest.raises(InputError, match="cannot be compared"):
        glqprof.compare(result, result)


def test_an_untimed_graph_record_makes_idle_unanswerable_and_a_timed_one_partly() -> None:
    record = {"process": [1], "correlation_id": [5], "name": pd.Categorical(["CUDA graph"])}
    untimed = answers_of(api=graph_launch(52), graphs=record | {"start_ns": [0], "end_ns": [0]})
    assert (untimed["gpu_idle"], untimed["gpu_time"]) == (NO, PARTLY)
    timed = answers_of(api=graph_launch(52), graphs=record | {"start_ns": [70], "end_ns": [90]})
    assert (timed["gpu_idle"], timed["gpu_time"]) == (PARTLY, PARTLY)


def test_dropped_events_make_idle_unanswerable() -> None:
    dropped = {"severity": ["error"], "text": ["CUPTI events dropped: 1200"]}
    assert answers_of(diagnostics=dropped)["gpu_idle"] == NO
    usual = {"severity": ["warning"], "text": ["Not all CUDA events might have been collected."]}
    assert answers_of(diagnostics=usual)["gpu_idle"] == YES


def test_a_failed_program_is_said() -> None:
    api = graph_launch(52) | {"return_value": [0, 700], "name": pd.Categorical(["cudaLaunchKernel", "cudaMalloc"])}
    assert answers_of(api=api)["complete"] == NO
    api = graph_launch(52) | {"return_value": [0, 600], "name": pd.Categorical(["cudaLaunchKernel", "cudaEventQuery"])}
    assert answers_of(api=api)["complete"] == YES  # "not ready" is what a query answers


def test_work_without_calls_is_blamed_partly() -> None:
    kernels = {
        "start_ns": [50, 70],
        "end_ns": [60, 80],
        "process": [1, 1],
        "correlation_id": [0, 99],
        "name": pd.Categorical(["k", "k"]),
    }
    found = answers_of(kernels=kernels)
    assert found["host_blame"] == found["complete"] == PARTLY


@pytest.mark.parametrize(
    ("diagnostic", "word"),
    [
        ("CUPTI: insufficient privileges (ERR_NVGPUCTRPERM)", "permission"),
        ("driver version 590.1 is not supported", "driver"),
        ("", "buffers were flushed"),
    ],
)
def test_a_capture_without_gpu_work_is_refused_with_its_reason(diagnostic: str, word: str) -> None:
    empty = {"start_ns": [], "end_ns": [], "name": pd.Categorical([])}
    frames = {"kernels": empty, "diagnostics": {"severity": ["error"], "text": [diagnostic]}}
    with pytest.raises(InputError, match=word):
        glqprof.breakdown(FakeCapture("x", trace_of(**frames)))


def test_no_call_at_all_points_to_an_unfollowed_process() -> None:
    empty = {"start_ns": [], "end_ns": [], "name": pd.Categorical([])}
    with pytest.raises(InputError, match="spawn"):
        glqprof.breakdown(FakeCapture("x", trace_of(kernels=empty, api=empty)))


def kernels_of(spans: list[tuple[int, int]]) -> dict[str, object]:
    return {
        "start_ns": [s for s, _ in spans],
        "end_ns": [e for _, e in spans],
        "process": [1] * len(spans),
        "stream": [7] * len(spans),
        "correlation_id": [0] * len(spans),
        "name": pd.Categorical([f"k{i}" for i in range(len(spans))]),
    }


def test_a_record_that_spans_many_later_ones_of_its_stream_is_disbelieved() -> None:
    """As CUPTI wrote a graph's copy: 26 ms over every later replay. Neighbours that overlap a little are usual."""
    spans = [(50 + 10 * i, 58 + 10 * i) for i in range(40)]
    usual = [(s, e + 6) for s, e in spans]  # each runs 4 ns into the next: programmatic launches do
    assert answers_of(kernels=kernels_of(usual))["gpu_idle"] == YES
    result = glqprof.breakdown(FakeCapture("x", trace_of(kernels=kernels_of([(50, 400), *spans[1:]]))))
    assert result.answers["gpu_idle"].answer == PARTLY
    assert any("k0" in w and "not believable" in w for w in result.warnings)
    others = kernels_of([(50, 400), *spans[1:]]) | {"stream": [9] + [7] * 39}  # on a stream of its own it may run long
    assert answers_of(kernels=others)["gpu_idle"] == YES
