"""One token as lanes of events, for the timeline of the HTML report: small numbers that JavaScript draws."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from glqprof.analysis.account import IDLE_ROWS
from glqprof.analysis.api_calls import STATE_OF_CALL
from glqprof.analysis.breakdown import Breakdown
from glqprof.analysis.idle_spans import idle_spans
from glqprof.analysis.lanes import apart, nested, overlap_label
from glqprof.reports.document import printable
from glqprof.reports.kernel_names import short_kernel_name
from glqprof.reports.report_colours import Palette

Array = np.ndarray
# A token of more events than this is cut, and says so: a page must stay a few megabytes.
MAX_EVENTS = 60_000
MAX_THREADS = 4
MAX_DEPTH = 8
MAX_LANES = 6
Describe = Callable[[int], tuple[str, int, str]]


def timelines(b: Breakdown, palette: Palette) -> list[dict[str, Any]]:
    """The slowest and the median step of the window, or the window itself where it has none.

    Each: ``label``, ``wall`` (ns), ``names`` ([text, colour, kind] …) and ``lanes``: label, kind (idle, gpu, range,
    call) and, per event in start order, ``t`` (ns since the event before it started; the first since the step's start),
    ``d`` (ns) and ``n`` (index into names). Events of a lane do not overlap.
    """
    steps = b.window.steps
    if not len(steps):
        return [_timeline(b, palette, f"window {b.window.selector}", b.window.start_ns, b.window.end_ns)]
    wall = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    order = np.argsort(wall, kind="stable")
    chosen = {"median": int(order[(len(order) - 1) // 2]), "slowest": int(np.argmax(wall))}
    if len(steps) == 1:
        chosen = {"only step": 0}
    found = []
    for word, i in chosen.items():
        row = steps.iloc[i]
        label = f"{printable(str(row['name']))} ({word}, {wall[i] / 1e6:,.2f} ms)"
        found.append(_timeline(b, palette, label, int(row["start_ns"]), int(row["end_ns"])))
    return found


def _timeline(b: Breakdown, palette: Palette, label: str, start_ns: int, end_ns: int) -> dict[str, Any]:
    shown_end = _within_limit(b, start_ns, end_ns)
    if shown_end < end_ns:
        label += f": its first {(shown_end - start_ns) / 1e6:,.2f} ms, {MAX_EVENTS:,} events"
    lanes = _Lanes(start_ns, shown_end)
    _gpu_lanes(b, palette, lanes)
    hidden = _host_lanes(b, palette, lanes)
    return {
        "label": label,
        "wall": shown_end - start_ns,
        "names": lanes.names,
        "lanes": lanes.lanes,
        "note": f"{hidden} more host threads are not shown" if hidden else "",
    }


def _within_limit(b: Breakdown, start_ns: int, end_ns: int) -> int:
    """The end of the longest stretch from the start that holds no more than MAX_EVENTS."""
    work, api, ranges = b.prepared.work, b.trace.api, b.trace.ranges
    starts = np.concatenate([work.start, api["start_ns"].to_numpy(), ranges["start_ns"].to_numpy()])
    starts = starts[(starts >= start_ns) & (starts < end_ns)]
    if len(starts) <= MAX_EVENTS:
        return end_ns
    return max(int(np.partition(starts, MAX_EVENTS)[MAX_EVENTS]), start_ns + 1)


class _Lanes:
    """Lanes and the names that their events share."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns, self.end_ns = start_ns, end_ns
        self.names: list[tuple[str, int, str]] = []
        self.lanes: list[dict[str, Any]] = []
        self._index: dict[tuple[str, int, str], int] = {}

    def inside(self, start: Array, end: Array) -> Array:
        """Mask of what overlaps the shown span."""
        return (end > self.start_ns) & (start < self.end_ns)

    def add(self, label: str, kind: str, start: Array, end: Array, key: Array, describe: Describe) -> None:
        """Add one lane; ``key``: per event an integer that ``describe`` turns into its name, colour and kind."""
        order = np.argsort(start, kind="stable")
        start, end, key = start[order], end[order], key[order]
        codes, distinct = pd.factorize(key)
        numbers = np.array([self._name(describe(int(k))) for k in distinct], np.int64)
        self.lanes.append(
            {
                "label": printable(label),
                "kind": kind,
                "t": np.diff(start, prepend=self.start_ns).tolist(),
                "d": (end - start).tolist(),
                "n": numbers[codes].tolist() if len(codes) else [],
            }
        )

    def _name(self, entry: tuple[str, int, str]) -> int:
        entry = (printable(entry[0])[:200], entry[1], printable(entry[2]))
        if entry not in self._index:
            self._index[entry] = len(self.names)
            self.names.append(entry)
        return self._index[entry]


def _gpu_lanes(b: Breakdown, palette: Palette, lanes: _Lanes) -> None:
    prepared = b.prepared
    codes, names = prepared.name_codes()
    buckets = prepared.attribution.bucket_names

    def describe(key: int) -> tuple[str, int, str]:
        code, bucket = divmod(key, len(buckets))
        return short_kernel_name(names[code]), palette.row(buckets[bucket]), buckets[bucket]

    for device in b.devices:
        if device.account is not None:
            spans = idle_spans(prepared, prepared.account(device.device, lanes.start_ns, lanes.end_ns))
            where = f"GPU {device.device}: why it is idle"
            lanes.add(where, "idle", spans.start, spans.end, spans.state, lambda i: _idle(i, palette))
        rows = np.arange(len(prepared.work))[prepared.device_slice(device.device)]
        work = prepared.work
        rows = rows[lanes.inside(work.start[rows], work.end[rows])]
        for stream in np.unique(work.stream[rows]).tolist():
            mine = rows[work.stream[rows] == stream]
            lane = apart(work.start[mine], work.end[mine])
            for number in range(min(int(lane.max()) + 1, MAX_LANES)):
                these = mine[lane == number]
                label = f"GPU {device.device} stream {stream}{overlap_label(number)}"
                key = codes[these].astype(np.int64) * len(buckets) + prepared.attribution.bucket[these]
                lanes.add(label, "gpu", work.start[these], work.end[these], key, describe)


def _idle(state: int, palette: Palette) -> tuple[str, int, str]:
    return IDLE_ROWS[state], palette.row(IDLE_ROWS[state]), "GPU idle"


def _host_lanes(b: Breakdown, palette: Palette, lanes: _Lanes) -> int:
    """Ranges and calls of the threads that make most calls; returns how many threads are left out."""
    api, ranges = b.trace.api, b.trace.ranges
    calls = api[lanes.inside(api["start_ns"].to_numpy(), api["end_ns"].to_numpy())]
    marks = ranges[lanes.inside(ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy())]
    counts = calls.groupby(["process", "thread"]).size()
    counts = counts.add(marks.groupby(["process", "thread"]).size(), fill_value=0)
    threads = [(int(p), int(t)) for p, t in counts.sort_values(ascending=False, kind="stable").index]
    several = len({process for process, _ in threads}) > 1
    for process, thread in threads[:MAX_THREADS]:
        title = f"process {process} thread {thread}" if several else f"host thread {thread}"
        _range_lanes(_of(marks, process, thread), title, palette, lanes)
        _call_lanes(b, _of(calls, process, thread), title, palette, lanes)
    return max(len(threads) - MAX_THREADS, 0)


def _of(frame: pd.DataFrame, process: int, thread: int) -> pd.DataFrame:
    return frame[(frame["process"] == process) & (frame["thread"] == thread)]


def _range_lanes(marks: pd.DataFrame, title: str, palette: Palette, lanes: _Lanes) -> None:
    names = [str(c) for c in marks["name"].cat.categories]

    def describe(code: int) -> tuple[str, int, str]:
        return names[code], palette.range(_kind_of_range(names[code])), "NVTX range"

    for start, end, rows, label in _rows_by_depth(marks, title, "NVTX"):
        lanes.add(label, "range", start, end, marks["name"].cat.codes.to_numpy()[rows], describe)


def _kind_of_range(name: str) -> str:
    """Steps, layers of a kind and the like share a colour: decode_token_3 and decode_token_4, layer_02_M."""
    return re.sub(r"\d+", "", name)


def _call_lanes(b: Breakdown, calls: pd.DataFrame, title: str, palette: Palette, lanes: _Lanes) -> None:
    names = [str(c) for c in calls["name"].cat.categories]
    kinds = b.prepared.calls.kind[calls.index.to_numpy()]
    states: Sequence[str] = STATE_OF_CALL

    def describe(key: int) -> tuple[str, int, str]:
        code, kind = divmod(key, len(states))
        return names[code], palette.call(states[kind]), states[kind]

    for start, end, rows, label in _rows_by_depth(calls, title, "CUDA calls"):
        key = calls["name"].cat.codes.to_numpy()[rows].astype(np.int64) * len(states) + kinds[rows]
        lanes.add(label, "call", start, end, key, describe)


def _rows_by_depth(frame: pd.DataFrame, title: str, what: str) -> list[tuple[Array, Array, Array, str]]:
    """Spans of a thread split so that none of a lane overlap: by lane and depth, outermost first."""
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    if not len(start):
        return []
    lane, depth = nested(start, end)
    found = []
    for number, level in sorted(set(zip(lane.tolist(), depth.tolist(), strict=True)))[:MAX_DEPTH]:
        rows = np.flatnonzero((lane == number) & (depth == level))
        label = f"{title}: {what}" + (f", level {level + 1}" if level else "")
        found.append((start[rows], end[rows], rows, label))
    return found
