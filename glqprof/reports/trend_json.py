"""What the trend verbs print as the JSON contract ``glqprof.trend/1`` (schema in data/schemas/trend-1.schema.json)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glqprof.trend.regressions import Finding, Report, Step
from glqprof.trend.results import Result
from glqprof.trend.sample import SeriesKey
from glqprof.trend.store import Added

SCHEMA = "glqprof.trend/1"


def add_json(store: str, results: Sequence[Result], added: Added) -> dict[str, Any]:
    """The object of `trend add`."""
    files = [{"path": r.path, "samples": len(r.samples), "notes": list(r.notes)} for r in results]
    return {
        "schema": SCHEMA,
        "verb": "add",
        "store": store,
        "added": added.added,
        "known": added.known,
        "files": files,
    }


def list_json(store: str, report: Report) -> dict[str, Any]:
    """The object of `trend list`: every series with its latest value and its steps."""
    return {"schema": SCHEMA, "verb": "list", "store": store, "series": [_series(f) for f in report.findings]}


def check_json(store: str, report: Report, min_samples: int, last: int) -> dict[str, Any]:
    """The object of `trend check`."""
    return {
        "schema": SCHEMA,
        "verb": "check",
        "store": store,
        "ok": report.ok,
        "min_samples": min_samples,
        "last": last,
        "findings": [_finding(f) for f in report.findings],
    }


def _key(key: SeriesKey) -> dict[str, Any]:
    return {
        "workload": key.workload,
        "variant": key.variant,
        "metric": key.metric,
        "gpu": key.gpu,
        "machine": key.machine,
    }


def _series(f: Finding) -> dict[str, Any]:
    s = f.series
    return {
        **_key(s.key),
        "unit": s.unit,
        "direction": f.direction,
        "commits": len(s),
        "samples": int(s.samples.sum()),
        "first_commit": s.commits[0],
        "last_commit": s.commits[-1],
        "latest": float(s.values[-1]),
        "level": f.level,
        "noise": f.fit.sigma if f.fit else None,
        "steps": [_step(step) for step in f.steps],
    }


def _finding(f: Finding) -> dict[str, Any]:
    return {
        **_series(f),
        "status": f.status,
        "reason": f.reason,
        "max_regression": f.max_regression,
        "reference": f.reference,
        "change": f.change,
        "change_ci": list(f.change_ci) if f.change_ci else None,
        "commit": f.step.commit if f.step else None,
        "commits_since": len(f.series) - f.step.index if f.step else None,
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "commit": step.commit,
        "previous": step.previous,
        "index": step.index,
        "before": step.before,
        "after": step.after,
        "change": step.change,
        "change_ci": list(step.change_ci) if step.change_ci else None,
        "worse": step.worse,
        "environment": {name: list(pair) for name, pair in step.environment.items()},
    }
