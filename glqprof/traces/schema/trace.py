"""`Trace`: one schema for what nsys, torch.profiler and the others record.

All times are integer nanoseconds on the profiler's own clock (columns ``start_ns``, ``end_ns``, int64). Frames:

GPU activities ``kernels``, ``copies``, ``memsets``, ``graphs``: start_ns, end_ns, device, process, context, stream,
correlation_id, name. ``device`` is the GPU's index on the machine, ``process`` the operating system's process id,
``correlation_id`` ties the activity to the API call of the same process that submitted it (-1: unknown), ``name`` is
categorical. Besides:

- kernels: graph_node_id (-1: not from a graph), and with ``launch_config``: grid_x/y/z, block_x/y/z, registers,
  static_smem_bytes, dynamic_smem_bytes.
- copies: bytes, copy_kind (HtoD, DtoH, DtoD, …), src_kind, dst_kind (Pageable, Pinned, Device, …).
- memsets: bytes.
- graphs: one row per launch of a CUDA graph that was traced as a whole (no kernels inside).

``api``: start_ns, end_ns, process, thread, correlation_id, name (version suffixes removed), return_value. Runtime and
driver calls together.
``ranges``: NVTX push/pop and start/end ranges, or torch user annotations: start_ns, end_ns (of an open range: the
trace's last event), process, thread, name, is_open, crosses_threads.
``overheads``: the profiler's own cost: start_ns, end_ns, process, thread, name. ``os_calls``: OS-runtime calls, alike.
``graph_nodes``: graph_node_id, original_graph_node_id (-1: none), process, thread, start_ns.
``devices``: device, name, sm_count, l2_bytes, memory_bytes, compute_capability. ``streams``: device, process, context,
stream, activities. ``processes``: process, threads. ``diagnostics``: severity (info, warning, error), text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
import pandas as pd

ACTIVITY_COLUMNS: dict[str, Any] = {
    "start_ns": np.int64,
    "end_ns": np.int64,
    "device": np.int32,
    "process": np.int32,
    "context": np.int32,
    "stream": np.int64,
    "correlation_id": np.int64,
    "name": "category",
}
HOST_COLUMNS: dict[str, Any] = {
    "start_ns": np.int64,
    "end_ns": np.int64,
    "process": np.int32,
    "thread": np.int32,
    "name": "category",
}
SCHEMA: dict[str, dict[str, Any]] = {
    "kernels": ACTIVITY_COLUMNS | {"graph_node_id": np.int64},
    "copies": ACTIVITY_COLUMNS
    | {"bytes": np.int64, "copy_kind": "category", "src_kind": "category", "dst_kind": "category"},
    "memsets": ACTIVITY_COLUMNS | {"bytes": np.int64},
    "graphs": ACTIVITY_COLUMNS,
    "api": HOST_COLUMNS | {"correlation_id": np.int64, "return_value": np.int32},
    "ranges": HOST_COLUMNS | {"is_open": np.bool_, "crosses_threads": np.bool_},
    "overheads": HOST_COLUMNS,
    "os_calls": HOST_COLUMNS,
    "graph_nodes": {
        "graph_node_id": np.int64,
        "original_graph_node_id": np.int64,
        "process": np.int32,
        "thread": np.int32,
        "start_ns": np.int64,
    },
    "devices": {
        "device": np.int32,
        "name": object,
        "sm_count": np.int64,
        "l2_bytes": np.int64,
        "memory_bytes": np.int64,
        "compute_capability": object,
    },
    "streams": {
        "device": np.int32,
        "process": np.int32,
        "context": np.int32,
        "stream": np.int64,
        "activities": np.int64,
    },
    "processes": {"process": np.int32, "threads": np.int64},
    "diagnostics": {"severity": object, "text": object},
}
LAUNCH_CONFIG_COLUMNS = (
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "registers",
    "static_smem_bytes",
    "dynamic_smem_bytes",
)

_VERSION_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds)+$")


def api_base_name(name: str) -> str:
    """The API call's name without CUPTI's version and stream suffixes: cudaGraphLaunch_v10000 → cudaGraphLaunch."""
    return _VERSION_SUFFIX.sub("", name)


@dataclass(frozen=True)
class TraceInfo:
    """Where a trace came from.

    ``tool`` is nsys, torch or cupti; ``schema_version`` the format's own; ``recorded`` names the kinds of record that
    the tool was asked for or that arrived (api, ranges, os_calls, graph_nodes, sync), so that an absent table can be
    told from an empty one; ``vendor`` is nvidia or amd.
    """

    name: str
    tool: str
    tool_version: str
    schema_version: str
    recorded: frozenset[str] = frozenset()
    vendor: str = "nvidia"


@dataclass(repr=False)
class Trace:
    """Everything an analysis reads of one recording; see the module's text for the frames and their columns."""

    info: TraceInfo
    kernels: pd.DataFrame
    copies: pd.DataFrame
    memsets: pd.DataFrame
    graphs: pd.DataFrame
    api: pd.DataFrame
    ranges: pd.DataFrame
    overheads: pd.DataFrame
    os_calls: pd.DataFrame
    graph_nodes: pd.DataFrame
    devices: pd.DataFrame
    streams: pd.DataFrame
    processes: pd.DataFrame
    diagnostics: pd.DataFrame
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def from_columns(
        cls, info: TraceInfo, frames: Mapping[str, Mapping[str, Any]], warnings: list[str] | None = None
    ) -> Trace:
        """Build a trace from arrays per frame and column; absent frames are empty, absent columns hold defaults.

        Raises ValueError for a frame or column that the schema does not know.
        """
        unknown = set(frames) - set(SCHEMA)
        if unknown:
            raise ValueError(f"unknown frames: {sorted(unknown)}")
        built = {name: _frame(name, frames.get(name, {})) for name in SCHEMA}
        if len(built["streams"]) == 0:
            built["streams"] = _streams_of(built)
        if len(built["processes"]) == 0:
            built["processes"] = _processes_of(built)
        return cls(info=info, warnings=list(warnings or []), **built)

    def span_ns(self) -> tuple[int, int]:
        """First start and last end over all activities, calls and ranges; (0, 0) when the trace is empty.

        A graph launch whose timing was not collected (start and end 0) is no moment of the trace.
        """
        timed = self.graphs[(self.graphs["start_ns"] != 0) | (self.graphs["end_ns"] != 0)]
        frames = [self.kernels, self.copies, self.memsets, timed, self.api, self.ranges]
        filled = [f for f in frames if len(f)]
        if not filled:
            return 0, 0
        return int(min(f["start_ns"].min() for f in filled)), int(max(f["end_ns"].max() for f in filled))

    def __repr__(self) -> str:
        work = f"{len(self.kernels):,} kernels, {len(self.api):,} API calls, {len(self.ranges):,} ranges"
        return f"<Trace by {self.info.tool} {self.info.tool_version}: {work}>".replace(" :", ":")

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{n}</td><td>{len(getattr(self, n)):,}</td></tr>" for n in SCHEMA)
        return (
            f"<p><b>{escape(self.info.name)}</b> ({escape(f'{self.info.tool} {self.info.tool_version}')})</p>"
            f"<table><tr><th>frame</th><th>rows</th></tr>{rows}</table>"
        )


def _frame(name: str, columns: Mapping[str, Any]) -> pd.DataFrame:
    schema = SCHEMA[name]
    extra = set(columns) - set(schema) - (set(LAUNCH_CONFIG_COLUMNS) if name == "kernels" else set())
    if extra:
        raise ValueError(f"{name}: unknown columns {sorted(extra)}")
    rows = len(next(iter(columns.values()))) if columns else 0
    data: dict[str, Any] = {}
    for column, dtype in schema.items():
        if column in columns:
            value = columns[column]
            if dtype == "category":
                data[column] = value if isinstance(value, pd.Categorical) else pd.Categorical(value)
            else:
                data[column] = np.asarray(value, dtype=dtype)
        elif dtype == "category":
            data[column] = pd.Categorical.from_codes(np.zeros(rows, np.int8), categories=pd.Index([""], dtype=object))
        elif dtype is object:
            data[column] = np.full(rows, "", dtype=object)
        else:
            absent = -1 if column.endswith("_id") else 0
            data[column] = np.full(rows, absent, dtype=dtype)
    for column in LAUNCH_CONFIG_COLUMNS:
        if column in columns:
            data[column] = np.asarray(columns[column], dtype=np.int32)
    # copy=False: consolidating the columns of a large capture would double its memory.
    return pd.DataFrame(data, copy=False)


def _streams_of(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    keys = ["device", "process", "context", "stream"]
    parts = [frames[f] for f in ("kernels", "copies", "memsets", "graphs") if len(frames[f])]
    if not parts:
        return _frame("streams", {})
    counts = [p.groupby(keys, observed=True).size() for p in parts]
    total = pd.concat(counts).groupby(level=keys).sum()
    table = total.rename("activities").reset_index()
    return _frame("streams", {c: table[c].to_numpy() for c in SCHEMA["streams"]})


def _processes_of(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    keys = [
        pd.unique(frames[f]["process"].to_numpy().astype(np.int64) << 32 | frames[f]["thread"].to_numpy())
        for f in ("api", "ranges", "os_calls")
        if len(frames[f])
    ]
    if not keys:
        gpu = [frames[f]["process"].drop_duplicates() for f in ("kernels", "copies") if len(frames[f])]
        pids = pd.concat(gpu).drop_duplicates().to_numpy() if gpu else []
        return _frame("processes", {"process": pids, "threads": np.zeros(len(pids), np.int64)})
    process, threads = np.unique(pd.unique(np.concatenate(keys)) >> 32, return_counts=True)
    return _frame("processes", {"process": process, "threads": threads})
