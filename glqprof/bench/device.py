"""What the bench asks of the machine it runs on, and the CPU's answers.

The decisions of the bench see only this interface, so that tests can put a machine with invented clocks, caches and
faults in its place.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from glqprof.traces.schema.bench import BenchDevice, Clocks

Call = Callable[[], None]


class CaptureError(Exception):
    """The calls could not be captured into a graph; the message is the runtime's, on one line."""


@dataclass(frozen=True)
class Observed:
    """What a profiler saw of one call: kernel names in launch order, host waits, kernels on unjoined streams."""

    kernels: tuple[str, ...]
    syncs: int
    side_stream: tuple[str, ...] = field(default=())


class Device(Protocol):
    """A machine that runs calls, keeps time and knows its own state."""

    kind: str
    """``cuda`` or ``cpu``: where workloads are made."""
    l2_bytes: int
    """Size of the last-level cache that cold timing must overflow; 0 where it is not controlled."""
    clock_source: str
    """Who reads the clocks, or why nobody does."""
    graph_note: str
    """Why nothing can be captured here; "" where graphs exist."""

    def describe(self) -> BenchDevice:
        """Return names and versions, without the copy rate."""
        ...

    def synchronize(self) -> None:
        """Wait for all work on the whole device, whatever stream it is on."""
        ...

    def now(self) -> float:
        """Return a monotonic time in seconds."""
        ...

    def clocks(self) -> Clocks | None:
        """Return the clocks and throttle reasons of this instant, or None where they cannot be read."""
        ...

    def capture(self, calls: Sequence[Call]) -> Call:
        """Capture the calls, in order, into one graph and return its replay; raises CaptureError."""
        ...

    def flush_l2(self) -> None:
        """Enqueue a read of more than three times the L2."""
        ...

    def seconds_after(self, before: Sequence[Call], call: Call) -> float:
        """Enqueue ``before`` and then ``call``; return the seconds that the device spent on ``call``."""
        ...

    def copy_gb_s(self) -> float | None:
        """Measure the device-to-device copy rate in GB/s, bytes read + written; None where that bounds nothing."""
        ...

    def observe(self, call: Call, graph: bool) -> Observed | None:
        """Run ``call`` once under a profiler; None where there is none. ``graph``: it replays a graph."""
        ...


class CpuDevice:
    """The host: exact implementations run here to check bits; its times compare schedules, not GPUs."""

    kind = "cpu"
    l2_bytes = 0  # the OS shares the caches with everybody: nothing is promised
    clock_source = "not read on the CPU"
    graph_note = "there are no CUDA graphs on the CPU"

    def describe(self) -> BenchDevice:
        """Return the processor's name and torch's version."""
        import torch

        return BenchDevice(kind="cpu", name=_cpu_name(), torch=str(torch.__version__))

    def synchronize(self) -> None:
        """Return at once: CPU work is done when its call returns."""

    def now(self) -> float:
        """Return ``time.perf_counter()``."""
        return time.perf_counter()

    def clocks(self) -> Clocks | None:
        """Return None."""
        return None

    def capture(self, calls: Sequence[Call]) -> Call:
        """Raise CaptureError."""
        raise CaptureError(self.graph_note)

    def flush_l2(self) -> None:
        """Do nothing: see ``l2_bytes``."""

    def seconds_after(self, before: Sequence[Call], call: Call) -> float:
        """Run everything at once and return the time of ``call``."""
        for item in before:
            item()
        start = self.now()
        call()
        return self.now() - start

    def copy_gb_s(self) -> float | None:
        """Return None: small CPU workloads live in cache, which no copy rate bounds."""
        return None

    def observe(self, call: Call, graph: bool) -> Observed | None:
        """Return None: a variant's ``launch_log`` counts on the CPU."""
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
