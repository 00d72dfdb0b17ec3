"""A trace made ready for questions: narrowed, joined, attributed, with its window and accounts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from glqprof.analysis.account import Account, close_account, find_gaps, idle_until
from glqprof.analysis.api_calls import ApiCalls
from glqprof.analysis.classify import Attribution, attribute
from glqprof.analysis.host_state import HostTimeline
from glqprof.analysis.ranges import RangeForest
from glqprof.analysis.window import Window, resolve_window
from glqprof.analysis.work import FRAMES, GpuWork, gather_work
from glqprof.errors import InputError
from glqprof.traces.schema.buckets import BucketRule
from glqprof.traces.schema.trace import Trace

Array = np.ndarray


@dataclass
class Prepared:
    """What every view is computed from. ``starts_inside`` marks the work that starts in the window."""

    trace: Trace
    work: GpuWork
    forest: RangeForest
    calls: ApiCalls
    window: Window
    attribution: Attribution
    starts_inside: Array
    devices: list[int]
    _timelines: dict[tuple[int, int], HostTimeline] = field(default_factory=dict)
    _idle: dict[int, Callable[[Array], Array]] = field(default_factory=dict)

    def timeline_of(self, process: int, thread: int) -> HostTimeline:
        """The states of a thread over time, made once."""
        key = (process, thread)
        if key not in self._timelines:
            self._timelines[key] = HostTimeline(self.trace, self.calls, process, thread)
        return self._timelines[key]

    def device_slice(self, device: int) -> slice:
        """Where the device's activities stand in ``work``, which is sorted by device."""
        first, last = np.searchsorted(self.work.device, [device, device + 1])
        return slice(int(first), int(last))

    def account(self, device: int, start_ns: int | None = None, end_ns: int | None = None) -> Account:
        """The closed account of one device over the window, or over a part of it."""
        rows = self.device_slice(device)
        return close_account(
            self.trace,
            self.work.take(rows),  # type: ignore[arg-type]
            self.attribution.bucket[rows],
            self.attribution.bucket_names,
            self.timeline_of,
            device,
            self.window.start_ns if start_ns is None else start_ns,
            self.window.end_ns if end_ns is None else end_ns,
        )

    def idle_until(self, process: int) -> Callable[[Array], Array]:
        """A function of instants: nanoseconds of the window before each in which all GPUs of a process were idle."""
        if process not in self._idle:
            own = self.work if (self.work.process == process).all() else self.work.take(self.work.process == process)
            if len(own) and own.device[0] != own.device[-1]:
                own = own.take(np.argsort(own.start, kind="stable"))
            self._idle[process] = idle_until(find_gaps(own, self.window.start_ns, self.window.end_ns))
        return self._idle[process]

    def name_of(self, index: int) -> str:
        """The name of one activity."""
        frame = getattr(self.trace, FRAMES[int(self.work.kind[index])])
        return str(frame["name"].iloc[int(self.work.row[index])])

    def name_codes(self) -> tuple[Array, list[str]]:
        """Per activity a code into a list of names over all kinds of work."""
        codes = np.zeros(len(self.work), np.int32)
        names: list[str] = []
        for kind, frame_name in enumerate(FRAMES):
            column = getattr(self.trace, frame_name)["name"].cat
            members = np.flatnonzero(self.work.kind == kind)
            codes[members] = column.codes.to_numpy()[self.work.row[members]] + len(names)
            names.extend(map(str, column.categories))
        return codes, names


def prepare(
    trace: Trace,
    rules: Sequence[BucketRule],
    window: str | None = None,
    device: int | None = None,
    process: int | None = None,
    stream: int | None = None,
) -> Prepared:
    """Narrow the trace to a device, process and stream, choose the window, join and attribute.

    Raises InputError when a selector matches nothing, naming what there is.
    """
    if process is not None:
        trace = _of_process(trace, process)
    work = gather_work(trace)
    calls = ApiCalls(trace, work)
    work = _narrow(work, device, stream)
    forest = RangeForest(trace)
    chosen = resolve_window(trace, work, window)
    attribution = attribute(trace, work, forest, rules, chosen.step_matches)
    inside = (work.start >= chosen.start_ns) & (work.start < chosen.end_ns)
    devices = np.unique(work.device).tolist()
    return Prepared(trace, work, forest, calls, chosen, attribution, inside, devices)


def _of_process(trace: Trace, process: int) -> Trace:
    have = trace.processes["process"].tolist()
    if process not in have:
        raise InputError(f"--process {process}", f"is not in the capture; it holds {_listed(have)}")
    names = ("kernels", "copies", "memsets", "graphs", "api", "ranges", "overheads", "os_calls", "graph_nodes")
    frames = {n: getattr(trace, n) for n in names}
    kept = {n: f[f["process"] == process].reset_index(drop=True) for n, f in frames.items()}
    return replace(trace, **kept)


def _narrow(work: GpuWork, device: int | None, stream: int | None) -> GpuWork:
    for option, wanted, values in (("--device", device, work.device), ("--stream", stream, work.stream)):
        if wanted is None:
            continue
        keep = getattr(work, option.removeprefix("--")) == wanted
        if not keep.any():
            raise InputError(f"{option} {wanted}", f"did no work in the capture; it holds {_listed(np.unique(values))}")
        work = work.take(keep)
    return work


def _listed(values: Sequence[int] | Array) -> str:
    return ", ".join(str(v) for v in list(values)[:12]) or "none"
