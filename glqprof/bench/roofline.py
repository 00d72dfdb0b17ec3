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


def warm_l2(rotated_us: float, cold_us: float, warm_us: float) -> bool:
    """Whether a call after a full rotation of the inputs runs as if its data were still in the L2.

    The three times are of the same call: after a rotation, after emptying the L2, and right after itself. It is warm
    when the cache matters at all (15 %), the rotated time is less than a third of the way from the warm to the cold
    one, and the gap to the cold one exceeds the microsecond that emptying costs anybody: it also evicts code and
    tables, which a decode rightly keeps.
    """
    matters = cold_us > 1.15 * warm_us
    return matters and rotated_us < warm_us + (cold_us - warm_us) / 3 and cold_us - rotated_us > 1.0
