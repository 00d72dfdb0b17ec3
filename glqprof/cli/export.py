"""``glqprof export``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from glqprof.cli.options import BucketsOption, DeviceOption, ProcessOption, StreamOption, WindowOption, analysed


class Target(StrEnum):
    """What the file is for."""

    perfetto = "perfetto"


def export(
    capture: Annotated[Path, typer.Argument(help="A capture folder, .sqlite[.gz], .nsys-rep or Chrome trace.")],
    to: Annotated[Target, typer.Option("--to", help="The viewer to write for.")] = Target.perfetto,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file: .json or .json.gz.")] = Path(
        "trace.json.gz"
    ),
    window: WindowOption = None,
    device: DeviceOption = None,
    process: ProcessOption = None,
    stream: StreamOption = None,
    buckets: BucketsOption = None,
) -> None:
    """Write a capture as a Chrome trace that ui.perfetto.dev opens, with buckets and idle states in it.

    Example: glqprof export --to perfetto captures/h200-cascade2-30b-glq-v0.2.12 -o trace.json.gz

    Only the window's events are written; --window all writes everything.
    """
    from glqprof.errors import InputError
    from glqprof.reports.output import check_output_path
    from glqprof.reports.perfetto import export_perfetto
    from glqprof.traces.schema.buckets import load_bucket_rules

    rules = load_bucket_rules(buckets)
    if not output.name.endswith((".json", ".json.gz")):
        raise InputError(output, f"is no file that {to.value} opens; end it in .json or .json.gz")
    check_output_path(output, inputs=[capture])
    result = analysed(
        capture, window=window, device=device, process=process, stream=stream, rules=rules, launch_config=True
    )
    done = export_perfetto(result, output)
    held = f"{done.gpu_work:,} GPU activities, {done.calls:,} calls, {done.ranges:,} ranges"
    size = output.stat().st_size / 1e6
    typer.echo(f"wrote {output} ({size:.1f} MB): {held} of the window {result.window.selector}")
