"""Conventional counts of the host's calls: what starts in the window counts whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from glqprof.analysis.prepared import Prepared
from glqprof.analysis.work import KERNEL

Array = np.ndarray


@dataclass(frozen=True)
class CallTotals:
    """``calls`` that started in the window, their summed ``ns``, and the part of it with the GPU idle (None where the
    idle time is not known). GPU: those that the calling process used, idle together."""

    calls: int
    ns: int
    idle_ns: int | None = None


@dataclass(frozen=True)
class HostCounts:
    """Calls of the window. ``apis``: name, calls, ns per API name, longest first."""

    sync: CallTotals
    blocking_copies: CallTotals
    launch: CallTotals
    apis: pd.DataFrame


def count_host_calls(prepared: Prepared, *, with_idle: bool) -> HostCounts:
    """Count the API calls that start in the window; ``with_idle`` also measures how much of them met an idle GPU."""
    api, window, calls = prepared.trace.api, prepared.window, prepared.calls
    start, end = api["start_ns"].to_numpy(), api["end_ns"].to_numpy()
    inside = (start >= window.start_ns) & (start < window.end_ns)

    def totals(mask: Array, idle: bool) -> CallTotals:
        rows = np.flatnonzero(mask & inside)
        spent = int((end[rows] - start[rows]).sum())
        return CallTotals(len(rows), spent, _idle_during(prepared, rows) if idle else None)

    codes = api["name"].cat.codes.to_numpy()[inside]
    names = api["name"].cat.categories
    counted = np.bincount(codes, minlength=len(names))
    spent = np.bincount(codes, weights=(end - start)[inside].astype(np.float64), minlength=len(names))
    apis = pd.DataFrame({"name": names.astype(object), "calls": counted, "ns": spent.astype(np.int64)})
    apis = apis[apis["calls"] > 0].sort_values(["ns", "name"], ascending=[False, True]).reset_index(drop=True)
    return HostCounts(
        sync=totals(calls.named_sync, with_idle),
        blocking_copies=totals(calls.blocking_copy, with_idle),
        launch=totals(calls.launch, False),
        apis=apis,
    )


def _idle_during(prepared: Prepared, rows: Array) -> int:
    """Idle GPU time during API calls, clipped to the window."""
    api, window = prepared.trace.api, prepared.window
    process = api["process"].to_numpy()[rows]
    total = 0
    for pid in np.unique(process).tolist():
        until = prepared.idle_until(pid)
        mine = rows[process == pid]
        begin = np.clip(api["start_ns"].to_numpy()[mine], window.start_ns, window.end_ns)
        finish = np.clip(api["end_ns"].to_numpy()[mine], window.start_ns, window.end_ns)
        total += int((until(finish) - until(begin)).sum())
    return total


def launch_latency(prepared: Prepared) -> pd.DataFrame:
    """From the end of the launch call to the start of its kernel, per device, over kernels that start in the window.

    Columns: device, kernels, median_us, p90_us, p99_us, max_us, started_before_return_pct (the kernel ran before the
    call had returned: latency below 0). Kernels of a graph wait for each other, not for their launch, and are left out.
    """
    work, trace = prepared.work, prepared.trace
    candidates = np.flatnonzero((work.kind == KERNEL) & (work.api_row >= 0) & prepared.starts_inside)
    from_graph = trace.kernels["graph_node_id"].to_numpy()[work.row[candidates]] >= 0
    candidates = candidates[~from_graph]
    latency = work.start[candidates] - trace.api["end_ns"].to_numpy()[work.api_row[candidates]]
    rows = []
    for device in np.unique(work.device[candidates]).tolist():
        mine = latency[work.device[candidates] == device]
        p50, p90, p99 = np.percentile(mine, [50, 90, 99]) / 1e3
        rows.append((device, len(mine), p50, p90, p99, mine.max() / 1e3, 100 * float((mine < 0).mean())))
    columns = ["device", "kernels", "median_us", "p90_us", "p99_us", "max_us", "started_before_return_pct"]
    return pd.DataFrame(rows, columns=columns)
