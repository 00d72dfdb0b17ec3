"""One bench from plan to result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from glqprof.bench.calls import Seeds, sets_needed
from glqprof.bench.device import CpuDevice, Device
from glqprof.bench.plan import Plan
from glqprof.bench.reasons import NO_CLOCKS, SLOW_COPY, WARM, Findings
from glqprof.bench.roofline import SLOW_COPY_SHARE, recorded_gpu
from glqprof.bench.row_bench import RowBench
from glqprof.bench.subject import Subject, one_line
from glqprof.bench.timed import ClockLog
from glqprof.errors import InputError
from glqprof.traces.schema.bench import BenchDevice, BenchResult, CacheState, VariantResult

Progress = Callable[[int, int, str], None]
"""``progress(done, total, what)``: called after every step."""

STEPS_PER_VARIANT = 4
"""Bits, eager, graph, launches."""


def open_device(kind: str) -> Device:
    """Return the device named ``cuda`` or ``cpu``; raises InputError when it, or torch, is not here."""
    if kind not in ("cuda", "cpu"):
        raise InputError(f"--device {kind}", "must be cuda or cpu")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("torch", "is not installed, and the bench needs it: pip install 'glqprof[torch]'") from None
    if kind == "cpu":
        return CpuDevice()
    from glqprof.bench.cuda import CudaDevice

    return CudaDevice()


def run_bench(plan: Plan, device: Device, progress: Progress = lambda done, total, what: None) -> BenchResult:
    """Bench the plan's variants on ``device``: at every number of rows, bits first, then the two timings.

    Raises InputError when the workload cannot be made; what goes wrong in a variant is a reason in its result.
    """
    import torch

    warnings = Findings()
    total = STEPS_PER_VARIANT * len(plan.variants) * len(plan.rows) + len(plan.variants) + len(plan.anchors)
    done = 0

    def tick(what: str) -> None:
        nonlocal done
        done += 1
        progress(done, total, what)

    def tick_rows(rows: int, what: str) -> None:
        tick(f"rows {rows}, {what}")

    progress(0, total, "making weights")
    with torch.no_grad():
        workloads, cache = _make_workloads(plan, device)
        subjects = {}
        for variant in (*plan.variants, *plan.anchors):
            progress(done, total, f"building {variant.name}")
            subjects[variant.name] = Subject(variant, workloads, device.synchronize)
            tick(f"{variant.name}: built")
        about = _measured_device(device, warnings)
        if device.kind == "cuda" and device.clocks() is None:
            warnings.add(NO_CLOCKS, device.clock_source)
        if plan.warm:
            warnings.add(WARM, "one weight set, one input a block, repeated")
        log = ClockLog()
        results: list[VariantResult] = []
        floors: list[float] = []
        for rows in plan.rows:
            bench = RowBench(
                plan, device, workloads, subjects, rows, log, about.copy_gb_s, warnings, partial(tick_rows, rows)
            )
            results.extend(bench.run())
            floors.extend(floor for floor in bench.floors.values() if floor is not None)
    return BenchResult(
        group=plan.group.name,
        geometry=plan.geometry,
        layers=plan.layers,
        device=about,
        baseline=plan.baseline.name,
        variants=tuple(results),
        rows=plan.rows,
        noise_floor_pct=max(floors, default=None),
        clocks=log.summary(device.clock_source),
        contract={variant.name: str(variant.contract) for variant in plan.variants},
        cache=cache,
        seed=plan.seed,
        options=dict(plan.options),
        warnings=warnings.reasons(),
    )


def _measured_device(device: Device, warnings: Findings) -> BenchDevice:
    about = replace(device.describe(), copy_gb_s=device.copy_gb_s())
    recorded = recorded_gpu(about.name)
    if recorded and about.copy_gb_s is not None and about.copy_gb_s < SLOW_COPY_SHARE * recorded.copy_gb_s:
        warnings.add(
            SLOW_COPY, f"{about.copy_gb_s:.0f} GB/s here, {recorded.copy_gb_s:.0f} GB/s recorded: {recorded.source}"
        )
    return about


def _make_workloads(plan: Plan, device: Device) -> tuple[Sequence[Any], CacheState]:
    """Make as many weight sets as cold timing needs at the smallest number of rows."""
    group, rows = plan.group, min(plan.rows)
    first = _workload(plan, device, 0)
    batch = group.batch(first, rows, Seeds(plan.seed).call(0, 0))
    call_bytes = min(variant.bytes_moved(first, batch) for variant in plan.variants)
    sets = sets_needed(device.l2_bytes, call_bytes, plan.warm)
    workloads = [first, *(_workload(plan, device, index) for index in range(1, sets))]
    if plan.warm:
        return workloads, CacheState("warm", 1, call_bytes)
    return workloads, CacheState("cold" if device.l2_bytes else "uncontrolled", sets, sets * call_bytes)


def _workload(plan: Plan, device: Device, index: int) -> Any:
    try:
        return plan.group.workload(plan.geometry, plan.layers, plan.seed + index, device.kind, dict(plan.options))
    except InputError:
        raise
    except Exception as error:  # a bad option, or memory that does not suffice
        subject = f"{plan.group.name} {plan.geometry}"
        raise InputError(subject, f"weight set {index} of {plan.layers} layers: {one_line(error)}") from error
