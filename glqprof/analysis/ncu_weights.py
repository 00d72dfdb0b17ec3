"""What each profiled kernel is worth in a decode: its share of a timeline's GPU time, and what is at most to gain.

The durations here are the timeline's, never ncu's: ncu replays a kernel alone, with its own cache and clock control.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from glqprof.analysis.breakdown import Breakdown
from glqprof.analysis.ncu_names import function_name, kernel_key
from glqprof.analysis.ncu_numbers import KernelNumbers
from glqprof.traces.schema.ncu import Dim3


@dataclass(frozen=True)
class KernelWeight:
    """``launches`` and ``sum_ms`` in the timeline's window, ``ms_per_token`` (None without tokens), ``share`` of all
    GPU work's summed time there. ``matched``: by "name and grid", by "name" (that grid is not in the timeline, or its
    grids are not recorded), or by "function name" (the report has no template arguments).

    ``at_most_ms``: sum_ms × (1 − how busy ncu found the busiest part): what is left if the kernel ran at its ceiling
    and did the same work. A bound, not a prediction; None where ncu measured no throughput.
    """

    launches: int
    sum_ms: float
    ms_per_token: float | None
    share: float
    matched: str
    at_most_ms: float | None


@dataclass(frozen=True)
class KernelTimes:
    """A timeline's kernels: ``table`` has key, function, grid (None: not recorded), launches, sum_ns; ``total_ns``: all
    GPU work."""

    name: str
    table: pd.DataFrame
    total_ns: int
    tokens: int | None


def kernel_times(b: Breakdown) -> KernelTimes:
    """Kernels that start in the window of a breakdown, by name and grid (grid where the trace was loaded with it)."""
    kernels = b.trace.kernels
    inside = kernels[(kernels["start_ns"] >= b.window.start_ns) & (kernels["start_ns"] < b.window.end_ns)]
    inside = inside[inside["device"].isin([d.device for d in b.devices])]
    grid = ["grid_x", "grid_y", "grid_z"] if "grid_x" in inside.columns else []
    durations = inside.assign(sum_ns=inside["end_ns"] - inside["start_ns"])
    grouped = durations.groupby(["name", *grid], observed=True)["sum_ns"].agg(["count", "sum"]).reset_index()
    names = [str(n) for n in grouped["name"]]
    table = pd.DataFrame(
        {
            "key": [kernel_key(n) for n in names],
            "function": [function_name(n) for n in names],
            "grid": list(zip(*(grouped[g].tolist() for g in grid), strict=True)) if grid else [None] * len(names),
            "launches": grouped["count"].to_numpy(),
            "sum_ns": grouped["sum"].to_numpy(),
        }
    )
    total = sum(int(d.buckets["sum_ns"].sum()) for d in b.devices)
    return KernelTimes(b.name, table, total, b.tokens)


def weigh(numbers: KernelNumbers, times: KernelTimes) -> KernelWeight | None:
    """The weight of one launch's kernel; None where the timeline has no kernel of its name."""
    table = times.table
    key = kernel_key(numbers.name)
    rows, matched = table[table["key"] == key], "name"
    if not len(rows) and "<" not in key and "(" not in numbers.name:
        rows, matched = table[table["function"] == key], "function name"
    if not len(rows):
        return None
    same_grid = rows[[grid == numbers.grid for grid in rows["grid"]]]
    if len(same_grid) and numbers.grid is not None:
        rows, matched = same_grid, "name and grid" if matched == "name" else matched
    sum_ms = float(rows["sum_ns"].sum()) / 1e6
    busiest = numbers.busiest_pct
    return KernelWeight(
        launches=int(rows["launches"].sum()),
        sum_ms=sum_ms,
        ms_per_token=sum_ms / times.tokens if times.tokens else None,
        share=sum_ms * 1e6 / max(times.total_ns, 1),
        matched=matched,
        at_most_ms=None if busiest is None else sum_ms * (1 - min(busiest, 100.0) / 100),
    )


def covered_share(weighted: Iterable[tuple[str, Dim3 | None, KernelWeight | None]]) -> float:
    """Share of the timeline's GPU time that the weighted launches stand for, each kernel and grid once."""
    seen: dict[tuple[str, Dim3 | None], float] = {}
    for name, grid, weight in weighted:
        if weight is not None:
            seen[kernel_key(name), grid if weight.matched == "name and grid" else None] = weight.share
    return sum(seen.values())
