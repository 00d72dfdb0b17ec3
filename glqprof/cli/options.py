"""Options and output that several verbs share."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from glqprof.reports.document import Document, Table


class Format(StrEnum):
    """How a result is printed."""

    table = "table"
    markdown = "markdown"
    json = "json"
    csv = "csv"


FormatOption = Annotated[
    Format, typer.Option("--format", "-f", help="How to print: for people, a pull request, a program, a spreadsheet.")
]
FigureOption = Annotated[Path | None, typer.Option(help="Also draw the closed account (.png, .svg, .pdf).")]
WindowOption = Annotated[
    str | None,
    typer.Option(
        help="What to analyse: nvtx:GLOB, all, or START:END in seconds from the first event. "
        "Default: the decode_token* ranges, else all GPU work."
    ),
]
DeviceOption = Annotated[int | None, typer.Option(help="Only this GPU.")]
ProcessOption = Annotated[int | None, typer.Option(help="Only this process id.")]
StreamOption = Annotated[int | None, typer.Option(help="Only this stream's work.")]
BucketsOption = Annotated[Path | None, typer.Option(help="Your own bucket rules (TOML), instead of the bundled ones.")]
TopOption = Annotated[int, typer.Option(min=1, help="How many kernels (layers, calls, gaps) to list.")]


def print_document(document: Document, form: Format, *, json_object: Any, csv_table: Table | None) -> None:
    """Print one result in the chosen format; JSON is one object and nothing else."""
    if form is Format.json:
        json.dump(json_object, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    elif form is Format.csv:
        from glqprof.errors import InputError
        from glqprof.reports.csv_table import to_csv

        if csv_table is None:
            raise InputError(document.title, "has no table for CSV here; use --format json")
        sys.stdout.write(to_csv(csv_table))
    elif form is Format.markdown:
        from glqprof.reports.markdown import to_markdown

        sys.stdout.write(to_markdown(document))
    else:
        from rich.console import Console

        from glqprof.reports.terminal import draw

        draw(document, Console(highlight=False))
