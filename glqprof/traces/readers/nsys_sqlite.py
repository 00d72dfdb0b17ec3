"""Read an nsys SQLite export (schemas 2.7.0 to 3.25.0) into a `Trace`.

Tables appear only when they have a row and columns came and went; `Column` names what is read of each. Identity, name
and enumeration rules are those of NVIDIA's exporter as observed over 47 public exports (docs/formats.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from glqprof.errors import InputError
from glqprof.traces.readers.sqlite_bulk import Column, SqliteFile
from glqprof.traces.schema.trace import Trace, TraceInfo, api_base_name

PREFIX = "CUPTI_ACTIVITY_KIND_"
ACTIVITY = {
    "start_ns": Column(("start",), required=True),
    "end_ns": Column(("end",), required=True),
    "device": Column(("deviceId",), np.int32, required=True),
    "context": Column(("contextId",), np.int32, -1),
    "stream": Column(("streamId",), np.int64, -1),
    "correlation_id": Column(("correlationId",), np.int64, -1),
    "global_pid": Column(("globalPid",), np.int64, -1),
}
LAUNCH_CONFIG = {
    "grid_x": Column(("gridX",), np.int32),
    "grid_y": Column(("gridY",), np.int32),
    "grid_z": Column(("gridZ",), np.int32),
    "block_x": Column(("blockX",), np.int32),
    "block_y": Column(("blockY",), np.int32),
    "block_z": Column(("blockZ",), np.int32),
    "registers": Column(("registersPerThread",), np.int32),
    "static_smem_bytes": Column(("staticSharedMemory",), np.int32),
    "dynamic_smem_bytes": Column(("dynamicSharedMemory",), np.int32),
}
HOST = {
    "start_ns": Column(("start",), required=True),
    "end_ns": Column(("end",), required=True),
    "global_tid": Column(("globalTid",), np.int64, -1),
    "name_id": Column(("nameId",), np.int32, -1),
}
# CUPTI's own numbers, for exports from before the ENUM tables (schema 3.0).
COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
MEMORY_KINDS = {
    1: "Pageable",
    2: "Pinned",
    3: "Device",
    4: "Array",
    5: "Managed",
    6: "Device Static",
    7: "Managed Static",
}
SEVERITIES = {1: "info", 2: "warning", 3: "error", 4: "error"}
NVTX_RANGES = (59, 60, 70, 71)
NVTX_START_END = (60, 71)


def read_nsys_sqlite(path: Path, *, shown_as: Path | None = None, launch_config: bool = False) -> Trace:
    """Read an nsys export; ``launch_config`` also reads each kernel's grid, block, registers and shared memory.

    ``shown_as`` is the name that errors carry when ``path`` is an unpacked copy. Raises InputError when the file is
    damaged, locked, or no nsys export.
    """
    file = SqliteFile(path, shown_as)
    meta = _metadata(file)
    if not meta and not any(t.startswith(PREFIX) for t in file.columns):
        raise InputError(
            file.shown_as, "is a SQLite database but not an nsys export (no META_DATA_EXPORT, no CUPTI tables)"
        )
    strings: dict[int, str] = {}
    if file.has("StringIds"):
        strings = dict(file.rows('SELECT id, CAST(value AS TEXT) FROM "StringIds"'))
    devices = _DeviceMap(file)
    kernel_columns = ACTIVITY | {
        "name_id": Column(("demangledName", "shortName"), np.int32, -1),
        "graph_node_id": Column(("graphNodeId",), np.int64, -1),
    }
    api = _api(file, strings)
    fallback_pid = int(api["process"][0]) if len(api["process"]) and _single(api["process"]) else -1
    frames: dict[str, dict[str, Any]] = {
        "kernels": _activities(
            file, "KERNEL", kernel_columns | (LAUNCH_CONFIG if launch_config else {}), devices, fallback_pid, strings
        ),
        "copies": _copies(file, devices, fallback_pid),
        "memsets": _memsets(file, devices, fallback_pid),
        "graphs": _graphs(file, devices, fallback_pid),
        "api": api,
        "os_calls": _host_calls(file, "OSRT_API", strings),
        "overheads": _overheads(file, strings),
        "graph_nodes": _graph_nodes(file),
        "devices": _devices(file),
        "diagnostics": _diagnostics(file),
    }
    frames["ranges"] = _ranges(file, strings, _last_ns(frames))
    recorded = {
        kind
        for kind, tables in {
            "api": (PREFIX + "RUNTIME",),
            "sync": (PREFIX + "SYNCHRONIZATION",),
            "ranges": ("NVTX_EVENTS",),
            "os_calls": ("OSRT_API",),
            "graph_nodes": ("CUDA_GRAPH_NODE_EVENTS",),
        }.items()
        if any(file.has(t) for t in tables)
    }
    info = TraceInfo(
        name=_trace_name(file.shown_as),
        # glqprof's CUPTI tracer writes the same tables and says so.
        tool="cupti" if "CUPTI" in meta.get("EXPORT_PRODUCT_NAME", "") else "nsys",
        tool_version=meta.get("EXPORT_PRODUCT_VERSION", ""),
        schema_version=meta.get("EXPORT_SCHEMA_VERSION", ""),
        recorded=frozenset(recorded),
    )
    return Trace.from_columns(info, frames)


def _trace_name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".sqlite")


def _metadata(file: SqliteFile) -> dict[str, str]:
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if file.has(table):
            return {str(k): str(v) for k, v in file.rows(f'SELECT name, value FROM "{table}"')}
    return {}


def _single(values: np.ndarray) -> bool:
    return bool((values == values[0]).all())


def _pid(global_id: np.ndarray) -> np.ndarray:
    """The process id inside nsys' serialised global id; -1 stays -1 (unknown)."""
    return np.where(global_id < 0, -1, (global_id >> 24) & 0xFFFFFF).astype(np.int32)


def _tid(global_id: np.ndarray) -> np.ndarray:
    return np.where(global_id < 0, -1, global_id & 0xFFFFFF).astype(np.int32)


def _names(ids: np.ndarray, strings: dict[int, str], rename: Any = None) -> pd.Categorical:
    """Categorical names for string ids. Several ids may carry one string (or one after ``rename``): one category."""
    if len(ids) == 0:
        return pd.Categorical.from_codes([], categories=pd.Index([], dtype=object))
    codes, used = pd.factorize(ids)
    categories: dict[str, int] = {}
    code_of = np.zeros(len(used), np.int32)
    for position, string_id in enumerate(used.tolist()):
        text = strings.get(string_id, f"<string {string_id}>" if string_id >= 0 else "")
        text = rename(text) if rename else text
        code_of[position] = categories.setdefault(text, len(categories))
    return pd.Categorical.from_codes(code_of[codes], categories=pd.Index(list(categories), dtype=object))


class _DeviceMap:
    """From (process, CUDA device number) to the GPU's number on the machine, for processes that see a subset."""

    def __init__(self, file: SqliteFile) -> None:
        self.gpu_of: dict[tuple[int, int], int] = {}
        if file.has("TARGET_INFO_CUDA_DEVICE"):
            rows = file.rows('SELECT pid, cudaId, gpuId FROM "TARGET_INFO_CUDA_DEVICE"')
            self.gpu_of = {(int(p), int(c)): int(g) for p, c, g in rows if None not in (p, c, g)}

    def apply(self, process: np.ndarray, device: np.ndarray) -> np.ndarray:
        moved = {k: g for k, g in self.gpu_of.items() if k[1] != g}
        if not moved:
            return device
        result = device.copy()
        for (pid, cuda), gpu in moved.items():
            result[(process == pid) & (device == cuda)] = gpu
        return result


def _activities(
    file: SqliteFile,
    kind: str,
    columns: dict[str, Column],
    devices: _DeviceMap,
    fallback_pid: int,
    strings: dict[int, str] | None = None,
) -> dict[str, Any]:
    data: dict[str, Any] = file.read(PREFIX + kind, columns)
    process = _pid(data.pop("global_pid"))
    if fallback_pid >= 0:  # exports without globalPid hold one process
        process[process < 0] = fallback_pid
    data["process"] = process
    data["device"] = devices.apply(process, data["device"])
    if strings is not None:
        data["name"] = _names(data.pop("name_id"), strings)
    return data


def _copies(file: SqliteFile, devices: _DeviceMap, fallback_pid: int) -> dict[str, Any]:
    data = _activities(
        file,
        "MEMCPY",
        ACTIVITY
        | {
            "bytes": Column(("bytes",)),
            "copy_kind": Column(("copyKind",), np.int64, -1),
            "src_kind": Column(("srcKind",), np.int64, -1),
            "dst_kind": Column(("dstKind",), np.int64, -1),
        },
        devices,
        fallback_pid,
    )
    kinds = _enumeration(file, "ENUM_CUDA_MEMCPY_OPER", COPY_KINDS)
    kinds = {k: _short_copy_kind(v) for k, v in kinds.items()}
    memory = _enumeration(file, "ENUM_CUDA_MEM_KIND", MEMORY_KINDS)
    data["copy_kind"] = _names(data["copy_kind"], kinds | {-1: "unknown"})
    for side in ("src_kind", "dst_kind"):
        data[side] = _names(data[side], memory | {-1: "unknown"})
    kind = data["copy_kind"]
    labels = pd.Index([f"Memcpy {c}" for c in kind.categories], dtype=object)
    data["name"] = pd.Categorical.from_codes(kind.codes, categories=labels)
    return data


def _short_copy_kind(label: str) -> str:
    """Host-to-Device → HtoD, Peer-to-Peer → PtoP; labels of another form stay."""
    words = label.removeprefix("Unified ").split("-to-")
    return f"{words[0][:1]}to{words[1][:1]}" if len(words) == 2 else label


def _enumeration(file: SqliteFile, table: str, default: dict[int, str]) -> dict[int, str]:
    if not file.has(table):
        return dict(default)
    text = "label" if "label" in file.columns[table] else "name"
    return {int(i): str(v) for i, v in file.rows(f'SELECT id, "{text}" FROM "{table}"')}


def _memsets(file: SqliteFile, devices: _DeviceMap, fallback_pid: int) -> dict[str, Any]:
    data = _activities(file, "MEMSET", ACTIVITY | {"bytes": Column(("bytes",))}, devices, fallback_pid)
    data["name"] = _constant("Memset", len(data["start_ns"]))
    return data


def _graphs(file: SqliteFile, devices: _DeviceMap, fallback_pid: int) -> dict[str, Any]:
    data = _activities(file, "GRAPH_TRACE", ACTIVITY, devices, fallback_pid)
    data["name"] = _constant("CUDA graph", len(data["start_ns"]))
    return data


def _constant(name: str, rows: int) -> pd.Categorical:
    return pd.Categorical.from_codes(np.zeros(rows, np.int8), categories=pd.Index([name], dtype=object))


def _host_calls(file: SqliteFile, table: str, strings: dict[int, str]) -> dict[str, Any]:
    data: dict[str, Any] = file.read(table, HOST)
    _split_global_tid(data)
    data["name"] = _names(data.pop("name_id"), strings)
    return data


def _split_global_tid(data: dict[str, Any]) -> None:
    global_tid = data.pop("global_tid")
    data["process"], data["thread"] = _pid(global_tid), _tid(global_tid)


def _api(file: SqliteFile, strings: dict[int, str]) -> dict[str, Any]:
    columns = HOST | {
        "correlation_id": Column(("correlationId",), np.int64, -1),
        "return_value": Column(("returnValue",), np.int32),
    }
    data: dict[str, Any] = file.read(PREFIX + "RUNTIME", columns)
    _split_global_tid(data)
    data["name"] = _names(data.pop("name_id"), strings, api_base_name)
    return data


def _overheads(file: SqliteFile, strings: dict[int, str]) -> dict[str, Any]:
    parts = [_host_calls(file, t, strings) for t in ("PROFILER_OVERHEAD", PREFIX + "OVERHEAD") if file.has(t)]
    parts = [p for p in parts if len(p["start_ns"])]
    if len(parts) != 2:
        return parts[0] if parts else {}
    merged: dict[str, Any] = {
        c: np.concatenate([p[c] for p in parts]) for c in ("start_ns", "end_ns", "process", "thread")
    }
    merged["name"] = pd.api.types.union_categoricals([p["name"] for p in parts])
    return merged


def _graph_nodes(file: SqliteFile) -> dict[str, Any]:
    data: dict[str, Any] = file.read(
        "CUDA_GRAPH_NODE_EVENTS",
        {
            "start_ns": Column(("start",), required=True),
            "global_tid": Column(("globalTid",), np.int64, -1),
            "graph_node_id": Column(("graphNodeId",), np.int64, -1),
            "original_graph_node_id": Column(("originalGraphNodeId",), np.int64, -1),
        },
    )
    _split_global_tid(data)
    return data


def _ranges(file: SqliteFile, strings: dict[int, str], last_ns: int) -> dict[str, Any]:
    open_end = -1
    columns = {
        "start_ns": Column(("start",), required=True),
        "end_ns": Column(("end",), np.int64, open_end, required=True),
        "event_type": Column(("eventType",), np.int32, required=True),
        "global_tid": Column(("globalTid",), np.int64, -1),
        "end_global_tid": Column(("endGlobalTid",), np.int64, -1),
        "text": Column(("text",), text=True),
        "text_id": Column(("textId",), np.int64, -1),
    }
    types = ", ".join(map(str, NVTX_RANGES))
    data: dict[str, Any] = file.read("NVTX_EVENTS", columns, where=f"eventType IN ({types}) AND start IS NOT NULL")
    data["is_open"] = data["end_ns"] == open_end
    last_ns = max([last_ns, *(int(data[c].max(initial=open_end)) for c in ("start_ns", "end_ns"))])
    data["end_ns"][data["is_open"]] = last_ns
    end_tid = data.pop("end_global_tid")
    data["crosses_threads"] = (end_tid >= 0) & (end_tid != data["global_tid"])
    data.pop("event_type")
    data["name"] = _range_names(data.pop("text"), data.pop("text_id"), strings)
    _split_global_tid(data)
    return data


def _range_names(text: pa.DictionaryArray, text_id: np.ndarray, strings: dict[int, str]) -> pd.Categorical:
    """Inline text where there is some, else the registered string."""
    inline = text.dictionary.to_pylist()
    codes = text.indices.to_numpy(zero_copy_only=False)
    registered = _names(text_id, strings)
    categories: dict[str, int] = {}
    inline_code = np.array([categories.setdefault(t, len(categories)) for t in inline], np.int64)
    registered_code = np.array([categories.setdefault(t, len(categories)) for t in registered.categories], np.int64)
    empty = np.array([t == "" for t in inline], bool)
    use_registered = empty[codes] & (text_id >= 0) if len(codes) else np.zeros(0, bool)
    merged = inline_code[codes] if len(codes) else np.zeros(0, np.int64)
    merged[use_registered] = registered_code[registered.codes[use_registered]]
    return pd.Categorical.from_codes(
        merged, categories=pd.Index(list(categories), dtype=object)
    ).remove_unused_categories()


def _last_ns(frames: dict[str, dict[str, Any]]) -> int:
    ends = [frames[f]["end_ns"] for f in ("kernels", "copies", "memsets", "graphs", "api") if len(frames[f]["end_ns"])]
    return max((int(e.max()) for e in ends), default=0)


def _devices(file: SqliteFile) -> dict[str, Any]:
    present = file.columns.get("TARGET_INFO_GPU", set())
    if not {"id", "name"} <= present:
        return {}
    wanted = ("id", "name", "smCount", "l2CacheSize", "totalMemory", "computeMajor", "computeMinor")
    sql = ", ".join(f'"{c}"' if c in present else "NULL" for c in wanted)
    rows = file.rows(f'SELECT {sql} FROM "TARGET_INFO_GPU" ORDER BY id')
    return {
        "device": [r[0] for r in rows],
        "name": np.array([r[1] or "" for r in rows], dtype=object),
        "sm_count": [r[2] or 0 for r in rows],
        "l2_bytes": [r[3] or 0 for r in rows],
        "memory_bytes": [r[4] or 0 for r in rows],
        "compute_capability": np.array([f"{r[5]}.{r[6] or 0}" if r[5] else "" for r in rows], dtype=object),
    }


def _diagnostics(file: SqliteFile) -> dict[str, Any]:
    if not {"severity", "text"} <= file.columns.get("DIAGNOSTIC_EVENT", set()):
        return {}
    rows = file.rows('SELECT severity, text FROM "DIAGNOSTIC_EVENT"')
    return {
        "severity": np.array([SEVERITIES.get(r[0], "info") for r in rows], dtype=object),
        "text": np.array([" ".join(str(r[1]).split()) for r in rows], dtype=object),
    }
