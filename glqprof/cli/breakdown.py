"""``glqprof breakdown``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glqprof.cli.options import (
    BucketsOption,
    DeviceOption,
    FigureOption,
    Format,
    FormatOption,
    ProcessOption,
    StreamOption,
    TopOption,
    WindowOption,
    analysed,
    print_document,
)

if TYPE_CHECKING:
    from glqprof.reports.document import Cell, Table


class View(StrEnum):
    """Which table to show."""

    summary = "summary"
    account = "account"
    buckets = "buckets"
    kernels = "kernels"
    layers = "layers"
    tokens = "tokens"
    gaps = "gaps"
    latency = "latency"
    savings = "savings"
    apis = "apis"


def breakdown(
    capture: Annotated[Path, typer.Argument(help="A capture folder, .sqlite[.gz], .nsys-rep or Chrome trace.")],
    window: WindowOption = None,
    device: DeviceOption = None,
    process: ProcessOption = None,
    stream: StreamOption = None,
    buckets: BucketsOption = None,
    view: Annotated[
        View, typer.Option(help="One table in full instead of the summary; JSON always holds the whole contract.")
    ] = View.summary,
    top: TopOption = 12,
    form: FormatOption = Format.table,
    figure: FigureOption = None,
    timeline: Annotated[Path | None, typer.Option(help="Also draw one step: GPU streams over host threads.")] = None,
    step: Annotated[str | None, typer.Option(help="The step that --timeline draws; default the median one.")] = None,
) -> None:
    """Say where every millisecond of a capture's wall time went.

    Example: glqprof breakdown captures/h200-cascade2-30b-glq-v0.2.12

    The closed account gives every nanosecond of the window to one row: GPU work by bucket, or why the GPU was idle.
    """
    from glqprof.errors import InputError
    from glqprof.reports.breakdown_document import account_table, breakdown_document
    from glqprof.reports.breakdown_json import breakdown_json
    from glqprof.reports.document import Table
    from glqprof.reports.figures import account_figure, check_figure_path, timeline_figure
    from glqprof.traces.schema.buckets import load_bucket_rules

    rules = load_bucket_rules(buckets)
    for path in (figure, timeline):
        if path is not None:
            check_figure_path(path)
    result = analysed(capture, window=window, device=device, process=process, stream=stream, rules=rules)
    json_object = breakdown_json(result, top) if form is Format.json else None
    if form is Format.json:
        from glqprof.reports.document import Document

        document = Document(result.name)
        csv_table = None
    else:
        document = breakdown_document(result, view.value, top)
        tables = [part for part in document.parts if isinstance(part, Table)]
        if view is View.summary:
            tables = [account_table(result, d) for d in result.devices if d.account]
        csv_table = _with_device(tables, [d.device for d in result.devices])
        if form is Format.csv and csv_table is None:
            raise InputError(capture, f"has no table for CSV in view {view.value}; see it with --format table")
    if figure is not None:
        account_figure([result], figure)
    if timeline is not None:
        timeline_figure(result, timeline, step)
    print_document(document, form, json_object=json_object, csv_table=csv_table)


def _with_device(tables: list[Table], devices: list[int]) -> Table | None:
    """One CSV table of several GPUs' tables, with the GPU in its first column where there is more than one."""
    from glqprof.reports.document import Column, Table

    if len(tables) < 2:
        return tables[0] if tables else None
    columns = [Column("GPU", "device"), *tables[0].columns]
    pairs = zip(devices, tables, strict=True)
    rows: list[Sequence[Cell]] = [[device, *row] for device, table in pairs for row in table.rows]
    return Table("all", columns, rows)
