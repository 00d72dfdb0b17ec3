"""What changed between captures, per token, and whether it is evidence of a faster or slower program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from glqprof.analysis.account import IDLE_ROWS
from glqprof.analysis.breakdown import Breakdown
from glqprof.analysis.shown import Shown
from glqprof.errors import InputError

Array = np.ndarray
FASTER, SLOWER, UNCLEAR = "faster", "slower", "not distinguishable"
# One untraced run a side has no spread of its own: below this difference no verdict is given.
SINGLE_RUN_MARGIN = 0.05
BOOTSTRAP_SAMPLES = 10_000
BOOTSTRAP_SEED = 20261130
MIN_REPEATS = 3


@dataclass(frozen=True)
class Pair:
    """A quantity on both sides; ``delta`` is candidate minus base, ``ratio`` candidate ÷ base (None at base 0)."""

    base: float
    cand: float

    @property
    def delta(self) -> float:
        """Candidate minus base."""
        return self.cand - self.base

    @property
    def ratio(self) -> float | None:
        """Candidate divided by base."""
        return self.cand / self.base if self.base else None


@dataclass(frozen=True)
class Interval:
    """Ratio of the medians of candidate and base milliseconds a token, with a bootstrap 95 % interval over repeats."""

    ratio: float
    low: float
    high: float
    base_runs: int
    cand_runs: int


@dataclass(repr=False)
class Comparison(Shown):
    """One candidate against the base.

    ``unit``: "token", or "window" where either side has no tokens (the rows are then whole windows). ``wall``: traced
    milliseconds per unit. ``rows``: row, kind, base_ms, cand_ms, delta_ms, per unit, averaged over a capture's GPUs;
    the deltas sum to wall.delta. ``totals``: counts and sums of the whole windows (syncs, launches, kernel_sum_ms,
    blocking_copies). ``kernels``: name, base_launches, cand_launches, base_ms, cand_ms, change (appeared, vanished,
    count, mean time or ""), largest change of summed time first. ``untraced``: tokens a second of the untraced runs.
    ``notes``: what a reader should not misread, in sentences.
    """

    base: Breakdown
    cand: Breakdown
    unit: str
    wall: Pair
    rows: pd.DataFrame
    totals: dict[str, Pair]
    kernels: pd.DataFrame
    untraced: Pair | None
    inflation: tuple[float | None, float | None]
    token_sha_equal: bool | None
    interval: Interval | None
    verdict: str
    reason: str
    notes: list[str]

    def __repr__(self) -> str:
        return f"<Comparison of {self.cand.name} with {self.base.name}: {self.verdict} ({self.reason})>"


def compare(base: Breakdown | Sequence[Breakdown], *candidates: Breakdown | Sequence[Breakdown]) -> list[Comparison]:
    """Compare each candidate with the base.

    A side may be a sequence of repeated captures of the same program: its first is shown row by row, and all of them
    give the confidence interval. Raises InputError when a side is empty or cannot tell idle from busy.
    """
    base_side = _side(base)
    return [_compare(base_side, _side(candidate)) for candidate in candidates]


def _side(side: Breakdown | Sequence[Breakdown]) -> list[Breakdown]:
    members = [side] if isinstance(side, Breakdown) else list(side)
    if not members:
        raise InputError("compare", "a side has no capture; name at least one")
    for member in members:
        gpu_idle = member.answers["gpu_idle"]
        if not len(member.wall):
            raise InputError(member.name, f"cannot be compared row by row: {gpu_idle}")
    return members


def _compare(base_side: list[Breakdown], cand_side: list[Breakdown]) -> Comparison:
    base, cand = base_side[0], cand_side[0]
    unit = "token" if base.tokens and cand.tokens else "window"
    divisors = (base.tokens or 1, cand.tokens or 1) if unit == "token" else (1, 1)
    wall = Pair(base.window.wall_ns / 1e6 / divisors[0], cand.window.wall_ns / 1e6 / divisors[1])
    untraced = Pair(base.untraced.tok_s, cand.untraced.tok_s) if base.untraced and cand.untraced else None
    interval = _interval(base_side, cand_side)
    unlike = _unlike(base, cand)
    verdict, reason = (UNCLEAR, unlike) if unlike else verdict_of(untraced, interval)
    comparison = Comparison(
        base=base,
        cand=cand,
        unit=unit,
        wall=wall,
        rows=_rows(base, cand, divisors),
        totals=_totals(base, cand),
        kernels=_kernels(base, cand),
        untraced=untraced,
        inflation=(base.inflation, cand.inflation),
        token_sha_equal=_sha_equal(base, cand),
        interval=interval,
        verdict=verdict,
        reason=reason,
        notes=[],
    )
    comparison.notes.extend(_notes(comparison))
    return comparison


def _rows(base: Breakdown, cand: Breakdown, divisors: tuple[int, int]) -> pd.DataFrame:
    sides = []
    for side, divisor in zip((base, cand), divisors, strict=True):
        mean = side.wall.groupby(["row", "kind"], sort=False)["ns"].sum() / len(side.devices)
        sides.append(mean / 1e6 / divisor)
    table = pd.concat(sides, axis=1, keys=["base_ms", "cand_ms"]).fillna(0.0).reset_index()
    table["delta_ms"] = table["cand_ms"] - table["base_ms"]
    order = {row: i for i, row in enumerate(IDLE_ROWS)}
    # GPU rows by size, idle rows in the order of their definition: a table is read top to bottom.
    table["_kind"] = (table["kind"] == "idle").astype(int)
    table["_order"] = [order.get(r, 0) for r in table["row"]]
    table["_size"] = -table[["base_ms", "cand_ms"]].max(axis=1).where(table["kind"] == "gpu", 0.0)
    table = table.sort_values(["_kind", "_order", "_size", "row"], kind="stable").reset_index(drop=True)
    return table[["row", "kind", "base_ms", "cand_ms", "delta_ms"]]


def _totals(base: Breakdown, cand: Breakdown) -> dict[str, Pair]:
    def launches(side: Breakdown) -> float:
        return sum(d.kernel_count for d in side.devices)

    def summed(side: Breakdown) -> float:
        return sum(d.kernel_sum_ns for d in side.devices) / 1e6

    totals = {"launches": Pair(launches(base), launches(cand)), "kernel_sum_ms": Pair(summed(base), summed(cand))}
    if base.host and cand.host:
        totals["syncs"] = Pair(base.host.sync.calls, cand.host.sync.calls)
        totals["blocking_copies"] = Pair(base.host.blocking_copies.calls, cand.host.blocking_copies.calls)
    return totals


def _kernels(base: Breakdown, cand: Breakdown) -> pd.DataFrame:
    sides = []
    for side in (base, cand):
        merged = pd.concat([d.kernels[d.kernels["is_kernel"]] for d in side.devices])
        sides.append(merged.groupby("name")[["launches", "sum_ns"]].sum())
    both = pd.concat(sides, axis=1, keys=["base", "cand"]).fillna(0)
    table = pd.DataFrame(
        {
            "name": both.index,
            "base_launches": both[("base", "launches")].astype(int).to_numpy(),
            "cand_launches": both[("cand", "launches")].astype(int).to_numpy(),
            "base_ms": both[("base", "sum_ns")].to_numpy() / 1e6,
            "cand_ms": both[("cand", "sum_ns")].to_numpy() / 1e6,
        }
    )
    table["change"] = [
        _kernel_change(*values)
        for values in zip(
            table["base_launches"], table["cand_launches"], table["base_ms"], table["cand_ms"], strict=True
        )
    ]
    size = (table["cand_ms"] - table["base_ms"]).abs()
    return table.loc[size.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def _kernel_change(base_launches: int, cand_launches: int, base_ms: float, cand_ms: float) -> str:
    if base_launches == 0:
        return "appeared"
    if cand_launches == 0:
        return "vanished"
    if base_launches != cand_launches:
        return "count"
    # Less than 5 % of mean time is what clocks and neighbours do between two runs.
    ratio = (cand_ms / cand_launches) / (base_ms / base_launches) if base_ms else 1.0
    return "mean time" if abs(ratio - 1) > 0.05 else ""


def _sha_equal(base: Breakdown, cand: Breakdown) -> bool | None:
    hashes = [m.token_sha if (m := side.manifest) else None for side in (base, cand)]
    return hashes[0] == hashes[1] if all(hashes) else None


def _runs(side: list[Breakdown]) -> list[float]:
    """Milliseconds a token of every repeat: the untraced runs where all captures have some, else the traced ones."""
    untraced = [
        [run.ms_per_token for run in member.untraced.runs] or [member.untraced.ms_per_token]
        for member in side
        if member.untraced
    ]
    if len(untraced) == len(side):
        return [ms for runs in untraced for ms in runs]
    return [member.window.wall_ns / 1e6 / member.tokens for member in side if member.tokens]


def _interval(base_side: list[Breakdown], cand_side: list[Breakdown]) -> Interval | None:
    if all(m.untraced for m in base_side) != all(m.untraced for m in cand_side):
        return None  # traced milliseconds on one side only are no measure
    base, cand = np.array(_runs(base_side)), np.array(_runs(cand_side))
    if min(len(base), len(cand)) < MIN_REPEATS:
        return None
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    ratios = np.median(generator.choice(cand, (BOOTSTRAP_SAMPLES, len(cand))), axis=1) / np.median(
        generator.choice(base, (BOOTSTRAP_SAMPLES, len(base))), axis=1
    )
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Interval(float(np.median(cand) / np.median(base)), float(low), float(high), len(base), len(cand))


def _unlike(base: Breakdown, cand: Breakdown) -> str:
    """Why the two sides cannot be a faster and a slower version of one thing, "" where they can."""
    workloads = [m.workload if (m := side.manifest) else "" for side in (base, cand)]
    if all(workloads) and workloads[0] != workloads[1]:
        return f"different workloads: {workloads[0]} and {workloads[1]}"
    gpus = [sorted({d.name for d in side.devices if d.name}) for side in (base, cand)]
    if all(gpus) and gpus[0] != gpus[1]:
        return f"different GPUs: {', '.join(gpus[0])} and {', '.join(gpus[1])}"
    return ""


def verdict_of(untraced: Pair | None, interval: Interval | None) -> tuple[str, str]:
    """Faster, slower or not distinguishable, and what that rests on; ``untraced`` are tokens a second."""
    if interval is not None:
        runs = f"{interval.base_runs} and {interval.cand_runs} runs"
        if interval.high < 1:
            return FASTER, f"95 % interval of the time ratio below 1 ({runs})"
        if interval.low > 1:
            return SLOWER, f"95 % interval of the time ratio above 1 ({runs})"
        return UNCLEAR, f"95 % interval of the time ratio holds 1 ({runs})"
    if untraced is None or untraced.ratio is None:
        return UNCLEAR, "traced once"
    if abs(untraced.ratio - 1) < SINGLE_RUN_MARGIN:
        return UNCLEAR, f"one untraced run a side, less than {SINGLE_RUN_MARGIN:.0%} apart"
    return (FASTER if untraced.ratio > 1 else SLOWER), "one untraced run a side: no interval"


def _notes(c: Comparison) -> list[str]:
    notes = []
    moved = c.totals.get("blocking_copies")
    syncs = c.totals.get("syncs")
    if moved and syncs and syncs.delta < 0 < moved.delta:
        notes.append(
            f"{-syncs.delta:,.0f} fewer syncs, but {moved.delta:,.0f} more blocking copies, which wait too: "
            "part of the saving moved there"
        )
    if c.untraced and c.untraced.ratio and c.wall.ratio:
        contradicts = (c.untraced.ratio > 1) == (c.wall.ratio > 1)
        if contradicts and c.unit == "token" and abs(c.wall.ratio - 1) > 0.005:
            traced = "longer" if c.wall.ratio > 1 else "shorter"
            untraced = "faster" if c.untraced.ratio > 1 else "slower"
            loudest = c.rows.loc[c.rows["delta_ms"].abs().idxmax()]
            notes.append(
                f"traced wall time is {traced} ({c.wall.delta:+.2f} ms a token, most of it {loudest['row']} "
                f"{loudest['delta_ms']:+.2f}) although the untraced run is {untraced}: not evidence, since tracing "
                "adds host time of its own and each side was traced once; read the counts and the untraced runs"
            )
    unlike = _unlike(c.base, c.cand)
    if unlike:
        notes.append(f"{unlike}: rows are not like for like")
    tools = {side.trace.info.tool for side in (c.base, c.cand)}
    if len(tools) > 1:
        notes.append(
            f"captured by different tools ({', '.join(sorted(tools))}), which spell kernel names differently: "
            "one kernel can show as vanished and appeared"
        )
    if c.base.window.selector != c.cand.window.selector:
        notes.append(f"the windows differ: {c.base.window.selector} and {c.cand.window.selector}")
    if c.unit == "window":
        notes.append("a side has no decode_token ranges: rows are whole windows, not per token")
    if c.token_sha_equal is False:
        notes.append("token_sha differs: the two runs did not decode the same tokens")
    return notes
