"""``glqprof bench``: time and compare the variants of one kernel group, and check that they may be believed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glqprof.cli.options import Format, FormatOption, print_document

if TYPE_CHECKING:
    from glqprof.bench.runner import Progress


def bench(
    group: Annotated[str, typer.Argument(help="Kernel group, such as glq-moe; `glqprof kernels` lists them.")],
    variants: Annotated[str, typer.Option(help="Variants, comma-separated; default: all that run on the device.")] = "",
    baseline: Annotated[
        str | None, typer.Option(help="What the others are compared with; default: the group's.")
    ] = None,
    geometry: Annotated[
        str | None, typer.Option(help="Model geometry; default: the group's, a small one on the CPU.")
    ] = None,
    rows: Annotated[str, typer.Option(help="Token rows of a call; several give several results.")] = "1",
    layers: Annotated[int | None, typer.Option(help="Layers of one call; default: the group's.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for the group's workload; repeatable.")] = None,
    device: Annotated[str, typer.Option(help="cuda, or cpu: the exact CPU implementations at a small size.")] = "cuda",
    repeats: Annotated[
        int | None, typer.Option(help="A B B A quads of each comparison; default: 20, on the CPU 6.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and inputs.")] = 0,
    warm: Annotated[bool, typer.Option("--warm", help="Leave weights and inputs in cache; labelled as such.")] = False,
    load: Annotated[
        list[Path] | None, typer.Option(help="A Python file with variants of your own; repeatable.")
    ] = None,
    form: FormatOption = Format.table,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw times and ratios into this file (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """Compare variants of a kernel group: bits, times in interleaved blocks, launches, rates.

    Exits with 1 when a check fails: bits that differ against a contract, a cheat, a number that cannot be.

    Example: glqprof bench glq-moe --device cpu --variants v3b --baseline v0.2.12
    """
    from glqprof.bench.discovery import load_bundled, load_file
    from glqprof.bench.plan import make_plan, parse_options, parse_rows
    from glqprof.bench.runner import open_device, run_bench
    from glqprof.errors import InputError
    from glqprof.reports.bench_document import bench_csv_table, bench_document
    from glqprof.reports.bench_figure import check_figure_path, save_bench_figure

    registry, problems = load_bundled()
    for path in load or []:
        load_file(path, registry)
    if group not in registry.groups and problems:
        raise InputError(group, "no such group; " + "; ".join(f"{p.module}: {p.why}" for p in problems))
    plan = make_plan(
        registry,
        group,
        device,
        variants=[name.strip() for name in variants.split(",") if name.strip()],
        baseline=baseline,
        geometry=geometry,
        layers=layers,
        rows=parse_rows(rows),
        quads=repeats,
        seed=seed,
        warm=warm,
        options=parse_options(option or []),
    )
    if figure is not None:
        check_figure_path(figure)
    with _progress() as progress:
        result = run_bench(plan, open_device(device), progress)
    print_document(bench_document(result), form, json_object=result.to_json(), csv_table=bench_csv_table(result))
    if figure is not None:
        save_bench_figure(result, figure)
    if not result.ok:
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Yield a callback that moves a bar on stderr; the bar shows only on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn between steps only: a refreshing thread would take the interpreter away from the calls being timed.
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("bench")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what, refresh=True)
