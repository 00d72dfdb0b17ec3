"""``glqprof report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glqprof.cli.options import BucketsOption, DeviceOption, ProcessOption, WindowOption, analysed_side


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
    from glqprof.reports.output import check_output_path
    from glqprof.traces.schema.buckets import load_bucket_rules

    rules = load_bucket_rules(buckets)
    check_output_path(output, inputs=[path for side in captures for path in [side, *side.split(",")]])
    sides = [analysed_side(side, window=window, device=device, process=process, rules=rules) for side in captures]
    glqprof.write_report(output, *sides)
    typer.echo(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")
