"""Conventional sums of GPU time: per bucket and per kernel, of what starts in the window. They can exceed wall time."""

from __future__ import annotations

import numpy as np
import pandas as pd

from glqprof.analysis.prepared import Prepared
from glqprof.analysis.work import KERNEL

Array = np.ndarray


def sum_by_kernel(prepared: Prepared, device: int) -> pd.DataFrame:
    """Per kernel name and bucket of one device: name, bucket, launches, sum_ns, mean_ns, min_ns, max_ns, is_kernel.

    Copies, memsets and opaque graphs stand in it under their own names (is_kernel False). Longest first.
    """
    where = prepared.device_slice(device)
    codes, names = prepared.name_codes()
    bucket_names = prepared.attribution.bucket_names
    inside = prepared.starts_inside[where]
    work = prepared.work
    key = codes[where][inside].astype(np.int64) * len(bucket_names) + prepared.attribution.bucket[where][inside]
    duration = (work.end[where] - work.start[where])[inside]
    grouped = pd.Series(duration).groupby(key).agg(["count", "sum", "min", "max"])
    keys = grouped.index.to_numpy()
    kernel_names = len(prepared.trace.kernels["name"].cat.categories)
    table = pd.DataFrame(
        {
            "name": np.array(names, dtype=object)[keys // max(len(bucket_names), 1)] if len(keys) else [],
            "bucket": np.array(bucket_names, dtype=object)[keys % max(len(bucket_names), 1)] if len(keys) else [],
            "launches": grouped["count"].to_numpy(),
            "sum_ns": grouped["sum"].to_numpy(),
            "mean_ns": grouped["sum"].to_numpy() / np.maximum(grouped["count"].to_numpy(), 1),
            "min_ns": grouped["min"].to_numpy(),
            "max_ns": grouped["max"].to_numpy(),
            "is_kernel": keys // max(len(bucket_names), 1) < kernel_names,
        }
    )
    return table.sort_values(["sum_ns", "name"], ascending=[False, True], kind="stable").reset_index(drop=True)


def sum_by_bucket(kernels: pd.DataFrame) -> pd.DataFrame:
    """Per bucket of `sum_by_kernel`'s table: bucket, launches, sum_ns, share (of all GPU work's summed time)."""
    table = kernels.groupby("bucket", sort=False)[["launches", "sum_ns"]].sum().reset_index()
    table["share"] = table["sum_ns"] / max(int(table["sum_ns"].sum()), 1)
    return table.sort_values(["sum_ns", "bucket"], ascending=[False, True]).reset_index(drop=True)


def sum_by_layer(prepared: Prepared) -> pd.DataFrame:
    """Per layer, in order of first appearance: layer, calls, wall_ns (of its ranges), gpu_ns, launches.

    ``calls``: its ranges that start in the window; 0 for a layer of a graph that was captured before it. ``gpu_ns``:
    summed time of the work that starts in the window and was launched, or captured, inside its ranges.
    """
    work, forest, window = prepared.work, prepared.forest, prepared.window
    nearest = prepared.attribution.layer
    known = np.flatnonzero((nearest >= 0) & prepared.starts_inside)
    codes = forest.name.cat.codes.to_numpy()
    layer_code = codes[nearest[known]]
    size = len(forest.name.cat.categories)
    gpu_ns = np.bincount(layer_code, weights=(work.end - work.start)[known].astype(np.float64), minlength=size)
    launches = np.bincount(layer_code, weights=(work.kind[known] == KERNEL).astype(np.float64), minlength=size)
    is_layer = forest.matching(lambda name: name.startswith("layer_"))
    inside = np.flatnonzero(is_layer & (forest.start >= window.start_ns) & (forest.start < window.end_ns))
    wall = np.bincount(codes[inside], weights=(forest.end - forest.start)[inside].astype(np.float64), minlength=size)
    calls = np.bincount(codes[inside], minlength=size)
    by_start = np.flatnonzero(is_layer)[np.argsort(forest.start[is_layer], kind="stable")]
    seen = pd.unique(codes[by_start])
    first = seen[(calls[seen] > 0) | (launches[seen] > 0) | (gpu_ns[seen] > 0)]
    return pd.DataFrame(
        {
            "layer": forest.name.cat.categories.astype(object).to_numpy()[first],
            "calls": calls[first],
            "wall_ns": wall[first].astype(np.int64),
            "gpu_ns": gpu_ns[first].astype(np.int64),
            "launches": launches[first].astype(np.int64),
        }
    )
