"""Which streams share a row of the timeline figure."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from glqprof.reports.figures import gpu_lanes

ACTIVITIES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 12), st.integers(0, 200), st.integers(1, 20)), min_size=1, max_size=60
)


def work_of(rows):
    device, stream, start, length = (np.array(column) for column in zip(*rows, strict=True))
    return SimpleNamespace(device=device, stream=stream, start=start, end=start + length)


@given(ACTIVITIES)
def test_each_activity_is_in_one_row_and_streams_of_a_row_do_not_meet(rows) -> None:
    work = work_of(rows)
    inside = np.arange(len(rows))
    lanes = gpu_lanes(work, inside, most=3)
    assert (np.sum([mine for _, mine in lanes], axis=0) == 1).all()
    for label, mine in lanes:
        streams = np.unique(work.stream[mine])
        assert len(np.unique(work.device[mine])) == 1
        assert label.endswith(f"{len(streams)} streams" if len(streams) > 1 else f"stream {streams[0]}")
        extents = sorted(
            (work.start[mine & (work.stream == s)].min(), work.end[mine & (work.stream == s)].max()) for s in streams
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(extents))


def test_branches_of_a_graph_that_follow_each_other_share_two_rows() -> None:
    """A main stream under all, and twenty branches, each beside the one before it for half of its time."""
    rows = [(0, 7, 0, 1), (0, 7, 1000, 1)] + [(0, 100 + i, 40 * i, 60) for i in range(20)]
    lanes = gpu_lanes(work_of(rows), np.arange(len(rows)))
    assert sorted(label for label, _ in lanes) == ["GPU 0 stream 7", "GPU 0, 10 streams", "GPU 0, 10 streams"]


def test_few_streams_have_a_row_each() -> None:
    rows = [(0, 7, 0, 5), (0, 9, 10, 5), (1, 7, 0, 5)]
    assert [label for label, _ in gpu_lanes(work_of(rows), np.arange(3))] == [
        "GPU 0 stream 7", "GPU 0 stream 9", "GPU 1 stream 7"
    ]  # fmt: skip
