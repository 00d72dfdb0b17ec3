"""Roundings of the exact implementation that GLQ's does not have: sums of 16 rounded once, and bf16.

A float64 sum of sixteen products (each exact: 8 + 2 bits) need not be exact, since x spans binary32's whole range.
Knuth's TwoSum says of every addition whether it was. Where all were, the total is rounded once, to binary32. The rare
rest is summed exactly (``math.fsum``) and rounded to odd at 53 bits first, so that rounding again to 24 bits gives what
rounding the exact sum once would (see ``glq.exact.rounding``).
"""

from __future__ import annotations

import math

import numpy as np

from ...glq.exact.rounding import F32, F64

BF16_NAN = np.uint16(0x7FFF)
F32_NAN = np.uint32(0x7FFFFFFF)


def sum_once(terms: np.ndarray) -> np.ndarray:
    """float32 sums over the last axis of float64 ``terms``, added to +0 and each rounded once, to nearest even.

    Terms are multiples of 2^-1074 below 2^900, as products of bf16 and e2m1 values are. A sum that cancels is +0, and
    so is one of zeros of any sign. Infinities and NaN as IEEE 754 says.
    """
    with np.errstate(all="ignore"):
        total = np.zeros(terms.shape[:-1], dtype=F64)
        exact = np.ones(total.shape, dtype=bool)
        for j in range(terms.shape[-1]):
            term = terms[..., j]
            after = total + term
            virtual = after - total
            exact &= ((total - (after - virtual)) + (term - virtual)) == 0
            total = after
        for index in zip(*np.nonzero(~exact & np.isfinite(total)), strict=True):
            total[index] = odd_sum(terms[index].tolist())
        return total.astype(F32)


def odd_sum(terms: list[float]) -> float:
    """The sum of float64 terms rounded to odd: an inexact one becomes its neighbour whose last bit is odd."""
    nearest = math.fsum(terms)  # the exact sum, rounded once
    gap = math.fsum([*terms, -nearest])  # its sign is exact
    if gap == 0 or int(np.float64(nearest).view(np.int64)) & 1:
        return nearest
    return math.nextafter(nearest, math.inf if gap > 0 else -math.inf)


def to_bf16(value: np.ndarray) -> np.ndarray:
    """float32 → bf16 bits (uint16), to nearest even, overflow to infinity; every NaN becomes 0x7FFF."""
    value = np.asarray(value, dtype=F32)
    bits = value.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(value), BF16_NAN, rounded)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """bf16 bits (uint16) → float32, exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(F32)


def canonical(value: np.ndarray) -> np.ndarray:
    """float32 with every NaN made 0x7FFFFFFF."""
    return np.where(np.isnan(value), F32_NAN, np.asarray(value, dtype=F32).view(np.uint32)).view(F32)
