"""Float64 reference of the quantised linear layer and of the fused MoE: the mathematics, with no rounding in between.

``y = SU ⊙ H·(W · (H·(SV ⊙ x)))`` with ``W = wscale · (C[i1] + r1·C[i2] + …)``; x is what the caller rounded to fp16.
"""

from __future__ import annotations

from typing import Any

from .hadamard import transform
from .weights import LayerWeights, MatrixWeights

Tensor = Any  # torch.Tensor


def dequantise(matrix: MatrixWeights, expert: int) -> Tensor:
    """W of one expert in the transformed domain: [rows, cols] float64 on the weights' device."""
    import torch

    total = None
    factors = (None, matrix.r1, matrix.r2, matrix.r3)
    for s in matrix.present:
        index = matrix.planes[s][expert].to(torch.int64) & 0xFFFF
        value = matrix.tables[s].to(torch.float64)[index].reshape(matrix.rows, matrix.cols)
        total = value if s == 0 else total + factors[s][expert].to(torch.float64) * value
    return matrix.wscale[expert].to(torch.float64) * total


def plain_weight(matrix: MatrixWeights, expert: int) -> Tensor:
    """The matrix that acts on x directly: ``SU ⊙ H·W·H ⊙ SV``, [rows, cols] float64."""
    import torch

    weight = transform(dequantise(matrix, expert)) * matrix.sv.to(torch.float64)
    return matrix.su[expert].to(torch.float64)[:, None] * transform(weight.T).T


def linear(matrix: MatrixWeights, expert: int, x: Tensor) -> Tensor:
    """y of one expert's matrix: x [..., cols] → [..., rows] float64."""
    import torch

    transformed = transform(x.to(torch.float64) * matrix.sv.to(torch.float64))
    return matrix.su[expert].to(torch.float64) * transform(transformed @ dequantise(matrix, expert).T)


def activate(h: Tensor, activation: str, limit: float = 0.0) -> Tensor:
    """relu² of h, or SwiGLU of its gate half (first) and up half; float64. A NaN stays a NaN."""
    import torch

    if activation == "relu2":
        return torch.where(h > 0, h, torch.where(h == h, torch.zeros_like(h), h)) ** 2
    gate, up = h.chunk(2, dim=-1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return gate / (1 + torch.exp(-gate)) * up


def moe(layer: LayerWeights, x: Tensor, ids: Tensor, weights: Tensor, mask_invalid: bool = False) -> Tensor:
    """The layer's output in float64: x [tokens, hidden], ids and weights [tokens, top_k] → [tokens, hidden].

    Weight 0 is skipped. Ids outside the experts raise ValueError, or are skipped with ``mask_invalid``.
    """
    import torch

    from .routing import check_ids

    x = x.to(torch.float16).to(torch.float64)
    host_ids, host_weights = ids.cpu(), weights.cpu()
    check_ids(host_ids.numpy(), layer.experts, mask_invalid)
    out = torch.zeros(x.shape[0], layer.hidden, dtype=torch.float64, device=x.device)
    for t in range(x.shape[0]):
        for k in range(host_ids.shape[1]):
            e, w = int(host_ids[t, k]), float(host_weights[t, k])
            if w == 0 or not 0 <= e < layer.experts:
                continue
            hidden = activate(linear(layer.up, e, x[t]), layer.activation, layer.limit)
            out[t] += w * linear(layer.down, e, hidden)
    return out
