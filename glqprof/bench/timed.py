"""Timing blocks in quads (A B B A): synchronised, on fresh inputs, with clocks before and after."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field

from glqprof.bench.calls import CallSet
from glqprof.bench.device import Call, Device
from glqprof.bench.outputs import OutputCheck
from glqprof.bench.stats import Quad, quad_order
from glqprof.bench.subject import Judged
from glqprof.traces.schema.bench import Clocks, ClockSummary


@dataclass
class ClockLog:
    """Every reading of the run."""

    readings: list[Clocks] = field(default_factory=list)
    throttled_blocks: int = 0
    reasons: dict[str, None] = field(default_factory=dict)

    def summary(self, source: str) -> ClockSummary:
        """Return the lowest and highest clocks and the throttled blocks."""
        if not self.readings:
            return ClockSummary(source)
        sm = [reading.sm_mhz for reading in self.readings]
        mem = [reading.mem_mhz for reading in self.readings]
        return ClockSummary(
            source, (min(sm), max(sm)), (min(mem), max(mem)), self.throttled_blocks, tuple(self.reasons)
        )


@dataclass(frozen=True)
class Timed:
    """One side of a quad: what launches its block, and what judges the outputs."""

    launch: Call
    check: OutputCheck


class LaunchError(Exception):
    """A variant raised an error in a timed block; the cause is chained, ``judged`` says whose it was."""

    def __init__(self, judged: Judged) -> None:
        """Name the variant."""
        super().__init__(judged.subject.name)
        self.judged = judged


@dataclass(frozen=True)
class Quads:
    """The quads that count, and how many were discarded because a block was throttled."""

    kept: tuple[Quad, ...]
    discarded: int

    def seconds(self, side: str) -> list[float]:
        """Return every block time of one side, in seconds per call."""
        return [s for quad in self.kept for s in quad.of(side)]


def time_block(device: Device, calls: CallSet, timed: Timed, number: int, log: ClockLog) -> tuple[float, bool]:
    """Time block ``number``; returns seconds per call and whether the GPU was throttled before or after it.

    Preparing the inputs and judging the outputs is not timed; device-wide synchronisation on both sides is.
    """
    calls.refill(number)
    before = device.clocks()
    collecting = gc.isenabled()
    gc.disable()  # as timeit does: a collection in one block of four would be blamed on that block's variant
    try:
        device.synchronize()
        start = device.now()
        timed.launch()
        device.synchronize()
        seconds = (device.now() - start) / len(calls.outs)
    except Exception as error:
        raise LaunchError(timed.check.judged) from error
    finally:
        if collecting:
            gc.enable()
    after = device.clocks()
    timed.check.block(number)
    throttled = [reading.throttled for reading in (before, after) if reading is not None and reading.throttled]
    log.readings.extend(reading for reading in (before, after) if reading is not None)
    log.throttled_blocks += bool(throttled)
    log.reasons.update(dict.fromkeys(throttled))
    return seconds, bool(throttled)


def time_quads(
    device: Device, calls: CallSet, a: Timed, b: Timed, count: int, numbers: Iterator[int], log: ClockLog
) -> Quads:
    """Time ``count`` quads of baseline ``a`` and candidate ``b``, each block on inputs that nobody has seen.

    A quad with a throttled block is discarded and taken again, until more than ``count`` were discarded.
    """
    kept: list[Quad] = []
    discarded = 0
    while len(kept) < count and discarded <= count:
        order = quad_order(len(kept) + discarded)
        blocks = [time_block(device, calls, a if side == "A" else b, next(numbers), log) for side in order]
        if any(throttled for _, throttled in blocks):
            discarded += 1
            continue
        times = [seconds for seconds, _ in blocks]
        kept.append(Quad(order, (times[0], times[1], times[2], times[3])))
    return Quads(tuple(kept), discarded)
