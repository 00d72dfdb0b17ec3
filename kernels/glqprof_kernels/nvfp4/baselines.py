"""What a user would run instead: experts in bf16, or decoded on the fly and multiplied by torch."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ..bf16 import Bf16Layer, activate
from .codes import decode_e4m3, e2m1_table
from .quantise import decode
from .weights import BLOCK, ExpertMatrix, LayerWeights

Tensor = torch.Tensor


def dense(layer: LayerWeights) -> Bf16Layer:
    """Every expert's weights rounded to bf16; one expert at a time, so that the float64 copies stay small."""

    def rounded(matrix: ExpertMatrix) -> Tensor:
        shape = (matrix.experts, matrix.rows, matrix.cols)
        out = torch.empty(shape, dtype=torch.bfloat16, device=layer.device)
        for e in range(matrix.experts):
            out[e] = decode(matrix, e)
        return out

    return Bf16Layer(rounded(layer.gate_up), rounded(layer.down), layer.activation, layer.limit)


@cache
def byte_values(device: Any) -> Tensor:
    """[256, 2] bf16: both values of each byte of codes. The first call on a device copies a table to it."""
    byte = torch.arange(256, device=device)
    table = e2m1_table(device)
    return torch.stack((table[byte & 15], table[byte >> 4]), dim=-1).to(torch.bfloat16)


def unscaled(matrix: ExpertMatrix, expert: int) -> Tensor:
    """code · block scale of one expert, [rows, cols] bf16: exact, since 2 and 4 bits make 6 of bf16's 8."""
    values = byte_values(matrix.device)[matrix.codes[expert].int()].view(matrix.rows, -1, BLOCK)
    return (values * decode_e4m3(matrix.scales[expert]).to(torch.bfloat16)[..., None]).view(matrix.rows, matrix.cols)


def run_dequantised(layer: LayerWeights, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor) -> None:
    """The MoE by decoding each expert in use to bf16 and multiplying all rows by it; ids are read back to the host.

    ``out`` [tokens, hidden] bf16; sums in float32. Weight 0 is a factor here, not a skip.
    """
    total = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    for expert in torch.unique(ids.cpu()).tolist():
        h = (x @ unscaled(layer.gate_up, expert).T).float() * layer.gate_up.scale[expert]
        e = (activate(h, layer).to(torch.bfloat16) @ unscaled(layer.down, expert).T).float() * layer.down.scale[expert]
        mine = torch.where(ids == expert, weights, 0.0).sum(dim=-1, keepdim=True)
        total += torch.where(mine == 0, 0.0, mine * e)
    out.copy_(total)
