"""Series over commits, and what a check of them found, as documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from glqprof.reports.document import Cell, Column, Document, Table, Text
from glqprof.trend.regressions import Finding, Report
from glqprof.trend.results import Result
from glqprof.trend.sample import DEFAULT_MACHINE, SeriesKey
from glqprof.trend.store import Added

SHORT = 10
"""Characters of a commit that are shown."""
ARROWS = {"lower": "lower", "higher": "higher", "none": "–"}


def short_commit(commit: str) -> str:
    """Return the beginning of a hash; other names of commits stay whole."""
    return commit[:SHORT] if len(commit) >= 40 and all(c in "0123456789abcdef" for c in commit) else commit


def significant(value: float | None) -> str:
    """Return four significant digits, or all digits before the point; a dash for None."""
    if value is None:
        return "–"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.3e}"


def percent(share: float | None) -> str:
    """Return a signed percentage with two digits, ``from 0`` where there is none."""
    return "from 0" if share is None else f"{100 * share:+.2f} %"


def interval(ends: tuple[float, float] | None) -> str:
    """Return the ends of a 95 % interval as percentages."""
    return "–" if ends is None else f"{100 * ends[0]:+.1f} … {100 * ends[1]:+.1f} %"


def add_document(store: str, results: Sequence[Result], added: Added) -> Document:
    """What an `add` stored."""
    count = len(results)
    known = f"; {added.known:,} were there already" if added.known else ""
    line = f"{added.added:,} samples of {count} file{'s' if count != 1 else ''} added to {store}{known}"
    document = Document("glqprof trend add", [Text([line], "headline")])
    notes = [f"note: {r.path}: {note}" for r in results for note in r.notes]
    if notes:
        document.parts.append(Text(notes, "warning"))
    return document


def add_table(results: Sequence[Result]) -> Table:
    """Samples by file."""
    columns = [Column("file", "path", text=True, flexible=True), Column("samples", "samples")]
    return Table("Added", columns, [[r.path, len(r.samples)] for r in results])


def list_document(store: str, report: Report) -> Document:
    """Every series, a table for each workload on each GPU."""
    count = len(report.findings)
    commits = len({c for f in report.findings for c in f.series.commits})
    head = f"{count} series over {commits} commit{'s' if commits != 1 else ''} in {store}"
    document = Document("glqprof trend list", [Text([head], "headline")])
    columns = [
        Column("variant", "variant", text=True),
        Column("metric", "metric", text=True, flexible=True, wrap=True),
        Column("better", "direction", text=True),
        Column("commits", "commits"),
        Column("latest", "latest"),
        Column("noise", "noise"),
        Column("last step", "last_step", text=True),
    ]
    for title, findings in _by_place(report.findings):
        rows: list[Sequence[Cell]] = [
            [
                f.series.key.variant,
                f.series.key.metric,
                ARROWS[f.direction],
                len(f.series),
                f"{significant(float(f.series.values[-1]))} {f.series.unit}",
                f"{100 * f.fit.sigma / abs(f.level):.1f} %" if f.fit and f.level else "–",
                f"{short_commit(f.steps[-1].commit)} {percent(f.steps[-1].change)}" if f.steps else "–",
            ]
            for f in findings
        ]
        document.parts.append(Table(title, columns, rows))
    return document


def check_document(store: str, report: Report, min_samples: int, last: int) -> Document:
    """The verdict, each regression in a sentence, then all series that are not steady."""
    document = Document("glqprof trend check", [Text([_verdict(report, store)], "headline")])
    bad = report.of("regression")
    if bad:
        document.parts.append(Text([line for f in bad for line in _sentences(f)], "warning"))
    shown = [f for f in report.findings if f.status in ("regression", "improvement", "changed")]
    columns = [
        Column("status", "status", text=True),
        Column("variant", "variant", text=True),
        Column("metric", "metric", text=True, flexible=True, wrap=True),
        Column("now", "level"),
        Column("unit", "unit", text=True),
        Column("change", "change"),
        Column("95 % interval", "interval"),
        Column("since", "commit", text=True),
    ]
    for title, findings in _by_place(shown):
        rows: list[Sequence[Cell]] = [
            [
                f.status,
                f.series.key.variant,
                f.series.key.metric,
                significant(f.level),
                f.series.unit,
                percent(f.change),
                interval(f.change_ci),
                short_commit(f.step.commit) if f.step else "–",
            ]
            for f in findings
        ]
        document.parts.append(Table(title, columns, rows))
    if report.undecided:
        most = max(len(f.series) for f in report.undecided)
        which = f"{len(report.undecided)} of {len(report.findings)} series"
        warning = f"warning: not enough data in {which}: at most {most} of {min_samples} commits, so no answer for them"
        document.parts.append(Text([warning], "warning"))
    if not report.findings:
        document.parts.append(Text(["warning: not enough data: the store is empty"], "warning"))
    if report.findings:
        document.parts.append(Text([f"Compared: the level a series is on and the one of {last} commits ago."]))
    return document


def check_table(report: Report) -> Table:
    """All findings at full precision, for CSV."""
    frame = report.frame
    columns = [Column(str(name), str(name)) for name in frame.columns]
    rows: list[Sequence[Cell]] = [list(row) for row in frame.itertuples(index=False)]
    return Table("Findings", columns, rows)


def list_table(report: Report) -> Table:
    """All series at full precision, for CSV."""
    keys = ["metric", "workload", "variant", "gpu", "machine", "unit", "direction"]
    more = ["commits", "samples", "first_commit", "last_commit", "latest", "noise", "steps"]
    rows: list[Sequence[Cell]] = []
    for f in report.findings:
        s, k = f.series, f.series.key
        key: list[Cell] = [k.metric, k.workload, k.variant, k.gpu, k.machine, s.unit, f.direction]
        noise = f.fit.sigma if f.fit else None
        latest = float(s.values[-1])
        rows.append([*key, len(s), int(s.samples.sum()), s.commits[0], s.commits[-1], latest, noise, len(f.steps)])
    return Table("Series", [Column(name, name) for name in (*keys, *more)], rows)


def place(key: SeriesKey) -> str:
    """Return the workload and where it ran, as titles say it."""
    machine = "" if key.machine == DEFAULT_MACHINE else f", machine {key.machine}"
    return f"{key.workload} on {key.gpu}{machine}"


def _by_place(findings: Iterable[Finding]) -> list[tuple[str, list[Finding]]]:
    ordered = sorted(findings, key=lambda f: (place(f.series.key), f.series.key.variant, f.series.key.metric))
    return [(title, list(group)) for title, group in groupby(ordered, key=lambda f: place(f.series.key))]


def _verdict(report: Report, store: str) -> str:
    decided = len(report.findings) - len(report.undecided)
    bad = len(report.of("regression"))
    if bad:
        return f"{bad} of {decided} series regressed ({store})"
    if not decided:
        return f"no answer: not enough data ({store})"
    return f"no regression in {decided} series ({store})"


def _sentences(f: Finding) -> list[str]:
    assert f.step is not None
    key, step = f.series.key, f.step
    since = len(f.series) - step.index
    what = " of ".join(part for part in (key.metric, key.variant) if part)
    lines = [
        f"regression: {what}, {place(key)}",
        f"  {significant(f.reference)} → {significant(f.level)} {f.series.unit}, {percent(f.change)} "
        f"(95 % interval {interval(f.change_ci)}; allowed {100 * f.max_regression:g} %)",
        f"  since commit {short_commit(step.commit)} (after {short_commit(step.previous)}), "
        f"{since} commit{'s' if since != 1 else ''} on the new level",
    ]
    if step.environment:
        changed = ", ".join(f"{name} {old} → {new}" for name, (old, new) in step.environment.items())
        lines.append(f"  at the same commit changed: {changed}")
    return lines
