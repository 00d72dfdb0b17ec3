"""Seeded random NVFP4 weights, made on the device that uses them.

Codes are uniform. Block scales are e4m3 bytes of 64 to 448, the upper end of the format, where a quantiser puts them.
The same seed gives the same bytes on the same kind of device.
"""

from __future__ import annotations

import math
from typing import Any

from .codes import e2m1_value, e4m3_value
from .weights import BLOCK, ExpertMatrix, LayerWeights

Tensor = Any  # torch.Tensor

SCALE_BYTES = (0x68, 0x7F)
"""Block scales are drawn from 64 (0x68) up to 448 (0x7E); 0x7F would be NaN."""


def _mean_square(values: list[float]) -> float:
    return sum(v * v for v in values) / len(values)


WEIGHT_RMS = math.sqrt(
    _mean_square([e2m1_value(c) for c in range(16)]) * _mean_square([e4m3_value(b) for b in range(*SCALE_BYTES)])
)
"""Root mean square of a weight whose global scale is 1."""


def matrix(experts: int, rows: int, cols: int, generator: Any, device: Any, name: str) -> ExpertMatrix:
    """Random weights of one matrix; outputs have about the size of the inputs, each expert's up to 30 % off."""
    import torch

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, device=device, generator=generator)

    spread = torch.rand(experts, dtype=torch.float32, device=device, generator=generator) * 0.6 + 0.7
    return ExpertMatrix(
        codes=draw(0, 256, experts, rows, cols // 2),
        scales=draw(*SCALE_BYTES, experts, rows, cols // BLOCK),
        scale=spread / (WEIGHT_RMS * math.sqrt(cols)),
        name=name,
        check_values=False,
    )


def layer(hidden: int, inter: int, experts: int, activation: str, limit: float, seed: int, device: Any) -> LayerWeights:
    """Random weights of one layer; ValueError for sizes that are not multiples of 32."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    gate_up = matrix(experts, inter * (2 if activation == "swiglu" else 1), hidden, generator, device, "gate_up")
    return LayerWeights(
        gate_up, matrix(experts, hidden, inter, generator, device, "down"), activation=activation, limit=limit
    )
