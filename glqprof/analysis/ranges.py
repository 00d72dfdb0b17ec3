"""NVTX ranges as a forest per thread, and the range that a call was made in."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

import numpy as np
import pandas as pd

from glqprof.analysis.nesting import Nesting, nest
from glqprof.traces.schema.trace import Trace

Array = np.ndarray


class RangeForest:
    """The ranges of a trace, nested per (process, thread).

    ``parent[i]``: the enclosing range of range i, -1 for none. Ranges that end on another thread than they began on
    enclose no call: they serve only to select windows and steps.
    """

    def __init__(self, trace: Trace) -> None:
        ranges = trace.ranges
        self.name = ranges["name"]
        self.start, self.end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
        self.parent = np.full(len(ranges), -1, np.int32)
        self._threads: dict[tuple[int, int], tuple[Array, Nesting]] = {}
        key = _thread_key(ranges["process"].to_numpy(), ranges["thread"].to_numpy())
        local = ~ranges["crosses_threads"].to_numpy()
        for thread in np.unique(key[local]).tolist():
            rows = np.flatnonzero(local & (key == thread)).astype(np.int32)
            nesting = nest(self.start[rows], self.end[rows])
            self.parent[rows] = np.where(nesting.parent >= 0, rows[nesting.parent], -1)
            self._threads[thread] = (rows, nesting)
        self._levels = self._by_depth()

    def _by_depth(self) -> list[Array]:
        """Range indices level by level, roots first."""
        levels = []
        pending = np.arange(len(self.parent))
        placed = np.zeros(len(self.parent), bool)
        while len(pending):
            ready = (self.parent[pending] < 0) | placed[self.parent[pending]]
            level = pending[ready]
            if not len(level):
                break
            levels.append(level)
            placed[level] = True
            pending = pending[~ready]
        return levels

    def enclosing(self, process: Array, thread: Array, start: Array, end: Array) -> Array:
        """The innermost range on the same thread that encloses each call [start, end]; -1 where none does."""
        found = np.full(len(start), -1, np.int32)
        key = _thread_key(process, thread)
        numbers = pd.unique(key).tolist()
        for number in numbers:
            if number not in self._threads:
                continue
            rows, nesting = self._threads[number]
            calls = slice(None) if len(numbers) == 1 else np.flatnonzero(key == number)
            local = nesting.at(start[calls])
            found[calls] = np.where(local >= 0, rows[local], -1)
        while True:  # the innermost open range may end before the call does
            short = np.flatnonzero((found >= 0) & (self.end[found] < end))
            if not len(short):
                return found
            found[short] = self.parent[found[short]]

    def nearest(self, matches: Callable[[str], bool]) -> Array:
        """Per range: itself or its nearest ancestor whose name matches, -1 for none."""
        own = self.matching(matches)
        value = np.where(own, np.arange(len(own), dtype=np.int32), -1)
        for level in self._levels[1:]:
            inherit = level[value[level] < 0]
            value[inherit] = value[self.parent[inherit]]
        return value

    def matching(self, matches: Callable[[str], bool]) -> Array:
        """Mask of the ranges whose own name matches."""
        categories = np.array([matches(str(c)) for c in self.name.cat.categories], bool)
        codes = self.name.cat.codes.to_numpy()
        return categories[codes] if len(categories) else np.zeros(len(codes), bool)

    def path(self, index: int) -> str:
        """The whole path of a range, outermost first, joined by " > "."""
        names: list[str] = []
        while index >= 0:
            names.append(str(self.name.iloc[index]))
            index = int(self.parent[index])
        return " > ".join(reversed(names))


def glob_matcher(pattern: str) -> Callable[[str], bool]:
    """Case-sensitive shell glob over a whole range name."""
    return lambda name: fnmatch.fnmatchcase(name, pattern)


def _thread_key(process: Array, thread: Array) -> Array:
    return process.astype(np.int64) << 32 | thread.astype(np.int64) & 0xFFFFFFFF
