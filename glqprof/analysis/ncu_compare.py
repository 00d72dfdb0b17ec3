"""Two reports, kernel by kernel: which launch of one is which of the other, and what changed between them.

ncu measures a launch alone and once; a duration that differs by a few per cent is no evidence of a faster kernel.
Counts (instructions, sectors, registers) repeat far better than durations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from glqprof.analysis.ncu_analysis import KernelAnalysis, NcuAnalysis
from glqprof.analysis.ncu_names import function_name, kernel_key

Value = float | str | None


@dataclass(frozen=True)
class Quantity:
    """What is compared; ``least`` is the smallest change of a percentage (in points) or of a share that is listed."""

    key: str
    title: str
    unit: str
    least: float
    get: Callable[[KernelAnalysis], Value]


def _share(k: KernelAnalysis, reason: str) -> Value:
    stall = k.numbers.stall(reason)
    return None if stall is None else 100 * stall.share


QUANTITIES = (
    Quantity("duration_us", "duration", "µs", 0.02, lambda k: k.numbers.duration_us),
    Quantity("diagnosis", "what binds", "", 0, lambda k: k.diagnosis.label),
    Quantity("grid", "grid", "", 0, lambda k: shown_dim(k.numbers.grid)),
    Quantity("block", "block", "", 0, lambda k: shown_dim(k.numbers.block)),
    Quantity("dram_pct", "DRAM throughput", "%", 1, lambda k: k.numbers.memory.dram_pct),
    Quantity("dram_bytes", "bytes from and to DRAM", "B", 0.02, lambda k: k.numbers.memory.dram_bytes),
    Quantity("l2_pct", "L2 throughput", "%", 1, lambda k: k.numbers.memory.l2_pct),
    Quantity("l2_bytes", "bytes from L2", "B", 0.02, lambda k: k.numbers.memory.l2_bytes),
    Quantity("l1_hit_pct", "L1 hit rate", "%", 1, lambda k: k.numbers.memory.l1_hit_pct),
    Quantity("l2_hit_pct", "L2 hit rate", "%", 1, lambda k: k.numbers.memory.l2_hit_pct),
    Quantity("compute_pct", "compute throughput", "%", 1, lambda k: k.numbers.compute.pct),
    Quantity("instructions", "instructions issued", "", 0.01, lambda k: k.numbers.compute.instructions),
    Quantity("occupancy_pct", "occupancy", "%", 1, lambda k: k.numbers.occupancy.achieved_pct),
    Quantity("registers", "registers a thread", "", 0, lambda k: k.numbers.occupancy.registers),
    Quantity("limiter", "occupancy limited by", "", 0, lambda k: k.numbers.occupancy.limiter),
    Quantity("spill_requests", "spill requests", "", 0, lambda k: k.numbers.memory.spill_requests),
    Quantity("bank_conflicts", "bank conflicts", "", 0.02, lambda k: k.numbers.memory.bank_conflicts),
    Quantity("sectors_per_request", "sectors per load", "", 0.02, lambda k: k.numbers.memory.sectors_per_request),
    Quantity("cycles_per_issue", "warp cycles per issue", "", 0.02, lambda k: k.numbers.cycles_per_issue),
    Quantity("long_scoreboard_share", "long scoreboard share", "%", 2, lambda k: _share(k, "long_scoreboard")),
)


@dataclass(frozen=True)
class Change:
    """A quantity that differs; ``ratio`` is candidate ÷ base (None for words, or where the base is 0)."""

    key: str
    title: str
    unit: str
    base: Value
    cand: Value

    @property
    def ratio(self) -> float | None:
        """Candidate ÷ base."""
        if isinstance(self.base, str) or isinstance(self.cand, str) or not self.base or self.cand is None:
            return None
        return self.cand / self.base


@dataclass(frozen=True)
class Match:
    """One launch of each side; ``by``: "name and grid", "name", or "function name" (template arguments differ)."""

    base: KernelAnalysis
    cand: KernelAnalysis
    by: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class NcuComparison:
    """``matches`` in the base's order; ``vanished``: launches of the base without a partner, ``appeared``: the others.

    ``base_us`` and ``cand_us``: summed durations of all launches of a side, None where one lacks its duration.
    """

    base: NcuAnalysis
    cand: NcuAnalysis
    matches: tuple[Match, ...]
    vanished: tuple[KernelAnalysis, ...]
    appeared: tuple[KernelAnalysis, ...]
    notes: tuple[str, ...]

    @property
    def base_us(self) -> float | None:
        """Summed durations of the base."""
        return _summed(self.base.kernels)

    @property
    def cand_us(self) -> float | None:
        """Summed durations of the candidate."""
        return _summed(self.cand.kernels)


def compare_reports(base: NcuAnalysis, cand: NcuAnalysis) -> NcuComparison:
    """Match launches by name and grid in order, what is left by name in order, then by function name in order."""
    left = sorted(base.kernels, key=lambda k: k.numbers.id)
    right = sorted(cand.kernels, key=lambda k: k.numbers.id)
    pairs: list[tuple[KernelAnalysis, KernelAnalysis, str]] = []
    steps: tuple[tuple[str, Callable[[KernelAnalysis], Hashable]], ...] = (
        ("name and grid", lambda k: (kernel_key(k.numbers.name), k.numbers.grid)),
        ("name", lambda k: kernel_key(k.numbers.name)),
        ("function name", lambda k: function_name(k.numbers.name)),
    )
    for by, key in steps:
        waiting: dict[Hashable, list[KernelAnalysis]] = defaultdict(list)
        for k in right:
            waiting[key(k)].append(k)
        rest = []
        for k in left:
            partners = waiting.get(key(k))
            if partners:
                pairs.append((k, partners.pop(0), by))
            else:
                rest.append(k)
        taken = {id(c) for _, c, _ in pairs}
        left, right = rest, [k for k in right if id(k) not in taken]
    pairs.sort(key=lambda pair: pair[0].numbers.id)
    matches = tuple(Match(b, c, by, _changes(b, c)) for b, c, by in pairs)
    return NcuComparison(base, cand, matches, tuple(left), tuple(right), tuple(_notes(base, cand)))


def _changes(base: KernelAnalysis, cand: KernelAnalysis) -> tuple[Change, ...]:
    found = []
    for q in QUANTITIES:
        before, after = q.get(base), q.get(cand)
        if _differs(q, before, after):
            found.append(Change(q.key, q.title, q.unit, before, after))
    return tuple(found)


def _differs(q: Quantity, before: Value, after: Value) -> bool:
    if before is None or after is None:
        return False
    if isinstance(before, str) or isinstance(after, str):
        return before != after
    least = q.least if q.unit == "%" else q.least * max(abs(before), abs(after))
    return abs(after - before) > least


def _notes(base: NcuAnalysis, cand: NcuAnalysis) -> list[str]:
    notes = ["one launch each, profiled alone: a few per cent of duration are no evidence; counts repeat better"]
    if base.gpus and cand.gpus and base.gpus != cand.gpus:
        notes.append(f"different GPUs: {', '.join(base.gpus)} and {', '.join(cand.gpus)}")
    if base.source != cand.source and "details" in (base.source, cand.source):
        notes.append("one side is a details page: what only the other holds is not compared")
    clocks = [_mean([k.numbers.compute.clock_hz for k in side.kernels]) for side in (base, cand)]
    if clocks[0] and clocks[1] and abs(clocks[1] / clocks[0] - 1) > 0.03:
        notes.append(f"SM clocks differ: {clocks[0] / 1e9:.2f} and {clocks[1] / 1e9:.2f} GHz on average")
    return notes


def _summed(kernels: tuple[KernelAnalysis, ...]) -> float | None:
    durations = [k.numbers.duration_us for k in kernels]
    return None if None in durations else sum(d for d in durations if d is not None)


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def shown_dim(size: tuple[int, int, int] | None) -> str | None:
    """(84, 4, 1) as 84×4: trailing ones say nothing."""
    if size is None:
        return None
    x, y, z = size
    return f"{x}×{y}×{z}" if z != 1 else f"{x}×{y}" if y != 1 else str(x)
