"""``glqprof capture nsys|ncu|cupti|torch``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glqprof.profilers.capture import Captured
    from glqprof.profilers.profiler import Profiler

capture = typer.Typer(
    help="Run a profiler around a command and leave a capture folder.",
    epilog="Example: glqprof capture nsys -o my-capture -- python decode.py --tokens 16",
    no_args_is_help=True,
)
# Options end at the command: --foo after `python script.py` is the script's.
_CONTEXT = {"allow_interspersed_args": False}


class Range(StrEnum):
    """Which part of the program to record."""

    auto = "auto"
    marked = "marked"
    all = "all"


class GraphTrace(StrEnum):
    """How nsys records CUDA graphs."""

    node = "node"
    graph = "graph"


CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND…",
        help="The program and its arguments, as you would run it. With a bundled --workload: none, or only options of "
        "`glqprof decode`.",
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="The capture folder to make. Default: capture-TOOL-PROGRAM here."),
]
UntracedOption = Annotated[
    bool,
    typer.Option(
        "--untraced/--no-untraced",
        help="First run the command without the profiler. Tracing slows the host, so wall time and tok/s are only to "
        "be had from such a run.",
    ),
]
RepeatOption = Annotated[
    int, typer.Option(min=1, help="Untraced runs; 3 or more on both sides give `compare` a confidence interval.")
]
RangeOption = Annotated[
    Range,
    typer.Option(
        "--range",
        help="Record the part that the program marks (annotate.profiled, cudaProfilerStart) or all of it. auto: marked "
        "when the untraced run used annotate.profiled. Loading a model fills a trace with what nobody asked about.",
    ),
]
TimeoutOption = Annotated[
    float | None, typer.Option(min=0.1, help="Seconds after which a run is ended, with all that it started.")
]
KeepOption = Annotated[
    bool,
    typer.Option(
        "--keep-environment",
        help="Keep everything that the tool wrote. Default: scrub, since exports hold the whole environment (tokens!), "
        "host, users, processes and output.",
    ),
]
WorkloadOption = Annotated[
    str,
    typer.Option(
        help="A name for what runs, in the manifest. Without a command: the bundled workload to decode, "
        "cascade2-30b or tiny."
    ),
]
VariantOption = Annotated[
    str, typer.Option(help="A name for the variant of it, in the manifest. Without a command: how its experts run.")
]
ExtraOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="OPTION", help="One more option for the tool, such as --with=--trace=osrt; last wins."
    ),
]


@capture.command(context_settings=_CONTEXT)
def nsys(
    command: CommandArgument = None,
    output: OutputOption = None,
    untraced: UntracedOption = True,
    repeat: RepeatOption = 1,
    part: RangeOption = Range.auto,
    timeout: TimeoutOption = None,
    keep_environment: KeepOption = False,
    workload: WorkloadOption = "",
    variant: VariantOption = "",
    graph_trace: Annotated[
        GraphTrace,
        typer.Option(
            help="node: every kernel of a CUDA graph, at the price of slower launches. graph: one opaque row a launch."
        ),
    ] = GraphTrace.node,
    follow_forks: Annotated[
        bool,
        typer.Option(
            "--follow-forks",
            help="Also trace processes between fork and exec. Children that exec (spawn) are followed anyway; nsys "
            "warns that this can hang a program.",
        ),
    ] = False,
    extra: ExtraOption = None,
) -> None:
    """Record a timeline with Nsight Systems.

    Runs `nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=node`. CPU sampling and
    context switches are off: they are not read, and with them nsys was seen to hang and to write gigabytes.
    """
    from glqprof.profilers.nsys import Nsys

    profiler = Nsys(graph_trace.value, follow_forks, tuple(extra or ()))
    _run(profiler, command or [], output, untraced, repeat, part, timeout, keep_environment, workload, variant)


@capture.command(context_settings=_CONTEXT)
def ncu(
    command: CommandArgument = None,
    output: OutputOption = None,
    kernel: Annotated[
        str,
        typer.Option("-k", "--kernel", help="Regular expression of kernel names. ncu replays each launch ~40 times."),
    ] = "",
    skip: Annotated[int, typer.Option(min=0, help="Matching launches to let pass first, so that caches are warm.")] = 0,
    count: Annotated[int | None, typer.Option(min=1, help="Matching launches to profile. Default: all.")] = None,
    section: Annotated[
        list[str] | None, typer.Option(help="Only these sections, repeatable, instead of --set full.")
    ] = None,
    untraced: UntracedOption = True,
    repeat: RepeatOption = 1,
    part: RangeOption = Range.auto,
    timeout: TimeoutOption = None,
    keep_environment: KeepOption = False,
    workload: WorkloadOption = "",
    variant: VariantOption = "",
    extra: ExtraOption = None,
) -> None:
    """Read the hardware counters of single kernels with Nsight Compute.

    Runs `ncu --clock-control none --print-units base --set full`. Clocks are left alone, since ncu would lock them to
    base and time another machine; base units, since the others differ by version. Leaves both CSV pages.
    """
    from glqprof.profilers.ncu import Ncu

    profiler = Ncu(kernel, skip, count, tuple(section or ()), tuple(extra or ()))
    _run(profiler, command or [], output, untraced, repeat, part, timeout, keep_environment, workload, variant)


@capture.command(context_settings=_CONTEXT)
def cupti(
    command: CommandArgument = None,
    output: OutputOption = None,
    untraced: UntracedOption = True,
    repeat: RepeatOption = 1,
    part: RangeOption = Range.auto,
    timeout: TimeoutOption = None,
    keep_environment: KeepOption = False,
    workload: WorkloadOption = "",
    variant: VariantOption = "",
) -> None:
    """Record a timeline from inside a Python program, where there is no nsys.

    Needs cupti-python in the program's Python. Writes the same SQLite tables as nsys; ranges are those of
    glqprof.annotate, since NVTX does not reach CUPTI without an injection library.
    """
    from glqprof.profilers.cupti import Cupti
    from glqprof.profilers.profiler import interpreter_of

    _run(
        Cupti(interpreter_of(command or [])),
        command or [],
        output,
        untraced,
        repeat,
        part,
        timeout,
        keep_environment,
        workload,
        variant,
    )


@capture.command(context_settings=_CONTEXT)
def torch(
    command: CommandArgument = None,
    output: OutputOption = None,
    untraced: UntracedOption = True,
    repeat: RepeatOption = 1,
    part: RangeOption = Range.auto,
    timeout: TimeoutOption = None,
    keep_environment: KeepOption = False,
    workload: WorkloadOption = "",
    variant: VariantOption = "",
) -> None:
    """Record a Chrome trace of a Python program with torch.profiler.

    Stacks, shapes and modules are off: they hold paths, and cost more than what is traced.
    """
    from glqprof.profilers.profiler import interpreter_of
    from glqprof.profilers.torch_profiler import TorchProfiler

    _run(
        TorchProfiler(interpreter_of(command or [])),
        command or [],
        output,
        untraced,
        repeat,
        part,
        timeout,
        keep_environment,
        workload,
        variant,
    )


def _run(
    profiler: Profiler,
    given: list[str],
    output: Path | None,
    untraced: bool,
    repeat: int,
    part: Range,
    timeout: float | None,
    keep_environment: bool,
    workload: str,
    variant: str,
) -> None:
    from glqprof.errors import InputError
    from glqprof.profilers.capture import Plan, default_folder
    from glqprof.profilers.capture import capture as carry_out
    from glqprof.profilers.processes import Interrupted
    from glqprof.profilers.profiler import ProgramFailed

    if not untraced and repeat > 1:
        raise InputError("--repeat", "counts untraced runs, and --no-untraced makes none; leave one of them out")
    command = _command(profiler.name, given, workload, variant)
    named = given if command is given else [f"{workload}-{variant}".strip("-").replace(".", "_")]
    folder = output or default_folder(profiler.name, named)
    plan = Plan(
        profiler=profiler,
        command=command,
        folder=folder,
        marked=None if part is Range.auto else part is Range.marked,
        repeat=repeat if untraced else 0,
        timeout_s=timeout,
        keep_environment=keep_environment,
        workload=workload,
        variant=variant if command is given else "",  # a bundled decode reports its whole path
    )
    try:
        captured = carry_out(plan)
    except ProgramFailed as failure:
        _fail(f"{failure}; {folder} is marked unfinished", failure.status)
    except Interrupted as interrupted:
        _fail(f"{interrupted}; {folder} is marked unfinished", interrupted.status)
    except KeyboardInterrupt:
        _fail(f"interrupted by Ctrl-C; {folder} is marked unfinished", 130)
    else:
        _say(captured, keep_environment)


def _command(tool: str, given: list[str], workload: str, variant: str) -> list[str]:
    """What to run: the command given, or the bundled decode where there is none or only options for it."""
    from glqprof.errors import InputError
    from glqprof.workloads.bundled import WORKLOADS, decode_command
    from glqprof.workloads.nemotron_h.variants import find_variant

    if given and not given[0].startswith("-"):
        return given
    if workload in WORKLOADS:
        if variant:
            find_variant(variant, "--variant")
        return decode_command(workload, variant, given)
    bundled = " or ".join(WORKLOADS)
    raise InputError(f"capture {tool}", f"no command; give one after --, or --workload {bundled} for a bundled decode")


def _fail(sentence: str, status: int) -> None:
    typer.echo(f"error: {' '.join(sentence.split())}", err=True)
    raise typer.Exit(status)


def _say(captured: Captured, kept: bool) -> None:
    manifest = captured.manifest
    size = sum((captured.folder / name).stat().st_size for name in manifest.files)
    typer.echo(
        f"{captured.folder}: {', '.join(manifest.files)} ({size / 1e6:.2f} MB), {manifest.tool} {manifest.tool_version}"
    )
    if manifest.untraced:
        u = manifest.untraced
        typer.echo(f"untraced {u.ms_per_token:.3f} ms a token, {u.tok_s:.2f} tok/s ({u.statistic})")
    if manifest.traced:
        inflation = f", inflation {manifest.inflation:.2f}x" if manifest.inflation else ""
        typer.echo(f"traced   {manifest.traced.ms_per_token:.3f} ms a token{inflation}")
    if kept:
        typer.echo("not scrubbed: it holds the environment; run `glqprof scrub` before you share it")
    else:
        kinds: dict[str, int] = {}
        for item in captured.removed:
            kinds[item.kind] = kinds.get(item.kind, 0) + item.count
        typer.echo(
            "scrubbed: " + (", ".join(f"{kind} {count:,}" for kind, count in kinds.items()) or "nothing to remove")
        )
    for warning in manifest.warnings:
        typer.echo(f"warning: {warning}", err=True)
    verb = "ncu" if manifest.tool == "ncu" else "breakdown"
    typer.echo(f"next: glqprof {verb} {captured.folder}")
