"""Series over commits as a picture: a panel each, the noise band of every level, the steps with their commits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glqprof.errors import InputError
from glqprof.reports.figures import check_figure_path
from glqprof.reports.output import write_atomically
from glqprof.reports.trend_document import percent, place, short_commit
from glqprof.trend.regressions import Finding, Report, Step

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 40
PANEL_HEIGHT = 2.5
WIDTH = 11.0
TICKS = 14
"""Commits named on an axis: more would touch."""
ONE_LINE = 150
"""Characters that fit above a panel."""
CHARACTER = 0.0085
"""Width of a character of a step's label, as a share of the axis."""
COLOURS = {True: "#D55E00", False: "#0072B2", None: "#666666"}
"""Worse, better, neither: apart for the common colour-vision deficiencies."""
POINTS = "#444444"
BAND = "#56B4E9"


def draw_trend(report: Report, last: int | None = None) -> Figure:
    """Return a figure with a panel for each series of ``report``, of its ``last`` commits.

    Raises InputError when there are more panels than a picture can show.
    """
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    findings = report.findings
    if not 0 < len(findings) <= MAX_PANELS:
        raise InputError("trend plot", f"{len(findings)} series are too many for one picture (at most {MAX_PANELS}); "
                         "narrow them with --metric, --variant or --workload")  # fmt: skip
    figure = Figure(figsize=(WIDTH, PANEL_HEIGHT * len(findings) + 0.5), layout="constrained", dpi=130)
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.08)  # type: ignore[union-attr, call-arg]
    panels: list[Axes] = list(figure.subplots(len(findings), 1, squeeze=False)[:, 0])
    for axes, finding in zip(panels, findings, strict=True):
        _panel(axes, finding, max(0, len(finding.series) - last) if last else 0)
    look: dict[str, Any] = {"ncols": 5, "fontsize": 8, "frameon": False}
    figure.legend(handles=_handles(panels, findings), loc="outside lower center", **look)
    return figure


def trend_figure(report: Report, path: Path, last: int | None = None) -> None:
    """Draw `draw_trend` into ``path`` (.png, .svg or .pdf), whole or not at all."""
    check_figure_path(path)
    figure = draw_trend(report, last)
    write_atomically(path, lambda file: figure.savefig(file, format=path.suffix.removeprefix(".").lower()))


def _panel(axes: Axes, f: Finding, first: int) -> None:
    from matplotlib.ticker import MaxNLocator

    series = f.series
    n = len(series)
    shown = np.arange(first, n)
    values = series.values[first:]
    low, high = _limits(f, values)
    inside = (values >= low) & (values <= high)
    axes.plot(shown[inside], values[inside], "o", markersize=3.2, color=POINTS, zorder=3)
    for outside, mark in ((values > high, "^"), (values < low, "v")):
        if outside.any():
            edge = np.full(outside.sum(), high if mark == "^" else low)
            axes.plot(shown[outside], edge, mark, markersize=6, color=POINTS, zorder=4)
    if f.fit is not None:
        for level in f.fit.levels:
            if level.stop <= first:
                continue
            ends = [max(level.start, first) - 0.5, level.stop - 0.5]
            bottom, top = level.mean - 2 * f.fit.sigma, level.mean + 2 * f.fit.sigma
            axes.fill_between(ends, bottom, top, color=BAND, alpha=0.25, lw=0)
            axes.plot(ends, [level.mean] * 2, color="#0B4F7A", linewidth=1.2, zorder=2)
    axes.set_xlim(first - 1, n)
    steps = [s for s in f.steps if s.index > first]
    rows = _label_steps(axes, steps, n - first)
    axes.set_ylim(low, high + (high - low) * 0.17 * rows)
    better = {"lower": ", lower is better", "higher": ", higher is better"}.get(f.direction, "")
    name = " · ".join(part for part in (series.key.metric, series.key.variant) if part)
    count = f"{n} commit{'s' if n != 1 else ''}" + (": too few to tell a step" if f.fit is None else "")
    where = f"{place(series.key)}; {count}"
    beside = len(name + better) * 1.3 + len(where) < ONE_LINE
    axes.set_title(f"{name}{better}", loc="left", fontsize=10, weight="bold", pad=6 if beside else 18)
    x, align = (1.0, "right") if beside else (0.0, "left")
    axes.text(x, 1.02, where, ha=align, transform=axes.transAxes, fontsize=8, color="#444444")
    axes.set_ylabel(series.unit, fontsize=9)
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    if (values == np.round(values)).all():
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    stride = max(1, -(-len(shown) // TICKS))
    ticks = shown[::-1][::stride][::-1]  # the newest commit is always named
    axes.set_xticks(ticks, [short_commit(series.commits[i])[:8] for i in ticks], fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _limits(f: Finding, values: np.ndarray) -> tuple[float, float]:
    """The range of the axis: levels and bands, and all values but outliers, which are marked at the edge."""
    low, high = float(values.min()), float(values.max())
    if f.fit is not None:
        means = [level.mean for level in f.fit.levels]
        room = max(6 * f.fit.sigma, 0.05 * (max(means) - min(means)))
        low = max(low, min(means) - room)
        high = min(high, max(means) + room)
        low, high = min(low, min(means) - 2.2 * f.fit.sigma), max(high, max(means) + 2.2 * f.fit.sigma)
    margin = 0.06 * (high - low) or 0.01 * abs(high) or 1.0
    return low - margin, high + margin


def _label_steps(axes: Axes, steps: list[Step], count: int) -> int:
    """Mark and name the steps; a label that would touch the one before goes a row higher. Return the rows used."""
    ends: list[float] = []
    for step in steps:
        text = f"{short_commit(step.commit)} {percent(step.change)}"
        width = CHARACTER * len(text) * (count + 1)
        left, right = axes.get_xlim()
        centre = min(max(step.index - 0.5, left + width / 2), right - width / 2)
        row = next((r for r, end in enumerate(ends) if end < centre - width / 2), len(ends))
        ends[row : row + 1] = [centre + width / 2 + 0.005 * count]
        colour = COLOURS[step.worse]
        axes.axvline(step.index - 0.5, color=colour, linestyle="--", linewidth=1, zorder=1)
        label = axes.annotate(text, (centre, 1), (0, -2 - 13 * row), xycoords=("data", "axes fraction"),
                      textcoords="offset points", ha="center", va="top", fontsize=8, color=colour, weight="bold",
                      bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
                      zorder=5)  # fmt: skip
        label.set_in_layout(False)
    return len(ends)


def _handles(panels: Sequence[Axes], findings: Sequence[Finding]) -> list[Artist]:
    """The legend: what appears in the picture, and nothing else."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    worse = {step.worse for f in findings for step in f.steps}
    handles: list[Artist] = [
        Line2D([], [], marker="o", linestyle="", markersize=3.2, color=POINTS, label="median of a commit's runs")
    ]
    if any(f.fit for f in findings):
        handles.append(Patch(color=BAND, alpha=0.25, lw=0, label="level ± 2 noise widths"))
    for kind, label in ((True, "step for the worse"), (False, "step for the better"), (None, "step")):
        if kind in worse:
            handles.append(Line2D([], [], color=COLOURS[kind], linestyle="--", label=label))
    if any(line.get_marker() in ("^", "v") for axes in panels for line in axes.lines):
        mark = Line2D([], [], marker="^", linestyle="", markersize=6, color=POINTS, label="outside the axis")
        handles.append(mark)
    return handles
