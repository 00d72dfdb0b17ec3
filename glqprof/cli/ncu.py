"""``glqprof ncu``."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glqprof.cli.options import Format, FormatOption, TopOption, WindowOption, print_document

if TYPE_CHECKING:
    from glqprof.analysis.ncu_analysis import NcuAnalysis
    from glqprof.reports.document import Table
    from glqprof.traces.schema.ncu import NcuReport


class View(StrEnum):
    """Which table to show."""

    summary = "summary"
    memory = "memory"
    occupancy = "occupancy"
    stalls = "stalls"
    rules = "rules"


def ncu(
    report: Annotated[Path, typer.Argument(help="An .ncu-rep, or ncu's CSV (raw or details page).")],
    others: Annotated[
        list[Path] | None,
        typer.Argument(help="Reports to compare with it; the other CSV page of the same session is joined instead."),
    ] = None,
    kernel: Annotated[str | None, typer.Option(help="Only kernels whose name matches this regular expression.")] = None,
    capture: Annotated[
        Path | None, typer.Option(help="A timeline of the same program: orders kernels by what a fix is worth there.")
    ] = None,
    window: WindowOption = None,
    view: Annotated[View, typer.Option(help="One table in full instead of the summary.")] = View.summary,
    top: TopOption = 12,
    form: FormatOption = Format.table,
    figure: Annotated[Path | None, typer.Option(help="Also draw the roofline (.png, .svg, .pdf).")] = None,
    stalls: Annotated[Path | None, typer.Option(help="Also draw the stalls of each launch as bars.")] = None,
) -> None:
    """Say why each profiled kernel is slow, with the numbers that say so and one thing to try.

    Example: glqprof ncu tests/data/ncu/h200-glq-v0.2.13-raw.csv

    The raw page or the .ncu-rep tells most; the details page adds ncu's own rules but has no stalls.
    """
    from glqprof.analysis.ncu_analysis import analyse
    from glqprof.analysis.ncu_compare import compare_reports
    from glqprof.errors import InputError
    from glqprof.reports.document import Document
    from glqprof.reports.ncu_compare_document import changes_csv, ncu_compare_document
    from glqprof.reports.ncu_document import all_columns, ncu_document
    from glqprof.reports.ncu_json import ncu_json

    if others and view is not View.summary:
        raise InputError(f"--view {view.value}", "shows one report; leave the others out, or the view")
    if window is not None and capture is None:
        raise InputError(f"--window {window}", "selects in a timeline; give one with --capture")
    for path in (figure, stalls):
        if path is not None:
            from glqprof.reports.figures import check_figure_path

            check_figure_path(path)
    base, *rest = [analyse(r) for r in _reports([report, *(others or [])], kernel)]
    if capture is not None:
        base = _weighted(base, capture, window)
    if figure is not None or stalls is not None:
        from glqprof.reports.ncu_figures import roofline_figure, stall_figure

        if figure is not None:
            roofline_figure([base, *rest], figure)
        if stalls is not None:
            stall_figure([base, *rest], stalls)
    comparisons = [compare_reports(base, cand) for cand in rest]
    document: Document
    csv_table: Table | None = None
    if form is Format.json:
        document = Document(base.name)
    elif comparisons:
        document, csv_table = ncu_compare_document(comparisons, top), changes_csv(comparisons)
    else:
        document = ncu_document(base, view.value, top)
        csv_table = all_columns(base) if view is View.summary else _only_table(document)
    print_document(document, form, json_object=ncu_json(base, comparisons), csv_table=csv_table)


def _only_table(document: object) -> Table:
    from glqprof.reports.document import Document, Table

    assert isinstance(document, Document)
    return next(part for part in document.parts if isinstance(part, Table))


def _reports(paths: list[Path], kernel: str | None) -> list[NcuReport]:
    """Open every path; two pages of one session become one report."""
    from glqprof.traces.ncu_reports import is_same_session, join_pages, load_ncu_report

    reports: list[NcuReport] = []
    for path in paths:
        opened = load_ncu_report(path)
        partner = next((i for i, r in enumerate(reports) if is_same_session(r, opened)), None)
        if partner is None:
            reports.append(opened)
        else:
            reports[partner] = join_pages(reports[partner], opened)
    return [_filtered(r, kernel) for r in reports]


def _filtered(report: NcuReport, pattern: str | None) -> NcuReport:
    from glqprof.errors import InputError

    if pattern is None:
        return report
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise InputError(f"--kernel {pattern}", f"is no regular expression ({error}); correct it") from None
    launches = tuple(x for x in report.launches if wanted.search(x.name))
    if not launches:
        from glqprof.reports.kernel_names import short_kernel_name

        names = list(dict.fromkeys(short_kernel_name(x.name) for x in report.launches))
        there = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise InputError(report.name, f"has no kernel that matches --kernel {pattern}; it holds {there}")
    return replace(report, launches=launches)


def _weighted(analysis: NcuAnalysis, capture: Path, window: str | None) -> NcuAnalysis:
    """Give each launch its kernel's share of the timeline, and order them by what is at most to gain there."""
    import glqprof
    from glqprof.analysis.ncu_weighted import weighted
    from glqprof.errors import InputError

    b = glqprof.breakdown(glqprof.load(capture, launch_config=True), window=window)
    try:
        return weighted(analysis, b)
    except InputError as error:
        raise InputError(capture, error.problem) from None
