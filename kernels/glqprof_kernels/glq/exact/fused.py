"""Exact fused: all slots at once from packed 4-bit codewords, per-slot sums of splits, experts combined at the end.

Schedule: the codes of a span of eight blocks are unpacked for every active slot together (nibbles to floats by the same
masks and subtractions as the device code), each slot's chains advance span by span, and outputs are kept per slot until
the ordered combination. The transform works on views of each block, from the largest stride of a radix-8 pass down its
own indices: strides in ascending order, as the contract says, on a [.., 2, stride] view.

``moe_fast`` is the free order: float64 sums, rounded where fused-fast stores float32. It is an implementation of the
same mathematics, not the bits of the GPU.
"""

from __future__ import annotations

import numpy as np

from ..fused import NEGATION, FusedLayer, FusedMatrix, unpack_codes
from .host import HostCall, Log
from .rounding import F32, fma32, power_of_two_root, to_half
from .stated_exp import stated_exp

_LAUNCH = "glq_fused_kernel"


def moe(layer: FusedLayer, call: HostCall, log: Log) -> tuple[np.ndarray, int]:
    """(out [tokens, hidden] float16, activations that became infinite)."""
    with np.errstate(all="ignore"):
        if not len(call.x):
            return np.zeros(call.x.shape, dtype=np.float16), 0
        slots = call.slots(layer.experts)
        log.kernels.append(_LAUNCH)
        x = to_half(_transform(call.x.astype(F32) * _numpy(layer.up.sv)))
        tokens, experts = [t for t, _, _ in slots], [e for _, e, _ in slots]
        out = np.zeros(call.x.shape, dtype=F32)
        overflow = 0
        if slots:
            y = _products(layer, layer.up, experts, x[tokens])
            h = to_half(_transform(y) * _numpy(layer.up.su)[experts])
            a, overflow = _activation(h, layer)
            narrow = to_half(_transform(a.astype(F32) * _numpy(layer.down.sv)))
            y = _products(layer, layer.down, experts, narrow)
            e = to_half(_transform(y) * _numpy(layer.down.su)[experts]).astype(F32)
            for (token, _, weight), row in zip(slots, e, strict=True):
                out[token] = to_half(out[token] + weight * row)
        return to_half(out), overflow


def moe_fast(layer: FusedLayer, call: HostCall, log: Log) -> tuple[np.ndarray, int]:
    """The same in free order: float32 between the steps, one rounding to fp16 at the end, which alone can overflow."""
    with np.errstate(all="ignore"):
        if not len(call.x):
            return np.zeros(call.x.shape, dtype=np.float16), 0
        log.kernels.append(_LAUNCH)
        x = _transform(call.x.astype(F32) * _numpy(layer.up.sv))
        out = np.zeros(call.x.shape, dtype=F32)
        for token, expert, weight in call.slots(layer.experts):
            h = _transform(_free_product(layer, layer.up, expert, x[token])) * _numpy(layer.up.su)[expert]
            if layer.activation == "relu2":
                a = np.where(h > 0, h, np.where(h == h, F32(0), h)) ** 2
            else:
                a = _swiglu(*np.split(h, 2), F32(layer.limit))
            y = _free_product(layer, layer.down, expert, _transform(a * _numpy(layer.down.sv)))
            out[token] += weight * (_transform(y) * _numpy(layer.down.su)[expert])
        return to_half(out), 0


def _numpy(tensor: object) -> np.ndarray:
    return tensor.cpu().numpy().astype(F32)


def _words(layer: FusedLayer, matrix: FusedMatrix, stage: int, experts: list[int]) -> np.ndarray:
    """[experts, rows, blocks] uint32: eight nibbles each, negated where the code says so."""
    image = layer.table.image.cpu().numpy().view(np.uint32)
    codes = unpack_codes(matrix.codes[stage][experts].cpu(), matrix.rows, matrix.blocks).numpy()
    if matrix.small and stage == 2:
        return image[codes]
    negated = codes >= layer.table.entries
    words = image[np.where(negated, codes - layer.table.entries, codes)]
    return np.where(negated, np.uint32(NEGATION) - words, words)


def _coordinates(words: np.ndarray) -> list[np.ndarray]:
    """Eight arrays of float32: the nibble under an exponent that makes it worth a half, less that exponent's value."""
    found = []
    for k in range(8):
        bit = 4 * k if k < 5 else 4 * (k - 3)
        shifted = words if k < 5 else words >> np.uint32(12)
        exponent = np.uint32((127 + 22 - bit) << 23)
        value = ((shifted & np.uint32(0xF << bit)) | exponent).view(F32)
        found.append(value - F32(2 ** (22 - bit) + 4))
    return found


def _products(layer: FusedLayer, matrix: FusedMatrix, experts: list[int], x: np.ndarray) -> np.ndarray:
    """y [slots, rows] float32 of x [slots, cols] float16."""
    scales = [scale.cpu().numpy()[experts][:, None, None] for scale in matrix.scales]
    words = [_words(layer, matrix, s, experts) for s in range(len(matrix.codes))]
    inputs = x.astype(F32).reshape(len(experts), 1, matrix.blocks, 8)
    y = np.zeros((len(experts), matrix.rows), dtype=F32)
    for start in range(0, matrix.blocks, matrix.split_blocks):
        stop = min(start + matrix.split_blocks, matrix.blocks)
        acc = np.zeros_like(y)
        for first in range(start, stop, 8):
            span = slice(first, min(first + 8, stop))
            c = _coordinates(words[0][:, :, span])
            for s in range(1, len(words)):
                later = _coordinates(words[s][:, :, span])
                c = [fma32(scales[s], b, a) for a, b in zip(c, later, strict=True)]
            p = [c[k] * inputs[:, :, span, k] for k in range(8)]
            d = ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))
            for j in range(0, d.shape[2], 2):
                acc = acc + (d[:, :, j] + d[:, :, j + 1] if j + 1 < d.shape[2] else d[:, :, j])
        y = y + acc * scales[0][:, :, 0]
    return y


def _free_product(layer: FusedLayer, matrix: FusedMatrix, expert: int, x: np.ndarray) -> np.ndarray:
    total = np.zeros(matrix.rows, dtype=np.float64)
    for s, scale in enumerate(matrix.scales):
        c = np.stack(_coordinates(_words(layer, matrix, s, [expert])[0]), axis=-1).reshape(matrix.rows, -1)
        factor = 1.0 if s == 0 else float(scale[expert])
        total += factor * (c.astype(np.float64) @ x.astype(np.float64))
    return (total * float(matrix.scales[0][expert])).astype(F32)


def _transform(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    start = 0
    length = values.shape[-1]
    for bit in range(length.bit_length() - 1, -1, -1):
        size = 1 << bit
        if not length & size:
            continue
        block = values[..., start : start + size]
        for power in range(bit):
            pairs = block.reshape(*block.shape[:-1], -1, 2, 1 << power)
            low, high = pairs[..., 0, :], pairs[..., 1, :]
            block = np.stack((low + high, low - high), axis=-2).reshape(block.shape)
        values[..., start : start + size] = block * power_of_two_root(size)
        start += size
    return values


def _activation(h: np.ndarray, layer: FusedLayer) -> tuple[np.ndarray, int]:
    wide = h.astype(F32)
    if layer.activation == "relu2":
        v = np.where(wide > 0, wide, np.where(np.isnan(wide), wide, F32(0)))
        a = to_half(v * v)
        return a, int((np.isinf(a) & np.isfinite(wide)).sum())
    gate, up = np.split(wide, 2, axis=-1)
    a = to_half(_swiglu(gate, up, F32(layer.limit)))
    return a, int((np.isinf(a) & np.isfinite(gate) & np.isfinite(up)).sum())


def _swiglu(gate: np.ndarray, up: np.ndarray, limit: np.float32) -> np.ndarray:
    if limit > 0:
        gate = np.where(gate > limit, limit, gate)
        up = np.where(up > limit, limit, np.where(up < -limit, -limit, up))
    return gate / (F32(1) + stated_exp(-gate)) * up
