"""Exact v3b-fp32act: as v3b, but the activation acts on the unrounded float32 value, as the upstream release did it.

Not the same bits: h loses its rounding to fp16. Schedule: blocks first and rows last ([blocks, 8, rows]), sums by
left folds; the transform reshapes each block into pairs.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from .host import HostCall, HostLayer, HostMatrix, Log
from .rounding import F32, fma32, power_of_two_root, to_half
from .stated_exp import stated_exp


def moe(layer: HostLayer, call: HostCall, log: Log) -> tuple[np.ndarray, int]:
    """(out [tokens, hidden] float16, activations that became infinite)."""
    with np.errstate(all="ignore"):
        log.blocking_copies += 2
        if not len(call.x):
            return np.zeros(call.x.shape, dtype=np.float16), 0
        log.blocking_copies += len(layer.up.scales) + len(layer.down.scales)
        log.kernels += ["glq_input_rht_kernel", "glq_cast_kernel", "glq_fill_zero_kernel"]
        x = to_half(_fold_blocks(call.x.astype(F32) * layer.up.sv))
        out = np.zeros(call.x.shape, dtype=np.float16)
        overflow = 0
        for token, expert, weight in call.slots(layer.experts):
            unrounded = _fold_blocks(_column_major_product(layer.up, expert, x[token], log)) * layer.up.su[expert]
            log.kernels.append("glq_output_rht_act_kernel")
            activated, infinite = _activate_unrounded(unrounded, layer)
            overflow += infinite
            log.kernels += ["glq_input_rht_kernel", "glq_cast_kernel"]
            x_down = to_half(_fold_blocks(activated.astype(F32) * layer.down.sv))
            y = _column_major_product(layer.down, expert, x_down, log)
            log.kernels += ["glq_output_rht_kernel", "glq_weighted_add_kernel"]
            e = to_half(_fold_blocks(y) * layer.down.su[expert]).astype(F32)
            out[token] = to_half(out[token].astype(F32) + e * weight)
        return out, overflow


def _column_major_product(matrix: HostMatrix, expert: int, x: np.ndarray, log: Log) -> np.ndarray:
    log.kernels += [f"glq_matvec_splitk_kernel<{len(matrix.scales)}>", "glq_reduce_splits_kernel"]
    wscale, *later = (scale[expert] for scale in matrix.scales)
    c = None
    for stage, (table, plane) in enumerate(zip(matrix.tables, matrix.planes, strict=True)):
        entry = table[plane[expert].T].transpose(0, 2, 1)  # [blocks, 8, rows]
        c = entry if c is None else fma32(entry, later[stage - 1], c)
    p = c * x.astype(F32).reshape(-1, 8, 1)
    evens = (p[:, 0] + p[:, 4]) + (p[:, 2] + p[:, 6])
    odds = (p[:, 1] + p[:, 5]) + (p[:, 3] + p[:, 7])
    d = evens + odds
    zero = np.zeros(matrix.rows, dtype=F32)
    partial = []
    for start in range(0, len(d), matrix.split_blocks):
        split = d[start : start + matrix.split_blocks]
        pairs = [split[j] + split[j + 1] if j + 1 < len(split) else split[j] for j in range(0, len(split), 2)]
        partial.append(reduce(np.add, pairs, zero) * wscale)
    return reduce(np.add, partial, zero)


def _fold_blocks(values: np.ndarray) -> np.ndarray:
    parts = []
    rest = values
    while rest.shape[-1]:
        size = 1 << (rest.shape[-1].bit_length() - 1)
        block, rest = rest[..., :size], rest[..., size:]
        stride = 1
        while stride < size:
            pairs = block.reshape(*block.shape[:-1], size // (2 * stride), 2, stride)
            low, high = pairs[..., 0, :], pairs[..., 1, :]
            block = np.stack([low + high, low - high], axis=-2).reshape(block.shape)
            stride *= 2
        parts.append(block * power_of_two_root(size))
    return np.concatenate(parts, axis=-1)


def _activate_unrounded(h: np.ndarray, layer: HostLayer) -> tuple[np.ndarray, int]:
    if layer.activation == "relu2":
        positive = np.where(np.isnan(h), h, np.where(h > 0, h, F32(0)))
        a = to_half(positive * positive)
        return a, int((np.isinf(a) & np.isfinite(h)).sum())
    g, u = np.split(h, 2)
    finite = np.isfinite(g) & np.isfinite(u)
    if layer.limit > 0:
        g = np.where(g > layer.limit, layer.limit, g)
        u = np.minimum(np.maximum(u, -layer.limit), layer.limit)
    a = to_half(g / (F32(1) + stated_exp(-g)) * u)
    return a, int((np.isinf(a) & finite).sum())
