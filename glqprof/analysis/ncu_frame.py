"""One ncu report as tables for pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from glqprof.analysis.ncu_analysis import KernelAnalysis


def launch_frame(kernels: tuple[KernelAnalysis, ...]) -> pd.DataFrame:
    """One row a launch, in the analysis' order; a number that the report lacks is NaN, never 0.

    Columns: id, name, grid, block, duration_us, limiter (what binds, in words), dram_pct, l2_pct, l1_pct, l1_hit_pct,
    l2_hit_pct, occupancy_pct, waves, registers, eligible_warps (a scheduler), sectors_per_request, busiest_pct; and,
    where a timeline was given, launches, sum_ms, share and at_most_ms of it (see `KernelWeight`).
    """
    import pandas as pd

    weighted = any(k.weight is not None for k in kernels)
    return pd.DataFrame([_row(k, weighted) for k in kernels])


def _row(k: KernelAnalysis, weighted: bool) -> dict[str, Any]:
    n = k.numbers
    row: dict[str, Any] = {"id": n.id, "name": n.name, "grid": n.grid, "block": n.block}
    numbers = {
        "duration_us": n.duration_us,
        "dram_pct": n.memory.dram_pct,
        "l2_pct": n.memory.l2_pct,
        "l1_pct": n.memory.l1_pct,
        "l1_hit_pct": n.memory.l1_hit_pct,
        "l2_hit_pct": n.memory.l2_hit_pct,
        "occupancy_pct": n.occupancy.achieved_pct,
        "waves": n.occupancy.waves,
        "registers": n.occupancy.registers,
        "eligible_warps": n.compute.eligible_warps,
        "sectors_per_request": n.memory.sectors_per_request,
        "busiest_pct": n.busiest_pct,
    }
    if weighted:
        for key in ("launches", "sum_ms", "share", "at_most_ms"):
            numbers[key] = getattr(k.weight, key) if k.weight is not None else None
    row |= {key: float("nan") if value is None else value for key, value in numbers.items()}
    return row | {"limiter": k.diagnosis.label}


def finding_frame(kernels: tuple[KernelAnalysis, ...]) -> pd.DataFrame:
    """One row a finding, of each launch the one that binds first.

    Columns: id, name, code (stable, see docs/ncu.md), title, suggestion.
    """
    import pandas as pd

    rows = [
        (k.numbers.id, k.numbers.name, f.code, f.title, f.suggestion) for k in kernels for f in k.diagnosis.findings
    ]
    return pd.DataFrame(rows, columns=["id", "name", "code", "title", "suggestion"])
