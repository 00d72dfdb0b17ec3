"""GPU work of every kind in one table, joined to the API calls that submitted it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from glqprof.traces.schema.trace import Trace

Array = np.ndarray
KERNEL, COPY, MEMSET, GRAPH = range(4)
FRAMES = ("kernels", "copies", "memsets", "graphs")


@dataclass(frozen=True)
class GpuWork:
    """Activities sorted by (device, start, stream, correlation id, process), as arrays of one length.

    ``kind``: KERNEL, COPY, MEMSET or GRAPH; ``row``: the activity's row in its frame; ``api_row``: the row of
    ``trace.api`` that submitted it, -1 where the capture holds none.
    """

    start: Array
    end: Array
    device: Array
    process: Array
    stream: Array
    kind: Array
    row: Array
    api_row: Array

    def __len__(self) -> int:
        return len(self.start)

    def take(self, keep: Array) -> GpuWork:
        """The activities that a mask or an index array selects."""
        return GpuWork(*(getattr(self, f)[keep] for f in self.__dataclass_fields__))


def gather_work(trace: Trace) -> GpuWork:
    """Collect kernels, copies, memsets and timed opaque graphs, and find the API call of each."""
    find = ApiIndex(trace.api)
    parts = []
    for kind, name in enumerate(FRAMES):
        frame: pd.DataFrame = getattr(trace, name)
        if not len(frame):
            continue
        start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
        row = np.arange(len(frame), dtype=np.int32)
        if kind == GRAPH:  # both times 0: the launch was recorded, its time was not
            row = row[(start != 0) | (end != 0)]
        process = frame["process"].to_numpy()[row]
        parts.append(
            (
                start[row],
                np.maximum(end[row], start[row]),
                frame["device"].to_numpy()[row],
                process,
                frame["stream"].to_numpy()[row],
                np.full(len(row), kind, np.int8),
                row,
                find(process, frame["correlation_id"].to_numpy()[row]),
                frame["correlation_id"].to_numpy()[row],
            )
        )
    if not parts:
        empty = np.zeros(0, np.int64)
        return GpuWork(empty, empty, empty, empty, empty, empty, empty, empty)
    columns = [np.concatenate(arrays) if len(parts) > 1 else arrays[0] for arrays in zip(*parts, strict=True)]
    parts.clear()
    correlation = columns.pop()
    order = _order(device=columns[2], start=columns[0], stream=columns[4], process=columns[3], correlation=correlation)
    return GpuWork(*(column[order] for column in columns))


def _order(device: Array, start: Array, stream: Array, process: Array, correlation: Array) -> Array:
    """Indices by (device, start, stream, correlation id, process): streams and ids repeat across processes.

    The same as one lexsort over five keys, but tables come nearly sorted by start and ties are few: a stable sort by
    start, then only what ties with its neighbour is sorted by the other keys.
    """
    order = np.argsort(start, kind="stable").astype(np.int32)
    if not _all_equal(device):
        order = order[np.argsort(device[order], kind="stable")]
    same = (start[order[1:]] == start[order[:-1]]) & (device[order[1:]] == device[order[:-1]])
    if same.any():
        tied = np.zeros(len(order), bool)
        tied[1:] |= same
        tied[:-1] |= same
        members = order[tied]
        keys = (process[members], correlation[members], stream[members], start[members], device[members])
        order[tied] = members[np.lexsort(keys)]
    return order


class ApiIndex:
    """From (process, correlation id) to the row of the API frame: ids repeat across processes.

    Where several calls of a process carry one id (a runtime call and the driver call inside it), the first counts: it
    is the outer one, and the work is on its way when that one returns.
    """

    def __init__(self, api: pd.DataFrame) -> None:
        self._tables: dict[int, tuple[int, Array] | tuple[Array, Array]] = {}
        process, correlation = api["process"].to_numpy(), api["correlation_id"].to_numpy()
        for pid in _distinct(process):
            rows = np.arange(len(process), dtype=np.int32) if _all_equal(process) else np.flatnonzero(process == pid)
            rows = rows[correlation[rows] >= 0]
            ids = correlation[rows]
            if not len(ids):
                continue
            low, high = int(ids.min()), int(ids.max())
            if high - low < 8 * len(ids) + 1_000_000:
                table = np.full(high - low + 1, -1, np.int32)
                table[ids[::-1] - low] = rows[::-1]
                self._tables[pid] = (low, table)
            else:
                order = np.argsort(ids, kind="stable")
                self._tables[pid] = (ids[order], rows[order])

    def __call__(self, process: Array, correlation: Array) -> Array:
        """Rows of the API frame, int32, -1 where there is none."""
        found = np.full(len(correlation), -1, np.int32)
        for pid in _distinct(process):
            if pid not in self._tables:
                continue
            mask: Array | slice = slice(None) if _all_equal(process) else process == pid
            ids = correlation[mask]
            key, table = self._tables[pid]
            if isinstance(key, int):
                inside = (ids >= key) & (ids < key + len(table))
                found[mask] = np.where(inside, table[np.where(inside, ids - key, 0)], -1)
            else:
                at = np.minimum(np.searchsorted(key, ids), len(key) - 1)
                found[mask] = np.where(key[at] == ids, table[at], -1)
        return found


def _all_equal(values: Array) -> bool:
    return len(values) > 0 and bool((values == values[0]).all())


def _distinct(values: Array) -> list[int]:
    return [int(values[0])] if _all_equal(values) else np.unique(values).tolist()
