"""Innermost intervals against the definition, nested or not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from glqprof.analysis.nesting import nest

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def innermost(intervals: list[tuple[int, int]], instant: int) -> set[int]:
    """The open intervals that started last, of these the shortest: several where intervals are equal."""
    open_now = [(s, -e) for s, e in intervals if s <= instant < e]
    if not open_now:
        return {-1}
    best = max(open_now)
    return {i for i, (s, e) in enumerate(intervals) if (s, -e) == best}


@given(spans)
def test_owner_is_the_innermost_open_interval(intervals: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in intervals], np.int64)
    end = np.array([e for _, e in intervals], np.int64)
    found = nest(start, end).at(np.arange(-1, 45))
    for instant, owner in zip(range(-1, 45), found.tolist(), strict=True):
        assert owner in innermost(intervals, instant)


@given(spans)
def test_a_parent_encloses_its_child_and_chains_end(intervals: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in intervals], np.int64)
    end = np.array([e for _, e in intervals], np.int64)
    parent = nest(start, end).parent
    for child in range(len(intervals)):
        seen = {child}
        at = int(parent[child])
        while at >= 0:
            assert at not in seen
            if end[child] > start[child]:
                assert start[at] <= start[child]
                assert end[at] >= end[child]
            seen.add(at)
            at = int(parent[at])


def test_siblings_that_touch_are_not_nested() -> None:
    nesting = nest(np.array([0, 0, 5, 5]), np.array([10, 5, 10, 7]))
    assert nesting.at(np.array([0, 4, 5, 6, 7, 9, 10])).tolist() == [1, 1, 3, 3, 2, 2, -1]
    assert nesting.parent.tolist() == [-1, 0, 0, 2]


def test_overlap_without_nesting_goes_to_the_later_start() -> None:
    nesting = nest(np.array([0, 5]), np.array([10, 15]))
    assert nesting.at(np.array([4, 7, 12, 15])).tolist() == [0, 1, 1, -1]
    assert nesting.parent.tolist() == [-1, -1]  # neither encloses the other
