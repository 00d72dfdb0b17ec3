"""Statistics of an A/B: pure functions of block times, no clock and no device.

A *block* is a number of calls timed as one. A *quad* is four blocks in the order A B B A (or B A A B): one paired
ratio, in which a linear drift of the machine cancels. What a "not distinguishable" does not mean: it does not say that
the two variants are equally fast, only that these blocks cannot tell; more quads may.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from glqprof.traces.schema.bench import Verdict

MIN_QUADS = 6
"""Fewer ratios give a bootstrap interval of a median no meaning: all six agree by chance in 1 of 32 runs."""

RESAMPLES = 4000

# Reason codes of a verdict.
INTERVAL_EXCLUDES_1 = "interval-excludes-1"
INTERVAL_INCLUDES_1 = "interval-includes-1"
WITHIN_NOISE_FLOOR = "within-noise-floor"
TOO_FEW_QUADS = "too-few-quads"
BASELINE_AGAINST_ITSELF = "a-a"
NO_BASELINE = "baseline-not-captured"


@dataclass(frozen=True)
class Quad:
    """The times of four interleaved blocks, in seconds per call, as they were measured one after another.

    ``order`` is ``"ABBA"`` or ``"BAAB"``; ``seconds`` are in that order.
    """

    order: str
    seconds: tuple[float, float, float, float]

    def of(self, side: str) -> list[float]:
        """Return the two times of side ``"A"`` (baseline) or ``"B"`` (candidate), in seconds per call."""
        return [s for letter, s in zip(self.order, self.seconds, strict=True) if letter == side]

    @property
    def ratio(self) -> float:
        """Candidate ÷ baseline: √(B₁·B₂ ÷ (A₁·A₂)); a drift by a constant factor per block cancels exactly."""
        return math.sqrt(math.prod(self.of("B")) / math.prod(self.of("A")))


def quad_order(index: int) -> str:
    """Return the order of quad number ``index``: alternating, so that neither side always comes first."""
    return "ABBA" if index % 2 == 0 else "BAAB"


def median_interval(values: Sequence[float], seed: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the percentile-bootstrap interval of the median of ``values`` (at least two).

    The percentile method, since the bias correction of BCa is undefined for a median over ties.
    """
    if len(values) < 2:
        raise ValueError("a bootstrap interval needs at least two values")
    if max(values) == min(values):
        return float(values[0]), float(values[0])
    import numpy as np
    from scipy.stats import bootstrap

    result = bootstrap(
        (np.asarray(values),),
        np.median,
        n_resamples=RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


@dataclass(frozen=True)
class Comparison:
    """The median ratio of the quads, its 95 % interval, and what may be said of it, with the reason."""

    ratio: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    reason: str


def noise_floor_pct(quads: Sequence[Quad], seed: int) -> float | None:
    """Return the noise floor in percent: how far the 95 % interval of A against A reaches from a ratio of 1.

    A difference smaller than this is one that the bench would also have found between a variant and itself.
    None with fewer than ``MIN_QUADS`` quads.
    """
    if len(quads) < MIN_QUADS:
        return None
    low, high = median_interval([quad.ratio for quad in quads], seed)
    return 100 * max(abs(low - 1), abs(high - 1))


def compare(quads: Sequence[Quad], floor_pct: float | None, seed: int) -> Comparison:
    """Compare candidate and baseline over interleaved quads; ``floor_pct`` is the noise floor of the same timing.

    ``faster`` or ``slower`` needs an interval that excludes 1 and a median ratio farther from 1 than the noise floor.
    """
    ratios = [quad.ratio for quad in quads]
    if len(ratios) < MIN_QUADS:
        return Comparison(median(ratios) if ratios else None, None, "not distinguishable", TOO_FEW_QUADS)
    middle = median(ratios)
    interval = median_interval(ratios, seed)
    if interval[0] <= 1 <= interval[1]:
        return Comparison(middle, interval, "not distinguishable", INTERVAL_INCLUDES_1)
    if floor_pct is not None and 100 * abs(middle - 1) <= floor_pct:
        return Comparison(middle, interval, "not distinguishable", WITHIN_NOISE_FLOOR)
    return Comparison(middle, interval, "faster" if middle < 1 else "slower", INTERVAL_EXCLUDES_1)


def drift_pct(quads: Sequence[Quad]) -> float:
    """Return by how many percent the baseline's blocks got slower from the first third of the quads to the last.

    This is what a design that times all of A and then all of B would have blamed on B. 0 with fewer than three quads.
    """
    third = len(quads) // 3
    if third == 0:
        return 0.0
    first = median([s for quad in quads[:third] for s in quad.of("A")])
    last = median([s for quad in quads[-third:] for s in quad.of("A")])
    return 100 * (last / first - 1)


def percentile(values: Sequence[float], pct: float) -> float:
    """Return the linearly interpolated percentile of ``values``."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * pct / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
