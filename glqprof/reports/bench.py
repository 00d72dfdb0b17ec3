"""A bench result, or the list of kernels, on the terminal, in Markdown, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glqprof.reports.bench_tables import (
    TextTable,
    check_table,
    facts,
    findings,
    kernel_summaries,
    kernel_tables,
    timing_tables,
)
from glqprof.traces.schema.bench import BenchResult, KernelList

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod

CSV_COLUMNS = (
    *("group", "geometry", "layers", "rows", "variant", "ok", "contract"),
    *("identical", "differing_count", "differing_share", "max_abs_err", "rel_err"),
    *("timing", "median_us", "p10_us", "p90_us", "ratio", "ratio_lo", "ratio_hi", "verdict", "reason"),
    *("noise_floor_pct", "bytes", "gb_s", "floor_us", "launches", "syncs", "reasons"),
)


def print_bench(result: BenchResult, console: Console) -> None:
    """Print the tables, what was found, and the facts below; readable at 80 columns."""
    for table in [*timing_tables(result), check_table(result)]:
        _print_table(table, console)
    for who, what in findings(result):
        _print_note(who, what, console)
    for line in facts(result):
        console.print(line, style="dim", markup=False, highlight=False)


def print_kernels(listing: KernelList, console: Console) -> None:
    """Print one table per group and what could not be loaded."""
    for table in kernel_tables(listing):
        _print_table(table, console)
    for name, summary in kernel_summaries(listing):
        console.print(f"{name}: {summary}", markup=False, highlight=False)
    for problem in listing.problems:
        _print_note("warning", problem, console)


def _print_note(who: str, what: str, console: Console) -> None:
    from rich.text import Text

    # One Text: printed in two pieces, the second would be wrapped as if it began at the left margin.
    console.print(Text.assemble((who, "yellow" if who == "warning" else "red"), f": {what}"))


def _print_table(table: TextTable, console: Console) -> None:
    from rich import box
    from rich.table import Table

    rich = Table(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, header in enumerate(table.headers):
        side: JustifyMethod = "left" if index < table.left or header == "verdict" else "right"
        rich.add_column(header, justify=side, overflow="fold", no_wrap=index == 0)  # a name broken in two is unreadable
    for row in table.rows:
        rich.add_row(*row)
    console.print(rich)


def bench_markdown(result: BenchResult) -> str:
    """Return the result as Markdown for a pull request."""
    parts = [f"### {result.group}, {result.geometry}: {'all checks passed' if result.ok else 'CHECKS FAILED'}"]
    parts += [_markdown_table(table) for table in [*timing_tables(result), check_table(result)]]
    found = findings(result)
    if found:
        parts.append("\n".join(f"- **{_cell(who)}**: {_cell(what)}" for who, what in found))
    parts.append("\n".join(f"- {_cell(line)}" for line in facts(result)))
    return "\n\n".join(parts) + "\n"


def kernels_markdown(listing: KernelList) -> str:
    """Return the list of kernels as Markdown."""
    parts = [_markdown_table(table) for table in kernel_tables(listing)]
    notes = [f"- {_cell(name)}: {_cell(summary)}" for name, summary in kernel_summaries(listing)]
    notes += [f"- **warning**: {_cell(problem)}" for problem in listing.problems]
    parts.append("\n".join(notes))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _markdown_table(table: TextTable) -> str:
    marks = [":--" if index < table.left else "--:" for index in range(len(table.headers))]
    lines: list[Sequence[str]] = [table.headers, marks, *table.rows]
    body = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    return f"**{_cell(table.title)}**\n\n{body}"


def bench_csv(result: BenchResult) -> str:
    """Return one line per variant, number of rows and timing; microseconds of one call."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for v in result.variants:
        found = v.differing
        head = [result.group, result.geometry, result.layers, v.rows, v.name, v.ok, v.contract, v.identical]
        head += [found and found.count, found and found.share, v.max_abs_err, v.rel_err]
        tail = [v.bytes, v.gb_s, v.floor_us, v.launches, v.syncs, " ".join(reason.code for reason in v.reasons)]
        for kind, t in (("eager", v.timings.eager), ("graph", v.timings.graph)):
            if t is not None:
                low, high = t.ratio_ci or (None, None)
                times = [kind, t.median_us, t.p10_us, t.p90_us, t.ratio, low, high, t.verdict, t.reason]
                writer.writerow([*head, *times, t.noise_floor_pct, *tail])
        if v.timings.eager is None and v.timings.graph is None:
            writer.writerow([*head, *[None] * 10, *tail])
    return text.getvalue()


def kernels_csv(listing: KernelList) -> str:
    """Return one line per variant."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["group", "variant", "contract", "dtype", "min_capability", "graph", "cuda", "cpu", "summary"])
    for group in listing.groups:
        for v in group.variants:
            runs = ["yes" if run.can else run.why for run in v.runs]
            writer.writerow([group.name, v.name, v.contract, v.dtype, v.min_capability, v.graph, *runs, v.summary])
    return text.getvalue()


def to_json_text(result: BenchResult | KernelList) -> str:
    """Return the object of the JSON contract as text."""
    return json.dumps(result.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
