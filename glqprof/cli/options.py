"""Options and output that several verbs share."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glqprof.analysis.breakdown import Breakdown
    from glqprof.reports.document import Document, Table
    from glqprof.traces.schema.buckets import BucketRule


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


def analysed(
    path: Path | str,
    *,
    window: str | None,
    device: int | None,
    process: int | None,
    stream: int | None,
    rules: Sequence[BucketRule],
    launch_config: bool = False,
) -> Breakdown:
    """Load a capture and break it down; an option that finds nothing in it is an error that names the capture."""
    import glqprof
    from glqprof.errors import InputError

    capture = glqprof.load(path, launch_config=launch_config)
    try:
        return glqprof.breakdown(capture, window=window, device=device, process=process, stream=stream, buckets=rules)
    except InputError as error:
        if error.subject in (capture.name, capture.trace.info.name):
            raise InputError(path, error.problem) from error
        raise InputError(path, f"{error.subject} {error.problem}") from error


def analysed_side(
    paths: str, *, window: str | None, device: int | None, process: int | None, rules: Sequence[BucketRule]
) -> list[Breakdown]:
    """One side of a comparison: a capture, or repeats of it joined by commas."""
    names = [paths] if Path(paths).exists() else paths.split(",")
    return [analysed(name, window=window, device=device, process=process, stream=None, rules=rules) for name in names]


def print_document(document: Document, form: Format, *, json_object: Any, csv_table: Table | None) -> None:
    """Print one result in the chosen format; JSON is one object and nothing else."""
    if form is Format.json:
        sys.stdout.write(json.dumps(json_object, indent=1, allow_nan=False) + "\n")
    elif form is Format.csv:
        from glqprof.reports.csv_table import to_csv

        assert csv_table is not None, "commands refuse --format csv where they have no table"
        sys.stdout.write(to_csv(csv_table))
    elif form is Format.markdown:
        from glqprof.reports.markdown import to_markdown

        sys.stdout.write(to_markdown(document))
    else:
        from rich.console import Console

        from glqprof.reports.terminal import draw

        draw(document, Console(highlight=False))
