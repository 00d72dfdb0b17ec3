"""Floors and impossible rates: what the bytes of a call must cost at the measured copy rate."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

SLOW_COPY_SHARE = 0.9
"""A copy slower than this share of the recorded rate means that the machine is not what its name says."""


@dataclass(frozen=True)
class RecordedGpu:
    """What was measured before on a GPU of this name: copy rate in GB/s (read + written) and where that is from."""

    name: str
    copy_gb_s: float
    source: str


def recorded_gpu(name: str) -> RecordedGpu | None:
    """Return the entry of ``data/gpus.toml`` with this name, or None."""
    table = tomllib.loads((files("glqprof") / "data" / "gpus.toml").read_text(encoding="utf-8"))
    for entry in table["gpu"]:
        if entry["name"] == name:
            return RecordedGpu(entry["name"], float(entry["copy_gb_s"]), entry["source"])
    return None


def floor_us(call_bytes: int, copy_gb_s: float) -> float:
    """Return the time in microseconds below which ``call_bytes`` cannot be moved at ``copy_gb_s``."""
    return call_bytes / copy_gb_s * 1e-3


def rate_gb_s(call_bytes: int, microseconds: float) -> float:
    """Return the rate in GB/s of moving ``call_bytes`` in a time."""
    return call_bytes / microseconds * 1e-3


def warm_l2(rotated_us: float, flushed_us: float) -> bool:
    """Whether calls on rotated inputs run so much faster than after emptying the L2 that they must have found it warm.

    Allowed are 15 % and 2 µs: emptying the cache also evicts what a decode keeps there for good reasons (code, tables).
    """
    return rotated_us < 0.85 * flushed_us - 2.0
