"""The picture of a bench: what each variant takes against its floor, and its ratio to the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from glqprof.errors import InputError
from glqprof.reports.output import write_atomically
from glqprof.traces.schema.bench import BenchResult, Timing, VariantResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
COLOURS = {"eager": "#4477aa", "graph": "#cc6677"}
"""Distinguishable with the common colour-vision deficiencies (Paul Tol's bright scheme)."""


def draw_bench(result: BenchResult) -> Figure:
    """Return a figure: left, time of a call with its p10–p90 and the floor; right, ratio with its 95 % interval.

    Wide axes are logarithmic, so that half and double are equally far from 1; a hollow point is an invalid result.
    """
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    height = max(2.5, 1.2 + 0.4 * len(result.variants))
    figure = Figure(figsize=(10, height), layout="constrained")
    times, ratios = figure.subplots(1, 2, sharey=True)
    kinds = [kind for kind in COLOURS if any(getattr(v.timings, kind) is not None for v in result.variants)]
    for position, variant in enumerate(result.variants):
        for kind in kinds:
            timing: Timing | None = getattr(variant.timings, kind)
            if timing is None:
                continue
            y = position + 0.3 * (kinds.index(kind) - (len(kinds) - 1) / 2)
            _point(times, y, timing.median_us, (timing.p10_us, timing.p90_us), kind, variant.ok)
            if timing.ratio is not None:
                _point(ratios, y, timing.ratio, timing.ratio_ci or (timing.ratio,) * 2, kind, variant.ok)
        if variant.floor_us is not None:
            times.plot([variant.floor_us] * 2, [position - 0.4, position + 0.4], color="black", linewidth=2)
    times.set_yticks(range(len(result.variants)), [_label(result, variant) for variant in result.variants])
    times.set_ylim(len(result.variants) - 0.5, -0.5)
    floor = "; black: floor at the measured copy rate" if result.device.copy_gb_s is not None else ""
    times.set_xlabel(f"µs a call, p10–p90{floor}")
    ratios.axvline(1.0, color="grey", linewidth=1)
    if result.noise_floor_pct is not None:
        share = result.noise_floor_pct / 100
        ratios.axvspan(1 / (1 + share), 1 + share, color="grey", alpha=0.2, linewidth=0)
    ratios.set_xlabel(f"time ÷ {result.baseline}, 95 % interval; grey: noise floor")
    for axes in (times, ratios):
        _scale(axes)
    handles = [times.plot([], [], "o", color=COLOURS[kind], label=kind)[0] for kind in kinds]
    figure.legend(handles=handles, loc="outside upper right", ncols=2)
    figure.suptitle(
        f"{result.group}, {result.geometry}, {result.layers} layers, {result.device.name}", x=0.01, ha="left"
    )
    return figure


def _scale(axes: Axes) -> None:
    """Make a wide axis logarithmic, with ticks that read as numbers; a narrow one has too few such ticks."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    axes.grid(axis="x", alpha=0.3)
    if low > 0 and high / low < 3:
        return
    axes.set_xscale("log")
    steps = (1.0, 2.0, 5.0) if low > 0 and high / low < 50 else (1.0,)  # more would run into each other
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _label(result: BenchResult, variant: VariantResult) -> str:
    name = variant.name if len(result.rows) == 1 else f"{variant.name}, rows {variant.rows}"
    return name if variant.ok else f"{name} (invalid)"


def _point(axes: Axes, y: float, value: float, span: tuple[float, float], kind: str, ok: bool) -> None:
    spread = [[max(value - span[0], 0.0)], [max(span[1] - value, 0.0)]]
    face = COLOURS[kind] if ok else "white"
    axes.errorbar([value], [y], xerr=spread, fmt="o", color=COLOURS[kind], markerfacecolor=face, capsize=3)


def check_figure_path(path: Path) -> None:
    """Raise InputError when no picture can be written to ``path``: to be asked before minutes of measuring."""
    if _format(path) not in FORMATS:
        raise InputError(path, f"is no picture format; use one of .{', .'.join(FORMATS)}")
    if not path.parent.is_dir():
        raise InputError(path, "its folder does not exist")


def _format(path: Path) -> str:
    return path.suffix.lstrip(".").lower()


def save_bench_figure(result: BenchResult, path: Path) -> None:
    """Draw into ``path``, whole or not at all; its suffix chooses the format. Raises InputError."""
    check_figure_path(path)
    figure = draw_bench(result)
    write_atomically(path, lambda file: figure.savefig(file, format=_format(path), dpi=150))
