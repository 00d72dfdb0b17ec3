"""Read a Chrome trace as its format defines it, and hold it to what Perfetto drops or misplaces. Shares no code with
the package."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any


def to_ns(us: float) -> int:
    """Microseconds as nanoseconds, the way Perfetto reads them: cut off until 2025, rounded since; both must agree."""
    cut, rounded = int(us * 1000.0), math.floor(us * 1000.0 + 0.5)
    assert cut == rounded, us
    assert abs(Fraction(us) * 1000 - cut) < Fraction(1, 50)
    return cut


@dataclass
class TraceEvents:
    document: dict[str, Any]
    slices: list[dict[str, Any]] = field(default_factory=list)
    flows: dict[int, dict[str, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    counters: dict[tuple[int, str], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)

    def of(self, category: str) -> list[dict[str, Any]]:
        """Slices with this category among theirs."""
        return [s for s in self.slices if category in s["cat"].split(",")]


def read_trace_events(path: Path) -> TraceEvents:
    """Every event with ``start`` and ``end`` in whole ns; fails for one that the format does not allow."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    trace = TraceEvents(document)
    for event in document["traceEvents"]:
        kind = event["ph"]
        assert isinstance(event["pid"], int)
        assert 0 <= event["pid"] < 2**32
        if kind == "M":
            place = (event["pid"], event["tid"]) if "tid" in event else (event["pid"], 0)
            if event["name"] == "thread_name":
                assert place not in trace.threads, "a thread is named twice"
                trace.threads[place] = event["args"]["name"]
            elif event["name"] == "process_name":
                assert event["pid"] not in trace.processes, "a process is named twice"
                trace.processes[event["pid"]] = event["args"]["name"]
            continue
        start = to_ns(event["ts"])
        assert start >= 0
        if kind == "X":
            length = to_ns(event["dur"])
            assert isinstance(event["name"], str)
            trace.slices.append(event | {"start": start, "end": start + length})
        elif kind in "sf":
            assert kind not in trace.flows[event["id"]], "an id of a flow is used twice"
            trace.flows[event["id"]][kind] = event | {"start": start}
            assert kind == "s" or event["bp"] == "e"
        elif kind == "C":
            (value,) = event["args"].values()
            trace.counters[event["pid"], event["name"]].append((start, value))
        else:
            raise AssertionError(f"unexpected phase {kind}")
    _check(trace)
    return trace


def _check(trace: TraceEvents) -> None:
    tracks = defaultdict(list)
    for s in trace.slices:
        tracks[s["pid"], s["tid"]].append(s)
    assert set(tracks) <= set(trace.threads), "a track has no name"
    assert {pid for pid, _ in tracks} <= set(trace.processes)
    assert len({tid for _, tid in tracks}) == len(tracks), "one thread number stands in two processes"
    for slices in tracks.values():
        open_ends: list[int] = []
        before = (-1, 0)
        for s in sorted(slices, key=lambda s: s["start"]):  # stable, as the importer sorts
            while open_ends and open_ends[-1] <= s["start"]:
                open_ends.pop()
            assert not open_ends or s["end"] <= open_ends[-1], "Perfetto drops slices that overlap without nesting"
            assert (s["start"], -s["end"]) >= before, "of slices that start together the longer one must come first"
            before = (s["start"], -s["end"])
            open_ends.append(s["end"])
    for ends in trace.flows.values():
        assert set(ends) == {"s", "f"}, "a flow has one end"


def enclosing(trace: TraceEvents, event: dict[str, Any]) -> dict[str, Any] | None:
    """The innermost slice of the event's track around its instant; what a flow binds to."""
    found = None
    for s in trace.slices:
        if (s["pid"], s["tid"]) == (event["pid"], event["tid"]) and s["start"] <= event["start"] < s["end"]:
            found = s if found is None or s["start"] >= found["start"] else found
    return found
