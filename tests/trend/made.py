"""Made samples: what a store holds when a metric was measured at commit after commit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glqprof.trend import Sample, SeriesKey

WORKLOAD, GPU = "glq-moe/tiny/layers=2/rows=1", "NVIDIA H200"
MONDAY = 1_790_000_000  # seconds since 1970 UTC


def commit(number: int) -> str:
    """The hash of the made commit ``number``."""
    return hashlib.sha1(b"commit %d" % number).hexdigest()


def sample(number: int, value: float, *, run: str = "run", time: int | None = -1, **more: Any) -> Sample:
    """One sample of commit ``number``, which was made ``number`` hours after `MONDAY`."""
    names = {"workload": WORKLOAD, "variant": "v3b", "metric": "eager_us", "gpu": GPU} | {
        name: more.pop(name) for name in ("workload", "variant", "metric", "gpu", "machine") if name in more
    }
    unit, direction = more.pop("unit", "µs"), more.pop("direction", "lower")
    when = MONDAY + 3600 * number if time == -1 else time
    return Sample(SeriesKey(**names), value, unit, direction, commit(number), run, when, **more)


def values(
    count: int, steps: dict[int, float], *, sigma: float = 0.01, level: float = 100.0, seed: int = 0
) -> np.ndarray:
    """``count`` values around ``level``; from each index in ``steps`` on, the level is multiplied by its factor."""
    result = np.full(count, level)
    for index, factor in steps.items():
        result[index:] *= factor
    return result * (1 + sigma * np.random.default_rng(seed).standard_normal(count))


def samples(numbers: Sequence[float] | np.ndarray, **more: Any) -> list[Sample]:
    """A sample a commit."""
    return [sample(i, float(value), **more) for i, value in enumerate(numbers)]


def bench(path: Path, *, median_us: float = 9000.0, ok: bool = True, **more: Any) -> Path:
    """Write a result of `glqprof bench` with a baseline and one candidate."""
    timing = {"p10_us": 1.0, "p90_us": 1.0, "ratio_ci": None, "verdict": None, "reason": "a-a"}
    timing |= {"quads": 20, "calls_per_block": 1, "discarded": 0, "noise_floor_pct": 0.5}

    def variant(name: str, us: float, ratio: float, good: bool) -> dict[str, Any]:
        eager = {**timing, "median_us": us, "ratio": ratio}
        reasons = [] if good else [{"code": "wrong-bits", "detail": "they differ"}]
        return {
            "name": name, "rows": 1, "ok": good, "contract": "", "identical": good, "max_abs_err": 0.0, "rel_err": 0.0,
            "differing": None, "timings": {"eager": eager, "graph": None, "graph_note": "none"}, "bytes": 1000,
            "gb_s": 55.0, "floor_us": 1.0, "floor_ratio": 2.0, "rate_timing": "eager", "launches": 1311, "syncs": 162,
            "reasons": reasons,
        }  # fmt: skip

    content = {
        "schema": "glqprof.bench/1", "group": "glq-moe", "geometry": "tiny", "layers": 2, "baseline": "v0",
        "device": {"kind": "cuda", "name": GPU, "capability": "9.0", "driver": "580.1", "cuda": "13.0",
                   "torch": "2.11", "l2_bytes": 1, "copy_gb_s": 4000.0},
        "variants": [variant("v0", 2 * median_us, 1.0, True), variant("v3b", median_us, 0.5, ok)],
        "rows": [1], "noise_floor_pct": 0.5, "clocks": {"source": "nvml", "sm_mhz": None, "mem_mhz": None,
        "throttled_blocks": 0, "throttle_reasons": []}, "contract": {}, "warnings": [],
        "cache": {"state": "cold", "sets": 3, "bytes": 1}, "seed": 0, "options": {},
    } | more  # fmt: skip
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
