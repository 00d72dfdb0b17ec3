"""Read a Chrome trace that torch.profiler (Kineto) exported into a `Trace`.

``ts`` and ``dur`` are microseconds whatever ``displayTimeUnit`` says. Host calls come from cuda_runtime and cuda_driver
events, ranges from user annotations (``record_function``). Of a trace of an AMD GPU only kernels and copies are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from glqprof.errors import InputError
from glqprof.traces.schema.trace import Trace, TraceInfo, api_base_name

# Kineto's category names, and those of its first releases.
CATEGORIES = {
    "kernel": "kernels",
    "gpu_memcpy": "copies",
    "memcpy": "copies",
    "gpu_memset": "memsets",
    "memset": "memsets",
    "cuda_runtime": "api",
    "cuda_driver": "api",
    "runtime": "api",
    "user_annotation": "ranges",
    "overhead": "overheads",
    # What `glqprof export` writes besides.
    "gpu_graph": "graphs",
    "os_runtime": "os_calls",
}
GPU_FRAMES = ("kernels", "copies", "memsets", "graphs")
_COPY = re.compile(r"^Memcpy (\w+)(?: \((\w[\w ]*?) -> (\w[\w ]*?)\))?")


class _Args(msgspec.Struct):
    """The arguments that are read; profilers write some of them as numbers and as strings."""

    device: Any = None
    context: Any = None
    stream: Any = None
    correlation: Any = None
    bytes: Any = None
    grid: Any = None
    block: Any = None
    graph_node: Any = msgspec.field(default=None, name="graph node id")
    registers: Any = msgspec.field(default=None, name="registers per thread")
    shared_memory: Any = msgspec.field(default=None, name="shared memory")
    # Kineto names the kinds of memory in a copy's name, `glqprof export` here.
    src_kind: Any = msgspec.field(default=None, name="src kind")
    dst_kind: Any = msgspec.field(default=None, name="dst kind")
    # Where an event ran, when its pid or tid is that of a track; written by `glqprof export`.
    process: Any = msgspec.field(default=None, name="glqprof process")
    thread: Any = msgspec.field(default=None, name="glqprof thread")
    crosses_threads: Any = msgspec.field(default=None, name="crosses threads")
    is_open: Any = msgspec.field(default=None, name="never closed")


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str | None = None
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: _Args | None = None


class _Gpu(msgspec.Struct):
    id: int = 0
    name: str = ""
    totalGlobalMem: int = 0
    numSms: int = 0
    computeMajor: int | None = None
    computeMinor: int | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Event]
    deviceProperties: list[_Gpu] = []
    hip_runtime_version: Any = None
    roctracer_version: Any = None
    schemaVersion: Any = None


def read_chrome_trace(path: Path, *, shown_as: Path | None = None) -> Trace:
    """Read a Chrome trace (a JSON object with ``traceEvents``, or a bare list of events).

    Raises InputError when the file is cut, no JSON, or holds no trace events.
    """
    shown_as = shown_as or path
    document = _decode(path.read_bytes(), shown_as)
    chosen: dict[str, list[_Event]] = {frame: [] for frame in set(CATEGORIES.values())}
    for event in document.traceEvents:
        if event.ph == "X" and event.cat is not None and event.ts is not None:
            frame = CATEGORIES.get(event.cat.lower().partition(",")[0])  # cat may list several, the kind first
            if frame is not None:
                chosen[frame].append(event)
    chosen, duplicates = _without_duplicates(chosen)
    is_amd = bool(document.hip_runtime_version or document.roctracer_version) or any(
        str(e.name).startswith("hip") for e in chosen["api"][:1000]
    )
    if is_amd:
        for frame in ("api", "ranges", "overheads", "os_calls"):
            chosen[frame] = []
    host_pid = _main_process(chosen["api"] or chosen["ranges"])
    frames: dict[str, dict[str, Any]] = {f: _gpu_columns(chosen[f], host_pid) for f in GPU_FRAMES}
    frames["kernels"] |= _launch_config(chosen["kernels"])
    frames["copies"] |= _copy_kinds(chosen["copies"])
    frames["api"] = _host_columns(chosen["api"], api_base_name)
    frames["api"]["correlation_id"] = [_integer(_args(e).correlation) for e in chosen["api"]]
    frames["ranges"] = _host_columns(chosen["ranges"])
    for flag in ("crosses_threads", "is_open"):
        frames["ranges"][flag] = [getattr(_args(e), flag) is True for e in chosen["ranges"]]
    frames["overheads"] = _host_columns(chosen["overheads"])
    frames["os_calls"] = _host_columns(chosen["os_calls"])
    frames["devices"] = _devices(document.deviceProperties)
    recorded = {kind for kind in ("api", "ranges", "os_calls") if chosen[kind]}
    info = TraceInfo(
        name=shown_as.name.removesuffix(".gz").removesuffix(".json"),
        tool="torch",
        tool_version="",
        schema_version=str(document.schemaVersion or ""),
        recorded=frozenset(recorded),
        vendor="amd" if is_amd else "nvidia",
    )
    warnings = [f"{duplicates} events stood in the trace twice; counted once"] if duplicates else []
    return Trace.from_columns(info, frames, warnings)


def _decode(raw: bytes, shown_as: Path) -> _File:
    try:
        if raw.lstrip()[:1] == b"[":
            return _File(traceEvents=msgspec.json.decode(raw, type=list[_Event], strict=False))
        return msgspec.json.decode(raw, type=_File, strict=False)
    except msgspec.ValidationError as error:
        if "traceEvents" in str(error) and "missing" in str(error):
            raise InputError(
                shown_as, "is JSON but no Chrome trace (no traceEvents); give a trace or capture"
            ) from None
        raise InputError(shown_as, f"is no Chrome trace that can be read ({error}); export it again") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(shown_as, f"is cut short or no JSON ({error}); copy or export it again") from None


def _without_duplicates(chosen: dict[str, list[_Event]]) -> tuple[dict[str, list[_Event]], int]:
    """Drop events that repeat another in every field that is read."""
    kept: dict[str, list[_Event]] = {}
    dropped = 0
    for frame, events in chosen.items():
        unique = {
            (e.name, e.pid, e.tid, e.ts, e.dur, _args(e).correlation, _args(e).graph_node): e for e in reversed(events)
        }
        kept[frame] = list(reversed(unique.values()))
        dropped += len(events) - len(unique)
    return kept, dropped


def _args(event: _Event) -> _Args:
    return event.args if event.args is not None else _NO_ARGS


_NO_ARGS = _Args()


def _integer(value: Any, default: int = -1) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return default


def _times(events: Sequence[_Event]) -> dict[str, np.ndarray]:
    # Whole microseconds and their fraction apart: ts is about 1e12, where float64 × 1000 would lose the nanosecond.
    start = np.array([float(e.ts) for e in events])
    length = np.array([float(e.dur or 0) for e in events])
    start_ns = np.floor(start).astype(np.int64) * 1000 + np.rint((start - np.floor(start)) * 1000).astype(np.int64)
    return {"start_ns": start_ns, "end_ns": start_ns + np.rint(length * 1000).astype(np.int64)}


def _main_process(events: Sequence[_Event]) -> int:
    """The process that made most calls: GPU events name their device, not their process."""
    pids = pd.Series([_integer(e.pid) for e in events])
    return int(pids.mode().iloc[0]) if len(pids) else -1


def _gpu_columns(events: Sequence[_Event], host_pid: int) -> dict[str, Any]:
    columns: dict[str, Any] = dict(_times(events))
    columns["device"] = [_integer(_args(e).device, _integer(e.pid, 0)) for e in events]
    columns["process"] = [_integer(_args(e).process, host_pid) for e in events]
    columns["context"] = [_integer(_args(e).context) for e in events]
    columns["stream"] = [_integer(_args(e).stream, _integer(e.tid)) for e in events]
    columns["correlation_id"] = [_integer(_args(e).correlation) for e in events]
    columns["name"] = pd.Categorical(pd.Series([str(e.name) for e in events], dtype=object))
    return columns


def _launch_config(events: Sequence[_Event]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "graph_node_id": [_integer(_args(e).graph_node) or -1 for e in events],
        "registers": [_integer(_args(e).registers, 0) for e in events],
        "static_smem_bytes": [_integer(_args(e).shared_memory, 0) for e in events],
        "dynamic_smem_bytes": np.zeros(len(events), np.int32),
    }
    for kind in ("grid", "block"):
        shapes = [getattr(_args(e), kind) for e in events]
        for axis, letter in enumerate("xyz"):
            columns[f"{kind}_{letter}"] = [
                _integer(s[axis], 0) if isinstance(s, list) and len(s) > axis else 0 for s in shapes
            ]
    return columns


def _copy_kinds(events: Sequence[_Event]) -> dict[str, Any]:
    parsed = [_COPY.match(str(e.name)) for e in events]

    def column(group: int) -> pd.Categorical:
        values = [(m[group] or "unknown") if m else "unknown" for m in parsed]
        if group > 1:
            own = [_args(e).src_kind if group == 2 else _args(e).dst_kind for e in events]
            values = [str(o) if o else v for o, v in zip(own, values, strict=True)]
        return pd.Categorical(pd.Series(values, dtype=object))

    return {
        "copy_kind": column(1),
        "src_kind": column(2),
        "dst_kind": column(3),
        "bytes": [_integer(_args(e).bytes, 0) for e in events],
    }


def _host_columns(events: Sequence[_Event], rename: Any = str) -> dict[str, Any]:
    columns: dict[str, Any] = dict(_times(events))
    columns["process"] = [_integer(_args(e).process, _integer(e.pid)) for e in events]
    columns["thread"] = [_integer(_args(e).thread, _integer(e.tid)) & 0x7FFFFFFF for e in events]
    columns["name"] = pd.Categorical(pd.Series([rename(str(e.name)) for e in events], dtype=object))
    return columns


def _devices(gpus: Sequence[_Gpu]) -> dict[str, Any]:
    return {
        "device": [g.id for g in gpus],
        "name": np.array([g.name for g in gpus], dtype=object),
        "sm_count": [g.numSms for g in gpus],
        "memory_bytes": [g.totalGlobalMem for g in gpus],
        "compute_capability": np.array(
            [f"{g.computeMajor}.{g.computeMinor or 0}" if g.computeMajor else "" for g in gpus], dtype=object
        ),
    }
