"""A toy operation, and a machine with invented clocks, caches and faults, for testing the bench's decisions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from glqprof.bench.device import CaptureError, Observed
from glqprof.bench.plan import Plan, make_plan
from glqprof.bench.registry import Group, Registry, Tolerance, Variant
from glqprof.bench.runner import run_bench
from glqprof.traces.schema.bench import BenchDevice, BenchResult, Clocks, VariantResult

KERNEL = "toy_scale_kernel"
CALL_US = 100.0
FLUSH_US = 45.0
REPLAY_US = 1.0


class FakeDevice:
    """Runs toy kernels on CPU tensors and keeps invented time.

    ``launch`` is an honest kernel launch: it enters a capture. ``launch_default_stream`` does not, ``launch_side``
    overlaps and only a device-wide wait sees it. ``drift`` multiplies every cost by (1 + drift) per synchronised block.
    """

    kind = "cpu"
    clock_source = "invented"
    graph_note = ""

    def __init__(
        self,
        l2_bytes: int = 0,
        copy_gb_s: float | None = None,
        drift: float = 0.0,
        throttled: Callable[[int], bool] = lambda reading: False,
        noise: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.l2_bytes = l2_bytes
        self.rate = copy_gb_s
        self.drift = drift
        self.throttled = throttled
        self.noise = noise
        self.seconds = 0.0
        self.side_until = 0.0
        self.slowdown = 1.0
        self.readings = 0
        self.capturing: list[tuple[Callable[[], None], Callable[[], float], str]] | None = None
        self.observed: list[str] = []
        self.side: list[str] = []
        self.waits = 0
        self.cache: OrderedDict[Any, int] = OrderedDict()

    # What variants do.

    def launch(self, work: Callable[[], None], us: Callable[[], float] | float = CALL_US, name: str = KERNEL) -> None:
        cost = us if callable(us) else lambda: us
        if self.capturing is not None:
            self.capturing.append((work, cost, name))
        else:
            self._execute(work, cost, name)

    def launch_default_stream(self, work: Callable[[], None], us: float = CALL_US, name: str = KERNEL) -> None:
        self._execute(work, lambda: us, name)

    def launch_side(self, work: Callable[[], None], us: float = CALL_US, name: str = KERNEL) -> None:
        work()
        self.observed.append(name)
        self.side.append(name)
        self.side_until = max(self.side_until, self.seconds) + us * 1e-6 * self.slowdown

    def wait(self) -> None:
        if self.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.waits += 1

    def host(self, us: float) -> None:
        if self.capturing is None:
            self.seconds += us * 1e-6 * self.slowdown

    def touch(self, key: Any, size: int) -> bool:
        """Read ``size`` bytes of ``key`` through an LRU cache of ``l2_bytes``; returns whether they were in it."""
        warm = self.cache.pop(key, None) is not None
        self.cache[key] = size
        while sum(self.cache.values()) > self.l2_bytes:
            self.cache.popitem(last=False)
        return warm

    def _execute(self, work: Callable[[], None], us: Callable[[], float], name: str) -> None:
        work()
        self.observed.append(name)
        self.seconds += us() * 1e-6 * self.slowdown * self.noise()

    # What the bench asks.

    def describe(self) -> BenchDevice:
        return BenchDevice("cpu", "toy", l2_bytes=self.l2_bytes)

    def synchronize(self) -> None:
        self.seconds = max(self.seconds, self.side_until)
        self.slowdown *= 1 + self.drift

    def now(self) -> float:
        return self.seconds

    def clocks(self) -> Clocks:
        self.readings += 1
        return Clocks(1980, 3201, "power cap" if self.throttled(self.readings) else "")

    def capture(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
        self.capturing = []
        try:
            for call in calls:
                call()
            nodes = self.capturing
        except RuntimeError as error:
            raise CaptureError(str(error)) from error
        finally:
            self.capturing = None

        def replay() -> None:
            self.seconds += REPLAY_US * 1e-6
            for work, us, name in nodes:
                self._execute(work, us, name)

        return replay

    def flush_l2(self) -> None:
        self.launch(self.cache.clear, FLUSH_US, "flush")

    def seconds_after(self, before: Sequence[Callable[[], None]], call: Callable[[], None]) -> float:
        for item in before:
            item()
        start = self.seconds
        call()
        return self.seconds - start

    def copy_gb_s(self) -> float | None:
        return self.rate

    def observe(self, call: Callable[[], None], graph: bool) -> Observed:
        self.observed, self.side, self.waits = [], [], 0
        call()
        return Observed(tuple(self.observed), self.waits, () if graph else tuple(self.side))


@dataclass
class ToyWorkload:
    geometry: str
    layers: int
    device: str
    weight: torch.Tensor
    seed: int


@dataclass
class ToyBatch:
    rows: int
    x: torch.Tensor

    def input_tensors(self) -> Sequence[torch.Tensor]:
        return [self.x]


WIDTHS = {"tiny": 64, "million": 1 << 20}


def toy_workload(geometry: str, layers: int, seed: int, device: str, options: dict[str, Any]) -> ToyWorkload:
    generator = torch.Generator().manual_seed(seed + 77)
    weight = torch.randn(layers, 1, WIDTHS[geometry], generator=generator)
    return ToyWorkload(geometry, layers, device, weight.to(device), seed)


def toy_batch(workload: ToyWorkload, rows: int, seed: int) -> ToyBatch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(workload.layers, rows, workload.weight.shape[-1], generator=generator).half()
    return ToyBatch(rows, x.to(workload.device))


def toy_adversarial(workload: ToyWorkload, rows: int) -> list[tuple[str, ToyBatch]]:
    batch = toy_batch(workload, rows, 5)
    values = {"zeros": 0.0, "denormals": 2.0**-24, "infinity": float("inf"), "nan": float("nan")}
    return [(label, ToyBatch(rows, torch.full_like(batch.x, value))) for label, value in values.items()]


def scale(workload: ToyWorkload, batch: ToyBatch) -> torch.Tensor:
    """The operation: x · w, rounded to fp16 once."""
    return (batch.x.float() * workload.weight).half()


def store(workload: ToyWorkload, batch: ToyBatch, out: torch.Tensor) -> None:
    out.copy_(scale(workload, batch))


def toy_group(**changes: Any) -> Group:
    group = Group(
        name="toy",
        summary="x · w",
        geometries=tuple(WIDTHS),
        baseline="base",
        workload=toy_workload,
        batch=toy_batch,
        adversarial=toy_adversarial,
        reference=lambda workload, batch: batch.x.double() * workload.weight.double(),
        out=lambda workload, batch: torch.empty_like(batch.x),
    )
    return replace(group, **changes)


Make = Callable[[FakeDevice, ToyWorkload], Callable[[ToyBatch, torch.Tensor], None]]


def honest(us: float = CALL_US) -> Make:
    """A variant that launches one kernel of ``us`` microseconds."""

    def make(device: FakeDevice, workload: ToyWorkload) -> Callable[[ToyBatch, torch.Tensor], None]:
        def run(batch: ToyBatch, out: torch.Tensor) -> None:
            device.launch(lambda: store(workload, batch, out), us)

        return run

    return make


HONEST = honest()


def variant(device: FakeDevice, name: str, make: Make, **declared: Any) -> Variant:
    fields: dict[str, Any] = {
        "summary": name,
        "contract": Tolerance(1e-3),
        "kernels": lambda workload, batch: {KERNEL: 1},
        "bytes_moved": lambda workload, batch: workload.weight.numel() * 4 + 4 * batch.x.numel(),
        "devices": ("cpu",),
    }
    return Variant(name=name, group="toy", build=lambda workload: make(device, workload), **{**fields, **declared})


@dataclass
class Bench:
    """A toy bench: a baseline and one candidate on a fake machine."""

    device: FakeDevice = field(default_factory=FakeDevice)
    group: Group = field(default_factory=toy_group)
    quads: int = 6
    geometry: str = "tiny"
    warm: bool = False

    def plan(self, candidate: Make, base: Make = HONEST, **declared: Any) -> Plan:
        registry = Registry()
        registry.add_group(self.group)
        registry.add_variant(variant(self.device, "base", base))
        registry.add_variant(variant(self.device, "cand", candidate, **declared))
        plan = make_plan(registry, "toy", "cpu", geometry=self.geometry, quads=self.quads, warm=self.warm)
        return replace(plan, block_s=3e-4)

    def run(self, candidate: Make, base: Make = HONEST, **declared: Any) -> BenchResult:
        return run_bench(self.plan(candidate, base, **declared), self.device)

    def candidate(self, candidate: Make, base: Make = HONEST, **declared: Any) -> VariantResult:
        result = self.run(candidate, base, **declared)
        assert result.variants[0].ok, result.variants[0].reasons  # the honest baseline must stay above suspicion
        return result.variants[1]


def codes(result: VariantResult) -> set[str]:
    return {reason.code for reason in result.reasons}
