"""A comparison as a document."""

from __future__ import annotations

from collections.abc import Sequence

from glqprof.analysis.compare import Comparison
from glqprof.reports.document import Cell, Column, Document, Table, Text
from glqprof.reports.kernel_names import short_kernel_name


def compare_document(comparisons: Sequence[Comparison], top: int = 12) -> Document:
    """All candidates against the base, one after the other."""
    base = comparisons[0].base.name
    document = Document(f"{base} compared with {', '.join(c.cand.name for c in comparisons)}")
    for c in comparisons:
        document.parts += [headline(c), row_table(c), totals_table(c), kernel_table(c, top)]
        if c.notes:
            document.parts.append(Text([f"note: {n}" for n in c.notes], "warning"))
    return document


def headline(c: Comparison) -> Text:
    """The verdict and what it rests on."""
    lines = [f"{c.cand.name} against {c.base.name}: {c.verdict} ({c.reason})"]
    if c.untraced and c.untraced.ratio:
        lines.append(f"untraced: {c.untraced.base:.2f} → {c.untraced.cand:.2f} tok/s ({c.untraced.ratio - 1:+.0%})")
    if c.interval:
        i = c.interval
        lines.append(f"time ratio {i.ratio:.4f}, 95 % interval {i.low:.4f} to {i.high:.4f}")
    inflation = " and ".join("unknown" if x is None else f"{x:.2f}x" for x in c.inflation)
    per = "a token" if c.unit == "token" else "in the window"
    lines.append(f"traced: {c.wall.base:.2f} → {c.wall.cand:.2f} ms {per} ({c.wall.delta:+.2f}); inflation {inflation}")
    if c.token_sha_equal is not None:
        lines.append(f"same tokens decoded: {'yes' if c.token_sha_equal else 'no'}")
    return Text(lines, "headline")


def row_table(c: Comparison) -> Table:
    """The closed accounts side by side; the deltas sum to the wall delta."""
    per = "per_token" if c.unit == "token" else "per_window"
    columns = [
        Column("where", "row", text=True, flexible=True),
        Column("kind", "kind", text=True),
        Column("base ms", f"base_ms_{per}", digits=3),
        Column("cand ms", f"cand_ms_{per}", digits=3),
        Column("delta ms", f"delta_ms_{per}", digits=3, signed=True),
    ]
    rows: list[list[Cell]] = [[str(r.row), str(r.kind), r.base_ms, r.cand_ms, r.delta_ms] for r in c.rows.itertuples()]
    total: list[Cell] = ["wall", "", c.wall.base, c.wall.cand, c.wall.delta]
    unit = "per token" if c.unit == "token" else "whole windows"
    return Table(f"Where the traced time changed ({unit})", columns, list(rows), total)


TOTAL_LABELS = {
    "syncs": ("*Synchronize calls", 0),
    "blocking_copies": ("blocking copies", 0),
    "launches": ("kernel launches", 0),
    "kernel_sum_ms": ("summed kernel time, ms", 2),
}


def totals_table(c: Comparison) -> Table:
    """Counts over the whole windows."""
    tokens = (
        f"{c.base.tokens} and {c.cand.tokens} tokens" if c.base.tokens != c.cand.tokens else f"{c.base.tokens} tokens"
    )
    columns = [
        Column("total", "total", text=True, flexible=True),
        Column("base", "base"),
        Column("cand", "cand"),
        Column("delta", "delta", signed=True),
    ]
    rows: list[list[Cell]] = []
    for key, (label, digits) in TOTAL_LABELS.items():
        if key in c.totals:
            pair = c.totals[key]
            values = [pair.base, pair.cand, pair.delta]
            rows.append([label, *(values if digits else (int(v) for v in values))])
    return Table(f"Counts in the windows ({tokens if c.unit == 'token' else 'no tokens known'})", columns, list(rows))


def kernel_table(c: Comparison, top: int) -> Table:
    """Kernels whose summed time changed most."""
    columns = [
        Column("kernel", "name", text=True, flexible=True),
        Column("base n", "base_launches"),
        Column("cand n", "cand_launches"),
        Column("base ms", "base_ms"),
        Column("cand ms", "cand_ms"),
        Column("change", "change", text=True),
    ]
    changed = c.kernels[c.kernels["change"] != ""]
    rows: list[list[Cell]] = [
        [
            short_kernel_name(str(r.name)),
            int(r.base_launches),
            int(r.cand_launches),
            r.base_ms if r.base_launches else None,
            r.cand_ms if r.cand_launches else None,
            str(r.change),
        ]
        for r in changed.head(top).itertuples()
    ]
    same = len(c.kernels) - len(changed)
    left = len(changed) - len(rows)
    note = f"{same} kernels unchanged" + (f", {left} changed ones not shown (--top N)" if left > 0 else "")
    return Table("Kernels that appeared, vanished, changed count or mean time", columns, list(rows), note=note)
