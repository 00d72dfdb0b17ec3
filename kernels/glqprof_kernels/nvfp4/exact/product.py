"""The NVFP4 product, to the bit: one k chain per output.

For each block of 16 inputs, ``p = Σ x·w`` from zero, w the e2m1 values: products exact, their sum rounded once to
binary32. Then ``acc = fma(p, s, acc)`` with the block's e4m3 scale, blocks ascending, acc from +0, a true fused
multiply-add; ``y = acc · scale`` once at the end. A row depends on nothing but itself.

How an mma rounds inside is the architecture's own: a GPU's p may differ from this one in the last bits, so its outputs
need not have these bytes. Everything after p is the same.

**Bound.** With u = 2⁻²⁴ and B blocks, each p is within u·|p| of the exact sum, each of the B fused steps and the last
product round once. So ``|y - exact| ≤ γ · |scale| · Σ_b |s_b|·|p_b|`` with γ = (B + 2)·u / (1 - (B + 2)·u), where
``p_b`` is the exact sum of block b, plus ``(B·|scale| + 1)·2⁻¹⁴⁹`` for results below the normal range, as long as
nothing overflows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...glq.exact.rounding import F32, F64, fma32
from ..codes import e2m1_table, e4m3_table
from ..weights import BLOCK, ExpertMatrix, LayerWeights
from .arithmetic import sum_once

U = 2.0**-24
_ELEMENTS = 1 << 22
"""Products held at a time."""


@dataclass(frozen=True)
class HostMatrix:
    """``codes`` [E, N, K/2] and ``scales`` [E, N, K/16] uint8, ``scale`` [E] float32, as numpy arrays."""

    codes: np.ndarray
    scales: np.ndarray
    scale: np.ndarray

    def weights(self, expert: int) -> np.ndarray:
        """e2m1 values of one expert without scales, [N, K/16, 16] float64."""
        packed = self.codes[expert]
        code = np.stack((packed & 15, packed >> 4), axis=-1)
        return e2m1_table().numpy().astype(F64)[code.reshape(len(packed), -1, BLOCK)]

    def block_scales(self, expert: int) -> np.ndarray:
        """e4m3 scales of one expert, [N, K/16] float32."""
        return e4m3_table().numpy()[self.scales[expert]]


@dataclass(frozen=True)
class HostLayer:
    """Both matrices, the activation and its limit."""

    gate_up: HostMatrix
    down: HostMatrix
    activation: str
    limit: np.float32

    @property
    def experts(self) -> int:
        """Experts."""
        return len(self.gate_up.scale)

    @property
    def hidden(self) -> int:
        """Width of input and output."""
        return self.down.codes.shape[1]


def host_matrix(matrix: ExpertMatrix) -> HostMatrix:
    """Copy-free where the tensors are on the CPU."""
    return HostMatrix(matrix.codes.cpu().numpy(), matrix.scales.cpu().numpy(), matrix.scale.cpu().numpy())


def host_layer(layer: LayerWeights) -> HostLayer:
    """The layer's arrays."""
    return HostLayer(host_matrix(layer.gate_up), host_matrix(layer.down), layer.activation, F32(layer.limit))


def linear(matrix: HostMatrix, expert: int, x: np.ndarray) -> np.ndarray:
    """y [rows, N] float32 of x [rows, K] (float32 that bf16 holds exactly)."""
    weights = matrix.weights(expert)
    scales = matrix.block_scales(expert)
    blocks = x.astype(F64).reshape(len(x), -1, BLOCK)
    out = np.empty((len(x), len(weights)), dtype=F32)
    step = max(1, _ELEMENTS // max(1, weights.size))
    with np.errstate(all="ignore"):
        for first in range(0, len(x), step):
            part = slice(first, first + step)
            p = sum_once(blocks[part, None] * weights[None])
            acc = np.zeros(p.shape[:2], dtype=F32)
            for b in range(p.shape[2]):
                acc = fma32(p[:, :, b], scales[None, :, b], acc)
            out[part] = acc * matrix.scale[expert]
    return out


def error_bound(matrix: HostMatrix, expert: int, x: np.ndarray) -> np.ndarray:
    """The bound above on ``|linear - exact|``, [rows, N] float64, of finite x whose sums do not overflow."""
    blocks = x.astype(F64).reshape(len(x), -1, BLOCK)
    sums = np.abs(np.einsum("rbk,nbk->rnb", blocks, matrix.weights(expert)))
    count = sums.shape[-1]
    scale = abs(float(matrix.scale[expert]))
    gamma = (count + 2) * U / (1 - (count + 2) * U)
    size = (np.abs(matrix.block_scales(expert).astype(F64))[None] * sums).sum(-1)
    return gamma * scale * size + (count * scale + 1) * 2.0**-149
