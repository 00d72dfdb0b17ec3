"""Figures of ncu reports: where kernels lie under the roofline, and what their warps wait for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glqprof.analysis.ncu_analysis import KernelAnalysis, NcuAnalysis
from glqprof.analysis.ncu_compare import shown_dim
from glqprof.analysis.ncu_roofline import RooflinePoint
from glqprof.errors import InputError
from glqprof.reports.kernel_names import short_kernel_name
from glqprof.reports.output import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Apart for colour-blind readers (Paul Tol, bright and muted); memory waits in blues, the SM's own in warm colours.
STALL_COLOURS = {
    "long_scoreboard": "#0072B2",
    "lg_throttle": "#56B4E9",
    "short_scoreboard": "#009E73",
    "mio_throttle": "#44AA99",
    "barrier": "#CC79A7",
    "wait": "#E69F00",
    "math_pipe_throttle": "#D55E00",
    "no_instruction": "#882255",
    "imc_miss": "#AA4499",
    "not_selected": "#DDCC77",
    "branch_resolving": "#999933",
    "selected": "#BBBBBB",
}
OTHER_STALL = "#E5E5E5"
REPORT_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
LEADER = {"arrowstyle": "-", "color": "#BBBBBB", "lw": 0.5, "shrinkA": 1, "shrinkB": 5, "relpos": (0, 0.5)}
MOST_BARS = 40
LONG_BAR = 3.0


def roofline_figure(analyses: Sequence[NcuAnalysis], path: Path) -> None:
    """Log-log: operations a second over operations per byte. Filled: per byte from DRAM; hollow: per byte from L2.

    The roofs are of the first launch that has them. Raises InputError when no launch has the counts.
    """
    drawn = [
        (a, [(k, k.roofline) for k in a.kernels if k.roofline is not None and k.roofline.flops > 0]) for a in analyses
    ]
    points = [(k, p) for _, pairs in drawn for k, p in pairs if p is not None]
    if not points:
        raise InputError(
            path,
            "not drawn: no launch has the operation counts of a roofline; collect `--set full` (or --section "
            "SpeedOfLight_RooflineChart) and give the raw page or .ncu-rep",
        )
    figure = _figure(10, 6.2)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    _roofs(axes, points)
    labels: list[tuple[float, float, str]] = []
    for number, (analysis, pairs) in enumerate(drawn):
        colour = REPORT_COLOURS[number % len(REPORT_COLOURS)]
        for kernel, point in pairs:
            if point is not None:
                labels += _point(axes, kernel, point, colour, analysis.name if len(drawn) > 1 else "")
    _label_points(axes, labels)
    axes.set_xlabel("operations per byte (filled: from DRAM, hollow: from L2)", fontsize=9)
    axes.set_ylabel("operations a second (CUDA cores: fp16, fp32, fp64)", fontsize=9)
    gpus = sorted({g for a in analyses for g in a.gpus})
    title = f"roofline: {', '.join(a.name for a in analyses)}" + (f", {', '.join(gpus)}" if gpus else "")
    if len(gpus) > 1 and points[0][0].numbers.gpu:
        title += f" (roofs: {points[0][0].numbers.gpu})"
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(True, which="major", color="#E5E5E5", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if any(p.tensor for _, p in points):
        axes.text(
            0.99, 0.01, "tensor-core operations are not counted", transform=axes.transAxes, ha="right", fontsize=8
        )
    if len(drawn) > 1:
        _report_legend(figure, analyses)
    _save(figure, path)


def _roofs(axes: Axes, points: Sequence[tuple[KernelAnalysis, RooflinePoint]]) -> None:
    first = points[0][1]
    xs = [x for _, p in points for x in (p.per_dram_byte, p.per_l2_byte) if x]
    ridge = max(first.peak_flops / b for b in (first.dram_peak_bytes_s, first.l2_peak_bytes_s) if b)
    low, high = min([*xs, ridge]) / 4, max([*xs, ridge]) * 25  # room for the names to the right of the points
    bottom = min(p.flops for _, p in points) / 6
    grid = np.geomspace(low, high, 400)
    # Above a rising roof it is empty to the left, below it to the right: there the names stand.
    places = (
        ("DRAM", first.dram_peak_bytes_s, "-", ("left", "top", 5)),
        ("L2", first.l2_peak_bytes_s, "--", ("right", "bottom", -5)),
    )
    for name, rate, style, (side, edge, shift) in places:
        if rate:
            axes.plot(grid, np.minimum(rate * grid, first.peak_flops), color="#444444", ls=style, lw=1.4)
            at = low * (ridge / low) ** 0.15
            axes.annotate(
                f"{name} {rate / 1e12:.1f} TB/s", (at, rate * at), (shift, -shift), textcoords="offset points",
                fontsize=8, color="#444444", ha=side, va=edge,
            )  # fmt: skip
    axes.text(
        high / 1.1, first.peak_flops * 1.08, f"fp32 {first.peak_flops / 1e12:.0f} TFLOP/s", fontsize=8, ha="right"
    )
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, first.peak_flops * 2.5)


def _point(
    axes: Axes, kernel: KernelAnalysis, point: RooflinePoint, colour: str, report: str
) -> list[tuple[float, float, str]]:
    at = [(x, filled) for x, filled in ((point.per_dram_byte, True), (point.per_l2_byte, False)) if x]
    if len(at) == 2:
        axes.plot([at[0][0], at[1][0]], [point.flops] * 2, color=colour, lw=0.6, alpha=0.5)
    for x, filled in at:
        axes.plot(x, point.flops, "o", ms=7, mec=colour, mew=1.4, mfc=colour if filled else "white")
    if not at:
        return []
    right = max(x for x, _ in at)
    name = f"{kernel.numbers.id}: {_short(short_kernel_name(kernel.numbers.name), 34)}"
    return [(right, point.flops, name)]


def _label_points(axes: Axes, labels: list[tuple[float, float, str]]) -> None:
    """Names to the right of their points; where they would touch they are spread evenly around their middle."""
    bottom, top = (np.log10(y) for y in axes.get_ylim())
    step = (top - bottom) * 0.033
    clusters: list[list[tuple[float, float, str]]] = []
    for label in sorted(labels, key=lambda item: -item[1]):
        if clusters and np.log10(clusters[-1][-1][1]) - np.log10(label[1]) < step * 1.5:
            clusters[-1].append(label)
        else:
            clusters.append([label])
    for cluster in clusters:
        middle = float(np.mean([np.log10(y) for _, y, _ in cluster]))
        start = max(x for x, _, _ in cluster) * 1.3
        for place, (x, y, text) in enumerate(cluster):
            height = middle + step * ((len(cluster) - 1) / 2 - place)
            axes.annotate(
                text, (x, y), (start, 10**height), fontsize=7.5, va="center", color="#222222",
                arrowprops=LEADER,
            )  # fmt: skip


def _report_legend(figure: Figure, analyses: Sequence[NcuAnalysis]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker="o", ls="", color=REPORT_COLOURS[i % len(REPORT_COLOURS)], label=a.name)
        for i, a in enumerate(analyses)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def stall_figure(analyses: Sequence[NcuAnalysis], path: Path) -> None:
    """One bar a launch: warp cycles per issued instruction, by reason. Bars too long for the scale are cut, and say so.

    Raises InputError when no launch has stalls.
    """
    bars = [(a, k) for a in analyses for k in a.kernels if k.numbers.stalls and k.numbers.cycles_per_issue][:MOST_BARS]
    if not bars:
        raise InputError(
            path, "not drawn: no launch has stalls; collect --section WarpStateStats and give the raw page or .ncu-rep"
        )
    figure = _figure(11, 1.7 + 0.42 * len(bars))
    axes = figure.subplots()
    totals = [sum(s.cycles_per_issue or 0.0 for s in k.numbers.stalls) for _, k in bars]
    limit = min(max(totals), LONG_BAR * float(np.median(totals)))
    seen: dict[str, str] = {}
    for row, ((_, kernel), total) in enumerate(zip(bars, totals, strict=True)):
        _stall_bar(axes, row, kernel, limit, seen)
        cut = " (cut)" if total > limit else ""
        axes.text(min(total, limit) * 1.005, row, f" {total:.1f}{cut}", va="center", fontsize=8.5, weight="bold")
    several = len(analyses) > 1
    names = [_bar_name(k) + (f"\n{_short(a.name, 40)}" if several else "") for a, k in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=8)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, limit * 1.12)
    axes.set_xlabel("warp cycles per issued instruction (a warp's wait between two of its instructions)", fontsize=9)
    axes.set_title(f"what warps wait for: {', '.join(a.name for a in analyses)}", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    from matplotlib.patches import Patch

    order = [r for r in [*STALL_COLOURS, "other"] if r in seen]
    handles = [Patch(color=seen[r], label=r.replace("_", " ")) for r in order]
    figure.legend(handles=handles, loc="outside lower center", ncols=7, fontsize=8, frameon=False)
    _save(figure, path)


def _stall_bar(axes: Axes, row: int, kernel: KernelAnalysis, limit: float, seen: dict[str, str]) -> None:
    left = 0.0
    order = list(STALL_COLOURS)
    known = sorted((s for s in kernel.numbers.stalls if s.reason in STALL_COLOURS), key=lambda s: order.index(s.reason))
    rest = sum(s.cycles_per_issue or 0.0 for s in kernel.numbers.stalls if s.reason not in STALL_COLOURS)
    for reason, cycles in [*((s.reason, s.cycles_per_issue or 0.0) for s in known), ("other", rest)]:
        if cycles <= 0:
            continue
        colour = STALL_COLOURS.get(reason, OTHER_STALL)
        seen[reason] = colour
        width = min(cycles, max(limit - left, 0.0))
        axes.barh(row, width, left=left, height=0.68, color=colour, edgecolor="white", lw=0.4)
        if width > 0.06 * limit:
            dark = reason in ("long_scoreboard", "short_scoreboard", "no_instruction", "math_pipe_throttle")
            axes.text(
                left + width / 2, row, f"{cycles:.1f}", ha="center", va="center", fontsize=8,
                color="white" if dark else "#222222",
            )  # fmt: skip
        left += cycles


def _bar_name(kernel: KernelAnalysis) -> str:
    n = kernel.numbers
    grid = f", {shown_dim(n.grid)}" if n.grid is not None else ""
    return f"{n.id}: {_short(short_kernel_name(n.name), 38)}{grid}"


def _short(name: str, most: int) -> str:
    """Cut in the middle: template arguments at the end tell kernels apart."""
    if len(name) <= most:
        return name
    tail = min(len(name) - name.find("<"), most // 3) if "<" in name else 4
    return f"{name[: most - tail - 1]}…{name[-tail:]}"


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def _save(figure: Figure, path: Path) -> None:
    write_atomically(path, lambda file: figure.savefig(file, format=path.suffix.removeprefix(".").lower()))
