"""``glqprof kernels``: what is bundled, what it promises, whether it can run here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glqprof.cli.options import Format, FormatOption, print_document


def kernels(
    load: Annotated[list[Path] | None, typer.Option(help="A Python file with variants of your own.")] = None,
    form: FormatOption = Format.table,
) -> None:
    """List the bundled kernel groups: variants, contracts, geometries, and whether each can run here.

    Example: glqprof kernels --format markdown
    """
    from glqprof.bench.availability import list_kernels, programs_needed, this_machine
    from glqprof.bench.discovery import load_bundled, load_file
    from glqprof.reports.kernels_document import kernels_csv_table, kernels_document

    registry, problems = load_bundled()
    for path in load or []:
        load_file(path, registry)
    listing = list_kernels(registry, problems, this_machine(programs_needed(registry)))
    print_document(kernels_document(listing), form, json_object=listing.to_json(), csv_table=kernels_csv_table(listing))
