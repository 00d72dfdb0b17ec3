"""The list of kernel groups and variants as a document."""

from __future__ import annotations

from collections.abc import Sequence

from glqprof.reports.document import Cell, Column, Document, Table, Text
from glqprof.traces.schema.bench import KernelList, KernelVariant


def kernels_document(listing: KernelList) -> Document:
    """Return one table per group, what each variant is, and what could not be loaded."""
    document = Document("Kernels")
    for group in listing.groups:
        columns = [
            Column("variant", "variant", text=True),
            Column("contract", "contract", text=True),
            Column("dtype", "dtype", text=True),
            Column("cuda here", "cuda", text=True, flexible=True, wrap=True),
            Column("cpu here", "cpu", text=True),
        ]
        rows: list[Sequence[Cell]] = [[v.name, v.contract, v.dtype, *_runs(v)] for v in group.variants]
        note = f"baseline {group.baseline}; geometries {', '.join(group.geometries)}"
        document.parts.append(Table(f"{group.name}: {group.summary}", columns, rows, note=note))
        document.parts.append(Text([f"{v.name}: {v.summary}" for v in group.variants]))
    if listing.problems:
        document.parts.append(Text([f"not loaded: {problem}" for problem in listing.problems], "warning"))
    return document


def kernels_csv_table(listing: KernelList) -> Table:
    """Return one row per variant."""
    keys = ("group", "variant", "contract", "dtype", "min_capability", "graph", "cuda", "cpu", "summary")
    rows: list[Sequence[Cell]] = [
        [group.name, v.name, v.contract, v.dtype, v.min_capability, v.graph, *_runs(v), v.summary]
        for group in listing.groups
        for v in group.variants
    ]
    return Table("kernels", [Column(key, key) for key in keys], rows)


def _runs(variant: KernelVariant) -> list[str]:
    return ["yes" if run.can else run.why for run in variant.runs]
