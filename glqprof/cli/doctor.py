"""``glqprof doctor``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from glqprof.cli.options import Format, FormatOption, print_document


class Tool(StrEnum):
    """The tools that `capture` runs."""

    nsys = "nsys"
    ncu = "ncu"
    cupti = "cupti"
    torch = "torch"


def doctor(
    tool: Annotated[Tool | None, typer.Argument(help="Only what this tool needs. Default: all of them.")] = None,
    form: FormatOption = Format.table,
) -> None:
    """Check what a capture needs on this machine, with a fix for each thing that fails.

    Example: glqprof doctor nsys

    Exits with 1 when the tool cannot be used, or, without one, when none of them can.
    """
    from glqprof.profilers.doctor import TOOLS, diagnose
    from glqprof.reports.doctor_document import doctor_document, doctor_table

    diagnosis = diagnose(TOOLS if tool is None else (tool.value,))
    document = doctor_document(diagnosis)
    print_document(document, form, json_object=diagnosis.to_json(), csv_table=doctor_table(diagnosis))
    if not diagnosis.ok:
        raise typer.Exit(1)
