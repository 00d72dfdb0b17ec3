"""A toy operation on the GPU whose weights are 25 MB a layer: x + row sums of w, by torch's own kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from glqprof.bench.cuda import CudaDevice
from glqprof.bench.plan import make_plan
from glqprof.bench.registry import Group, Registry, Tolerance, Variant
from glqprof.bench.runner import run_bench
from glqprof.traces.schema.bench import BenchResult, VariantResult

WIDTH, DEPTH = 4096, 1536


@dataclass
class Workload:
    geometry: str
    layers: int
    device: str
    weight: torch.Tensor
    total: torch.Tensor


@dataclass
class Batch:
    rows: int
    x: torch.Tensor

    def input_tensors(self):
        return [self.x]


def make_workload(geometry, layers, seed, device, options) -> Workload:
    generator = torch.Generator(device).manual_seed(seed + 5)
    weight = torch.randn(layers, WIDTH, DEPTH, generator=generator, device=device)
    return Workload(geometry, layers, device, weight, torch.empty(WIDTH, device=device))


def make_batch(workload, rows, seed) -> Batch:
    generator = torch.Generator(workload.device).manual_seed(seed)
    shape = (workload.layers, rows, WIDTH)
    return Batch(rows, torch.randn(*shape, generator=generator, device=workload.device).half())


def group(**changes: Any) -> Group:
    made = Group(
        name="sums",
        summary="x + row sums of w",
        geometries=("25mb",),
        baseline="base",
        workload=make_workload,
        batch=make_batch,
        adversarial=lambda workload, rows: [
            (label, Batch(rows, torch.full_like(make_batch(workload, rows, 0).x, value)))
            for label, value in {"zeros": 0.0, "infinity": float("inf"), "nan": float("nan")}.items()
        ],
        reference=lambda workload, batch: batch.x.double() + workload.weight.double().sum(2)[:, None],
        out=lambda workload, batch: torch.empty_like(batch.x),
    )
    return replace(made, **changes)


def compute(workload: Workload, batch: Batch, out: torch.Tensor) -> None:
    """Two launches a layer: a reduction and an addition, on the current stream."""
    for layer in range(workload.layers):
        torch.sum(workload.weight[layer], dim=1, out=workload.total)
        torch.add(batch.x[layer], workload.total, out=out[layer])


def honest(workload: Workload) -> Callable[[Batch, torch.Tensor], None]:
    return lambda batch, out: compute(workload, batch, out)


KERNELS = {"reduce_kernel": 1, "elementwise": 1}


def variant(name: str, build: Callable[[Workload], Any], **declared: Any) -> Variant:
    fields: dict[str, Any] = {
        "summary": name,
        "contract": Tolerance(2e-3),
        "kernels": lambda workload, batch: KERNELS,
        "bytes_moved": lambda workload, batch: 4 * workload.weight.numel() + 4 * batch.x.numel(),
        "dtype": "float16",
    }
    return Variant(name=name, group="sums", build=build, **{**fields, **declared})


def run(candidate: Callable[[Workload], Any], made: Group | None = None, **declared: Any) -> BenchResult:
    registry = Registry()
    registry.add_group(made or group())
    registry.add_variant(variant("base", honest))
    registry.add_variant(variant("cand", candidate, **declared))
    plan = make_plan(registry, "sums", "cuda", quads=8)
    return run_bench(replace(plan, block_s=2e-4), CudaDevice())


def candidate(build: Callable[[Workload], Any], made: Group | None = None, **declared: Any) -> VariantResult:
    result = run(build, made, **declared)
    assert result.variants[0].ok, result.variants[0].reasons
    return result.variants[1]


def codes(result: VariantResult) -> set[str]:
    return {reason.code for reason in result.reasons}
