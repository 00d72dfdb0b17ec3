"""Turn a hand-written recording into a `Trace`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.by_hand import Recording
from glqprof.traces.schema.trace import Trace, TraceInfo


def make_trace(recording: Recording, ranges: Sequence[tuple[int, int | None, str, int, int]] = ()) -> Trace:
    """``ranges``: (start, end, name, process, thread); without an end it is open and ends with the trace."""
    frames: dict[str, dict[str, Any]] = {}
    for frame, kind in (("kernels", "kernel"), ("copies", "copy"), ("memsets", "memset")):
        rows = [a for a in recording.activities if a.kind == kind]
        frames[frame] = {
            "start_ns": [a.start for a in rows],
            "end_ns": [a.end for a in rows],
            "device": [a.device for a in rows],
            "process": [a.process for a in rows],
            "stream": [a.stream for a in rows],
            "correlation_id": [a.correlation for a in rows],
            "name": pd.Categorical([f"a_{kind}" for _ in rows]),
        }
        if frame == "copies":
            kinds = ["Pageable" if a.pageable else "Device" for a in rows]
            frames[frame] |= {"src_kind": pd.Categorical(["Device"] * len(rows)), "dst_kind": pd.Categorical(kinds)}
    frames["api"] = {
        "start_ns": [c.start for c in recording.calls],
        "end_ns": [c.end for c in recording.calls],
        "process": [c.process for c in recording.calls],
        "thread": [c.thread for c in recording.calls],
        "correlation_id": [c.correlation for c in recording.calls],
        "name": pd.Categorical([c.name for c in recording.calls]),
    }
    for frame, rows in (("overheads", recording.overheads), ("os_calls", recording.os_calls)):
        frames[frame] = {
            "start_ns": [r.start for r in rows],
            "end_ns": [r.end for r in rows],
            "process": [r.process for r in rows],
            "thread": [r.thread for r in rows],
            "name": pd.Categorical(["row" for _ in rows]),
        }
    last = max([0, *(a.end for a in recording.activities), *(c.end for c in recording.calls), *(r[0] for r in ranges)])
    frames["ranges"] = {
        "start_ns": [r[0] for r in ranges],
        "end_ns": [last if r[1] is None else r[1] for r in ranges],
        "is_open": [r[1] is None for r in ranges],
        "name": pd.Categorical([r[2] for r in ranges]),
        "process": [r[3] for r in ranges],
        "thread": [r[4] for r in ranges],
    }
    return Trace.from_columns(TraceInfo("hand-made", "nsys", "0", "0"), frames)
