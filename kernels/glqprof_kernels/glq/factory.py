"""Seeded random GLQ weights, made on the device that uses them.

Index planes are drawn by ``torch.randint`` on the device, so 18.5 GB of them take seconds on a GPU. The same seed gives
the same bytes on the same kind of device (CPU and CUDA generators differ, so fixtures commit bytes, not seeds).
"""

from __future__ import annotations

import math
from typing import Any

from ..geometry import Geometry
from . import codebook
from .weights import LayerWeights, MatrixWeights

Tensor = Any  # torch.Tensor

MIXED_STAGES = (12, 23)
"""The measured mix: 12 of 23 layers have a third stage ("4.5 bpw")."""


def device_codebook(device: Any, table: Any = None) -> tuple[Tensor, Tensor]:
    """(big [65536, 8], small [256, 8]) fp16 on ``device``; ``table`` replaces the generated codebook."""
    import numpy as np
    import torch

    source = codebook.generate() if table is None else table
    big = torch.from_numpy(np.array(source)).to(device)
    return big, big[: codebook.SMALL_ENTRIES].contiguous()


def stages_of_layer(layer: int, stages: str | int = "mixed") -> int:
    """Stages of the layer's matrices: the number given, or 2 and 3 mixed so that 12 of 23 layers have 3."""
    if stages != "mixed":
        count = int(stages)
        if not 1 <= count <= 4:
            raise ValueError(f"stages is {stages!r}; it must be 1 to 4 or 'mixed'")
        return count
    three, of = MIXED_STAGES
    return 2 + ((layer + 1) * three // of - layer * three // of)


def layer(
    geometry: Geometry, seed: int, device: Any, stages: int = 2, split_blocks: int = 64, tables: Any = None
) -> LayerWeights:
    """Random weights of one layer.

    Stages 1, 2 and 4 read the big codebook, stage 3 the small one. ``wscale`` is set so that outputs have about the
    size of the inputs. ``tables``: what ``device_codebook`` returned, to be shared between layers.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    big, small = device_codebook(device) if tables is None else tables

    def matrix(name: str, rows: int, cols: int, gain: float) -> MatrixWeights:
        shape = (geometry.experts, rows, cols // 8)
        planes = []
        for s in range(stages):
            low, high = (0, codebook.SMALL_ENTRIES) if s == 2 else (-32_768, 32_768)
            planes.append(torch.randint(low, high, shape, dtype=torch.int16, device=device, generator=generator))

        def uniform(low: float, high: float) -> Tensor:
            drawn = torch.rand(geometry.experts, dtype=torch.float32, device=device, generator=generator)
            return drawn * (high - low) + low

        def signs(*size: int) -> Tensor:
            bits = torch.randint(0, 2, size, dtype=torch.int8, device=device, generator=generator)
            return (bits * 2 - 1).to(torch.float16)

        # A coordinate's mean square is about 10.6 / 8; the transforms keep norms.
        size = gain / math.sqrt(cols * 10.6 / 8)
        return MatrixWeights(
            planes=planes,
            tables=[big, big, small, big][:stages],
            wscale=uniform(0.7 * size, 1.3 * size),
            r1=uniform(0.05, 0.2),
            r2=uniform(0.01, 0.05),
            r3=uniform(0.002, 0.01),
            sv=signs(cols),
            su=signs(geometry.experts, rows),
            split_blocks=split_blocks,
            name=name,
            check_values=False,
        )

    return LayerWeights(
        up=matrix("up", geometry.up_rows, geometry.hidden, 1.0),
        down=matrix("down", geometry.hidden, geometry.expert_inter, 1.0),
        activation=geometry.activation,
        limit=geometry.activation_limit,
    )
