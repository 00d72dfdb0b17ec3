"""Two ncu reports side by side as a document."""

from __future__ import annotations

from glqprof.analysis.ncu_analysis import KernelAnalysis
from glqprof.analysis.ncu_compare import Change, Match, NcuComparison, shown_dim
from glqprof.reports.document import Cell, Column, Document, Table, Text
from glqprof.reports.kernel_names import short_kernel_name
from glqprof.reports.ncu_document import KERNEL, NOT_NSYS


def ncu_compare_document(comparisons: list[NcuComparison], top: int = 12) -> Document:
    """Each candidate against the base: durations of all launches, then what changed in those that changed most."""
    base = comparisons[0].base.name
    document = Document(f"{base} compared with {', '.join(c.cand.name for c in comparisons)}")
    for c in comparisons:
        document.parts += [headline(c), duration_table(c, top)]
        document.parts += [change_table(m) for m in _most_changed(c)[:top] if _told(m)]
        document.parts.append(Text([f"note: {n}" for n in (*c.notes, NOT_NSYS)], "warning"))
    return document


def headline(c: NcuComparison) -> Text:
    """How many launches have a partner, and the summed durations."""
    counts = f"{len(c.matches)} launches matched, {len(c.vanished)} vanished, {len(c.appeared)} appeared"
    lines = [f"{c.cand.name} against {c.base.name}: {counts}"]
    if c.base_us is not None and c.cand_us is not None:
        same = not c.vanished and not c.appeared  # else the sums are of different work
        change = f" ({c.cand_us / c.base_us - 1:+.1%})" if c.base_us and same else ""
        lines.append(f"all launches of each report: {c.base_us:,.1f} → {c.cand_us:,.1f} µs{change}")
    return Text(lines, "headline")


def duration_table(c: NcuComparison, top: int | None) -> Table:
    """Every launch of both sides."""
    columns = [
        Column("base", "base_id"),
        Column("cand", "cand_id"),
        KERNEL,
        Column("grid", "grid", text=True),
        Column("base µs", "base_us"),
        Column("cand µs", "cand_us"),
        Column("ratio", "ratio", digits=3),
        Column("binds now", "diagnosis", text=True),
    ]
    rows: list[list[Cell]] = [_row(m.base, m.cand) for m in c.matches]
    rows += [_row(k, None) for k in c.vanished] + [_row(None, k) for k in c.appeared]
    left = 0 if top is None else len(rows) - top
    note = "a launch without base appeared, one without cand vanished" if c.vanished or c.appeared else ""
    note += f"{'; ' if note else ''}{left} launches not shown (--top N)" if left > 0 else ""
    return Table("Durations", columns, list(rows[:top]), note=note)


def _row(base: KernelAnalysis | None, cand: KernelAnalysis | None) -> list[Cell]:
    one = cand or base
    assert one is not None
    before = base.numbers.duration_us if base else None
    after = cand.numbers.duration_us if cand else None
    return [
        base.numbers.id if base else None,
        cand.numbers.id if cand else None,
        short_kernel_name(one.numbers.name),
        shown_dim(one.numbers.grid),
        before,
        after,
        after / before if before and after is not None else None,
        cand.diagnosis.label if cand else "vanished",
    ]


def _most_changed(c: NcuComparison) -> list[Match]:
    def moved(m: Match) -> float:
        before, after = m.base.numbers.duration_us, m.cand.numbers.duration_us
        return abs(after - before) if before is not None and after is not None else 0.0

    return sorted(c.matches, key=lambda m: -moved(m))


def _told(m: Match) -> bool:
    return bool(m.changes) or m.by != "name and grid"


def change_table(m: Match) -> Table:
    """What changed in one launch."""
    columns = [
        Column("what changed", "quantity", text=True, flexible=True),
        Column("base", "base", text=True),
        Column("cand", "cand", text=True),
        Column("unit", "unit", text=True),
        Column("ratio", "ratio", digits=3),
    ]
    rows: list[list[Cell]] = [[c.title, shown(c.base), shown(c.cand), c.unit, c.ratio] for c in m.changes]
    by = "" if m.by == "name and grid" else f" (matched by {m.by})"
    title = f"{m.base.numbers.id} → {m.cand.numbers.id}: {short_kernel_name(m.cand.numbers.name)}{by}"
    return Table(title, columns, list(rows))


def shown(value: float | str | None) -> str | None:
    """Up to four digits; counts whole."""
    if value is None or isinstance(value, str):
        return value
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 100 else 2}f}"


def changes_csv(comparisons: list[NcuComparison]) -> Table:
    """Every change of every matched launch, one a row."""
    columns = [
        Column("candidate", "candidate", text=True),
        Column("base", "base_id"),
        Column("cand", "cand_id"),
        Column("kernel", "name", text=True),
        Column("by", "matched_by", text=True),
        Column("quantity", "quantity", text=True),
        Column("unit", "unit", text=True),
        Column("base", "base"),
        Column("cand", "cand"),
        Column("ratio", "ratio"),
    ]
    rows: list[list[Cell]] = []
    for c in comparisons:
        for m in c.matches:
            start: list[Cell] = [c.cand.name, m.base.numbers.id, m.cand.numbers.id, m.cand.numbers.name, m.by]
            rows += [[*start, *_change_cells(change)] for change in m.changes]
    return Table("changes", columns, list(rows))


def _change_cells(c: Change) -> list[Cell]:
    return [c.key, c.unit, c.base, c.cand, c.ratio]
