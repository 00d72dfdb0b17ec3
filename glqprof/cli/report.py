"""``glqprof report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glqprof.cli.options import BucketsOption, DeviceOption, ProcessOption, WindowOption, analysed_side

if TYPE_CHECKING:
    from glqprof.analysis.compare import Comparison


def report(
    captures: Annotated[
        list[str], typer.Argument(help="One capture, or several: each is compared with the first. Repeats: run1,run2.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path("report.html"),
    window: WindowOption = None,
    device: DeviceOption = None,
    process: ProcessOption = None,
    buckets: BucketsOption = None,
) -> None:
    """Write one HTML file that says where the time went: tables, a bar, a timeline of a token, no network needed.

    Example: glqprof report captures/h200-cascade2-30b-glq-v0.2.12 -o report.html

    It holds what breakdown and compare print, names included: scrub a capture before you share its report.
    """
    import glqprof
    from glqprof.errors import InputError
    from glqprof.reports.output import check_output_path, write_text
    from glqprof.reports.report_page import report_html
    from glqprof.traces.schema.buckets import load_bucket_rules

    rules = load_bucket_rules(buckets)
    check_output_path(output, inputs=[path for side in captures for path in [side, *side.split(",")]])
    sides = [analysed_side(side, window=window, device=device, process=process, rules=rules) for side in captures]
    comparisons: list[Comparison | tuple[str, str]] = []
    for side in sides[1:]:
        try:
            comparisons += glqprof.compare(sides[0], side)
        except InputError as error:
            comparisons.append((f"{side[0].name} against {sides[0][0].name}", str(error)))
    write_text(output, report_html([side[0] for side in sides], comparisons))
    typer.echo(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")
