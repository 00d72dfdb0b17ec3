"""Exact v3b: no fills, and the activation inside the output transform's store, after h was rounded to fp16.

Schedule: the one of the CUDA kernels. The transform acts on the global index (stride s pairs those i below n with the
bits under 2s cleared); a product goes window by window of 64 blocks, pair sums past the end are +0, and the chains of
all rows and splits of a window advance together.
"""

from __future__ import annotations

import numpy as np

from .host import HostCall, HostLayer, HostMatrix, Log
from .rounding import F32, fma32, power_of_two_root, to_half
from .stated_exp import stated_exp

_WINDOW = 64


def moe(layer: HostLayer, call: HostCall, log: Log) -> tuple[np.ndarray, int]:
    """(out [tokens, hidden] float16, activations that became infinite)."""
    with np.errstate(all="ignore"):
        log.blocking_copies += 2
        if not len(call.x):
            return np.zeros(call.x.shape, dtype=np.float16), 0
        log.blocking_copies += len(layer.up.scales) + len(layer.down.scales)
        log.kernels += ["glq_input_rht_kernel", "glq_cast_kernel", "glq_fill_zero_kernel"]
        x = to_half(_transform(call.x.astype(F32) * layer.up.sv))
        out = np.zeros(call.x.shape, dtype=np.float16)
        overflow = 0
        for token, expert, weight in call.slots(layer.experts):
            y = _reduce(_windows(layer.up, expert, x[token], log), log)
            activated, infinite = _output_transform_and_activation(y, layer, expert, log)
            overflow += infinite
            log.kernels += ["glq_input_rht_kernel", "glq_cast_kernel"]
            x_down = to_half(_transform(activated.astype(F32) * layer.down.sv))
            y = _reduce(_windows(layer.down, expert, x_down, log), log)
            log.kernels += ["glq_output_rht_kernel", "glq_weighted_add_kernel"]
            e = to_half(_transform(y) * layer.down.su[expert])
            s = out[token].astype(F32) + weight * e.astype(F32)
            out[token] = to_half(s)
        return out, overflow


def _windows(matrix: HostMatrix, expert: int, x: np.ndarray, log: Log) -> np.ndarray:
    """t_q of every split: [splits, rows]."""
    log.kernels.append(f"glq_matvec_splitk_kernel<{len(matrix.scales)}>")
    blocks = matrix.cols // 8
    r = [scale[expert] for scale in matrix.scales]
    chains_per_window = _WINDOW // matrix.split_blocks
    partial = []
    for first in range(0, blocks, _WINDOW):
        inside = min(_WINDOW, blocks - first)
        entries = [
            table[plane[expert, :, first : first + inside]]
            for table, plane in zip(matrix.tables, matrix.planes, strict=True)
        ]
        c = entries[0]
        for s in range(1, len(entries)):
            c = fma32(r[s], entries[s], c)
        p = np.moveaxis(c * x[8 * first : 8 * (first + inside)].astype(F32).reshape(inside, 8), -1, 0)
        d = ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))
        tile = np.zeros((matrix.rows, _WINDOW // 2), dtype=F32)
        tile[:, : (inside + 1) // 2] = d[:, 0::2]
        tile[:, : inside // 2] = d[:, 0 : inside - 1 : 2] + d[:, 1::2] if inside > 1 else tile[:, :0]
        sums = tile.reshape(matrix.rows, chains_per_window, -1)
        acc = np.zeros((matrix.rows, chains_per_window), dtype=F32)
        for pair in range(sums.shape[2]):
            acc = acc + sums[:, :, pair]
        partial.append((acc * r[0]).T)
    splits = -(-blocks // matrix.split_blocks)
    return np.concatenate(partial)[:splits]


def _reduce(partial: np.ndarray, log: Log) -> np.ndarray:
    log.kernels.append("glq_reduce_splits_kernel")
    y = np.zeros(partial.shape[1], dtype=F32)
    for q in range(partial.shape[0]):
        y += partial[q]
    return y


def _transform(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    n = values.shape[-1]
    index = np.arange(n)
    stride = 1
    while stride < n:
        low = index[(index & stride == 0) & (index < n & ~(2 * stride - 1))]
        a, b = values[..., low], values[..., low + stride]
        values[..., low] = a + b
        values[..., low + stride] = a - b
        stride *= 2
    return values * _scales(n)


def _scales(n: int) -> np.ndarray:
    """1/√block for every element: its block's size is the highest bit in which the index and n differ."""
    sizes = [1 << ((i ^ n).bit_length() - 1) for i in range(n)]
    return np.array([power_of_two_root(size) for size in sizes], dtype=F32)


def _output_transform_and_activation(y: np.ndarray, layer: HostLayer, expert: int, log: Log) -> tuple[np.ndarray, int]:
    log.kernels.append("glq_output_rht_act_kernel")
    h = to_half(_transform(y) * layer.up.su[expert]).astype(F32)
    if layer.activation == "relu2":
        v = np.where(h > 0, h, np.where(h == h, F32(0), h))
        a = to_half(v * v)
        return a, int((np.isinf(a) & np.isfinite(h)).sum())
    n = len(h) // 2
    g, u = h[:n], h[n:]
    finite = np.isfinite(g) & np.isfinite(u)
    if layer.limit > 0:
        g = np.where(g > layer.limit, layer.limit, g)
        u = np.where(u > layer.limit, layer.limit, np.where(u < -layer.limit, -layer.limit, u))
    a = to_half(g / (F32(1) + stated_exp(-g)) * u)
    return a, int((np.isinf(a) & finite).sum())
