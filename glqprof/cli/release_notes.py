"""``glqprof release-notes``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glqprof.cli.options import Format


def release_notes(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Which runs, in which order, and your words.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write to this file instead of standard output.")
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", "-f", help="The note (markdown), its tables, or its figures (json, csv).")
    ] = Format.markdown,
    allow_mixed: Annotated[
        bool,
        typer.Option("--allow-mixed", help="Print rows of different GPUs or workloads too, and say so in the note."),
    ] = False,
) -> None:
    """Write a release note whose every figure is from a capture, a decode or a bench file that it names.

    Example: glqprof release-notes docs/releases/h200-cascade2.toml -o docs/releases/h200-cascade2.md

    docs/release-notes.md describes SPEC.toml. What no source holds is not printed but listed as missing.
    """
    import glqprof
    from glqprof.cli.options import print_document
    from glqprof.errors import InputError
    from glqprof.reports.csv_table import to_csv
    from glqprof.reports.output import check_output_path, write_text
    from glqprof.reports.release_document import csv_table, release_document
    from glqprof.reports.release_json import release_json, to_text
    from glqprof.reports.release_markdown import release_markdown
    from glqprof.traces.release_spec import read_release_spec, source_files

    if output is not None:
        if form is Format.table:
            raise InputError(output, "a table is for the terminal; write markdown, json or csv")
        check_output_path(output, inputs=source_files(spec, read_release_spec(spec)))
    notes = glqprof.release_notes(spec, allow_mixed=allow_mixed)
    if form is Format.table:
        print_document(release_document(notes), form, json_object=None, csv_table=None)
        return
    if form is Format.markdown:
        text = release_markdown(notes)
    elif form is Format.json:
        text = to_text(release_json(notes))
    else:
        text = to_csv(csv_table(notes))
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        typer.echo(f"wrote {output}")
