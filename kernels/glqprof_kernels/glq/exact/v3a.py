"""Exact v3a: the same separate kernels as v0.2.12, with all scalars copied to the host before the loop.

Schedule: a matrix is dequantised whole, block sums of all rows and blocks follow at once, and the chain over pairs is a
running sum; the transform is recursive over halves.
"""

from __future__ import annotations

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
        copied = {id(matrix): [scale.copy() for scale in matrix.scales] for matrix in (layer.up, layer.down)}
        log.blocking_copies += len(layer.up.scales) + len(layer.down.scales)
        launch = log.kernels.append

        launch("glq_input_rht_kernel")
        rotated = _rotate(call.x.astype(F32) * layer.up.sv)
        launch("glq_cast_kernel")
        x = to_half(rotated)
        launch("glq_fill_zero_kernel")
        out = np.zeros(call.x.shape, dtype=np.float16)
        overflow = 0
        for token, expert, weight in call.slots(layer.experts):
            launch("glq_fill_zero_kernel")
            y = _product(layer.up, expert, copied[id(layer.up)], x[token], log)
            launch("glq_output_rht_kernel")
            h = to_half(_rotate(y) * layer.up.su[expert])
            launch("glq_relu2_kernel" if layer.activation == "relu2" else "glq_swiglu_kernel")
            activated = _relu2(h) if layer.activation == "relu2" else _swiglu(h, layer.limit)
            finite = np.isfinite(h).reshape(-1, len(activated)).all(axis=0)
            overflow += int((finite & np.isinf(activated)).sum())
            launch("glq_input_rht_kernel")
            rotated = _rotate(activated.astype(F32) * layer.down.sv)
            launch("glq_cast_kernel")
            narrow = to_half(rotated)
            launch("glq_fill_zero_kernel")
            y = _product(layer.down, expert, copied[id(layer.down)], narrow, log)
            launch("glq_output_rht_kernel")
            e = to_half(_rotate(y) * layer.down.su[expert])
            launch("glq_weighted_add_kernel")
            weighted = e.astype(F32) * weight
            out[token] = to_half(weighted + out[token].astype(F32))
        return out, overflow


def _product(matrix: HostMatrix, expert: int, scalars: list[np.ndarray], x: np.ndarray, log: Log) -> np.ndarray:
    log.kernels.append(f"glq_matvec_splitk_kernel<{len(scalars)}>")
    weights = matrix.tables[0][matrix.planes[0][expert]]  # [rows, blocks, 8]
    for scale, table, plane in zip(scalars[1:], matrix.tables[1:], matrix.planes[1:], strict=True):
        weights = fma32(table[plane[expert]], scale[expert], weights)
    p = weights * x.astype(F32).reshape(-1, 8)
    quarter = p[..., :4] + p[..., 4:]  # 0+4, 1+5, 2+6, 3+7
    half = quarter[..., :2] + quarter[..., 2:]  # (0+4)+(2+6), (1+5)+(3+7)
    d = half[..., 0] + half[..., 1]
    blocks = d.shape[1]
    pairs = d[:, 0::2].copy()
    pairs[:, : blocks // 2] += d[:, 1::2]
    zero = np.zeros((matrix.rows, 1), dtype=F32)
    step = matrix.split_blocks // 2
    partial = [
        np.add.accumulate(np.concatenate([zero, pairs[:, q : q + step]], axis=1), axis=1)[:, -1] * scalars[0][expert]
        for q in range(0, pairs.shape[1], step)
    ]
    log.kernels.append("glq_reduce_splits_kernel")
    return np.add.accumulate(np.stack([zero[:, 0], *partial]), axis=0)[-1]


def _rotate(values: np.ndarray) -> np.ndarray:
    """The scaled transform of the last dimension, largest block first."""
    length = values.shape[-1]
    size = 1 << (length.bit_length() - 1)
    head = _unscaled(values[..., :size]) * power_of_two_root(size)
    return head if size == length else np.concatenate([head, _rotate(values[..., size:])], axis=-1)


def _unscaled(values: np.ndarray) -> np.ndarray:
    """Stride n/2 is the last stage, so it combines the transforms of the two halves."""
    half = values.shape[-1] // 2
    if not half:
        return values
    low, high = _unscaled(values[..., :half]), _unscaled(values[..., half:])
    return np.concatenate([low + high, low - high], axis=-1)


def _relu2(h: np.ndarray) -> np.ndarray:
    v = np.maximum(h.astype(F32), F32(0))  # np.maximum keeps NaN
    return to_half(v * v)


def _swiglu(h: np.ndarray, limit: np.float32) -> np.ndarray:
    g, u = np.split(h.astype(F32), 2)
    if limit > 0:
        g = np.minimum(g, limit)
        u = np.clip(u, -limit, limit)
    return to_half(g / (stated_exp(-g) + F32(1)) * u)
