"""The closed account on random traces: it closes, never counts twice, and equals the definition followed by hand."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis.by_hand import Activity, Call, Overhead, Recording, account
from analysis.make_trace import make_trace
from glqprof.analysis.prepared import prepare
from glqprof.traces.schema.buckets import load_bucket_rules

HORIZON = 60
NAMES = (
    "cudaLaunchKernel",
    "cuLaunchKernelEx",
    "cudaStreamSynchronize",
    "cudaMemcpyAsync",
    "cudaMemcpy",
    "cudaMalloc",
    "cudaFuncGetAttributes",
)


@st.composite
def nested_calls(draw: st.DrawFn, process: int, thread: int) -> list[tuple[int, int]]:
    """Spans of one thread that nest as calls do: each lies inside the one before it or after it."""
    spans: list[tuple[int, int]] = []

    def fill(low: int, high: int, depth: int) -> None:
        at = low
        for _ in range(draw(st.integers(0, 3))):
            if at > high:
                return
            start = draw(st.integers(at, high))
            end = draw(st.integers(start, high))
            spans.append((start, end))
            if depth and end - start > 1:
                fill(start + 1, end - 1, depth - 1)
            at = end + 1

    fill(0, HORIZON, 2)
    return spans


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Two processes that use the same correlation ids, two threads each, two GPUs with overlapping streams, nested and
    zero-length calls, activities without a call, copies of pageable memory, overheads and OS calls."""
    calls: list[Call] = []
    overheads: list[Overhead] = []
    os_calls: list[Overhead] = []
    for process in (1, 2):
        number = 0
        for thread in (10, 11):
            for start, end in draw(nested_calls(process, thread)):
                if draw(st.integers(0, 5)) == 0:
                    overheads.append(Overhead(process, thread, start, end))
                    continue
                calls.append(Call(process, thread, start, end, draw(st.sampled_from(NAMES)), number))
                number += 1
        for start, end in draw(nested_calls(process, 10))[:2]:
            os_calls.append(Overhead(process, 10, start, end))
    activities = []
    for _ in range(draw(st.integers(0, 10))):
        start = draw(st.integers(0, HORIZON))
        kind = draw(st.sampled_from(("kernel", "kernel", "copy", "memset")))
        activities.append(
            Activity(
                device=draw(st.integers(0, 1)),
                start=start,
                end=draw(st.integers(start, min(start + 15, HORIZON))),
                stream=draw(st.integers(7, 9)),
                process=draw(st.integers(1, 2)),
                correlation=draw(st.integers(-1, 6)),
                kind=kind,
                pageable=kind == "copy" and draw(st.booleans()),
            )
        )
    return Recording(activities, calls, overheads, os_calls)


TIED_ACROSS_PROCESSES = Recording(
    [Activity(0, 1, 1, 7, process, 0, kind, False) for process, kind in ((2, "copy"), (1, "kernel"))],
    [Call(1, 10, 0, 0, "cudaLaunchKernel", 0)],
    [],
    [],
)


@example(TIED_ACROSS_PROCESSES, 0, 1)
@given(recordings(), st.integers(0, 25), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_account_equals_its_definition_and_closes(recording: Recording, start: int, length: int) -> None:
    trace = make_trace(recording, [(start, start + length, "window", 1, 10)])
    if not recording.activities:
        return
    prepared = prepare(trace, [], "nvtx:window")
    for device in prepared.devices:
        result = prepared.account(device)
        assert result.wall_ns == length
        assert sum(result.busy_ns.values()) + sum(result.idle_ns.values()) == length
        busy, idle = account(recording, device, start, start + length)
        assert result.idle_ns == idle
        assert sum(result.busy_ns.values()) == sum(busy.values())
        for bucket, exact in busy.items():
            assert abs(result.busy_ns.get(bucket, 0) - exact) < 1
        assert set(result.busy_ns) <= set(busy)


@given(recordings(), st.lists(st.integers(0, HORIZON), min_size=2, max_size=5, unique=True))
@settings(max_examples=60, deadline=None)
def test_accounts_of_adjoining_windows_add_up(recording: Recording, cuts: list[int]) -> None:
    """Idle rows are integers of instants, so cutting a window in pieces moves no nanosecond from one row to another."""
    if not recording.activities:
        return
    cuts = sorted(cuts)
    prepared = prepare(make_trace(recording), [], "all")
    for device in prepared.devices:
        whole = prepared.account(device, cuts[0], cuts[-1])
        pieces = [prepared.account(device, a, b) for a, b in pairwise(cuts)]
        for row in set(whole.idle_ns).union(*(p.idle_ns for p in pieces)):
            assert whole.idle_ns.get(row, 0) == sum(p.idle_ns.get(row, 0) for p in pieces)
        assert whole.gpu_busy_ns == sum(p.gpu_busy_ns for p in pieces)


steps = st.lists(
    st.tuples(
        st.integers(0, HORIZON),
        st.integers(0, 30),
        st.sampled_from(("decode_token_0", "decode_token_1", "layer_00_M", "library")),
        st.integers(1, 2),
        st.booleans(),
    ),
    max_size=6,
)


@given(recordings(), steps)
@settings(max_examples=80, deadline=None)
def test_the_account_closes_over_windows_of_open_and_overlapping_ranges(recording: Recording, drawn: list) -> None:
    """Ranges that never closed, overlap without nesting, and stand on other processes than the work."""
    if not recording.activities:
        return
    ranges = [(start, None if open_ else start + length, name, pid, 10) for start, length, name, pid, open_ in drawn]
    prepared = prepare(make_trace(recording, ranges), load_bucket_rules())
    window = prepared.window
    for device in prepared.devices:
        result = prepared.account(device)
        assert sum(result.busy_ns.values()) + sum(result.idle_ns.values()) == window.wall_ns
        _, idle = account(recording, device, window.start_ns, window.end_ns)
        assert result.idle_ns == idle


def test_overlap_shares_and_largest_remainder() -> None:
    """Three kernels over the same 10 ns, a copy over half of them: 10/3 does not divide, the sum still closes."""
    recording = Recording(
        [
            Activity(0, 0, 10, 7, 1, -1),
            Activity(0, 0, 10, 8, 1, -1),
            Activity(0, 0, 5, 9, 1, -1, kind="copy"),
        ],
        [],
    )
    prepared = prepare(make_trace(recording), [], "all")
    result = prepared.account(0, 0, 10)
    # 5 ns shared by three, 5 ns by two: kernels 2·5/3 + 5 = 8⅓, copy 1⅔. Floors 8 and 1, the rest to the copy.
    assert result.busy_ns == {"other": 8, "copy": 2}
    exact = Fraction(2 * 5, 3) + 5
    assert abs(exact - 8) < 1


def test_times_beyond_float_precision_close() -> None:
    """Epoch nanoseconds need 61 bits: a float64 anywhere on the way would lose some."""
    base = 1_796_052_840_594_244_837
    recording = Recording(
        [Activity(0, base + 3, base + 11, 7, 1, 0), Activity(0, base + 17, base + 18, 7, 1, -1)],
        [Call(1, 10, base - 4, base + 1, "cudaLaunchKernel", 0)],
    )
    prepared = prepare(make_trace(recording), [], "all")
    result = prepared.account(0)
    assert result.wall_ns == 22
    assert result.busy_ns == {"other": 9}
    assert result.idle_ns == {"host-launch": 5, "launch-latency": 2, "host-unknown": 6}


def test_a_million_intervals_stay_exact() -> None:
    """Sums above 2^53 in one row: 3,000 kernels of an hour each on a GPU, one after the other."""
    hour = 3_600 * 10**9
    start = np.arange(3000, dtype=np.int64) * (hour + 1)
    recording = Recording([Activity(0, int(s), int(s) + hour, 7, 1, -1) for s in start], [])
    result = prepare(make_trace(recording), [], "all").account(0)
    assert result.busy_ns == {"other": 3000 * hour}
    assert result.idle_ns == {"host-unknown": 2999}
