"""Seeded random layers of a given size, with states as a model has them in the middle of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .weights import StepWeights


@dataclass(frozen=True)
class Sizes:
    """Sizes of a Mamba-2 layer's step, in elements; ``taps``: of the convolution."""

    heads: int
    head_dim: int
    state: int
    groups: int
    taps: int = 4
    conv_bias: bool = True


TINY = Sizes(heads=4, head_dim=16, state=16, groups=2)
"""The tiny workload's."""


def layer(sizes: Sizes, seed: int, device: Any, dtype: torch.dtype = torch.bfloat16) -> StepWeights:
    """Random weights; A from −1 to −heads and time steps from 0.001 to 0.1, as the model's initialisation has them.

    Drawn on the CPU, so that a seed gives the same bytes on every device.
    """
    generator = torch.Generator().manual_seed(seed)
    inter = sizes.heads * sizes.head_dim
    conv_dim = inter + 2 * sizes.groups * sizes.state

    def normal(*shape: int, scale: float = 1.0, offset: float = 0.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * scale + offset).to(dtype).to(device)

    time_step = 10 ** (torch.rand(sizes.heads, generator=generator) * 2 - 3)
    return StepWeights(
        conv_weight=normal(conv_dim, sizes.taps, scale=sizes.taps**-0.5),
        conv_bias=normal(conv_dim, scale=0.2) if sizes.conv_bias else None,
        dt_bias=torch.log(torch.expm1(time_step)).to(dtype).to(device),
        a=-torch.arange(1, sizes.heads + 1, dtype=torch.float32, device=device),
        d=normal(sizes.heads, scale=0.2, offset=1.0),
        norm_weight=normal(inter, scale=0.1, offset=1.0),
        eps=1e-5,
        heads=sizes.heads,
        head_dim=sizes.head_dim,
        state=sizes.state,
        groups=sizes.groups,
    )


def states(weights: StepWeights, batch: int, seed: int, state_dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """[conv_state, state] of ``batch`` sequences: normal, the state with a spread of 0.3."""
    w = weights
    generator = torch.Generator().manual_seed(seed)
    conv_state = torch.randn(batch, w.conv_dim, w.kernel, generator=generator).to(w.conv_weight.dtype)
    state = torch.randn(batch, w.heads, w.head_dim, w.state, generator=generator) * 0.3
    return [conv_state.to(w.device), state.to(state_dtype).to(w.device)]


def projected(weights: StepWeights, batch: int, seed: int) -> torch.Tensor:
    """in_proj's output of one token a sequence: normal; [batch, inter + conv_dim + heads]."""
    drawn = torch.randn(batch, weights.projected, generator=torch.Generator().manual_seed(seed))
    return drawn.to(weights.conv_weight.dtype).to(weights.device)
