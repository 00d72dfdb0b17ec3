"""Whether a series is worse now than some commits ago: the level it is on against the level it was on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from glqprof.errors import InputError
from glqprof.trend.sample import DIRECTIONS
from glqprof.trend.series import Series, all_series
from glqprof.trend.steps import MIN_SIZE, Fit, Level, fit_levels

_T = TypeVar("_T")
Status = Literal["regression", "improvement", "changed", "steady", "not enough data"]
MIN_SAMPLES = 10
LAST = 20
MAX_REGRESSION = 0.02
ACCEPT_WITHIN = 3
"""How many commits a step may lie from the accepted one: near the noise its place is uncertain."""


@dataclass(frozen=True)
class Step:
    """A step of a series at value ``index``, which is ``commit``'s: the first of the new level (``previous``: the last
    of the old).

    ``before``, ``after``: the levels, in the series' unit. ``change``: their relative difference with its 95 % interval
    ``change_ci``, None where the level before is 0. ``worse``: None where no direction is better. ``environment``: what
    else changed there, by name: (before, after).
    """

    index: int
    commit: str
    previous: str
    before: float
    after: float
    change: float | None
    change_ci: tuple[float, float] | None
    worse: bool | None
    environment: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Finding:
    """What `check` says of one series.

    ``level``: where it is now, in its unit. ``reference``: where it was ``last`` commits ago, or after the step
    that was accepted. ``change`` and ``change_ci`` (95 %) are of ``level`` against it, relative. ``step``: the one
    between them that did most of the change. ``steps``: all of the series.
    """

    series: Series
    status: Status
    reason: str
    fit: Fit | None
    level: float | None
    reference: float | None
    change: float | None
    change_ci: tuple[float, float] | None
    max_regression: float
    direction: str
    step: Step | None
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Report:
    """All findings, in the order of the series."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no series regressed. Series with too little data do not count: see `undecided`."""
        return not self.of("regression")

    @property
    def undecided(self) -> tuple[Finding, ...]:
        """The findings without enough data for an answer."""
        return self.of("not enough data")

    def of(self, *statuses: str) -> tuple[Finding, ...]:
        """Return the findings with one of these statuses."""
        return tuple(f for f in self.findings if f.status in statuses)

    @property
    def frame(self) -> pd.DataFrame:
        """One row a series: its key, unit, direction, commits (count), status, level, reference, change (a share) and
        its interval, commit of the step."""
        rows = [
            {
                "metric": f.series.key.metric,
                "workload": f.series.key.workload,
                "variant": f.series.key.variant,
                "gpu": f.series.key.gpu,
                "machine": f.series.key.machine,
                "unit": f.series.unit,
                "direction": f.direction,
                "commits": len(f.series),
                "status": f.status,
                "level": f.level,
                "reference": f.reference,
                "change": f.change,
                "change_low": f.change_ci[0] if f.change_ci else None,
                "change_high": f.change_ci[1] if f.change_ci else None,
                "commit": f.step.commit if f.step else None,
            }
            for f in self.findings
        ]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        """The frame, for notebooks."""
        return str(self.frame.to_html(index=False, na_rep=""))


def check(
    samples: pd.DataFrame | Sequence[Series],
    *,
    max_regression: float | Mapping[str, float] = MAX_REGRESSION,
    min_samples: int = MIN_SAMPLES,
    last: int = LAST,
    accept: Collection[str] = (),
    direction: Mapping[str, str] | None = None,
) -> Report:
    """Compare the level that each series is on with the one it was on ``last`` commits ago.

    A *regression* is a step (see `glqprof.trend.steps`) between the two that leaves the series worse by at least
    ``max_regression`` (0.02 is 2 %); below it, or where no direction is better, the series *changed*. A series with
    fewer than ``min_samples`` commits has *not enough data*, which is neither good nor bad.

    ``max_regression`` and ``direction`` may be given by metric name or pattern, the first that matches counts, ``*``
    for the rest. ``accept``: commits whose step is meant; the comparison starts after it. Raises InputError for values
    that make no sense.
    """
    if min_samples < 2 * MIN_SIZE:
        raise InputError("--min-samples", f"{min_samples} commits cannot show a step; give at least {2 * MIN_SIZE}")
    if last < 1:
        raise InputError("--last", "must be at least 1 commit")
    limits = max_regression if isinstance(max_regression, Mapping) else {"*": max_regression}
    for limit in limits.values():
        if not 0 <= limit < 10:
            raise InputError("--max-regression", f"{limit:g} is no share between 0 and 10; write 3% or 0.03")
    for way in (direction or {}).values():
        if way not in DIRECTIONS:
            raise InputError("--direction", f"{way!r} is none of {', '.join(DIRECTIONS)}")
    series = all_series(samples) if isinstance(samples, pd.DataFrame) else samples
    return Report(tuple(_check_one(s, limits, min_samples, last, accept, direction or {}) for s in series))


def find_steps(series: Series, fit: Fit, direction: str) -> tuple[Step, ...]:
    """Return the steps between the levels of ``fit``, described."""
    steps = []
    for before, after in pairwise(fit.levels):
        change, interval = _relative(fit, before, after)
        old, new = series.environments[after.start - 1], series.environments[after.start]
        names = sorted(n for n in old.keys() & new.keys() if old[n] != new[n])
        steps.append(
            Step(
                after.start,
                series.commits[after.start],
                series.commits[after.start - 1],
                before.mean,
                after.mean,
                change,
                interval,
                _worse(direction, after.mean - before.mean),
                {n: (old[n], new[n]) for n in names},
            )
        )
    return tuple(steps)


def _check_one(
    series: Series,
    limits: Mapping[str, float],
    min_samples: int,
    last: int,
    accept: Collection[str],
    directions: Mapping[str, str],
) -> Finding:
    limit = _first_match(limits, series.key.metric, MAX_REGRESSION)
    direction = _first_match(directions, series.key.metric, series.direction)
    if len(series) < min_samples:
        reason = f"{len(series)} of {min_samples} commits"
        return Finding(series, "not enough data", reason, None, None, None, None, None, limit, direction, None, ())
    fit = fit_levels(series.values)
    steps = find_steps(series, fit, direction)
    now = fit.levels[-1]
    reference = next(level for level in reversed(fit.levels) if level.start <= max(len(series) - 1 - last, 0))
    for position, commit in enumerate(series.commits):
        if any(commit.startswith(a) for a in accept if a):
            near = [lv for lv in fit.levels[1:] if abs(lv.start - position) <= ACCEPT_WITHIN]
            reference = max([reference, *near], key=lambda lv: lv.start)
    between = [s for s in steps if s.index > reference.start]
    change, interval = _relative(fit, reference, now)
    difference = now.mean - reference.mean
    worse = _worse(direction, difference)
    size = abs(change) if change is not None else np.inf
    status: Status
    if not between or difference == 0:
        status, reason = "steady", "no step"
    elif worse is None:
        status, reason = "changed", "no direction is better"
    elif size < limit:
        status, reason = "changed", f"less than {100 * limit:g} %"
    else:
        status, reason = ("regression", "worse") if worse else ("improvement", "better")
    # Of several steps, the one that went furthest the way the series did.
    main = max(between, key=lambda s: (s.after - s.before) * np.sign(difference or 1.0), default=None)
    return Finding(
        series, status, reason, fit, now.mean, reference.mean, change, interval, limit, direction, main, steps
    )


def _relative(fit: Fit, before: Level, after: Level) -> tuple[float | None, tuple[float, float] | None]:
    if before.mean == 0:
        return (0.0, (0.0, 0.0)) if after.mean == 0 else (None, None)
    middle, low, high = (d / abs(before.mean) for d in fit.difference(before, after))
    return middle, (low, high)


def _worse(direction: str, difference: float) -> bool | None:
    return None if direction == "none" else difference > 0 if direction == "lower" else difference < 0


def _first_match(by_metric: Mapping[str, _T], metric: str, default: _T) -> _T:
    return next((value for pattern, value in by_metric.items() if fnmatchcase(metric, pattern)), default)
