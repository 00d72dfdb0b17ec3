"""The picture of a bench: what each variant takes against its floor, and its ratio to the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Return a figure: left, time of a call with its p10–p90 and the floor; right, ratio with its 95 % interval."""
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    height = max(2.5, 0.6 + 0.45 * len(result.variants))
    figure = Figure(figsize=(10, height), layout="constrained")
    times, ratios = figure.subplots(1, 2, sharey=True)
    labels = []
    for position, variant in enumerate(result.variants):
        labels.append(_label(result, variant))
        for offset, kind in ((-0.17, "eager"), (0.17, "graph")):
            timing: Timing | None = getattr(variant.timings, kind)
            if timing is not None:
                _bar(times, position + offset, timing, kind, variant.ok)
                _interval(ratios, position + offset, timing, kind)
        if variant.floor_us is not None:
            times.plot([variant.floor_us] * 2, [position - 0.4, position + 0.4], color="black", linewidth=2)
    times.set_yticks(range(len(labels)), labels)
    times.invert_yaxis()
    times.set_xscale("log")
    times.set_xlabel("µs a call, p10–p90; black: floor at the measured copy rate")
    ratios.axvline(1.0, color="grey", linewidth=1)
    if result.noise_floor_pct is not None:
        share = result.noise_floor_pct / 100
        ratios.axvspan(1 - share, 1 + share, color="grey", alpha=0.2, linewidth=0)
    ratios.set_xlabel(f"time ÷ {result.baseline}, 95 % interval; grey: noise floor")
    handles = [times.barh([0], [0], color=colour, label=kind) for kind, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=2)
    figure.suptitle(
        f"{result.group}, {result.geometry}, {result.layers} layers, {result.device.name}", x=0.01, ha="left"
    )
    return figure


def _label(result: BenchResult, variant: VariantResult) -> str:
    name = variant.name if len(result.rows) == 1 else f"{variant.name}, {variant.rows} rows"
    return name if variant.ok else f"{name} (invalid)"


def _bar(axes: Axes, position: float, timing: Timing, kind: str, ok: bool) -> None:
    spread = [[timing.median_us - timing.p10_us], [timing.p90_us - timing.median_us]]
    style: dict[str, Any] = {} if ok else {"hatch": "//", "alpha": 0.5}
    axes.barh(position, timing.median_us, height=0.32, color=COLOURS[kind], xerr=spread, **style)


def _interval(axes: Axes, position: float, timing: Timing, kind: str) -> None:
    if timing.ratio is None:
        return
    low, high = timing.ratio_ci or (timing.ratio, timing.ratio)
    spread = [[timing.ratio - low], [high - timing.ratio]]
    axes.errorbar([timing.ratio], [position], xerr=spread, fmt="o", color=COLOURS[kind], capsize=3)


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
