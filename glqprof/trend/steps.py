"""Where a noisy series stepped from one level to another: pure functions of numbers.

The levels are those of optimal partitioning with a penalised Gaussian likelihood (Killick, Fearnhead, Eckley 2012,
"Optimal detection of changepoints with a linear computational cost"), as `ruptures` computes it, on values made robust
first: the scale comes from first differences, which a step hardly moves, and what lies far from the running median is
pulled in, since with squared loss one outlier is a level of its own (Fearnhead, Rigaill 2019, "Changepoint detection
in the presence of outliers"). A boundary then stands only if Student's t-test between the levels beside it agrees:
in a short series the scale itself is a guess, and the test knows.

What an answer does not mean:

- *No step* does not mean that nothing changed. A step of less than about 4.4 x noise / √(values since) is not visible
  yet, and none is before `MIN_SIZE` values show it. A slow drift is no step; it is reported late, as one or several.
- *A step at a value* does not mean that its commit is the cause. Near the noise the place is off by a value or more,
  and the machine can have changed between two commits.
- *The interval* of a step is that of the difference between two levels, not corrected for having searched for them.
- *The p-value* ranks boundaries; it is not the rate of false alarms. The measured rates are in docs/trend.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glqprof.errors import InputError

MIN_SIZE = 3
"""Values that make a level: fewer are a hiccup."""
PENALTY = 19.0
"""What one more level must explain, in noise variances: about 4.4 standard errors, squared."""
MAX_P = 5e-5
"""A boundary with a larger p-value is no step."""
CLIP = 2.5
"""Values further than this many noise widths from the running median are pulled in to there."""
WINDOW = 5
"""Values of the running median: two outliers side by side are not a majority of it."""


@dataclass(frozen=True)
class Level:
    """Values ``start`` (inclusive) to ``stop`` (exclusive) of a series, which lie around one ``mean``."""

    start: int
    stop: int
    mean: float

    @property
    def count(self) -> int:
        """How many values lie on it."""
        return self.stop - self.start


@dataclass(frozen=True)
class Fit:
    """The levels of a series, in order, and ``sigma``: the standard deviation around them, outliers pulled in.

    ``mean`` and ``sigma`` are in the unit of the values.
    """

    levels: tuple[Level, ...]
    sigma: float

    @property
    def count(self) -> int:
        """How many values the series has."""
        return self.levels[-1].stop

    def difference(self, before: Level, after: Level) -> tuple[float, float, float]:
        """Return the difference of two levels and its 95 % interval (Student, pooled ``sigma``), in the unit."""
        from scipy.special import stdtrit

        freedom = max(self.count - len(self.levels), 1)
        half = float(stdtrit(freedom, 0.975)) * self.sigma * float(np.sqrt(1 / before.count + 1 / after.count))
        middle = after.mean - before.mean
        return middle, middle - half, middle + half


def fit_levels(values: Sequence[float] | np.ndarray, *, penalty: float = PENALTY, max_p: float = MAX_P) -> Fit:
    """Return the levels of ``values`` (n finite numbers in order, n ≥ 1). One level: no step was found.

    Fewer than 2 x `MIN_SIZE` values cannot show a step. Raises InputError when the ``trend`` extra is not installed.
    """
    series = np.asarray(values, dtype=np.float64)
    cuts = [0, len(series)]
    smooth = series
    if len(series) >= 2 * MIN_SIZE:
        medians = running_median(series)
        sigma, spread = noise(series), float(np.ptp(medians))
        # Without noise (counts) any scale would do; these keep squares small enough to be exact.
        scale = max(sigma, 1e-6 * spread) if sigma else 1e-3 * spread
        smooth = np.clip(series, medians - CLIP * scale, medians + CLIP * scale)
        if scale > 0:
            cuts = _confirmed(smooth, _segmented((smooth - np.median(smooth)) / scale, penalty), max_p)
    levels = tuple(Level(a, b, float(smooth[a:b].mean())) for a, b in pairwise(cuts))
    residual = np.concatenate([smooth[level.start : level.stop] - level.mean for level in levels])
    return Fit(levels, float(np.sqrt((residual**2).sum() / max(len(series) - len(levels), 1))))


def noise(values: np.ndarray) -> float:
    """Return the standard deviation of independent noise around few levels, in the unit of ``values`` (n ≥ 2).

    From first differences: pulled in to `CLIP` x their median absolute deviation (1.4826 x the median size; where most
    are 0, the 90 % quantile ÷ 1.645), then their root mean square ÷ √2. 0 for values that hardly ever change.
    """
    differences = np.diff(values)
    scale = 1.4826 * float(np.median(np.abs(differences))) or float(np.quantile(np.abs(differences), 0.9)) / 1.645
    return float(np.sqrt(np.mean(np.clip(differences, -CLIP * scale, CLIP * scale) ** 2) / 2))


def running_median(values: np.ndarray) -> np.ndarray:
    """Return the median of the `WINDOW` values around each of ``values`` (n ≥ `WINDOW`).

    At the ends that of the outermost whole window, so that a step shows only when most of the last `WINDOW` values do.
    """
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, WINDOW), axis=1)
    return np.pad(medians, WINDOW // 2, mode="edge")


def _segmented(scaled: np.ndarray, penalty: float) -> list[int]:
    """Return the boundaries of the best levels of ``scaled`` (noise width 1): 0, …, n."""
    try:
        import ruptures
    except ModuleNotFoundError:
        raise InputError("trend", "needs SQLAlchemy and ruptures; run: pip install 'glqprof[trend]'") from None
    # The linear kernel is the squared loss, solved exactly by PELT in C.
    detector = ruptures.KernelCPD(kernel="linear", min_size=MIN_SIZE).fit(scaled[:, None])
    return [0, *(int(end) for end in detector.predict(pen=penalty))]


def _confirmed(values: np.ndarray, cuts: list[int], max_p: float) -> list[int]:
    """Return ``cuts`` without the boundaries that the t-test does not confirm, the weakest taken out first."""
    while len(cuts) > 2:
        triples = zip(cuts, cuts[1:], cuts[2:], strict=False)
        p_values = [
            _p_value(values[a:b], values[b:c]) if _shown(values[a:b], values[b:c]) else 1.0 for a, b, c in triples
        ]
        weakest = int(np.argmax(p_values))
        if p_values[weakest] <= max_p:
            break
        cuts = cuts[: weakest + 1] + cuts[weakest + 2 :]
    return cuts


def _shown(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether `MIN_SIZE` values of each level lie on its side of the middle between them: two outliers do not."""
    middle = (left.mean() + right.mean()) / 2
    below, above = (left, right) if left.mean() < right.mean() else (right, left)
    return bool((below < middle).sum() >= MIN_SIZE and (above > middle).sum() >= MIN_SIZE)


def _p_value(left: np.ndarray, right: np.ndarray) -> float:
    """Return the two-sided p-value of Student's test with pooled variance; two different constants give 0."""
    from scipy.special import stdtr

    freedom = len(left) + len(right) - 2
    squares = ((left - left.mean()) ** 2).sum() + ((right - right.mean()) ** 2).sum()
    error = np.sqrt(squares / freedom * (1 / len(left) + 1 / len(right)))
    distance = abs(left.mean() - right.mean())
    if error <= 1e-12 * distance:
        return float(distance == 0)
    return 2 * float(stdtr(freedom, -distance / error))
