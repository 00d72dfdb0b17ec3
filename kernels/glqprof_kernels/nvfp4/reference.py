"""Float64 reference of the NVFP4 MoE: the mathematics, with no rounding in between. x is what the caller made bf16."""

from __future__ import annotations

from typing import Any

import torch

from .quantise import decode
from .weights import ExpertMatrix, LayerWeights

Tensor = Any  # torch.Tensor


def linear(matrix: ExpertMatrix, expert: int, x: Tensor) -> Tensor:
    """x [..., cols] → [..., rows] float64, by one expert's matrix."""
    return x.to(torch.float64) @ decode(matrix, expert).T


def activate(h: Tensor, activation: str, limit: float = 0.0) -> Tensor:
    """relu² of h, or SwiGLU of its gate half (first) and up half, clamped where limit > 0; float64, NaN stays NaN."""
    if activation == "relu2":
        return h.clamp(min=0) ** 2
    gate, up = h.chunk(2, dim=-1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return gate / (1 + torch.exp(-gate)) * up


def moe(layer: LayerWeights, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """[tokens, hidden] float64 of x [tokens, hidden], ids and weights [tokens, top_k].

    Slots of weight 0 and ids of no expert are skipped. Each expert in use is decoded once.
    """
    out = torch.zeros(x.shape[0], layer.hidden, dtype=torch.float64, device=x.device)
    used = (weights != 0) & (ids >= 0) & (ids < layer.experts)
    for expert in torch.unique(ids[used]).tolist():
        tokens, slots = torch.nonzero(used & (ids == expert), as_tuple=True)
        h = linear(layer.gate_up, expert, x[tokens])
        e = linear(layer.down, expert, activate(h, layer.activation, layer.limit))
        out.index_add_(0, tokens, weights[tokens, slots].to(torch.float64)[:, None] * e)
    return out
