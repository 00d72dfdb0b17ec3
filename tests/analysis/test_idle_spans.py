"""Idle time as spans: the spans of a state sum to its row of the account, and lie inside the gaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glqprof
from analysis.test_account_properties import recordings
from glqprof.analysis.account import IDLE_ROWS
from glqprof.analysis.idle_spans import idle_spans
from glqprof.analysis.lanes import apart, nested
from glqprof.analysis.prepared import prepare
from support.paths import PUBLIC, RECORDED

SPAN = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(recordings(), st.integers(0, 25), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_spans_are_the_idle_rows_cut_in_time(recording, start, length) -> None:
    from analysis.make_trace import make_trace

    if not recording.activities:
        return
    prepared = prepare(make_trace(recording, [(start, start + length, "window", 1, 10)]), [], "nvtx:window")
    for device in prepared.devices:
        account = prepared.account(device)
        spans = idle_spans(prepared, account)
        summed = np.bincount(spans.state, weights=spans.end - spans.start, minlength=len(IDLE_ROWS))
        assert {row: int(ns) for row, ns in zip(IDLE_ROWS, summed, strict=True) if ns} == account.idle_ns
        assert (spans.end > spans.start).all()
        assert (spans.start[1:] >= spans.end[:-1]).all()
        # Every instant of a span is idle by the definition: no activity of the GPU runs in it.
        for begin, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
            assert not any(a.device == device and a.start < end and a.end > begin for a in recording.activities)


@pytest.mark.parametrize(
    "path",
    [RECORDED / "h200-cascade2-30b-glq-v0.2.12", PUBLIC / "nsysai_h100_2gpu_1s__2026.2_s3.25.0.sqlite.gz"],
    ids=["decode", "two-gpus"],
)
def test_spans_of_a_recording_sum_to_its_account(path) -> None:
    b = glqprof.breakdown(glqprof.load(path, launch_config=False))
    for device in b.devices:
        spans = idle_spans(b.prepared, device.account)
        for code, row in enumerate(IDLE_ROWS):
            mine = spans.state == code
            assert int((spans.end - spans.start)[mine].sum()) == device.account.idle_ns.get(row, 0)


@given(st.lists(SPAN, max_size=12))
def test_lanes_apart_never_overlap_and_are_as_few_as_can_be(spans) -> None:
    spans.sort()
    start, end = (np.array([s[i] for s in spans], np.int64) for i in (0, 1))
    lane = apart(start, end)
    taken = [(a, max(b, a + 1)) for a, b in spans]  # an empty span takes an instant
    for i, (a, b) in enumerate(taken):
        for j, (c, d) in enumerate(taken[:i]):
            assert lane[i] != lane[j] or c >= b or a >= d
    assert len(set(lane.tolist())) == max((sum(a <= t < b for a, b in taken) for t in range(60)), default=0)


@given(st.lists(SPAN, max_size=12))
def test_nested_lanes_hold_spans_that_nest(spans) -> None:
    start, end = (np.array([s[i] for s in spans], np.int64) for i in (0, 1))
    lane, depth = nested(start, end)
    for i, (a, b) in enumerate(spans):
        for j, (c, d) in enumerate(spans[:i]):
            if lane[i] == lane[j]:
                crossing = a < c < b < d or c < a < d < b
                assert not crossing
                if a < b and c < d and a < d and c < b:
                    assert depth[i] != depth[j]  # one encloses the other: they are drawn in different rows


def test_calls_that_nest_share_a_lane() -> None:
    start, end = np.array([0, 1, 4, 5, 20]), np.array([10, 3, 9, 6, 22])
    lane, depth = nested(start, end)
    assert lane.tolist() == [0, 0, 0, 0, 0]
    assert depth.tolist() == [0, 1, 1, 2, 0]
    lane, _ = nested(np.array([0, 5]), np.array([10, 15]))  # they cross
    assert sorted(lane.tolist()) == [0, 1]
