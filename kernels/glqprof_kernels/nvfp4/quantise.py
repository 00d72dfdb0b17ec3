"""Quantising weights to NVFP4 with two levels of scales, and what quantised weights mean.

The definition is ModelOpt's (``NVFP4QTensor``). Per expert matrix ``scale = max|w| / (6 · 448)``; per block of 16
inputs ``s = e4m3(max|w in block| / (6 · scale))``, so that the largest block has s = 448 and the largest weight of a
block maps to about 6; per weight ``code = e2m1(w / (s · scale))``. All in float32, all roundings to nearest even. A
block of zeros has s = 1; any other s is at least 2⁻⁹, so that no block vanishes.
"""

from __future__ import annotations

from typing import Any

from .codes import (
    E2M1_MAX,
    E4M3_MAX,
    E4M3_MIN,
    decode_e2m1,
    decode_e4m3,
    encode_e2m1,
    encode_e4m3,
    pack,
    unpack,
)
from .weights import BLOCK, ExpertMatrix

Tensor = Any  # torch.Tensor


def quantise(weight: Tensor, name: str = "matrix") -> ExpertMatrix:
    """NVFP4 of float32, bfloat16 or float16 weights [experts, rows, cols], on their device.

    ValueError for other dtypes, for sizes that the kernels do not take, and for NaN or infinite weights. A scale below
    float32's normal range (weights all of about 1e-35 or less) is raised to its smallest normal number.
    """
    import torch

    if weight.dim() != 3 or weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"{name}: weights are {weight.dtype} {list(weight.shape)}; quantise takes floats [E, N, K]")
    if weight.shape[-1] % BLOCK:
        raise ValueError(f"{name}: {weight.shape[-1]} columns are not a multiple of {BLOCK}")
    if not bool(torch.isfinite(weight).all()):
        raise ValueError(f"{name}: weights hold NaN or infinity, which NVFP4 cannot")
    parts = [_quantise_expert(weight[e].float()) for e in range(weight.shape[0])]
    codes, scales, scale = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    return ExpertMatrix(codes, scales, scale, name)


def _quantise_expert(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    blocks = weight.unflatten(-1, (-1, BLOCK))
    scale = (weight.abs().amax() / (E2M1_MAX * E4M3_MAX)).clamp_min(torch.finfo(torch.float32).tiny)
    block_scale = blocks.abs().amax(-1) / (E2M1_MAX * scale)
    block_scale = torch.where(block_scale == 0, 1.0, block_scale).clamp_min(E4M3_MIN)
    scales = encode_e4m3(block_scale)
    # + 0.0 makes a weight of -0 code 0, as in ModelOpt; a negative weight that rounds to zero keeps its sign.
    scaled = blocks / (decode_e4m3(scales) * scale)[..., None] + 0.0
    return pack(encode_e2m1(scaled).flatten(-2)), scales, scale


def decode(matrix: ExpertMatrix, expert: int) -> Tensor:
    """The weights of one expert, [rows, cols] float64 on the matrix's device; exact (2 + 4 + 24 bits)."""
    import torch

    values = decode_e2m1(unpack(matrix.codes[expert])).to(torch.float64)
    block_scale = decode_e4m3(matrix.scales[expert]).to(torch.float64).repeat_interleave(BLOCK, dim=-1)
    return values * block_scale * matrix.scale[expert].to(torch.float64)
