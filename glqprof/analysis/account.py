"""The closed account: every nanosecond of the window belongs to exactly one row, per GPU.

Busy time goes to the bucket of the activity that runs; where k activities overlap, 1/k to each. Idle time goes to what
kept the *next* activity on that GPU from starting: ``launch-latency`` once its API call had returned, before that the
state of the thread that made the call. After a GPU's last activity it is the thread that submitted that one. Rows are
integers and sum to the window exactly; shares of 1/k are rounded by largest remainder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from glqprof.analysis.host_state import HostTimeline, exact_sums
from glqprof.analysis.work import GpuWork
from glqprof.traces.schema.trace import Trace

Array = np.ndarray
LAUNCH_LATENCY = "launch-latency"
HOST_UNKNOWN = "host-unknown"
IDLE_ROWS = (
    LAUNCH_LATENCY,
    "host-sync",
    "host-launch",
    "host-memory",
    "host-api",
    "profiler",
    "host-wait",
    "host-code",
    HOST_UNKNOWN,
)


@dataclass(frozen=True)
class Gaps:
    """A GPU's idle spans inside the window: [start, end), and the activity (index into the device's work, in start
    order) before and after each; -1 where there is none."""

    start: Array
    end: Array
    before: Array
    after: Array


@dataclass(frozen=True)
class Account:
    """One GPU's closed account. ``busy_ns`` by bucket, ``idle_ns`` by idle state; only rows that hold time."""

    device: int
    wall_ns: int
    busy_ns: dict[str, int]
    idle_ns: dict[str, int]
    gaps: Gaps

    @property
    def gpu_busy_ns(self) -> int:
        """Time with at least one activity running."""
        return sum(self.busy_ns.values())

    @property
    def gpu_idle_ns(self) -> int:
        """Time with none."""
        return sum(self.idle_ns.values())


def close_account(
    trace: Trace,
    work: GpuWork,
    bucket: Array,
    bucket_names: list[str],
    timeline_of: Callable[[int, int], HostTimeline],
    device: int,
    start_ns: int,
    end_ns: int,
) -> Account:
    """Account for [start_ns, end_ns) of one device.

    ``work`` and ``bucket`` hold this device's activities in start order, those outside the window included: the next
    activity after the window explains the idle time at its end. ``timeline_of(process, thread)`` gives a thread's
    states.
    """
    busy = _busy_rows(work, bucket, bucket_names, start_ns, end_ns)
    gaps = find_gaps(work, start_ns, end_ns)
    idle = _idle_rows(trace, work, gaps, timeline_of)
    return Account(device, end_ns - start_ns, busy, idle, gaps)


def find_gaps(work: GpuWork, start_ns: int, end_ns: int) -> Gaps:
    """The spans of the window in which no activity of ``work`` (in start order) runs."""
    count = len(work)
    if count == 0:
        none = np.array([-1])
        return Gaps(np.array([start_ns]), np.array([end_ns]), none, none)
    reach = np.maximum.accumulate(work.end)
    # An idle span before each activity (from all that came before it) and one after the last.
    begins = np.concatenate([[min(start_ns, int(work.start[0]))], reach])
    ends = np.concatenate([work.start, [max(end_ns, int(reach[-1]))]])
    begins, ends = np.maximum(begins, start_ns), np.minimum(ends, end_ns)
    slot = np.flatnonzero(ends > begins)
    holder = _holder_of_reach(work.end, reach)
    before = np.where(slot > 0, holder[np.maximum(slot - 1, 0)], -1).astype(np.int32)
    after = np.where(slot < count, slot, -1).astype(np.int32)
    return Gaps(begins[slot], ends[slot], before, after)


def _holder_of_reach(end: Array, reach: Array) -> Array:
    """Index of the activity that ended last among those started so far."""
    raises = end >= reach
    return np.maximum.accumulate(np.where(raises, np.arange(len(end)), 0))


def _busy_rows(work: GpuWork, bucket: Array, names: list[str], start_ns: int, end_ns: int) -> dict[str, int]:
    start, end = np.maximum(work.start, start_ns), np.minimum(work.end, end_ns)
    inside = np.flatnonzero(end > start)
    start, end, bucket = start[inside], end[inside], bucket[inside]
    if not len(start):
        return {}
    reach = np.maximum.accumulate(end)
    opens = np.ones(len(start), bool)
    opens[1:] = start[1:] >= reach[:-1]
    group = np.cumsum(opens) - 1
    alone = (np.bincount(group) == 1)[group]
    exact = {
        code: Fraction(int(ns)) for code, ns in enumerate(exact_sums(bucket[alone], (end - start)[alone], len(names)))
    }
    shared = np.flatnonzero(~alone)
    if len(shared):
        for code, share in _shared_time(start[shared], end[shared], bucket[shared], len(names)).items():
            exact[code] += share
    return {names[code]: ns for code, ns in _round_largest_remainder(exact).items() if ns}


def _shared_time(start: Array, end: Array, bucket: Array, buckets: int) -> dict[int, Fraction]:
    """Per bucket: the sum over time of (its activities running) ÷ (all activities running)."""
    time = np.concatenate([start, end])
    order = np.argsort(time, kind="stable")
    times = time[order]
    running = np.cumsum(np.concatenate([np.ones(len(start), np.int64), -np.ones(len(end), np.int64)])[order])
    length = np.diff(times, append=times[-1])
    first, last = np.searchsorted(times, start, "left"), np.searchsorted(times, end, "left")
    shares: dict[int, Fraction] = {code: Fraction(0) for code in range(buckets)}
    for k in np.unique(running[length > 0]).tolist():
        if k == 0:
            continue
        until = np.zeros(len(times) + 1, np.int64)
        np.cumsum(np.where(running == k, length, 0), out=until[1:])
        for code, ns in enumerate(exact_sums(bucket, until[last] - until[first], buckets)):
            shares[code] += Fraction(int(ns), k)
    return shares


def _round_largest_remainder(exact: dict[int, Fraction]) -> dict[int, int]:
    """Integers with the same sum as the fractions, each at most one away from its own."""
    floors = {code: share.numerator // share.denominator for code, share in exact.items()}
    missing = int(sum(exact.values()) - sum(floors.values()))
    by_remainder = sorted(exact, key=lambda code: (floors[code] - exact[code], code))
    for code in by_remainder[:missing]:
        floors[code] += 1
    return floors


def _idle_rows(
    trace: Trace, work: GpuWork, gaps: Gaps, timeline_of: Callable[[int, int], HostTimeline]
) -> dict[str, int]:
    rows = dict.fromkeys(IDLE_ROWS, 0)
    if not len(gaps.start):
        return {}
    blamed = np.where(gaps.after >= 0, gaps.after, gaps.before)
    api_row = work.api_row[blamed].astype(np.int64) if len(work) else np.full(len(blamed), -1, np.int64)
    api_row[blamed < 0] = -1
    unknown = api_row < 0
    rows[HOST_UNKNOWN] = int((gaps.end - gaps.start)[unknown].sum())
    known = np.flatnonzero(~unknown)
    start, end, api_row = gaps.start[known], gaps.end[known], api_row[known]
    returned = trace.api["end_ns"].to_numpy()[api_row]
    # After the last activity there is no next call that could have returned: the thread's state decides throughout.
    is_last = gaps.after[known] < 0
    host_end = np.where(is_last, end, np.clip(returned, start, end))
    rows[LAUNCH_LATENCY] = int((end - host_end).sum())
    process, thread = trace.api["process"].to_numpy()[api_row], trace.api["thread"].to_numpy()[api_row]
    waiting = host_end > start
    callers = process.astype(np.int64) << 32 | thread
    for caller in np.sort(pd.unique(callers)).tolist():
        pid, tid = caller >> 32, caller & 0xFFFFFFFF
        mine = waiting & (callers == caller)
        for state, spent in timeline_of(pid, tid).spent(start[mine], host_end[mine]).items():
            rows[state] += spent
    return {row: ns for row, ns in rows.items() if ns}


def idle_until(gaps: Gaps) -> Callable[[Array], Array]:
    """A function of instants: idle nanoseconds of the window before each."""
    total = np.concatenate([[0], np.cumsum(gaps.end - gaps.start)])

    def until(instant: Array) -> Array:
        at = np.searchsorted(gaps.start, instant, "right") - 1
        safe = np.maximum(at, 0)
        if not len(gaps.start):
            return np.zeros(len(instant), np.int64)
        partial = np.minimum(instant, gaps.end[safe]) - gaps.start[safe]
        return np.where(at >= 0, total[safe] + partial, 0)

    return until
