"""GLQ's experts in bf16, for the yardstick of ``glqprof_kernels.bf16``."""

from __future__ import annotations

import torch

from ..bf16 import Bf16Layer, grouped_mm, run_grouped, run_loop, run_plain
from . import reference
from .weights import LayerWeights, MatrixWeights

__all__ = ["Bf16Layer", "dequantise", "grouped_mm", "run_grouped", "run_loop", "run_plain"]


def dequantise(layer: LayerWeights) -> Bf16Layer:
    """Round each expert's float64 matrices to bf16; one expert at a time, so the float64 copies stay small."""

    def dense(matrix: MatrixWeights) -> torch.Tensor:
        out = torch.empty(matrix.experts, matrix.rows, matrix.cols, dtype=torch.bfloat16, device=layer.device)
        for e in range(matrix.experts):
            out[e] = reference.plain_weight(matrix, e)
        return out

    return Bf16Layer(dense(layer.up), dense(layer.down), layer.activation, layer.limit)
