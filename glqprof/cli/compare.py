"""``glqprof compare``."""

from __future__ import annotations

from typing import Annotated

import typer

from glqprof.cli.options import (
    BucketsOption,
    DeviceOption,
    FigureOption,
    Format,
    FormatOption,
    ProcessOption,
    TopOption,
    WindowOption,
    analysed_side,
    print_document,
)


def compare(
    base: Annotated[str, typer.Argument(help="The capture to compare with; repeats of it joined by commas.")],
    candidates: Annotated[list[str], typer.Argument(help="One or more captures, each compared with the base.")],
    window: WindowOption = None,
    device: DeviceOption = None,
    process: ProcessOption = None,
    buckets: BucketsOption = None,
    top: TopOption = 12,
    form: FormatOption = Format.table,
    figure: FigureOption = None,
) -> None:
    """Say what changed between captures, per token, and whether it is evidence.

    Example: glqprof compare captures/h200-cascade2-30b-glq-v0.2.12 captures/h200-cascade2-30b-glq-v0.2.13

    A verdict comes from untraced runs or from repeats (run1,run2,run3), never from two traced wall times alone.
    """
    import glqprof
    from glqprof.reports.compare_document import compare_document, row_table
    from glqprof.reports.compare_json import compare_json
    from glqprof.reports.document import Column, Table
    from glqprof.reports.figures import account_figure, check_figure_path
    from glqprof.traces.schema.buckets import load_bucket_rules

    rules = load_bucket_rules(buckets)
    if figure is not None:
        check_figure_path(figure)

    base_side, *sides = (
        analysed_side(side, window=window, device=device, process=process, rules=rules) for side in [base, *candidates]
    )
    comparisons = glqprof.compare(base_side, *sides)
    if figure is not None:
        account_figure([base_side[0], *(s[0] for s in sides)], figure)
    tables = [row_table(c) for c in comparisons]
    csv_table = Table(
        "rows",
        [Column("candidate", "candidate", text=True), *tables[0].columns],
        [[c.cand.name, *row] for c, table in zip(comparisons, tables, strict=True) for row in table.rows],
    )
    print_document(compare_document(comparisons, top), form, json_object=compare_json(comparisons), csv_table=csv_table)
