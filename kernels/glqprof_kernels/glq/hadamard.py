"""The block-diagonal orthonormal Walsh–Hadamard transform H in float64, and the blocks of a length."""

from __future__ import annotations

import math
from typing import Any

Tensor = Any  # torch.Tensor


def blocks_of(length: int) -> list[int]:
    """The binary decomposition of ``length``, largest first: 2688 is [2048, 512, 128]. ValueError below 1."""
    if length < 1:
        raise ValueError(f"a transform has at least one element, not {length}")
    return [1 << bit for bit in reversed(range(length.bit_length())) if length >> bit & 1]


def transform(x: Tensor) -> Tensor:
    """H·x along the last dimension: any shape, any device, computed and returned in float64.

    H is symmetric and orthonormal: applied twice it is the identity.
    """
    import torch

    x = x.to(torch.float64)
    parts = []
    start = 0
    for block in blocks_of(x.shape[-1]):
        part = x[..., start : start + block]
        start += block
        stride = 1
        while stride < block:
            pairs = part.reshape(*part.shape[:-1], -1, 2, stride)
            low, high = pairs[..., 0, :], pairs[..., 1, :]
            part = torch.stack([low + high, low - high], dim=-2).reshape(part.shape)
            stride *= 2
        parts.append(part / math.sqrt(block))
    return torch.cat(parts, dim=-1)
