"""What a thread was doing at each instant, and how long it was in each state over many spans."""

from __future__ import annotations

import numpy as np

from glqprof.analysis.api_calls import STATE_OF_CALL, ApiCalls
from glqprof.analysis.nesting import Nesting, nest
from glqprof.traces.schema.trace import Trace

Array = np.ndarray
STATES = (*STATE_OF_CALL, "profiler", "host-wait", "host-code")
_PROFILER, _WAIT, _CODE = 4, 5, 6


class HostTimeline:
    """The state of one thread over time.

    The innermost of the CUDA calls and the profiler's overhead rows decides; where there is none, an OS-runtime call
    makes it ``host-wait``, else it is ``host-code``. An OS call *inside* a CUDA call does not count: a synchronisation
    that sleeps in ``poll`` is still a synchronisation, however the driver waits.
    """

    def __init__(self, trace: Trace, calls: ApiCalls, process: int, thread: int) -> None:
        parts = []
        for frame, fixed in ((trace.api, None), (trace.overheads, _PROFILER)):
            rows = _of_thread(frame["process"].to_numpy(), frame["thread"].to_numpy(), process, thread)
            start, end = frame["start_ns"].to_numpy()[rows], frame["end_ns"].to_numpy()[rows]
            if len(start):
                kind = calls.kind[rows] if fixed is None else np.full(len(start), fixed, np.int8)
                parts.append((start, end, kind))
        if len(parts) == 1:  # a large capture holds millions of calls: no copy without need
            start, end, kind = parts[0]
        else:
            empty = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8))
            start, end, kind = (np.concatenate(columns) for columns in zip(*parts, empty, strict=True))
        nesting = nest(start, end)
        times = nesting.times
        state = kind[nesting.owner] if len(kind) else np.zeros(0, np.int8)
        state[nesting.owner < 0] = _CODE
        if len(trace.os_calls):
            rows = _of_thread(
                trace.os_calls["process"].to_numpy(), trace.os_calls["thread"].to_numpy(), process, thread
            )
            waits = nest(trace.os_calls["start_ns"].to_numpy()[rows], trace.os_calls["end_ns"].to_numpy()[rows])
            times, state = _fill_waits(times, state, waits)
        self.times, self.state = times, state

    def spent(self, begin: Array, end: Array) -> dict[str, int]:
        """Nanoseconds in each state, summed over the spans [begin, end); only states that occur, host-code always."""
        total = int((end - begin).sum())
        if len(self.times) == 0 or len(begin) == 0:
            return {"host-code": total}
        first = np.searchsorted(self.times, begin, "right") - 1
        last = np.searchsorted(self.times, end, "right") - 1
        # How many spans run through the start of each segment, from which they cover it whole; what lies before a
        # span's begin and after its end in its own two segments is mended below.
        covered = np.zeros(len(self.times) + 1, np.int32)
        np.add.at(covered, first + 1, 1)
        np.subtract.at(covered, last + 1, 1)
        np.cumsum(covered, out=covered)
        whole = np.flatnonzero(covered[1:-1])
        length = (self.times[whole + 1] - self.times[whole]) * covered[1 + whole]
        ns = exact_sums(self.state[whole], length, len(STATES))
        for at, instant, sign in ((last, end, 1), (first, begin, -1)):
            inside = at >= 0
            at = at[inside]
            ns += sign * exact_sums(self.state[at], instant[inside] - self.times[at], len(STATES))
        result = {STATES[code]: int(ns[code]) for code in range(_CODE) if ns[code]}
        result["host-code"] = total - sum(result.values())  # nothing recorded: Python, the framework
        return result


def exact_sums(key: Array, values: Array, count: int) -> Array:
    """Integer sums of non-negative values per key: float64 weights round above 2^53, so two halves are summed apart."""
    low = np.bincount(key, weights=(values & 0xFFFFF).astype(np.float64), minlength=count)
    high = np.bincount(key, weights=(values >> 20).astype(np.float64), minlength=count)
    return low.astype(np.int64) + (high.astype(np.int64) << 20)


def _of_thread(process: Array, thread: Array, wanted_process: int, wanted_thread: int) -> Array | slice:
    mask = (process == wanted_process) & (thread == wanted_thread)
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _fill_waits(times: Array, state: Array, waits: Nesting) -> tuple[Array, Array]:
    """Turn host-code into host-wait wherever an OS call was open."""
    if len(waits.times) == 0:
        return times, state
    merged = np.unique(np.concatenate([times, waits.times]))
    at = np.searchsorted(times, merged, "right") - 1
    base = np.where(at >= 0, state[np.maximum(at, 0)], _CODE) if len(times) else np.full(len(merged), _CODE)
    waiting = (base == _CODE) & (waits.at(merged) >= 0)
    return merged, np.where(waiting, _WAIT, base).astype(np.int8)
