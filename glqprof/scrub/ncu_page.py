"""Write the shareable part of Nsight Compute's CSV, either page."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from pathlib import Path

from glqprof.scrub.patterns import find, refuse_private
from glqprof.traces.readers.ncu_csv import IDENTITY, split_page
from glqprof.traces.schema.scrubbed import Removed

# Emptied, not left out: readers know the columns by their names and places.
EMPTIED = frozenset({"Process Name", "Host Name", "Kernel Time"})
DETAILS = frozenset({
    "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type", "Rule Description",
    "Estimated Speedup Type", "Estimated Speedup",
})  # fmt: skip
METRIC = re.compile(r"[A-Za-z]\w*(?:[.:]\w+)*")
# Metrics whose value is a text of the hardware or of ncu, not of the program.
TEXT_METRICS = re.compile(r"device__attribute_(?:display_name|chip)|launch__\w+")
# Several instances of a metric stand in one cell: 7 (1; 2; 4).
_NUMBER = re.compile(r"[-+\d.,;()\s]+(?:e[+-]?\d+)?|n/a|nan|inf|", re.IGNORECASE)


def scrub_ncu_csv(text: str, shown_as: Path) -> tuple[str, list[Removed]]:
    """The page without what names the program, the host and its files, and what is missing from it.

    Raises InputError when it is no ncu CSV, or when a kernel's name or a rule's text looks like a secret or a path.
    """
    page = split_page(text, shown_as)
    lost: Counter[tuple[str, str]] = Counter()
    if others := [line for line in page.other if line.strip()]:
        lost["program output", "lines that are not of the table"] += len(others)
    is_details = "Metric Name" in page.header
    keep = [
        name in IDENTITY or (name in DETAILS if is_details else bool(METRIC.fullmatch(name))) for name in page.header
    ]
    for name, kept in zip(page.header, keep, strict=True):
        if not kept:
            lost["columns", name[:40]] += 1
    at = {name: i for i, name in enumerate(page.header)}
    rows: list[list[str]] = []
    for number, row in enumerate(page.rows):
        is_units = not is_details and number == 0
        cells = []
        for position, cell in enumerate(row):
            if position < len(keep) and keep[position]:
                cells.append(_cell(cell, page.header[position], row, at, is_units, lost))
        rows.append(cells)
    header = [name for name, kept in zip(page.header, keep, strict=True) if kept]
    texts = {(f"column {header[i]}", cell) for row in rows for i, cell in enumerate(row) if not _NUMBER.fullmatch(cell)}
    refuse_private(sorted(texts), shown_as)
    buffer = io.StringIO()
    csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([header, *rows])
    return buffer.getvalue(), [Removed(shown_as.name, kind, what, n) for (kind, what), n in sorted(lost.items())]


def _cell(
    cell: str, column: str, row: list[str], at: dict[str, int], is_units: bool, lost: Counter[tuple[str, str]]
) -> str:
    if column in EMPTIED:
        if cell.strip():
            lost["process and host", column] += 1
        return ""
    if column == "Rule Description" and find(cell):  # ncu quotes source files in some of its advice
        lost["paths", column] += 1
        return ""
    if is_units or column in IDENTITY or (column in DETAILS and column != "Metric Value"):
        return cell
    metric = row[at["Metric Name"]] if column == "Metric Value" else column
    if _NUMBER.fullmatch(cell) or TEXT_METRICS.fullmatch(metric) or (column == "Metric Value" and not find(cell)):
        return cell
    lost["texts in metrics", metric[:40]] += 1
    return ""
