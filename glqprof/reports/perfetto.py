"""A breakdown's events as a Chrome trace that ui.perfetto.dev (and glqprof itself) opens.

Format: the Trace Event Format's JSON object, with Kineto's category names first in ``cat`` and glqprof's own after a
comma: ``kernel,matvec``, ``cuda_runtime,host-sync``. Times are microseconds from the first event, exact to the
nanosecond (`microseconds`). Perfetto drops slices of a track that overlap without nesting: such work gets tracks of its
own, and says in its arguments where it ran.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pandas as pd
from msgspec import UNSET

from glqprof.analysis.account import IDLE_ROWS, idle_until
from glqprof.analysis.api_calls import STATE_OF_CALL
from glqprof.analysis.breakdown import Breakdown
from glqprof.analysis.idle_spans import idle_spans
from glqprof.analysis.lanes import apart, nested, overlap_label
from glqprof.analysis.work import COPY, GRAPH, KERNEL, MEMSET
from glqprof.reports.output import write_atomically
from glqprof.reports.perfetto_events import Counter, Flow, GpuArgs, HostArgs, Slice
from glqprof.reports.perfetto_tracks import Tracks, microseconds

Array = np.ndarray
CHUNK = 20_000
BUSY_BINS = 4_000
Where = dict[str, Any]
"""Process and thread of an event, where its track has other numbers."""
GPU_CATEGORY = {KERNEL: "kernel", COPY: "gpu_memcpy", MEMSET: "gpu_memset", GRAPH: "gpu_graph"}
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Exported:
    """What was written: GPU work, API calls, ranges and flows."""

    gpu_work: int
    calls: int
    ranges: int
    flows: int


def export_perfetto(b: Breakdown, path: Path) -> Exported:
    """Write the events that overlap the breakdown's window, gzipped where ``path`` ends in ``.gz``.

    Also the calls that submitted its work, and of each GPU the first work after it, which explains the last idle time.
    Idle states and the busy counter are left out where the capture cannot tell idle from busy. Raises InputError when
    ``path`` cannot be written; it is then untouched.
    """
    events = _Events(b)

    def write(file: BinaryIO) -> None:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 4, file, mtime=0) as packed:
                _write(events, packed)
        else:
            _write(events, file)

    write_atomically(path, write)
    return Exported(len(events.work_rows), len(events.call_rows), events.range_count, events.flow_count)


def _write(events: _Events, file: Any) -> None:
    head = _encode(events.header())
    file.write(head[:-1] + b',"traceEvents":[\n')
    first = True
    for chunk in events.chunks():
        if chunk:
            file.write((b"" if first else b",\n") + b",\n".join(map(_encode, chunk)))
            first = False
    file.write(b"\n]}\n")


class _Events:
    """All events of one export, made chunk by chunk: a large capture's never stand in memory together."""

    def __init__(self, b: Breakdown) -> None:
        self.b, self.prepared, self.trace = b, b.prepared, b.trace
        window, work, api = b.window, b.prepared.work, b.trace.api
        inside = _overlaps(work.start, work.end, window.start_ns, window.end_ns)
        for device in b.prepared.devices:
            rows = b.prepared.device_slice(device)
            after = rows.start + int(np.searchsorted(work.start[rows], window.end_ns))
            if after < rows.stop:
                inside[after] = True
        self.work_rows = np.flatnonzero(inside)
        calls = _frame_overlaps(api, window.start_ns, window.end_ns)
        submitted = work.api_row[self.work_rows]
        calls[submitted[submitted >= 0]] = True
        self.call_rows = np.flatnonzero(calls)
        self.range_rows, self.overhead_rows, self.os_rows = (
            np.flatnonzero(_frame_overlaps(f, window.start_ns, window.end_ns))
            for f in (b.trace.ranges, b.trace.overheads, b.trace.os_calls)
        )
        self.range_count = len(self.range_rows)
        self.flow_count = 0
        starts = [work.start[self.work_rows], api["start_ns"].to_numpy()[self.call_rows]]
        starts += [b.trace.ranges["start_ns"].to_numpy()[self.range_rows]]
        self.zero_ns = int(min((s.min() for s in starts if len(s)), default=window.start_ns))
        self.zero_ns = min(self.zero_ns, window.start_ns)
        taken = [f[c].unique() for f in (api, b.trace.ranges, b.trace.os_calls, b.trace.overheads) for c in _WHO]
        self.tracks = Tracks(np.concatenate([*taken, [0]]).tolist())
        # Where each exported call stands: its process and the number of its track.
        self.call_track = np.full(len(api), -1, np.int64)
        self.pid_of: dict[int, int] = {}

    def header(self) -> dict[str, Any]:
        """The object's other keys: devices as Kineto writes them, and where the times begin."""
        devices = []
        for row in self.trace.devices.itertuples():
            major, _, minor = str(row.compute_capability).partition(".")
            entry = {"id": int(row.device), "name": str(row.name), "totalGlobalMem": int(row.memory_bytes)}
            entry |= {"numSms": int(row.sm_count)}
            if major.isdigit():
                entry |= {"computeMajor": int(major), "computeMinor": int(minor or 0)}
            devices.append(entry)
        info = self.trace.info
        header: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": devices}
        if info.vendor == "amd":
            header["hip_runtime_version"] = 1  # what a reader tells AMD traces by
        made_from = {"capture": self.b.name, "tool": info.tool, "tool_version": info.tool_version}
        header["glqprof"] = made_from | {"window": self.b.window.selector, "time_zero_ns": self.zero_ns}
        return header

    def chunks(self) -> Iterator[list[Any]]:
        """Host threads, GPU streams, idle states, counters, then flows: a flow binds to the slice that stands before
        it, and a slice to the longer one of the same start that does."""
        yield from self._host()
        yield from self._gpu()
        yield self.tracks.events

    def _times(self, start: Array, end: Array) -> Iterator[tuple[float, float]]:
        ts = microseconds(start - self.zero_ns).tolist()
        return zip(ts, microseconds(end - start).tolist(), strict=True)

    def _host(self) -> Iterator[list[Any]]:
        """Ranges, calls, the profiler's overheads and OS calls of each thread, on one track as far as they nest."""
        parts = []
        trace = self.trace
        for kind, (frame, rows) in enumerate(
            (
                (trace.ranges, self.range_rows),
                (trace.api, self.call_rows),
                (trace.overheads, self.overhead_rows),
                (trace.os_calls, self.os_rows),
            )
        ):
            columns = {c: frame[c].to_numpy()[rows] for c in ("process", "thread", "start_ns", "end_ns")}
            parts.append(pd.DataFrame(columns | {"kind": np.full(len(rows), kind, np.int8), "row": rows}))
        spans = pd.concat(parts, ignore_index=True)
        crosses = np.zeros(len(spans), bool)
        crosses[: len(self.range_rows)] = trace.ranges["crosses_threads"].to_numpy()[self.range_rows]
        describe = [
            self._range,
            self._call,
            self._other(trace.overheads, "overhead"),
            self._other(trace.os_calls, "os_runtime"),
        ]
        for order, process in enumerate(np.unique(spans["process"]).tolist(), 100):
            # 0 and below stand for what the profiler did not know; a viewer takes 0 for the idle task.
            self.pid_of[process] = process if process > 0 else self.tracks.free()
            self.tracks.process(self.pid_of[process], f"process {process}", order)
        given: set[int] = set()
        for number, ((process, thread), mine) in enumerate(spans.groupby(["process", "thread"], sort=True)):
            start, end = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
            lane, _ = nested(start, end)
            # A range that ends on another thread encloses no call of this one, wherever it would fit.
            lane = np.where(crosses[mine.index], lane + 1 + int(lane.max()), lane)
            by_time = np.lexsort((-end, start))
            for place, value in enumerate(np.unique(lane).tolist()):
                # Its first track keeps the thread's number, unless another process has a thread of that number.
                beside = place > 0 or bool(crosses[mine.index][lane == value].all())
                tid = self.tracks.free() if beside or thread <= 0 or thread in given else thread
                given.add(tid)
                pid = self.pid_of[process]
                self.tracks.thread(pid, tid, f"thread {thread}" + (" (beside)" if beside else ""), number)
                members = by_time[lane[by_time] == value]
                kinds, rows = mine["kind"].to_numpy()[members], mine["row"].to_numpy()[members]
                self.call_track[rows[kinds == 1]] = tid
                where = {"thread": thread} if tid != thread else {}
                where |= {"process": process} if pid != process else {}
                for at in range(0, len(members), CHUNK):
                    piece = slice(at, at + CHUNK)
                    times = self._times(start[members[piece]], end[members[piece]])
                    yield [
                        Slice(*describe[kind](row, where, pid, tid, ts, dur))
                        for kind, row, (ts, dur) in zip(kinds[piece].tolist(), rows[piece].tolist(), times, strict=True)
                    ]

    def _names(self, frame: pd.DataFrame) -> tuple[list[str], Array]:
        return [str(c) for c in frame["name"].cat.categories], frame["name"].cat.codes.to_numpy()

    def _other(self, frame: pd.DataFrame, category: str) -> Callable[..., tuple[Any, ...]]:
        names, codes = self._names(frame)

        def describe(row: int, where: Where, process: int, tid: int, ts: float, dur: float) -> tuple[Any, ...]:
            args = HostArgs(**where) if where else UNSET
            return names[codes[row]], category, process, tid, ts, dur, args

        return describe

    @property
    def _range(self) -> Callable[..., tuple[Any, ...]]:
        ranges = self.trace.ranges
        names, codes = self._names(ranges)
        is_open, crosses = ranges["is_open"].to_numpy(), ranges["crosses_threads"].to_numpy()

        def describe(row: int, where: Where, process: int, tid: int, ts: float, dur: float) -> tuple[Any, ...]:
            crossing = True if crosses[row] else UNSET
            args = HostArgs(crosses_threads=crossing, is_open=True if is_open[row] else UNSET, **where)
            plain = not where and not crosses[row] and not is_open[row]
            return names[codes[row]], "user_annotation", process, tid, ts, dur, UNSET if plain else args

        return describe

    @property
    def _call(self) -> Callable[..., tuple[Any, ...]]:
        api = self.trace.api
        names, codes = self._names(api)
        sources = ["cuda_driver" if n.startswith("cu") and not n.startswith("cuda") else "cuda_runtime" for n in names]
        states = self.prepared.calls.kind
        correlation, returned = api["correlation_id"].to_numpy(), api["return_value"].to_numpy()

        def describe(row: int, where: Where, process: int, tid: int, ts: float, dur: float) -> tuple[Any, ...]:
            code = codes[row]
            args = HostArgs(
                correlation=int(correlation[row]) if correlation[row] >= 0 else UNSET,
                return_value=int(returned[row]) if returned[row] else UNSET,
                **where,
            )
            return names[code], f"{sources[code]},{STATE_OF_CALL[states[row]]}", process, tid, ts, dur, args

        return describe

    def _gpu(self) -> Iterator[list[Any]]:
        flows: list[tuple[Array, int, int]] = []
        for order, device in enumerate(self.b.devices):
            name = f"GPU {device.device}" + (f": {device.name}" if device.name else "")
            pid = self.tracks.process(self.tracks.free(), name, order)
            if device.account is not None:
                yield from self._idle(pid, device.account)
            rows = self.work_rows[self.prepared.work.device[self.work_rows] == device.device]
            for number, (mine, context, stream) in enumerate(self._streams(rows)):
                lane = apart(self.prepared.work.start[mine], self.prepared.work.end[mine])
                for value in range(int(lane.max()) + 1):
                    title = f"stream {stream}" + (f" (context {context})" if context > 1 else "")
                    title += overlap_label(value)
                    tid = self.tracks.thread(pid, self.tracks.free(), title, 10 + number)
                    these = mine[lane == value]
                    for at in range(0, len(these), CHUNK):
                        yield self._work(these[at : at + CHUNK], pid, tid)
                    flows.append((these, pid, tid))
        for these, pid, tid in flows:
            for at in range(0, len(these), CHUNK):
                yield self._flows(these[at : at + CHUNK], pid, tid)

    def _streams(self, rows: Array) -> Iterator[tuple[Array, int, int]]:
        """The work of each (process, context, stream), in start order."""
        context = self._column("context", rows)
        keys = pd.DataFrame(
            {"process": self.prepared.work.process[rows], "context": context, "stream": self.prepared.work.stream[rows]}
        )
        for (_, number, stream), mine in keys.groupby(["process", "context", "stream"], sort=True):
            yield rows[mine.index.to_numpy()], int(number), int(stream)

    def _column(self, name: str, rows: Array, default: int = -1) -> Array:
        """A column of the activities' own frames, ``default`` where a frame lacks it."""
        found = np.full(len(rows), default, np.int64)
        work = self.prepared.work
        for kind, frame_name in enumerate(("kernels", "copies", "memsets", "graphs")):
            frame = getattr(self.trace, frame_name)
            mine = work.kind[rows] == kind
            if name in frame.columns and mine.any():
                found[mine] = frame[name].to_numpy()[work.row[rows[mine]]]
        return found

    def _work(self, rows: Array, pid: int, tid: int) -> list[Any]:
        work, attribution = self.prepared.work, self.prepared.attribution
        codes, names = self._all_names
        layer, step = (self._range_names(of[rows]) for of in (attribution.layer, attribution.step))
        source, target = (self._memory(rows, column) for column in ("src_kind", "dst_kind"))
        context, correlation, node, size = (
            self._column(c, rows).tolist() for c in ("context", "correlation_id", "graph_node_id", "bytes")
        )
        device, stream, process = (of[rows].tolist() for of in (work.device, work.stream, work.process))
        config = self._launch_config(rows)
        categories = [f"{GPU_CATEGORY[k]},{attribution.bucket_names[n]}" for k, n in zip(
            work.kind[rows].tolist(), attribution.bucket[rows].tolist(), strict=True)]  # fmt: skip
        found = []
        each = zip(
            codes[rows].tolist(), work.kind[rows].tolist(), self._times(work.start[rows], work.end[rows]), strict=True
        )
        for i, (code, kind, (ts, dur)) in enumerate(each):
            args = GpuArgs(
                device=device[i],
                context=context[i],
                stream=stream[i],
                correlation=correlation[i] if correlation[i] >= 0 else UNSET,
                bytes=size[i] if kind in (COPY, MEMSET) else UNSET,
                src_kind=source[i],
                dst_kind=target[i],
                graph_node=node[i] if node[i] >= 0 else UNSET,
                layer=layer[i],
                step=step[i],
                process=process[i],
            )
            if config is not None and kind == KERNEL:
                args.grid, args.block = config[i][0:3], config[i][3:6]
                args.registers, args.shared_memory = config[i][6], config[i][7] + config[i][8]
            found.append(Slice(names[code], categories[i], pid, tid, ts, dur, args))
        return found

    def _range_names(self, ranges: Array) -> list[Any]:
        """The names of ranges by index, UNSET for -1."""
        names, codes = self._names(self.trace.ranges)
        if not len(codes):
            return [UNSET] * len(ranges)
        return [names[c] if i >= 0 else UNSET for i, c in zip(ranges.tolist(), codes[ranges].tolist(), strict=True)]

    def _memory(self, rows: Array, column: str) -> list[Any]:
        """The kind of memory that copies read or wrote, UNSET for other work."""
        found: list[Any] = [UNSET] * len(rows)
        kinds = self.trace.copies[column]
        names, codes = [str(c) for c in kinds.cat.categories], kinds.cat.codes.to_numpy()
        for i in np.flatnonzero(self.prepared.work.kind[rows] == COPY).tolist():
            found[i] = names[codes[self.prepared.work.row[rows[i]]]]
        return found

    @property
    def _all_names(self) -> tuple[Array, list[str]]:
        if not hasattr(self, "_names_of_work"):
            self._names_of_work = self.prepared.name_codes()
        return self._names_of_work

    def _launch_config(self, rows: Array) -> list[list[int]] | None:
        from glqprof.traces.schema.trace import LAUNCH_CONFIG_COLUMNS

        if LAUNCH_CONFIG_COLUMNS[0] not in self.trace.kernels.columns:
            return None
        return np.stack([self._column(c, rows, 0) for c in LAUNCH_CONFIG_COLUMNS], axis=1).tolist()

    def _flows(self, rows: Array, pid: int, tid: int) -> list[Any]:
        work, api = self.prepared.work, self.trace.api
        known = rows[work.api_row[rows] >= 0]
        call = work.api_row[known]
        left = microseconds(api["start_ns"].to_numpy()[call] - self.zero_ns).tolist()
        right = microseconds(work.start[known] - self.zero_ns).tolist()
        processes, threads = api["process"].to_numpy()[call].tolist(), self.call_track[call].tolist()
        found = []
        for process, thread, start, end in zip(processes, threads, left, right, strict=True):
            self.flow_count += 1
            found.append(Flow("s", self.flow_count, self.pid_of[process], thread, start, name="launch", cat="launch"))
            found.append(Flow("f", self.flow_count, pid, tid, end, bp="e", name="launch", cat="launch"))
        return found

    def _idle(self, pid: int, account: Any) -> Iterator[list[Any]]:
        spans = idle_spans(self.prepared, account)
        tid = self.tracks.thread(pid, self.tracks.free(), "why it is idle", 0)
        for at in range(0, len(spans.start), CHUNK):
            piece = slice(at, at + CHUNK)
            times = self._times(spans.start[piece], spans.end[piece])
            states = spans.state[piece].tolist()
            yield [
                Slice(IDLE_ROWS[state], "gpu_idle", pid, tid, ts, dur)
                for state, (ts, dur) in zip(states, times, strict=True)
            ]
        window = self.b.window
        step = _bin_ns(window.wall_ns)
        edges = np.append(np.arange(window.start_ns, window.end_ns, step), window.end_ns)
        idle = np.diff(idle_until(account.gaps)(edges))
        share = 100 * (1 - idle / np.maximum(np.diff(edges), 1))
        ts = microseconds(edges - self.zero_ns).tolist()
        values = [*share.tolist(), 0.0]  # the last one ends the last bin
        yield [Counter("GPU busy", pid, t, {"%": value}) for t, value in zip(ts, values, strict=True)]


_WHO = ("process", "thread")


def _bin_ns(wall_ns: int) -> int:
    """The length of the busy counter's bins: 1, 2 or 5 times a power of ten, at most BUSY_BINS in the window."""
    least = max(wall_ns / BUSY_BINS, 1)
    power = 10 ** int(np.floor(np.log10(least)))
    return next(int(n * power) for n in (1, 2, 5, 10) if n * power >= least)


def _overlaps(start: Array, end: Array, low: int, high: int) -> Array:
    return (start < high) & ((end > low) | (start >= low))


def _frame_overlaps(frame: pd.DataFrame, low: int, high: int) -> Array:
    return _overlaps(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy(), low, high)
