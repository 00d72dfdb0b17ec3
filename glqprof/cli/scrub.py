"""``glqprof scrub``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glqprof.cli.options import Format, FormatOption, print_document


def scrub(
    capture: Annotated[Path, typer.Argument(help="A capture folder, nsys export, Chrome trace or ncu CSV; .gz too.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write it, leaving the original. Default: in place.")
    ] = None,
    form: FormatOption = Format.table,
) -> None:
    """Make a capture safe to share: keep what an analysis reads, drop all else.

    Example: glqprof scrub my-capture -o my-capture-public

    Refuses, and writes nothing, when a name that would be kept still looks like a secret or a path.
    """
    from glqprof.reports.scrub_document import scrub_document, scrub_table
    from glqprof.scrub.capture import scrub as scrub_capture

    result = scrub_capture(capture, output)
    print_document(scrub_document(result), form, json_object=result.to_json(), csv_table=scrub_table(result))
