"""What the bench runs: the MoE layers of one model, the inputs of one decode step, and hostile inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .. import geometry as geometries
from ..moe_batch import MoeBatch, device_batch, strided
from . import factory
from .bf16 import Bf16Layer
from .fused import FusedLayer
from .weights import LayerWeights

OPTIONS = {"stages": "mixed", "split_blocks": 64}
"""What ``options`` may hold, with the defaults: stages 1 to 4 or "mixed", split_blocks 16, 32 or 64."""


@dataclass
class MoeWorkload:
    """Random weights of every MoE layer, each layer with its own; ``overflow`` counts infinite activations of all."""

    geometry: str
    layers: int
    device: str
    weights: list[LayerWeights]
    shape: geometries.Geometry
    overflow: torch.Tensor
    dense: list[Bf16Layer] | None = None
    """The experts in bf16, made when a bf16 variant first needs them."""
    packed: list[FusedLayer] | None = None
    """The layers re-laid out, made when a fused variant first needs them."""

    def overflow_count(self) -> int:
        """Activations that became infinite from finite values in all calls so far (waits for the GPU)."""
        return int(self.overflow)


def make_workload(geometry: str, layers: int | None, seed: int, device: str, options: Any = None) -> MoeWorkload:
    """Random weights of ``layers`` layers (None or 0: as many as the model has); ValueError for unknown options."""
    chosen = {**OPTIONS, **(options or {})}
    unknown = sorted(set(chosen) - set(OPTIONS))
    if unknown:
        raise ValueError(f"glq-moe has no option {', '.join(unknown)}; it has {', '.join(OPTIONS)}")
    shape = geometries.load(geometry)
    count = layers or shape.moe_layers
    tables = factory.device_codebook(device)
    weights = [
        factory.layer(
            shape,
            seed=seed * 1_000_003 + index,
            device=device,
            stages=factory.stages_of_layer(index, chosen["stages"]),
            split_blocks=int(chosen["split_blocks"]),
            tables=tables,
        )
        for index in range(count)
    ]
    overflow = torch.zeros(1, dtype=torch.int64, device=device)
    for layer in weights:
        layer.overflow = overflow
    return MoeWorkload(geometry, count, device, weights, shape, overflow)


def make_batch(workload: MoeWorkload, rows: int, seed: int) -> MoeBatch:
    """Fresh inputs: x normal, ids distinct within a token, weights positive with sum 2.5 as a sigmoid router gives.

    Drawn on the CPU, so that the same seed gives the same bytes on every device.
    """
    generator = torch.Generator().manual_seed(seed)
    shape, layers = workload.shape, workload.layers
    x = torch.randn(layers, rows, shape.hidden, generator=generator)
    scores = torch.rand(layers, rows, shape.experts, generator=generator)
    top = scores.topk(shape.top_k, dim=-1)
    weights = top.values / top.values.sum(dim=-1, keepdim=True) * 2.5
    return to_batch(workload, x, top.indices, weights)


def to_batch(workload: MoeWorkload, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> MoeBatch:
    """A batch from CPU tensors of any float type, moved to the workload's device with x cast to fp16."""
    return device_batch(x, ids, weights, torch.float16, workload.device)


def adversarial(workload: MoeWorkload, rows: int) -> list[tuple[str, MoeBatch]]:
    """Hostile inputs by label, each of ``rows`` tokens but ``one row``."""
    base = make_batch(workload, rows, seed=1)
    x, ids, weights = base.x.float().cpu(), base.host_ids, base.host_weights

    def with_x(changed: torch.Tensor) -> MoeBatch:
        return to_batch(workload, changed, ids, weights)

    def with_weights(changed: torch.Tensor) -> MoeBatch:
        return to_batch(workload, x, ids, changed)

    def spiked(value: float) -> torch.Tensor:
        changed = x.clone()
        changed[..., 0, x.shape[-1] // 3] = value
        return changed

    zeros = torch.zeros_like(x)
    zeros[..., 1::2] = -0.0
    some_zero = weights.clone()
    some_zero[..., 0] = 0.0
    if ids.shape[-1] > 2:
        some_zero[..., -1] = -0.0
    nan_row = weights.clone()
    nan_row[:, 0] = float("nan")
    return [
        ("zeros of both signs", with_x(zeros)),
        ("denormals", with_x(x.sign() * 5.960464477539063e-08 * (1 + x.abs()))),
        ("+inf", with_x(spiked(float("inf")))),
        ("-inf", with_x(spiked(float("-inf")))),
        ("NaN", with_x(spiked(float("nan")))),
        ("fp16 overflow after relu²", with_x(x * 1000)),
        ("fp16 overflow in the transform", with_x(x.sign() * 65504)),
        ("repeated expert ids", to_batch(workload, x, ids[..., :1].expand_as(ids), weights)),
        ("weight 0", with_weights(some_zero)),
        ("all weights 0", with_weights(torch.zeros_like(weights))),
        ("negative weights", with_weights(-weights)),
        ("NaN router row", with_weights(nan_row)),
        ("one row", make_batch(workload, 1, seed=2)),
        ("non-contiguous views", strided(base, workload.device)),
    ]
