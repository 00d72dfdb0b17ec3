"""Figures with matplotlib: the closed account of captures as stacked bars, and a timeline strip of one step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from glqprof.analysis.breakdown import Breakdown
from glqprof.analysis.work import GpuWork
from glqprof.errors import InputError
from glqprof.reports.output import check_output_path, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
FORMATS = ("png", "svg", "pdf")
# Busy rows in saturated colours that stay apart for colour-blind readers, idle rows in greys and pale hues.
COLOURS = {
    "matvec": "#0072B2",
    "rht": "#56B4E9",
    "moe": "#332288",
    "gemm": "#009E73",
    "ssm": "#E69F00",
    "attention": "#CC79A7",
    "reduce": "#117733",
    "norm": "#882255",
    "router": "#D55E00",
    "sampling": "#AA4499",
    "elementwise": "#999933",
    "copy": "#F0E442",
    "memset": "#DDCC77",
    "comm": "#661100",
    "graph": "#6699CC",
    "other": "#000000",
    "launch-latency": "#B8C4CE",
    "host-sync": "#E8A0A0",
    "host-launch": "#C9C3DD",
    "host-memory": "#D9CDB8",
    "host-api": "#BFD8C2",
    "profiler": "#F3D6E4",
    "host-wait": "#A9A9A9",
    "host-code": "#DEDEDE",
    "host-unknown": "#F5F5F5",
}
USER_BUCKET = "#44AA99"
API_COLOURS = {"host-sync": "#CC3311", "host-launch": "#7A6FB0", "host-memory": "#B08A3E", "host-api": "#5E9C69"}


def account_figure(breakdowns: Sequence[Breakdown], path: Path) -> None:
    """Write `draw_account` to a file. Raises InputError as it does, and for what cannot be written."""
    try:
        figure = draw_account(breakdowns)
    except InputError as error:
        raise InputError(path, error.problem) from None
    save_figure(figure, path)


def draw_account(breakdowns: Sequence[Breakdown]) -> Figure:
    """One stacked bar per capture: milliseconds of the closed account a token (of the window where there are none).

    The left panel shows the whole account, the right one the busy rows alone, which host-bound decodes make tiny.
    Raises InputError for captures without an account.
    """
    usable = [b for b in breakdowns if len(b.wall)]
    if not usable:
        raise InputError("the account", "not drawn: no capture can tell idle from busy; see their answers")
    figure = _figure(11, 1.5 + 1.0 * len(usable) + 1.0)
    whole, busy = figure.subplots(1, 2, width_ratios=[3, 2], sharey=True)
    drawn: dict[str, Any] = {}
    for position, b in enumerate(usable):
        table = b.wall.groupby(["row", "kind"], sort=False)["ns"].sum().reset_index()
        divisor = 1e6 * len(b.devices) * (b.tokens or 1)
        for axes, kinds in ((whole, ("gpu", "idle")), (busy, ("gpu",))):
            left = 0.0
            for kind in kinds:
                rows = table[table["kind"] == kind]
                for row, ns in sorted(zip(rows["row"], rows["ns"], strict=True), key=lambda r: _rank(r[0])):
                    width = ns / divisor
                    look = {"height": 0.62, "color": _colour(row), "edgecolor": "white", "lw": 0.4}
                    bar = axes.barh(position, width, left=left, **look)
                    if row not in drawn or axes is whole:
                        drawn[row] = bar
                    if width > 0.07 * _scale(usable, kinds):
                        dark = kind == "gpu" and row not in ("copy", "memset", "rht")
                        look = {"ha": "center", "va": "center", "fontsize": 8, "color": "white" if dark else "#222222"}
                        axes.text(left + width / 2, position, f"{width:.1f}", **look)
                    left += width
            axes.text(left, position, f" {left:.1f}", va="center", fontsize=9, weight="bold")
    unit = "ms a token (traced)" if all(b.tokens for b in usable) else "ms of the window (traced)"
    whole.set_yticks(range(len(usable)), [_wrapped(b.name) for b in usable], fontsize=9)
    whole.invert_yaxis()
    for axes, title in ((whole, "every millisecond of wall time"), (busy, "the GPU's busy part")):
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel(unit, fontsize=9)
        axes.margins(x=0.09)
        axes.spines[["top", "right"]].set_visible(False)
    order = sorted(drawn, key=_rank)
    figure.legend([drawn[r] for r in order], order, loc="outside lower center", ncols=8, fontsize=8, frameon=False)
    return figure


def timeline_figure(b: Breakdown, path: Path, step: str | None = None) -> None:
    """Write `draw_timeline` to a file. Raises InputError as that does, and for what cannot be written."""
    save_figure(draw_timeline(b, step), path)


def draw_timeline(b: Breakdown, step: str | None = None) -> Figure:
    """GPU streams over the host threads that fed them, for one step (default: the median one by wall time).

    Raises InputError when the capture has no steps, or none of that name.
    """
    name, start_ns, end_ns = _choose_step(b, step)
    prepared, trace = b.prepared, b.trace
    work = prepared.work
    inside = np.flatnonzero((work.end > start_ns) & (work.start < end_ns))
    lanes = gpu_lanes(work, inside)
    threads = _busiest_threads(trace.api, start_ns, end_ns)
    figure = _figure(12, 1.7 + 0.55 * (len(lanes) + len(threads) + 1))
    axes = figure.subplots()
    labels: list[str] = []
    seen: dict[str, str] = {}
    buckets = np.array(prepared.attribution.bucket_names, dtype=object)[prepared.attribution.bucket[inside]]
    for lane, (label, mine) in enumerate(lanes):
        spans = []
        for bucket in sorted(pd.unique(buckets[mine]), key=_rank):
            rows = inside[mine & (buckets == bucket)]
            spans.append((work.start[rows], work.end[rows], _colour(bucket)))
            seen[bucket] = _colour(bucket)
        _occupancy(axes, lane, spans, start_ns, end_ns)
        labels.append(label)
    for process, thread in threads:
        lane = len(labels)
        api = trace.api
        codes = prepared.calls.kind
        rows = np.flatnonzero(
            (api["process"].to_numpy() == process)
            & (api["thread"].to_numpy() == thread)
            & (api["end_ns"].to_numpy() > start_ns)
            & (api["start_ns"].to_numpy() < end_ns)
        )
        spans = []
        for code, state in enumerate(API_COLOURS):
            these = rows[codes[rows] == code]
            spans.append((api["start_ns"].to_numpy()[these], api["end_ns"].to_numpy()[these], API_COLOURS[state]))
            if len(these):
                seen[state] = API_COLOURS[state]
        _occupancy(axes, lane, spans, start_ns, end_ns)
        labels.append(f"host thread {thread}")
    _layer_lane(axes, b, start_ns, end_ns, len(labels))
    labels.append("layers")
    axes.set_yticks(range(len(labels)), labels, fontsize=9)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.set_xlim(0, (end_ns - start_ns) / 1e6)
    axes.set_xlabel(f"ms from the start of {name} (traced)", fontsize=9)
    axes.set_title(
        f"{b.name}: {name}, {(end_ns - start_ns) / 1e6:.1f} ms (height: share of the time)", fontsize=10, loc="left"
    )
    axes.spines[["top", "right"]].set_visible(False)
    from matplotlib.patches import Patch

    handles = [Patch(color=seen[k], label=k) for k in sorted(seen, key=_rank)]
    figure.legend(handles=handles, loc="outside lower center", ncols=9, fontsize=8, frameon=False)
    return figure


def gpu_lanes(work: GpuWork, inside: Array, most: int = 6) -> list[tuple[str, Array]]:
    """Rows of a timeline for the activities ``inside`` [n]: label, and which of them [n] bool; each is in one row.

    A row a stream; of a GPU that has more than ``most``, streams that one after the other hold work share a row: the
    branches of a CUDA graph run in streams of their own, dozens of them.
    """
    lanes: list[tuple[str, Array]] = []
    device, stream = work.device[inside], work.stream[inside]
    for gpu in np.unique(device):
        mine = device == gpu
        streams = np.unique(stream[mine])
        if len(streams) <= most:
            lanes += [(f"GPU {gpu} stream {one}", mine & (stream == one)) for one in streams]
            continue
        extents = sorted(
            (int(work.start[inside[stream_is]].min()), int(work.end[inside[stream_is]].max()), int(one))
            for one in streams
            for stream_is in [mine & (stream == one)]
        )
        rows: list[tuple[int, list[int]]] = []
        for start, end, one in extents:
            free = next((i for i, (until, _) in enumerate(rows) if until <= start), None)
            if free is None:
                rows.append((end, [one]))
            else:
                rows[free] = (end, [*rows[free][1], one])
        for _, members in rows:
            label = f"GPU {gpu}, {len(members)} streams" if len(members) > 1 else f"GPU {gpu} stream {members[0]}"
            lanes.append((label, mine & np.isin(stream, members)))
    return lanes


def _choose_step(b: Breakdown, step: str | None) -> tuple[str, int, int]:
    steps = b.window.steps
    if not len(steps):
        raise InputError(b.name, "has no decode_token ranges to draw one of; choose some with --window nvtx:GLOB")
    if step is not None:
        found = steps[steps["name"] == step]
        if not len(found):
            raise InputError(f"--step {step}", f"is not in the window; there are {', '.join(steps['name'].head(8))}")
        row = found.iloc[0]
    else:
        order = (steps["end_ns"] - steps["start_ns"]).argsort(kind="stable").to_numpy()
        row = steps.iloc[int(order[(len(order) - 1) // 2])]
    return str(row["name"]), int(row["start_ns"]), int(row["end_ns"])


def _busiest_threads(api: pd.DataFrame, start_ns: int, end_ns: int, count: int = 4) -> list[tuple[int, int]]:
    inside = api[(api["end_ns"] > start_ns) & (api["start_ns"] < end_ns)]
    calls = inside.groupby(["process", "thread"]).size().sort_values(ascending=False)
    return [(int(p), int(t)) for p, t in calls.index[:count]]


def _occupancy(
    axes: Axes, lane: int, spans: Sequence[tuple[Array, Array, str]], start_ns: int, end_ns: int, bins: int = 500
) -> None:
    """Fill a lane bin by bin: its height is the share of the bin that is busy, stacked by kind.

    Thousands of kernels of 2 µs in a strip of 100 ms are thinner than a pixel each: drawn as rectangles they would
    vanish or, widened, hide how idle the GPU is.
    """
    edges = np.linspace(start_ns, end_ns, bins + 1)
    base = np.full(bins, float(lane) + 0.4)
    for start, end, colour in spans:
        if not len(start):  # a lane need not hold every kind
            continue
        order = np.argsort(start, kind="stable")
        left, right = np.maximum(start[order], start_ns), np.minimum(end[order], end_ns)
        left = np.maximum(left, np.concatenate([left[:1], np.maximum.accumulate(right)[:-1]]))  # overlaps count once
        right = np.maximum(left, right)
        knots = np.stack([left, right], 1).ravel()
        total = np.cumsum(np.stack([np.zeros(len(left)), right - left], 1).ravel())
        share = np.diff(np.interp(edges, knots, total, left=0.0)) / np.diff(edges)
        top = np.maximum(base - 0.8 * share, lane - 0.4)
        shown = (edges - start_ns) / 1e6
        axes.stairs(top, shown, baseline=base, fill=True, color=colour, lw=0)
        base = top
    axes.axhline(lane + 0.4, color="#999999", lw=0.5)


def _bar(axes: Axes, left_ns: int, right_ns: int, low_ns: int, lane: int, colour: str) -> None:
    axes.barh(lane, (right_ns - left_ns) / 1e6, left=(left_ns - low_ns) / 1e6, height=0.7, color=colour, lw=0)


def _layer_lane(axes: Axes, b: Breakdown, start_ns: int, end_ns: int, lane: int) -> None:
    forest = b.prepared.forest
    mask = forest.matching(lambda n: n.startswith("layer_"))
    rows = np.flatnonzero(mask & (forest.start < end_ns) & (forest.end > start_ns))
    kinds: dict[str, str] = {}
    palette = ["#4477AA", "#EE6677", "#BBBBBB", "#CCBB44", "#66CCEE"]
    for i in rows.tolist():
        name = str(forest.name.iloc[i])
        kind = name.rsplit("_", 1)[-1]
        colour = kinds.setdefault(kind, palette[len(kinds) % len(palette)])
        left, right = max(int(forest.start[i]), start_ns), min(int(forest.end[i]), end_ns)
        _bar(axes, left, right, start_ns, lane, colour)
        if right - left > 0.008 * (end_ns - start_ns):
            middle = ((left + right) / 2 - start_ns) / 1e6
            axes.text(middle, lane, kind, ha="center", va="center", fontsize=7, color="white")


def _rank(row: str) -> tuple[int, str]:
    known = list(COLOURS)
    return (known.index(row) if row in known else known.index("other"), row)


def _colour(row: str) -> str:
    return COLOURS.get(row, USER_BUCKET)


def _scale(breakdowns: Sequence[Breakdown], kinds: Sequence[str]) -> float:
    sums = [b.wall[b.wall["kind"].isin(kinds)]["ns"].sum() / 1e6 / len(b.devices) / (b.tokens or 1) for b in breakdowns]
    return float(max(sums)) if sums else 1.0


def _wrapped(name: str) -> str:
    if len(name) <= 24:
        return name
    words = name.split("-")
    half = len(words) // 2
    return "-".join(words[:half]) + "-\n" + "-".join(words[half:])


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def check_figure_path(path: Path) -> None:
    """Raise InputError when no figure can be written to ``path``: asked before anything is read or drawn."""
    if _kind(path) not in FORMATS:
        raise InputError(path, f"is no figure type that can be written; end it in .{', .'.join(FORMATS)}")
    check_output_path(path)


def _kind(path: Path) -> str:
    return path.suffix.removeprefix(".").lower()


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure whole or not at all; the path's ending says as what."""
    check_figure_path(path)
    write_atomically(path, lambda file: figure.savefig(file, format=_kind(path)))
