"""Exact v0.2.12: separate kernels, zeroed outputs, every scalar read where it is needed.

Schedule: a matrix product streams pair by pair over each split, all rows at once; the transform walks its blocks with
explicit index arrays; transform, rounding, activation and cast are separate steps over stored arrays.
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
        transformed = _input_rht(call.x, layer.up.sv, log)
        x = _cast(transformed, log)
        out = np.zeros(call.x.shape, dtype=np.float16)
        log.kernels.append("glq_fill_zero_kernel")
        overflow = 0
        for token, expert, weight in call.slots(layer.experts):
            y = _matrix_vector(layer.up, expert, x[token], log)
            h = _output_rht(y, layer.up.su[expert], log)
            activated, infinite = _activation(h, layer, log)
            overflow += infinite
            x_down = _cast(_input_rht(activated, layer.down.sv, log), log)
            y = _matrix_vector(layer.down, expert, x_down, log)
            e = _output_rht(y, layer.down.su[expert], log)
            _weighted_add(out[token], e, weight, log)
        return out, overflow


def _matrix_vector(matrix: HostMatrix, expert: int, x: np.ndarray, log: Log) -> np.ndarray:
    y = np.zeros(matrix.rows, dtype=F32)
    log.kernels.append("glq_fill_zero_kernel")
    scalars = []
    for scale in matrix.scales:
        scalars.append(scale[expert])
        log.syncs += 1
    partial = _matvec(matrix, expert, scalars, x, log)
    log.kernels.append("glq_reduce_splits_kernel")
    y[:] = 0
    for t in partial:
        y = y + t
    return y


def _matvec(matrix: HostMatrix, expert: int, scalars: list[np.float32], x: np.ndarray, log: Log) -> list[np.ndarray]:
    log.kernels.append(f"glq_matvec_splitk_kernel<{len(scalars)}>")
    blocks = matrix.cols // 8
    inputs = x.astype(F32).reshape(blocks, 8)
    partial = []
    for start in range(0, blocks, matrix.split_blocks):
        stop = min(start + matrix.split_blocks, blocks)
        acc = np.zeros(matrix.rows, dtype=F32)
        for j in range(start, stop, 2):
            d = _block(matrix, expert, scalars, inputs, j)
            if j + 1 < stop:
                d = d + _block(matrix, expert, scalars, inputs, j + 1)
            acc = acc + d
        partial.append(acc * scalars[0])
    return partial


def _block(matrix: HostMatrix, expert: int, scalars: list[np.float32], inputs: np.ndarray, j: int) -> np.ndarray:
    c = matrix.tables[0][matrix.planes[0][expert, :, j]]
    for s in range(1, len(scalars)):
        c = fma32(scalars[s], matrix.tables[s][matrix.planes[s][expert, :, j]], c)
    p = [c[:, k] * inputs[j, k] for k in range(8)]
    return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))


def _hadamard(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    length = values.shape[-1]
    start = 0
    for bit in range(length.bit_length() - 1, -1, -1):
        size = 1 << bit
        if not length & size:
            continue
        for power in range(bit):
            stride = 1 << power
            low = np.array([start + i for i in range(size) if not i & stride])
            a, b = values[..., low], values[..., low + stride]
            values[..., low], values[..., low + stride] = a + b, a - b
        values[..., start : start + size] *= power_of_two_root(size)
        start += size
    return values


def _input_rht(x: np.ndarray, sv: np.ndarray, log: Log) -> np.ndarray:
    log.kernels.append("glq_input_rht_kernel")
    return _hadamard(x.astype(F32) * sv)


def _output_rht(y: np.ndarray, su: np.ndarray, log: Log) -> np.ndarray:
    log.kernels.append("glq_output_rht_kernel")
    return to_half(_hadamard(y) * su)


def _cast(values: np.ndarray, log: Log) -> np.ndarray:
    log.kernels.append("glq_cast_kernel")
    return to_half(values)


def _activation(h: np.ndarray, layer: HostLayer, log: Log) -> tuple[np.ndarray, int]:
    wide = h.astype(F32)
    if layer.activation == "relu2":
        log.kernels.append("glq_relu2_kernel")
        v = wide.copy()
        v[wide <= 0] = 0
        result = to_half(v * v)
        return result, int((np.isinf(result) & np.isfinite(wide)).sum())
    log.kernels.append("glq_swiglu_kernel")
    g, u = wide[: len(wide) // 2].copy(), wide[len(wide) // 2 :].copy()
    finite = np.isfinite(g) & np.isfinite(u)
    if layer.limit > 0:
        g[g > layer.limit] = layer.limit
        u[u > layer.limit] = layer.limit
        u[u < -layer.limit] = -layer.limit
    result = to_half(g / (F32(1) + stated_exp(-g)) * u)
    return result, int((np.isinf(result) & finite).sum())


def _weighted_add(out: np.ndarray, e: np.ndarray, weight: np.float32, log: Log) -> None:
    log.kernels.append("glq_weighted_add_kernel")
    p = weight * e.astype(F32)
    out[:] = to_half(out.astype(F32) + p)
