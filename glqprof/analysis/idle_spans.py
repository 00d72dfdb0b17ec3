"""The idle half of the closed account as spans of time: what a timeline draws, where the account only sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from glqprof.analysis.account import HOST_UNKNOWN, IDLE_ROWS, LAUNCH_LATENCY, Account
from glqprof.analysis.host_state import STATES, HostTimeline
from glqprof.analysis.prepared import Prepared

Array = np.ndarray
_CODE_OF = {row: code for code, row in enumerate(IDLE_ROWS)}
_OF_STATE = np.array([_CODE_OF[state] for state in STATES], np.int8)
_HOST_CODE = STATES.index("host-code")


@dataclass(frozen=True)
class IdleSpans:
    """Spans [start, end) in ns (int64), ascending and apart, and ``state`` (int8), an index into `IDLE_ROWS`.

    The lengths of one state sum to that row of the account exactly, since both follow docs/accounting.md.
    """

    start: Array
    end: Array
    state: Array


def idle_spans(prepared: Prepared, account: Account) -> IdleSpans:
    """Every idle instant of an account with the state it belongs to; neighbours of one state in one gap are merged."""
    gaps, rows = account.gaps, prepared.device_slice(account.device)
    api_of_work = prepared.work.api_row[rows]
    blamed = np.where(gaps.after >= 0, gaps.after, gaps.before)
    api_row = np.full(len(blamed), -1, np.int64)
    api_row[blamed >= 0] = api_of_work[blamed[blamed >= 0]]
    known = api_row >= 0
    api = prepared.trace.api
    # After the last activity there is no call that could have returned: the thread's state decides throughout.
    host_end = gaps.start.copy()
    returned = api["end_ns"].to_numpy()[api_row[known]]
    clipped = np.clip(returned, gaps.start[known], gaps.end[known])
    host_end[known] = np.where(gaps.after[known] < 0, gaps.end[known], clipped)
    index = np.arange(len(blamed))
    parts = [
        (index[~known], gaps.start[~known], gaps.end[~known], _filled(~known, HOST_UNKNOWN)),
        (index[known], host_end[known], gaps.end[known], _filled(known, LAUNCH_LATENCY)),
    ]
    waiting = np.flatnonzero(known & (host_end > gaps.start))
    process, thread = api["process"].to_numpy()[api_row[waiting]], api["thread"].to_numpy()[api_row[waiting]]
    callers = process.astype(np.int64) << 32 | thread
    for caller in np.sort(pd.unique(callers)).tolist():
        mine = waiting[callers == caller]
        timeline = prepared.timeline_of(caller >> 32, caller & 0xFFFFFFFF)
        at, start, end, state = _cut(timeline, gaps.start[mine], host_end[mine])
        parts.append((mine[at], start, end, state))
    gap, start, end, state = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    keep = np.flatnonzero(end > start)
    keep = keep[np.argsort(start[keep], kind="stable")]
    return _merged(gap[keep], start[keep], end[keep], state[keep])


def _filled(mask: Array, row: str) -> Array:
    return np.full(int(mask.sum()), _CODE_OF[row], np.int8)


def _cut(timeline: HostTimeline, begin: Array, end: Array) -> tuple[Array, Array, Array, Array]:
    """Cut spans where the thread's state changes: the span each piece came from, its start, end and state."""
    times = timeline.times
    if not len(times):
        return np.arange(len(begin)), begin, end, np.full(len(begin), _OF_STATE[_HOST_CODE], np.int8)
    first = np.searchsorted(times, begin, "right") - 1
    last = np.searchsorted(times, end, "left") - 1
    count = last - first + 1
    span = np.repeat(np.arange(len(begin)), count)
    segment = first[span] + np.arange(len(span)) - np.repeat(np.cumsum(count) - count, count)
    segment_start = np.where(segment >= 0, times[np.maximum(segment, 0)], begin[span])
    segment_end = np.where(segment + 1 < len(times), times[np.minimum(segment + 1, len(times) - 1)], end[span])
    state = np.where(segment >= 0, timeline.state[np.maximum(segment, 0)], _HOST_CODE)
    return span, np.maximum(segment_start, begin[span]), np.minimum(segment_end, end[span]), _OF_STATE[state]


def _merged(gap: Array, start: Array, end: Array, state: Array) -> IdleSpans:
    if not len(start):
        return IdleSpans(start, end, state)
    opens = np.ones(len(start), bool)
    opens[1:] = (gap[1:] != gap[:-1]) | (state[1:] != state[:-1]) | (start[1:] != end[:-1])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(start)) - 1
    return IdleSpans(start[first], end[last], state[first])
