"""Results over commits: a store, the series in it, and whether one of them stepped for the worse.

`Store` keeps samples in SQLite or any database that SQLAlchemy reaches; `read_results` turns result files into samples;
`check` says which series regressed. DataFrames come out of `Store.samples` and of `Report.frame`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glqprof.trend.regressions import Finding, Report, check
    from glqprof.trend.results import read_results
    from glqprof.trend.sample import Sample, SeriesKey
    from glqprof.trend.series import Series, all_series
    from glqprof.trend.steps import fit_levels
    from glqprof.trend.store import Store

# Looked up on first use: the command line must not wait for SQLAlchemy or SciPy.
_LAZY = {
    "Finding": "glqprof.trend.regressions",
    "Report": "glqprof.trend.regressions",
    "Sample": "glqprof.trend.sample",
    "Series": "glqprof.trend.series",
    "SeriesKey": "glqprof.trend.sample",
    "Store": "glqprof.trend.store",
    "all_series": "glqprof.trend.series",
    "check": "glqprof.trend.regressions",
    "fit_levels": "glqprof.trend.steps",
    "read_results": "glqprof.trend.results",
}
__all__ = [
    "Finding",
    "Report",
    "Sample",
    "Series",
    "SeriesKey",
    "Store",
    "all_series",
    "check",
    "fit_levels",
    "read_results",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'glqprof.trend' has no attribute {name!r}")
