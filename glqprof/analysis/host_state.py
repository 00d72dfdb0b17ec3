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
        starts, ends, states = [], [], []
        for frame, state in ((trace.api, None), (trace.overheads, _PROFILER)):
            if not len(frame):
                continue
            rows = _of_thread(frame["process"].to_numpy(), frame["thread"].to_numpy(), process, thread)
            starts.append(frame["start_ns"].to_numpy()[rows])
            ends.append(frame["end_ns"].to_numpy()[rows])
            kinds = calls.kind[rows] if state is None else np.full(len(ends[-1]), state, np.int8)
            states.append(kinds)
        if not starts:
            starts, ends, states = [np.zeros(0, np.int64)] * 1, [np.zeros(0, np.int64)], [np.zeros(0, np.int8)]
        one = len(starts) == 1
        start, end, kind = (x[0] if one else np.concatenate(x) for x in (starts, ends, states))
        nesting = nest(start, end)
        times = nesting.times
        state = np.where(nesting.owner >= 0, kind[nesting.owner], _CODE).astype(np.int8) if len(kind) else np.zeros(0, np.int8)
        if len(trace.os_calls):
            rows = _of_thread(
                trace.os_calls["process"].to_numpy(), trace.os_calls["thread"].to_numpy(), process, thread
            )
            waits = nest(trace.os_calls["start_ns"].to_numpy()[rows], trace.os_calls["end_ns"].to_numpy()[rows])
            times, state = _fill_waits(times, state, waits)
        self.times, self.state = times, state

    def spent(self, begin: Array, end: Array) -> dict[str, Array]:
        """Nanoseconds in each state over each span [begin, end): one int64 array per state that occurs."""
        if len(self.times) == 0:
            return {"host-code": end - begin}
        first = np.searchsorted(self.times, begin, "right") - 1
        last = np.searchsorted(self.times, end, "right") - 1
        length = np.diff(self.times, append=self.times[-1])
        rest = end - begin
        result: dict[str, Array] = {}
        for code in np.unique(self.state).tolist():
            if code == _CODE:
                continue
            mine = self.state == code
            total = np.zeros(len(self.times) + 1, np.int64)
            np.cumsum(np.where(mine, length, 0), out=total[1:])
            spent = self._until(end, last, mine, total) - self._until(begin, first, mine, total)
            result[STATES[code]] = spent
            rest = rest - spent
        result["host-code"] = rest  # nothing recorded: Python, the framework
        return result

    def _until(self, instant: Array, at: Array, mine: Array, total: Array) -> Array:
        safe = np.maximum(at, 0)
        inside = np.where(mine[safe], instant - self.times[safe], 0)
        return np.where(at >= 0, total[safe] + inside, 0)


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
