"""The exponential of SwiGLU, stated to the bit: the same operations as ``stated_exp`` in csrc/activation.cuh."""

from __future__ import annotations

import numpy as np

from .rounding import F32, fma32


def _constant(bits: int) -> np.float32:
    return np.uint32(bits).view(F32)


_LOG2_E = _constant(0x3FB8AA3B)
_MINUS_LN2_HIGH = _constant(0xBF317200)
_MINUS_LN2_LOW = _constant(0xB5BFBE8E)
# 1/7! down to 1/3!, then 1/2, 1, 1.
_COEFFICIENTS = [_constant(b) for b in (0x3AB60B61, 0x3C088889, 0x3D2AAAAB, 0x3E2AAAAB)] + [F32(0.5), F32(1), F32(1)]
_FIRST = _constant(0x39500D01)


def stated_exp(t: np.ndarray) -> np.ndarray:
    """exp(t) in float32, within about one unit in the last place: inf above 89, 0 below -104, NaN kept."""
    t = np.asarray(t, dtype=F32)
    with np.errstate(all="ignore"):
        inside = np.where((t >= -104) & (t <= 89), t, F32(0))
        n = np.rint(inside * _LOG2_E)
        r = fma32(n, _MINUS_LN2_HIGH, inside)
        r = fma32(n, _MINUS_LN2_LOW, r)
        p = np.full_like(r, _FIRST)
        for coefficient in _COEFFICIENTS:
            p = fma32(p, r, coefficient)
        whole = n.astype(np.int32)
        half = whole >> 1
        for exponent in (half, whole - half):
            p = p * ((exponent + 127).astype(np.uint32) << np.uint32(23)).view(F32)
        p = np.where(t > 89, F32(np.inf), np.where(t < -104, F32(0), p))
        return np.where(np.isnan(t), t, p).astype(F32)
