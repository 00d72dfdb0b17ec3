"""Wall time per step: its spread, and what the slowest step spent more on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from glqprof.analysis.prepared import Prepared


@dataclass(frozen=True)
class StepSpread:
    """Wall time of a step in ns: over all steps of the window. ``slowest_extra``: row, ns, the rows of the closed
    account on which the slowest step spent more than the median step, largest first (averaged over the GPUs)."""

    steps: int
    mean_ns: float
    median_ns: float
    p90_ns: float
    p99_ns: float
    slowest: str
    slowest_ns: int
    slowest_extra: pd.DataFrame


def step_table(prepared: Prepared) -> pd.DataFrame:
    """One row per step: step, wall_ns, launches, gpu_ns (summed time of the work launched in it), is_outlier.

    An outlier lies above the third quartile by more than 1.5 interquartile ranges (Tukey's fence).
    """
    steps, work, forest = prepared.window.steps, prepared.work, prepared.forest
    wall = (steps["end_ns"] - steps["start_ns"]).to_numpy(np.int64)
    attributed = np.flatnonzero(prepared.attribution.step >= 0)
    ranges = prepared.attribution.step[attributed]
    # A step is known by its range; the same step on other processes overlaps it in time and carries its name.
    order = np.argsort(steps["start_ns"].to_numpy(), kind="stable")
    starts = steps["start_ns"].to_numpy()[order]
    at = np.searchsorted(starts, (forest.start[ranges] + forest.end[ranges]) // 2, "right") - 1
    position = order[np.maximum(at, 0)] if len(order) else at
    count = np.bincount(position, minlength=len(steps)) if len(order) else np.zeros(0, np.int64)
    duration = (work.end - work.start)[attributed].astype(np.float64)
    gpu = np.bincount(position, weights=duration, minlength=len(steps)) if len(order) else np.zeros(0)
    fence = np.inf
    if len(wall) >= 4:
        q1, q3 = np.percentile(wall, [25, 75])
        fence = q3 + 1.5 * (q3 - q1)
    return pd.DataFrame(
        {
            "step": steps["name"],
            "wall_ns": wall,
            "launches": count.astype(np.int64),
            "gpu_ns": gpu.astype(np.int64),
            "is_outlier": wall > fence,
        }
    )


def step_spread(prepared: Prepared) -> StepSpread | None:
    """The spread over the window's steps; None where it has none."""
    steps = prepared.window.steps
    if not len(steps):
        return None
    wall = (steps["end_ns"] - steps["start_ns"]).to_numpy(np.int64)
    slowest = int(np.argmax(wall))
    middle = int(np.argsort(wall, kind="stable")[(len(wall) - 1) // 2])
    extra: dict[str, float] = {}
    for device in prepared.devices:
        for step, sign in ((slowest, 1), (middle, -1)):
            start, end = int(steps["start_ns"].iloc[step]), int(steps["end_ns"].iloc[step])
            account = prepared.account(device, start, end)
            for row, ns in (account.busy_ns | account.idle_ns).items():
                extra[row] = extra.get(row, 0.0) + sign * ns / len(prepared.devices)
    table = pd.DataFrame({"row": list(extra), "ns": list(extra.values())})
    table = table[table["ns"] > 0].sort_values("ns", ascending=False).reset_index(drop=True)
    p50, p90, p99 = np.percentile(wall, [50, 90, 99])
    name = str(steps["name"].iloc[slowest])
    return StepSpread(len(wall), float(wall.mean()), p50, p90, p99, name, int(wall[slowest]), table)
