"""Rounding helpers of the exact implementations: binary32 and binary16, to nearest even, denormals kept.

numpy's float32 addition, subtraction, multiplication and division round once to nearest even, and so do its conversions
float64 → float32 and float32 → float16; none flushes denormals. What numpy lacks is a fused multiply-add.

``fma32`` is exact by this argument. a·b has at most 48 significant bits and an exponent within [-298, 256], so it is
exact in binary64. Let s be the binary64 sum p + c, and e = (p + c) - s its error, which Knuth's TwoSum gives exactly
(all values are multiples of 2^-298, so nothing underflows, and nothing overflows). If e ≠ 0, the exact sum lies
strictly between s and its neighbour in e's direction; of these two one has an odd last bit, and taking it is "rounding
to odd". A value rounded to odd at 53 bits and then to nearest even at 24 or fewer bits is what rounding the exact value
once gives, since 53 ≥ 24 + 2 (Boldo and Melquiond, 2008). An exact zero takes the sign that p + c gives, as in a
fused operation, because p is exact and never an underflowed zero.
"""

from __future__ import annotations

import numpy as np

F32 = np.float32
F64 = np.float64
HALF_NAN = np.uint16(0x7FFF)
SQRT_HALF = np.uint32(0x3F3504F3).view(F32)


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a·b + c rounded once, elementwise, in float32 (broadcasting); NaN and infinities as IEEE 754 says."""
    with np.errstate(all="ignore"):
        product = a.astype(F64) * b.astype(F64)
        addend = c.astype(F64)
        total = np.asarray(product + addend)
        virtual = total - product
        error = (product - (total - virtual)) + (addend - virtual)
        # Few sums are inexact in binary64, so only they pay for the step to the odd neighbour.
        step = (error != 0) & np.isfinite(total) & ((total.view(np.int64) & 1) == 0)
        total[step] = np.nextafter(total[step], np.where(np.asarray(error)[step] > 0, np.inf, -np.inf))
        return total.astype(F32)


def to_half(value: np.ndarray) -> np.ndarray:
    """float32 → float16, to nearest even, overflow to infinity; every NaN becomes 0x7FFF."""
    with np.errstate(all="ignore"):
        half = np.asarray(value, dtype=F32).astype(np.float16)
    bits = half.view(np.uint16).copy()
    bits[np.isnan(half)] = HALF_NAN
    return bits.view(np.float16)


def power_of_two_root(size: int) -> np.float32:
    """1/√size of a power of two, rounded to float32: 2^-k, or 2^-k times 0x3F3504F3 for odd powers."""
    log2 = size.bit_length() - 1
    return F32(2.0 ** -(log2 // 2)) * (SQRT_HALF if log2 % 2 else F32(1))
