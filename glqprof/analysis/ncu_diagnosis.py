"""What binds a kernel, with the numbers that say so and one thing to try.

Each rule is a function of the numbers that returns a finding or None; the first that holds is the diagnosis, the others
stand behind it. A finding says what the counters show, not what a change will bring. "Below 60 % of peak" as the sign
of latency is ncu's own threshold (its rule SOLBottleneck).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glqprof.analysis.ncu_in_flight import InFlight, in_flight
from glqprof.analysis.ncu_numbers import GRID, KernelNumbers
from glqprof.analysis.ncu_stalls import MEANING

BUSY_PCT = 60.0
NEAR_CEILING_PCT = 80.0
# DRAM must be well below busy before L2 can be the story, and L2 must serve most of what L1 missed.
L2_DRAM_AT_MOST_PCT = 40.0
L2_HIT_AT_LEAST_PCT = 70.0
L2_BYTES_OVER_DRAM = 4.0
# A gather: L2 serves sectors one at a time, or threads use less than 20 of a sector's 32 bytes.
GATHER_SECTORS_PER_REQUEST = 1.5
GATHER_BYTES_PER_SECTOR = 20.0
LEADING_STALL_SHARE = 0.3
TAIL_PCT = 20.0
LAUNCH_US = 5.0

SECTIONS = {
    "speed of light": "SpeedOfLight",
    "launch": "LaunchStats",
    "stalls": "WarpStateStats",
    "memory": "MemoryWorkloadAnalysis_Tables",
    "scheduler": "SchedulerStats",
}
LABELS = {
    "not-enough-metrics": "not enough metrics",
    "bandwidth-bound": "bandwidth",
    "compute-bound": "compute",
    "grid-too-small": "grid too small",
    "latency-bound": "latency",
    "l2-gather-bound": "L2 gather",
    "tail-bound": "tail",
    "launch-bound": "launch",
    "nothing-stands-out": "nothing stands out",
}
STALL_SUGGESTIONS = {
    "long_scoreboard": "have more loads in flight: unroll, load the next block's data early (registers or a cp.async "
    "ring), then more warps a SM",
    "short_scoreboard": "issue shared-memory reads and shuffles further ahead of their use, or do fewer of them",
    "lg_throttle": "make fewer, wider loads (16 B a thread) instead of many narrow ones",
    "mio_throttle": "replace shared-memory traffic or shuffles by registers, or widen the accesses",
    "math_pipe_throttle": "spread the arithmetic over other pipes, or do less of it",
    "barrier": "make blocks smaller or synchronise less often; let warps work on independent pieces",
    "wait": "give each warp more independent instructions (several accumulators)",
    "no_instruction": "shrink the code (less unrolling); launches this short run with a cold instruction cache",
    "imc_miss": "read fewer constants and kernel parameters, or launch less often",
    "membar": "use fewer or narrower memory fences",
    "not_selected": "warps are ready: the schedulers are the limit; do less work per element",
    "branch_resolving": "remove branches from the inner loop",
    "drain": "write less at the end, or coalesce the stores",
    "gmma": "keep more matrix instructions in flight per warp group",
}


@dataclass(frozen=True)
class Evidence:
    """One number: ``what`` it is, its ``value`` and ``unit``, and what it is held against (``note``)."""

    what: str
    value: float
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """``code`` is stable (docs/ncu.md lists all); ``title`` one sentence; one ``suggestion``."""

    code: str
    title: str
    evidence: tuple[Evidence, ...]
    suggestion: str


@dataclass(frozen=True)
class Diagnosis:
    """``findings``: what binds first, then what holds besides; never empty."""

    findings: tuple[Finding, ...]
    in_flight: InFlight | None

    @property
    def code(self) -> str:
        """Of what binds."""
        return self.findings[0].code

    @property
    def label(self) -> str:
        """What binds in a few words; a latency that comes from gathers in L2 says so."""
        codes = [f.code for f in self.findings]
        gathers = ["l2-gather-bound"] if "l2-gather-bound" in codes[1:] else []
        return ", ".join(LABELS[code] for code in [codes[0], *gathers])


def diagnose(numbers: KernelNumbers, source: str = "raw") -> Diagnosis:
    """Say what binds one launch. ``source`` of its report (raw, details, ncu-rep) decides how metrics can be had."""
    flight = in_flight(numbers)
    missing = _missing(numbers)
    if "speed of light" in missing:  # without it no rule can be denied
        small = _grid_too_small(numbers)
        found = [_not_enough(missing, source, numbers), *([small] if small else [])]
        return Diagnosis(tuple(found), flight)
    rules: tuple[Callable[[KernelNumbers], Finding | None], ...] = (
        lambda n: _bandwidth_bound(n, flight),
        _compute_bound,
        _grid_too_small,
        lambda n: _latency_bound(n, flight),
        _l2_gather_bound,
        _tail_bound,
        _launch_bound,
    )
    found = [finding for rule in rules if (finding := rule(numbers))]
    if not found:
        found = [_nothing(numbers)]
    if missing:
        found.append(_not_enough(missing, source, numbers))
    return Diagnosis(tuple(found), flight)


def _missing(n: KernelNumbers) -> list[str]:
    memory = n.memory.dram_pct is not None or n.memory.busiest_pct is not None
    present = {
        "speed of light": n.duration_us is not None and memory and n.compute.pct is not None,
        "launch": n.occupancy.blocks is not None and n.occupancy.sm_count is not None,
        "stalls": bool(n.stalls),
        "memory": n.memory.l2_hit_pct is not None and n.memory.sectors_per_request is not None,
        "scheduler": n.compute.issue_pct is not None,
    }
    if n.workload != "kernel":  # ncu gives a range or a graph no launch of its own
        present["launch"] = True
    return [what for what, there in present.items() if not there]


def _not_enough(missing: list[str], source: str, n: KernelNumbers) -> Finding:
    sections = " ".join(f"--section {SECTIONS[what]}" for what in missing)
    how = f"re-capture with `ncu --clock-control none {sections}` or --set full"
    if source == "details":
        how = f"export the raw page, which holds more (`ncu --import FILE.ncu-rep --csv --page raw`); else {how}"
    known = sum(1 for v in (n.duration_us, n.memory.dram_pct, n.compute.pct, n.occupancy.achieved_pct) if v is not None)
    return Finding(
        "not-enough-metrics",
        f"The report lacks {', '.join(missing)}: what depends on them is left open.",
        (Evidence("headline metrics present", known, "of 4"),),
        how,
    )


def _bandwidth_bound(n: KernelNumbers, flight: InFlight | None) -> Finding | None:
    memory = n.memory
    levels = {"DRAM": memory.dram_pct, "L2": memory.l2_pct, "L1 or shared memory": memory.busiest_pct}
    level = next((name for name, pct in levels.items() if pct is not None and pct >= BUSY_PCT), None)
    if level is None:
        return None
    pct = levels[level] or 0.0
    if n.compute.pct is not None and n.compute.pct > pct:
        return None
    rate = {"DRAM": memory.dram_bytes_s, "L2": memory.l2_bytes_s}.get(level)
    evidence = [Evidence(f"{level} throughput", pct, "%", "of peak"), *_evidence_rate(level, rate)]
    evidence += _optional("bytes used per 32 B sector", memory.bytes_per_sector, "B", "global loads")
    if flight is not None and flight.level == level:
        evidence.append(_flight_evidence(flight))
    if memory.bytes_per_sector is not None and memory.bytes_per_sector < GATHER_BYTES_PER_SECTOR:
        how = "make neighbouring threads read neighbouring addresses: whole sectors are moved for part of their bytes"
    elif level == "DRAM":
        how = "move fewer bytes: smaller types, each byte read once, intermediate results kept on the chip"
    elif level == "L2":
        how = "keep what is read again in shared memory or registers, so that it does not come from L2 each time"
    else:
        how = "do fewer or wider shared-memory and L1 accesses, and remove bank conflicts"
    near = "at" if pct >= NEAR_CEILING_PCT else "near"
    return Finding("bandwidth-bound", f"{level} is the busiest part, {near} its peak.", tuple(evidence), how)


def _compute_bound(n: KernelNumbers) -> Finding | None:
    if n.compute.pct is None or n.compute.pct < BUSY_PCT:
        return None
    evidence = [Evidence("compute throughput", n.compute.pct, "%", "of peak, busiest pipe or issue slots")]
    evidence += _optional("tensor pipe", n.compute.tensor_pct, "%", "of peak")
    evidence += _optional("issue slots used", n.compute.issue_pct, "%", "of active cycles")
    how = "do less arithmetic per element (tables, cheaper types, tensor cores): more warps or loads will not help"
    return Finding("compute-bound", "A compute pipe or the issue slots are the busiest part.", tuple(evidence), how)


def _grid_too_small(n: KernelNumbers) -> Finding | None:
    blocks, sms = n.occupancy.blocks, n.occupancy.sm_count
    if blocks is None or sms is None or blocks >= sms:
        return None
    evidence = [Evidence("blocks", blocks, "", f"on {sms} SMs: {sms - blocks} get none")]
    evidence += _optional("SM cycles with any warp", n.occupancy.sm_active_pct, "%", "of all")
    evidence += _optional("duration", n.duration_us, "µs")
    return Finding(
        "grid-too-small",
        f"The grid is too small: {blocks} {'block' if blocks == 1 else 'blocks'} cannot use {sms} SMs.",
        tuple(evidence),
        "split the work into at least one block a SM, or fuse it into the kernel before or after it",
    )


def _latency_bound(n: KernelNumbers, flight: InFlight | None) -> Finding | None:
    if n.busiest_pct is None or n.busiest_pct >= BUSY_PCT:
        return None
    leading = next((s for s in n.stalls if s.reason != "selected"), None)
    if leading is not None and leading.share < LEADING_STALL_SHARE:
        return None
    if leading is None and (n.compute.issue_pct is None or n.compute.issue_pct > 50):
        return None
    evidence: list[Evidence] = []
    title = "Warps wait, and nothing is busy: which wait it is cannot be told without the stalls."
    how = "collect the stalls to see what the warps wait for"
    if leading is not None:
        name = leading.reason.replace("_", " ")
        total = f" of {n.cycles_per_issue:.1f}" if n.cycles_per_issue else ""
        if leading.cycles_per_issue is not None:
            evidence.append(Evidence(name, leading.cycles_per_issue, "cycles/issue", f"{leading.share:.0%}{total}"))
        else:
            evidence.append(Evidence(name, 100 * leading.share, "%", "of samples"))
        title = f"Latency: a warp mostly {MEANING.get(leading.reason, 'waits: ' + name)}."
        how = STALL_SUGGESTIONS.get(leading.reason, "see the reason's entry in ncu's profiling guide")
    far = "far from busy" if n.memory.dram_pct is not None and n.memory.dram_pct < BUSY_PCT / 2 else "not busy"
    evidence += _optional("DRAM throughput", n.memory.dram_pct, "%", f"of peak: {far}")
    evidence += _optional("occupancy", n.occupancy.achieved_pct, "%", _limited(n))
    evidence += _optional("issue slots used", n.compute.issue_pct, "%", "of active cycles")
    waits_for_memory = leading is not None and leading.reason == "long_scoreboard"
    if flight is not None and waits_for_memory and _grid_too_small(n) is None:  # an average over idle SMs says nothing
        evidence.append(_flight_evidence(flight))
    return Finding("latency-bound", title, tuple(evidence), how)


def _limited(n: KernelNumbers) -> str:
    o = n.occupancy
    if o.limiter == GRID and o.blocks and o.sm_count and o.fitting_blocks:
        each = o.blocks / o.sm_count
        shown = f"{each:.1f}" if each >= 1 else f"{each:.2f}"
        return f"grid of {o.blocks} on {o.sm_count} SMs: {shown} blocks a SM, {o.fitting_blocks} fit"
    return f"limited by {o.limiter}" if o.limiter not in (None, "none") else ""


def _l2_gather_bound(n: KernelNumbers) -> Finding | None:
    m = n.memory
    if m.dram_pct is None or m.l2_hit_pct is None or m.l2_bytes is None or m.dram_bytes is None:
        return None
    served = m.l2_hit_pct >= L2_HIT_AT_LEAST_PCT and m.l2_bytes >= L2_BYTES_OVER_DRAM * m.dram_bytes
    single = m.l2_sectors_per_request is not None and m.l2_sectors_per_request <= GATHER_SECTORS_PER_REQUEST
    sparse = m.bytes_per_sector is not None and m.bytes_per_sector <= GATHER_BYTES_PER_SECTOR
    stall = n.stall("long_scoreboard")
    waits = (stall is not None and stall.share >= LEADING_STALL_SHARE) or (m.l2_pct or 0) >= BUSY_PCT
    if m.dram_pct >= L2_DRAM_AT_MOST_PCT or not served or not (single or sparse) or not waits:
        return None
    more = m.l2_bytes / m.dram_bytes if m.dram_bytes else float("inf")
    evidence = [
        Evidence("L2 hit rate", m.l2_hit_pct, "%"),
        Evidence("bytes from L2", m.l2_bytes / 1e6, "MB", f"{more:.0f} times those from DRAM"),
        *_optional("bytes used per 32 B sector", m.bytes_per_sector, "B", "global loads"),
        *_optional("sectors per L2 request", m.l2_sectors_per_request, "", "4 is a full 128 B line"),
        *_optional("L2 throughput", m.l2_pct, "%", "of peak"),
    ]
    how = "keep the gathered table in shared memory (smaller entries if it does not fit): a gather then stays on the SM"
    return Finding("l2-gather-bound", "Scattered small reads that L2 serves set the pace.", tuple(evidence), how)


def _flight_evidence(flight: InFlight) -> Evidence:
    return Evidence(
        "bytes in flight per SM",
        flight.bytes_per_sm / 1e3,
        "KB",
        f"full {flight.level} rate asks {flight.needed_bytes_per_sm / 1e3:.1f} KB at {flight.latency_ns:.0f} ns",
    )


def _tail_bound(n: KernelNumbers) -> Finding | None:
    o = n.occupancy
    if o.tail_pct is None or o.waves is None or o.tail_pct < TAIL_PCT:
        return None
    evidence = (
        Evidence(
            "waves", o.waves, "", f"{o.blocks or 0:,} blocks, {o.fitting_blocks or 0} fit on each of {o.sm_count} SMs"
        ),
        Evidence("block slots empty in the last wave", o.tail_pct, "%", "of all, if blocks take equally long"),
    )
    how = "make the number of blocks a multiple of what fits at once, or use a persistent grid with smaller pieces"
    return Finding("tail-bound", "The last wave leaves much of the GPU empty.", evidence, how)


def _launch_bound(n: KernelNumbers) -> Finding | None:
    if n.duration_us is None or n.duration_us >= LAUNCH_US:
        return None
    how = "fuse it with its neighbours, or replay it in a CUDA graph"
    # cudaLaunchKernel in the three recorded H200 decodes: 5.3 to 6.2 µs a call, under nsys.
    evidence = (Evidence("duration", n.duration_us, "µs", "traced launch calls on an H200: 5 to 6 µs"),)
    return Finding("launch-bound", "It runs for as long as a launch takes.", evidence, how)


def _nothing(n: KernelNumbers) -> Finding:
    leading = next((s for s in n.stalls if s.reason != "selected"), None)
    evidence = _optional("busiest part", n.busiest_pct, "%", "of peak")
    if leading is not None:
        evidence.append(Evidence(leading.reason.replace("_", " "), 100 * leading.share, "%", "of warp cycles"))
    return Finding(
        "nothing-stands-out",
        "No part is busy and no wait leads: several small causes.",
        tuple(evidence),
        "look at the source view of the report for single hot lines",
    )


def _optional(what: str, value: float | None, unit: str, note: str = "") -> list[Evidence]:
    return [] if value is None else [Evidence(what, value, unit, note)]


def _evidence_rate(level: str, bytes_s: float | None) -> list[Evidence]:
    return _optional(f"{level} rate", None if bytes_s is None else bytes_s / 1e9, "GB/s")
