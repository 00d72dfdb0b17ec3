"""Samples put in the order of their commits: one value a commit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from glqprof.trend.sample import SeriesKey


@dataclass(frozen=True)
class Series:
    """One series: ``values`` (float64, in ``unit``), the median of the samples of each of ``commits`` (n of each).

    ``times``: seconds since 1970 UTC by which the commits are ordered: the commit's time, else when it was first added.
    ``samples``: how many samples each value stands for. ``environments``: of the latest sample of each commit.
    ``direction``: which way is better (``lower``, ``higher`` or ``none``), as the latest sample says.
    """

    key: SeriesKey
    unit: str
    direction: str
    commits: tuple[str, ...]
    times: np.ndarray
    values: np.ndarray
    samples: np.ndarray
    environments: tuple[dict[str, str], ...]

    def __len__(self) -> int:
        """How many commits it has."""
        return len(self.commits)


def all_series(samples: pd.DataFrame) -> list[Series]:
    """Split what `Store.samples` returned into its series, ordered by metric, workload, variant, GPU, machine.

    Within one, commits are ordered by commit time (of several, the first added counts), ties and commits without a
    time by when they were added: a commit that is measured late still stands where it belongs.
    """
    by = ["metric", "workload", "variant", "gpu", "machine"]
    result = []
    for parts, group in samples.groupby(by, sort=True):
        metric, workload, variant, gpu, machine = parts
        time = group["commit_time_s"].astype("Float64").fillna(group["added_at_s"]).astype("float64")
        frame = group.assign(_time=time, _order=np.arange(len(group)))
        commits = frame.groupby("commit", sort=False).agg(
            value=("value", "median"),
            count=("value", "size"),
            time=("_time", "first"),
            order=("_order", "first"),
            environment=("environment", "last"),
        )
        commits = commits.sort_values(["time", "order"])
        last = group.iloc[-1]
        result.append(
            Series(
                SeriesKey(workload, variant, metric, gpu, machine),
                str(last["unit"]),
                str(last["direction"]),
                tuple(str(c) for c in commits.index),
                commits["time"].to_numpy(),
                commits["value"].to_numpy(),
                commits["count"].to_numpy(),
                tuple(commits["environment"]),
            )
        )
    return result
