"""``glqprof trend add|list|export|plot|check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glqprof.cli.options import Format, FormatOption, print_document

if TYPE_CHECKING:
    import pandas as pd

trend = typer.Typer(
    help="Follow results over commits, and fail when one gets worse.",
    epilog="Example: glqprof trend add bench.json --commit HEAD && glqprof trend check",
    no_args_is_help=True,
)

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="GLQPROF_TREND_STORE",
        metavar="FILE|URL",
        help="A SQLite file, or a SQLAlchemy URL such as postgresql://USER:PASSWORD@HOST/DATABASE.",
    ),
]
WorkloadFilter = Annotated[str | None, typer.Option("--workload", help="Only this workload; * stands for anything.")]
VariantFilter = Annotated[str | None, typer.Option("--variant", help="Only this variant; * stands for anything.")]
MetricFilter = Annotated[str | None, typer.Option("--metric", help="Only this metric; * stands for anything.")]
GpuFilter = Annotated[str | None, typer.Option("--gpu", help="Only this GPU; * stands for anything.")]
MachineFilter = Annotated[str | None, typer.Option("--machine", help="Only this machine; * stands for anything.")]
DEFAULT_STORE = "glqprof-trend.sqlite"


@trend.command()
def add(
    results: Annotated[
        list[str], typer.Argument(metavar="RESULT.json…", help="What --format json wrote; - is standard input.")
    ],
    store: StoreOption = DEFAULT_STORE,
    commit: Annotated[
        str | None, typer.Option(help="The measured commit (a hash, or HEAD), where a file does not say.")
    ] = None,
    commit_time: Annotated[
        str | None, typer.Option(help="Its time (ISO 8601, or seconds since 1970). Default: asked of git here.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(help="A name for the machine, when there are several with the same GPU.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="A name for the workload, instead of the file's.")] = None,
    variant: Annotated[str | None, typer.Option(help="A name for the variant, instead of the file's.")] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU, where a file does not say.")] = None,
    form: FormatOption = Format.table,
) -> None:
    """Add the numbers of result files (bench, breakdown, compare, decode) to a store, all files or none.

    Adding a file again changes nothing. Another run of the same commit is kept beside the first.

    Example: glqprof bench glq-moe --format json | glqprof trend add - --commit HEAD
    """
    from glqprof.reports.trend_document import add_document, add_table
    from glqprof.reports.trend_json import add_json
    from glqprof.trend.commits import parse_time
    from glqprof.trend.engine import store_name
    from glqprof.trend.results import read_results
    from glqprof.trend.sample import DEFAULT_MACHINE
    from glqprof.trend.store import Store

    read = read_results(
        results,
        commit=commit,
        commit_time=None if commit_time is None else parse_time(commit_time),
        machine=DEFAULT_MACHINE if machine is None else machine,
        workload=workload,
        variant=variant,
        gpu=gpu,
    )
    added = Store(store).add(sample for result in read for sample in result.samples)
    name = store_name(store)
    print_document(
        add_document(name, read, added), form, json_object=add_json(name, read, added), csv_table=add_table(read)
    )


@trend.command("list")
def list_series(
    store: StoreOption = DEFAULT_STORE,
    workload: WorkloadFilter = None,
    variant: VariantFilter = None,
    metric: MetricFilter = None,
    gpu: GpuFilter = None,
    machine: MachineFilter = None,
    form: FormatOption = Format.table,
) -> None:
    """List the series of a store: how many commits, the latest value, the noise, the last step.

    Example: glqprof trend list --metric 'eager_*'
    """
    from glqprof.reports.trend_document import list_document, list_table
    from glqprof.reports.trend_json import list_json
    from glqprof.trend.engine import store_name
    from glqprof.trend.regressions import check as check_series

    report = check_series(_samples(store, workload, variant, metric, gpu, machine))
    name = store_name(store)
    print_document(list_document(name, report), form, json_object=list_json(name, report), csv_table=list_table(report))


@trend.command()
def export(
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write: .csv, .parquet or .json.")],
    store: StoreOption = DEFAULT_STORE,
    workload: WorkloadFilter = None,
    variant: VariantFilter = None,
    metric: MetricFilter = None,
    gpu: GpuFilter = None,
    machine: MachineFilter = None,
) -> None:
    """Write the samples of a store, one a row, for another program.

    Example: glqprof trend export -o samples.parquet
    """
    from glqprof.reports.trend_export import check_export_path, export_samples

    check_export_path(output)
    samples = _samples(store, workload, variant, metric, gpu, machine)
    export_samples(samples, output)
    typer.echo(f"{len(samples):,} samples written to {output}")


@trend.command()
def plot(
    output: Annotated[Path, typer.Option("-o", "--output", help="The picture to draw: .png, .svg or .pdf.")],
    store: StoreOption = DEFAULT_STORE,
    workload: WorkloadFilter = None,
    variant: VariantFilter = None,
    metric: MetricFilter = None,
    gpu: GpuFilter = None,
    machine: MachineFilter = None,
    last: Annotated[int | None, typer.Option(min=2, help="Only the last N commits of each series.")] = None,
) -> None:
    """Draw a panel for each series: values over commits, the noise band, the steps with their commits.

    Example: glqprof trend plot -o trend.png --metric eager_us --variant v3b
    """
    from glqprof.reports.figures import check_figure_path
    from glqprof.reports.trend_figure import trend_figure
    from glqprof.trend.regressions import check as check_series

    check_figure_path(output)
    report = check_series(_samples(store, workload, variant, metric, gpu, machine))
    trend_figure(report, output, last)
    typer.echo(f"{len(report.findings)} series drawn in {output}")


@trend.command()
def check(
    store: StoreOption = DEFAULT_STORE,
    workload: WorkloadFilter = None,
    variant: VariantFilter = None,
    metric: MetricFilter = None,
    gpu: GpuFilter = None,
    machine: MachineFilter = None,
    max_regression: Annotated[
        list[str] | None,
        typer.Option(metavar="[METRIC=]PCT", help="How much worse is allowed; repeatable by metric. Default: 2%."),
    ] = None,
    direction: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=WAY", help="lower, higher or none is better, instead of the metric's own."),
    ] = None,
    min_samples: Annotated[int, typer.Option(help="Commits that a series needs before it gets an answer.")] = 10,
    last: Annotated[int, typer.Option(min=1, help="Compare with the level of this many commits ago.")] = 20,
    accept: Annotated[
        list[str] | None, typer.Option(metavar="COMMIT", help="A commit whose step is meant; repeatable.")
    ] = None,
    form: FormatOption = Format.table,
) -> None:
    """Fail when a series stepped for the worse: exit status 1, with the commit, the size and its interval.

    Too few commits are no failure: exit status 0, and a warning.

    Example: glqprof trend check --max-regression 3% --max-regression 'launches*=0%'
    """
    from glqprof.reports.trend_document import check_document, check_table
    from glqprof.reports.trend_json import check_json
    from glqprof.trend.engine import store_name
    from glqprof.trend.regressions import check as check_series

    report = check_series(
        _samples(store, workload, variant, metric, gpu, machine, may_be_empty=True),
        max_regression=_limits(max_regression or []),
        min_samples=min_samples,
        last=last,
        accept=accept or (),
        direction=dict(_pair("--direction", text) for text in direction or []),
    )
    name = store_name(store)
    print_document(
        check_document(name, report, min_samples, last),
        form,
        json_object=check_json(name, report, min_samples, last),
        csv_table=check_table(report),
    )
    if form in (Format.json, Format.csv) and (report.undecided or not report.findings):
        message = f"warning: not enough data in {len(report.undecided)} of {len(report.findings)} series"
        typer.echo(message, err=True)
    if not report.ok:
        raise typer.Exit(1)


def _samples(
    store: str,
    workload: str | None,
    variant: str | None,
    metric: str | None,
    gpu: str | None,
    machine: str | None,
    *,
    may_be_empty: bool = False,
) -> pd.DataFrame:
    """The samples that pass the filters; an error where filters leave nothing, or there is nothing to look at."""
    from glqprof.errors import InputError
    from glqprof.trend.engine import store_name
    from glqprof.trend.store import Store

    filters = {"workload": workload, "variant": variant, "metric": metric, "gpu": gpu, "machine": machine}
    samples = Store(store).samples(**filters)
    if samples.empty:
        used = " ".join(f"--{name} {value!r}" for name, value in filters.items() if value is not None)
        if used:
            raise InputError(store_name(store), f"has no sample with {used}; `glqprof trend list` shows what it has")
        if not may_be_empty:
            raise InputError(store_name(store), "is empty; fill it with: glqprof trend add RESULT.json")
    return samples


def _limits(texts: list[str]) -> dict[str, float]:
    from glqprof.trend.regressions import MAX_REGRESSION

    limits: dict[str, float] = {}
    rest = MAX_REGRESSION
    for text in texts:
        if "=" in text:
            metric, share = _pair("--max-regression", text)
            limits[metric] = _share(share)
        else:
            rest = _share(text)
    return {**limits, "*": rest}


def _pair(option: str, text: str) -> tuple[str, str]:
    from glqprof.errors import InputError

    metric, equals, value = text.rpartition("=")
    if not metric or not equals or not value:
        raise InputError(option, f"{text!r} is not METRIC=VALUE")
    return metric.strip(), value.strip()


def _share(text: str) -> float:
    """``3%`` or ``0.03``; a bare 3 could mean either 3 % or three times, so it is refused."""
    from glqprof.errors import InputError

    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = float("nan")
    if not share >= 0 or (share >= 1 and not text.endswith("%")):
        raise InputError("--max-regression", f"{text!r} is no share; write 3% or 0.03")
    return share
