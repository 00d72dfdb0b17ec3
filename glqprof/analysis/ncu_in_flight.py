"""Little's law for one launch: the bytes that are on their way to an SM, and those that a full memory level asks for.

Bytes in flight = bytes a second × latency. ncu measures the rate, not the latency: it is taken as the larger of what an
unloaded load takes (`UNLOADED_L2_CYCLES`, and `DRAM_EXTRA_NS` behind L2) and of what a warp was seen waiting per
load. Under load latency grows, so both numbers are lower bounds and their ratio is what to read.
"""

from __future__ import annotations

from dataclasses import dataclass

from glqprof.analysis.ncu_numbers import KernelNumbers

# Measured on one H200 (driver 580.159.04, 2026-11-30) by benchmarks/pointer_chase.cu, medians of three: 287 SM cycles
# (146 ns) a dependent load from L2, 341 ns from DRAM (benchmarks/results/ncu/chase.csv). Other GPUs differ by tens of
# per cent, which the ratio read here does not feel: it stands on both sides.
UNLOADED_L2_CYCLES = 287.0
DRAM_EXTRA_NS = 195.0


@dataclass(frozen=True)
class InFlight:
    """Per SM. ``level``: L2 or DRAM, whichever serves more of what L1 missed. ``wait_cycles``: long-scoreboard cycles
    per global load of a warp, an exposed latency (None without stalls); ``latency_cycles``: the one used."""

    level: str
    latency_cycles: float
    latency_ns: float
    wait_cycles: float | None
    bytes_per_sm: float
    needed_bytes_per_sm: float

    @property
    def share(self) -> float:
        """In flight ÷ needed."""
        return self.bytes_per_sm / self.needed_bytes_per_sm


def in_flight(numbers: KernelNumbers) -> InFlight | None:
    """None where the report lacks a rate, its peak, the clock or the number of SMs."""
    memory, sms, clock = numbers.memory, numbers.occupancy.sm_count, numbers.compute.clock_hz
    level = "L2" if memory.l2_hit_pct is not None and memory.l2_hit_pct >= 50 else "DRAM"
    rate = memory.l2_bytes_s if level == "L2" else memory.dram_bytes_s
    peak = memory.l2_peak_bytes_s if level == "L2" else memory.dram_peak_bytes_s
    if rate is None or not peak or not clock or not sms:
        return None
    wait = wait_cycles_per_load(numbers)
    unloaded = UNLOADED_L2_CYCLES + (DRAM_EXTRA_NS * 1e-9 * clock if level == "DRAM" else 0.0)
    cycles = max(unloaded, wait or 0.0)
    seconds = cycles / clock
    return InFlight(level, cycles, seconds * 1e9, wait, rate / sms * seconds, peak / sms * seconds)


def wait_cycles_per_load(numbers: KernelNumbers) -> float | None:
    """Cycles in long scoreboard ÷ global load instructions of a warp; below the latency where loads overlap."""
    stall, loads, issued = numbers.stall("long_scoreboard"), numbers.memory.load_requests, numbers.compute.instructions
    if stall is None or stall.cycles_per_issue is None or not loads or not issued:
        return None
    return stall.cycles_per_issue * issued / loads
