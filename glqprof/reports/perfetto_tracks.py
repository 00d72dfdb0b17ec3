"""Where each event of a Chrome trace stands: processes and threads, with names and an order."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from glqprof.reports.perfetto_events import Meta

Array = np.ndarray


class Tracks:
    """Numbers for tracks. Host processes and threads keep their own; GPUs and their streams get ones that nobody uses.

    A viewer shows the number beside the name, so they are small; Perfetto takes one thread number of two processes for
    one thread in places, so no number is given twice.
    """

    def __init__(self, taken: Iterable[int]) -> None:
        self._taken = set(taken)
        self._next = 1
        self.events: list[Meta] = []

    def free(self) -> int:
        """A number that no process or thread of the trace has."""
        while self._next in self._taken:
            self._next += 1
        self._taken.add(self._next)
        return self._next

    def process(self, pid: int, name: str, order: int) -> int:
        """Name a process; ``order`` sorts it in the viewer."""
        self.events.append(Meta("process_name", pid, {"name": name}))
        self.events.append(Meta("process_sort_index", pid, {"sort_index": order}))
        return pid

    def thread(self, pid: int, tid: int, name: str, order: int) -> int:
        """Name a thread of a process."""
        self.events.append(Meta("thread_name", pid, {"name": name}, tid))
        self.events.append(Meta("thread_sort_index", pid, {"sort_index": order}, tid))
        return tid


def microseconds(ns: Array) -> Array:
    """Nanoseconds (int64, below 2^45: nine hours) as microseconds whose thousandfold is the nanosecond again.

    A viewer multiplies by 1,000 and rounds, or, as older Perfettos did, cuts off, which loses a nanosecond where the
    nearest float64 lies below the decimal fraction. There the next float64 above is taken.
    """
    us = ns / 1000.0
    for _ in range(2):
        short = us * 1000.0 < ns
        if not short.any():
            break
        us = np.where(short, np.nextafter(us, np.inf), us)
    return us
