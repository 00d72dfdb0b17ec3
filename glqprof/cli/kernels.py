"""``glqprof kernels``: what is bundled, what it promises, whether it can run here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glqprof.cli.bench import Format


def kernels(
    load: Annotated[list[Path] | None, typer.Option(help="A Python file with variants of your own.")] = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.table,
) -> None:
    """List the bundled kernel groups: variants, contracts, geometries, and whether each can run here.

    Example: glqprof kernels --format markdown
    """
    from rich.console import Console

    from glqprof.bench.availability import list_kernels, programs_needed, this_machine
    from glqprof.bench.discovery import load_bundled, load_file
    from glqprof.reports.bench import kernels_csv, kernels_markdown, print_kernels, to_json_text

    registry, problems = load_bundled()
    for path in load or []:
        load_file(path, registry)
    listing = list_kernels(registry, problems, this_machine(programs_needed(registry)))
    if format is Format.table:
        print_kernels(listing, Console())
        return
    writers = {Format.markdown: kernels_markdown, Format.csv: kernels_csv, Format.json: to_json_text}
    typer.echo(writers[format](listing), nl=False)
