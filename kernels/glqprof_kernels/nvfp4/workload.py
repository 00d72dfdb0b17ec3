"""What the bench runs: MoE layers of one model, the inputs of one decode step, and hostile inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .. import geometry as geometries
from ..bf16 import Bf16Layer
from ..moe_batch import MoeBatch, device_batch, strided
from . import factory
from .weights import ACTIVATIONS, TILE, LayerWeights

OPTIONS: dict[str, Any] = {"activation": "", "limit": "", "routing": "uniform"}
"""What ``options`` may hold, with the defaults: activation swiglu or relu2, and the clamp ("": the geometry's); routing
uniform or skewed."""

SKEW = 1.2
"""Exponent of skewed routing: the r-th most popular expert is asked for about r^-1.2 as often as the first."""


@dataclass
class MoeWorkload:
    """Random weights of some MoE layers, each layer with its own; ``top_k`` slots a token."""

    geometry: str
    layers: int
    device: str
    weights: list[LayerWeights]
    top_k: int
    routing: str = "uniform"
    dense: list[Bf16Layer] | None = None
    """The experts in bf16, made when the bf16 variant first needs them."""
    packed: list[Any] | None = None
    """The layers in the kernels' tile layout, made when a CUDA variant first needs them."""
    popularity: torch.Tensor = field(init=False)
    """[layers, experts] float32: log of how often an expert is asked for, under skewed routing."""

    def __post_init__(self) -> None:
        """Draw which experts are popular: each layer's own order."""
        generator = torch.Generator().manual_seed(self.layers)
        ranks = torch.stack([torch.randperm(self.experts, generator=generator) for _ in range(self.layers)])
        self.popularity = -SKEW * torch.log1p(ranks.float())

    @property
    def hidden(self) -> int:
        """Width of x and out."""
        return self.weights[0].hidden

    @property
    def experts(self) -> int:
        """Routed experts of a layer."""
        return self.weights[0].experts


def supported(shape: geometries.Geometry) -> bool:
    """Whether the kernels take the geometry: widths that are multiples of 32."""
    return shape.hidden % TILE == 0 and shape.expert_inter % TILE == 0


def make_workload(geometry: str, layers: int | None, seed: int, device: str, options: Any = None) -> MoeWorkload:
    """Random weights of ``layers`` layers (None or 0: as many as the model has); ValueError for unknown options."""
    chosen = {**OPTIONS, **(options or {})}
    unknown = sorted(set(chosen) - set(OPTIONS))
    if unknown:
        raise ValueError(f"nvfp4-moe has no option {', '.join(unknown)}; it has {', '.join(OPTIONS)}")
    if chosen["routing"] not in ("uniform", "skewed"):
        raise ValueError(f"routing is {chosen['routing']!r}; it must be uniform or skewed")
    shape = geometries.load(geometry)
    activation = chosen["activation"] or shape.activation
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; it must be {' or '.join(ACTIVATIONS)}")
    own_limit = shape.activation_limit if activation == shape.activation else 0.0
    try:
        limit = own_limit if chosen["limit"] == "" else float(chosen["limit"])
    except ValueError:
        raise ValueError(f"limit is {chosen['limit']!r}; it must be a number") from None
    count = layers or shape.moe_layers
    weights = [
        factory.layer(
            shape.hidden,
            shape.expert_inter,
            shape.experts,
            activation,
            limit,
            seed=seed * 1_000_003 + index,
            device=device,
        )
        for index in range(count)
    ]
    return MoeWorkload(geometry, count, device, weights, shape.top_k, chosen["routing"])


def make_batch(workload: MoeWorkload, rows: int, seed: int) -> MoeBatch:
    """Fresh inputs: x normal, ids distinct within a token, weights positive with sum 2.5 as a sigmoid router gives.

    Drawn on the CPU, so that the same seed gives the same bytes on every device. Ids are the largest of ``top_k`` draws
    without replacement (Gumbel): all alike, or by the layer's popularity where routing is skewed.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = workload.layers
    x = torch.randn(layers, rows, workload.hidden, generator=generator)
    uniform = torch.rand(layers, rows, workload.experts, generator=generator)
    scores = -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7)))
    if workload.routing == "skewed":
        scores += workload.popularity[:, None]
    ids = scores.topk(workload.top_k, dim=-1).indices
    weights = torch.rand(ids.shape, generator=generator) * 0.9 + 0.1
    return to_batch(workload, x, ids, weights / weights.sum(dim=-1, keepdim=True) * 2.5)


def to_batch(workload: MoeWorkload, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> MoeBatch:
    """A batch from CPU tensors of any float type, moved to the workload's device with x rounded to bf16."""
    return device_batch(x, ids, weights, torch.bfloat16, workload.device)


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
    one_expert = torch.arange(ids.shape[-1]).expand_as(ids)
    tiny = torch.finfo(torch.bfloat16).smallest_normal / 128  # bf16's smallest denormal
    # Scaled from 1e-30 to 1e30, so that partial sums of one row span more than float64's 53 bits.
    wide = (
        x
        * torch.logspace(-30, 30, x.shape[-1])[torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(2))]
    )
    return [
        ("zeros of both signs", with_x(zeros)),
        ("denormals", with_x((x * 8).round() * tiny)),
        ("+inf", with_x(spiked(float("inf")))),
        ("-inf", with_x(spiked(float("-inf")))),
        ("NaN", with_x(spiked(float("nan")))),
        ("overflow of the sums", with_x(x.sign() * 3e38)),
        ("overflow of the activation", with_x(x * 1e25)),
        ("exponents far apart", with_x(wide)),
        ("repeated expert ids", to_batch(workload, x, ids[..., :1].expand_as(ids), weights)),
        ("the same experts for all tokens", to_batch(workload, x, one_expert, weights)),
        ("weight 0", with_weights(some_zero)),
        ("all weights 0", with_weights(torch.zeros_like(weights))),
        ("negative weights", with_weights(-weights)),
        ("NaN router row", with_weights(nan_row)),
        ("one row", make_batch(workload, 1, seed=2)),
        ("non-contiguous views", strided(base, workload.device)),
    ]
