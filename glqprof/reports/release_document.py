"""The tables of a release note, which the terminal, Markdown and CSV share."""

from __future__ import annotations

from collections.abc import Sequence

from glqprof.analysis.release import Gap, ReleaseNotes
from glqprof.analysis.release_rows import ReleaseRow
from glqprof.reports.document import Cell, Column, Document, Table, Text

COUNTS = {
    "kernels": "kernels",
    "launches": "launches",
    "syncs": "syncs",
    "blocking_copies": "blocking copies",
}
"""What captures count, and how it is called; docs/accounting.md defines it."""


def release_document(notes: ReleaseNotes) -> Document:
    """The tables for a terminal; the Markdown has the text around them too."""
    document = Document(notes.spec.title, [Text([notes.spec.title], "headline")])
    if notes.mixed:
        document.parts.append(Text([f"not like for like: {m}" for m in notes.mixed], "warning"))
    document.parts.append(cumulative_table(notes))
    document.parts += [counts_table(notes)] if any(p.capture is not None for p in notes.paths) else []
    document.parts += [share_table(notes)] if notes.shares else []
    document.parts += [host_table(notes)] if notes.host else []
    document.parts += [kernel_table(notes)] if notes.kernels else []
    if notes.gap and notes.gap.comparison:
        document.parts.append(gap_table(notes.gap))
    document.parts.append(source_table(notes))
    if notes.missing:
        document.parts.append(Text([f"missing: {m}" for m in notes.missing], "warning"))
    return document


def cite(*numbers: int | None) -> str:
    """Source numbers as they stand in a cell, ``[1][2]``; each once."""
    return "".join(f"[{n}]" for n in dict.fromkeys(numbers) if n is not None)


def number(value: float | None, digits: int = 1) -> Cell:
    """A count a token: whole where it is whole."""
    if value is None:
        return None
    return round(value) if abs(value - round(value)) < 1e-9 else round(value, digits)


def cumulative_table(notes: ReleaseNotes) -> Table:
    """Path, untraced tok/s, factor over the first row, notes; references below."""
    columns = [
        Column("path", "path", text=True),
        Column("tok/s, untraced", "tok_s"),
        Column(f"over {notes.paths[0].label}", "factor"),
        Column("notes", "notes", text=True, flexible=True, wrap=True, markdown=True),
        Column("source", "source", text=True, markdown=True),
    ]
    rows: list[Sequence[Cell]] = []
    for p in notes.paths:
        factor = None if p.factor is None else f"{p.factor:.2f}×"
        words = f"reference: {p.notes}" if p.is_reference and p.notes else "reference" if p.is_reference else p.notes
        rows.append([p.label, p.tok_s, factor, words or None, cite(p.rate_source) or None])
    return Table("Cumulative", columns, rows)


def csv_table(notes: ReleaseNotes) -> Table:
    """All that is known by path, sources by their files' names."""
    names = {s.number: s.name for s in notes.sources}
    keys = ["path", "tok_s", "factor", "gpu_busy_share", "gpu_busy_ms_per_token", *(f"{c}_per_token" for c in COUNTS)]
    columns = [Column(key, key) for key in [*keys, "inflation", "rate_source", "counts_source"]]
    rows: list[Sequence[Cell]] = []
    for p in notes.paths:
        counts = [number(p.per_token(c), 6) for c in COUNTS]
        inflation = p.capture.inflation if p.capture else None
        sources = [names.get(p.rate_source or 0), names.get(p.capture_source or 0)]
        rows.append([p.label, p.tok_s, p.factor, p.gpu_busy_share, p.busy_ms_per_token, *counts, inflation, *sources])
    return Table("by path", columns, rows)


def counts_table(notes: ReleaseNotes) -> Table:
    """What the captures count of each path, a token."""
    columns = [
        Column("path", "path", text=True),
        Column("GPU busy", "gpu_busy_share", percent=True),
        *(Column(words, f"{count}_per_token", digits=1) for count, words in COUNTS.items()),
        Column("inflation", "inflation"),
    ]
    rows: list[Sequence[Cell]] = []
    for p in notes.paths:
        counts = [number(p.per_token(c)) for c in COUNTS]
        inflation = p.capture.inflation if p.capture else None
        rows.append([f"{p.label} {cite(p.capture_source)}".strip(), p.gpu_busy_share, *counts, inflation])
    note = "Launches are calls of the host: a CUDA graph is one. Inflation: traced over untraced time of a token."
    return Table("Counts by path, a token (traced)", columns, rows, note=note)


def share_table(notes: ReleaseNotes) -> Table:
    """The nested account; indented names."""
    assert notes.now is not None
    columns = [
        Column("where", "where", text=True, flexible=True),
        Column("wall", "share", percent=True),
        Column("GPU time", "share_of_gpu_time", percent=True),
    ]
    rows: list[Sequence[Cell]] = []
    for s in notes.shares:
        of_busy = None if s.busy_tenths is None else s.busy_tenths / 1000
        rows.append(["  " * s.depth + s.name, s.tenths / 1000, of_busy])
    return Table(f"Where the time goes: {notes.now.label} (traced)", columns, rows)


def host_table(notes: ReleaseNotes) -> Table:
    """Calls and idle states of the first captured row and of the last."""
    assert notes.host is not None
    before, after, comparison = notes.host
    columns = [
        Column("a token, traced", "what", text=True, flexible=True),
        Column(f"{before.label} {cite(before.capture_source)}", "before"),
        Column(f"{after.label} {cite(after.capture_source)}", "after"),
        Column("change", "change", signed=True),
    ]
    rows: list[Sequence[Cell]] = []
    for count, words in COUNTS.items():
        old, new = before.per_token(count), after.per_token(count)
        change = None if old is None or new is None else new - old
        rows.append([words, number(old), number(new), number(change)])
    for r in comparison.rows.itertuples():
        if r.kind == "idle":
            rows.append([f"idle ms: {r.row}", r.base_ms, r.cand_ms, r.delta_ms])
    for kind, words in (("idle", "idle ms in all"), ("gpu", "busy ms in all")):
        part = comparison.rows[comparison.rows["kind"] == kind]
        rows.append([words, *(float(part[c].sum()) for c in ("base_ms", "cand_ms", "delta_ms"))])
    return Table(f"Host overhead: {before.label} and {after.label}", columns, rows)


def kernel_table(notes: ReleaseNotes) -> Table:
    """Kernels alone, as their bench files have them; of a variant that failed its checks no figure, but why."""
    base = next(iter(dict.fromkeys(line.baseline for line in notes.kernels)), "")
    several = any(line.baseline != base for line in notes.kernels)
    columns = [
        Column("variant", "variant", text=True),
        Column("rows", "rows"),
        Column("eager µs", "eager_us", digits=0),
        Column("graph µs", "graph_us", digits=0),
        Column("÷ base (95 %)" if several else f"÷ {base} (95 %)", "eager_ratio_ci"),
        Column("launches", "launches"),
        Column("waits", "syncs"),
        Column("× floor", "floor_ratio", digits=1),
    ]
    rows: list[Sequence[Cell]] = []
    failed: list[str] = []
    for line in notes.kernels:
        v, t = line.variant, line.variant.timings
        shown: list[Cell] = [None] * 6
        if line.failed:
            failed.append(f"{v.name} at {v.rows} row{'s' if v.rows != 1 else ''} failed its checks: {line.failed}.")
        else:
            eager, graph = t.eager, t.graph
            ratio = None
            if eager and eager.ratio is not None and eager.ratio_ci and v.name != line.baseline:
                ratio = f"{eager.ratio:.3f} ({eager.ratio_ci[0]:.3f}–{eager.ratio_ci[1]:.3f})"
            times = [eager.median_us if eager else None, graph.median_us if graph else None]
            shown = [*times, ratio, v.launches, v.syncs, v.floor_ratio]
        rows.append([f"{v.name} {cite(line.source)}", v.rows, *shown])
    # A column that no line fills (no graph times, say) would only widen the page.
    kept = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    title = "Kernels alone: one call, all layers of a step (glqprof bench)"
    return Table(title, [columns[i] for i in kept], [[row[i] for i in kept] for row in rows], note=" ".join(failed))


def gap_table(gap: Gap) -> Table:
    """GPU time of the last row and of the reference, bucket by bucket."""
    assert gap.comparison is not None
    columns = [
        Column("GPU time, ms a token, traced", "bucket", text=True, flexible=True),
        Column(f"{gap.reference.label} {cite(gap.reference.capture_source)}", "reference_ms"),
        Column(f"{gap.last.label} {cite(gap.last.capture_source)}", "last_ms"),
        Column("difference", "difference_ms", signed=True),
    ]
    busy = gap.comparison.rows[gap.comparison.rows["kind"] == "gpu"]
    ordered = busy.loc[busy["delta_ms"].abs().sort_values(ascending=False, kind="stable").index]
    rows: list[Sequence[Cell]] = [[str(r.row), r.base_ms, r.cand_ms, r.delta_ms] for r in ordered.itertuples()]
    sums: list[Cell] = [float(busy[c].sum()) for c in ("base_ms", "cand_ms", "delta_ms")]
    return Table("Remaining gap on the GPU", columns, rows, ["all", *sums])


def source_table(notes: ReleaseNotes) -> Table:
    """The files behind the figures."""
    columns = [
        Column("source", "source", text=True),
        Column("kind", "kind", text=True),
        Column("file", "file", text=True, flexible=True, wrap=True),
    ]
    return Table("Sources", columns, [[cite(s.number), s.kind, s.name] for s in notes.sources])


def rate_of(row: ReleaseRow) -> str:
    """Tokens a second with where they are from."""
    return f"{row.tok_s:,.2f} tok/s {cite(row.rate_source)}" if row.tok_s is not None else "no untraced rate"
