"""The rounding helpers against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glqprof_kernels.glq.exact.rounding import fma32, power_of_two_root, to_half
from glqprof_kernels.glq.exact.stated_exp import stated_exp

F32 = np.float32
patterns = st.integers(0, 2**32 - 1)
mantissas = st.integers(0, 2**24 - 1)


def from_bits(bits: int) -> np.float32:
    return np.uint32(bits).view(F32)


def rounded(value: Fraction, zero_sign: float) -> np.float32:
    """Nearest float32 to an exact value, ties to even, by integer arithmetic only."""
    if value == 0:
        return F32(np.copysign(0.0, zero_sign))
    sign, magnitude = (-1 if value < 0 else 1), abs(value)
    exponent = -149
    while magnitude >= Fraction(2) ** (exponent + 24):
        exponent += 1
    unit = Fraction(2) ** exponent
    whole = magnitude / unit
    mantissa = whole.numerator // whole.denominator
    rest = whole - mantissa
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and mantissa % 2):
        mantissa += 1
    result = mantissa * unit
    if result >= Fraction(2) ** 128:
        return F32(sign * np.inf)
    return F32(sign * float(result)) if result else F32(np.copysign(0.0, sign))


def oracle(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
        with np.errstate(all="ignore"):
            return F32(np.float64(a) * np.float64(b) + np.float64(c))
    product = Fraction(float(a)) * Fraction(float(b))
    product_sign = np.copysign(1.0, float(a)) * np.copysign(1.0, float(b))
    c_sign = np.copysign(1.0, float(c))
    # An exact zero is -0 only when both addends are zeros of negative sign.
    zero_sign = -1.0 if product == 0 and c == 0 and product_sign < 0 and c_sign < 0 else 1.0
    return rounded(product + Fraction(float(c)), zero_sign)


def same(x: np.float32, y: np.float32) -> bool:
    return bool(np.isnan(x) and np.isnan(y)) or x.view(np.uint32) == y.view(np.uint32)


@given(patterns, patterns, patterns)
@example(0x3F800001, 0x3F800001, 0x80000000)  # a product of 48 bits
@example(0x00000001, 0x3F000000, 0x00000001)  # half the least denormal, on top of an odd one
@example(0x7F7FFFFF, 0x3F800000, 0x73000000)  # the tie that overflows
@example(0x80000000, 0x3F800000, 0x80000000)  # -0 + -0
@example(0x80000000, 0x3F800000, 0x00000000)  # -0 + +0
@example(0x7F800000, 0x00000000, 0x3F800000)  # inf * 0
@example(0x7F800000, 0x3F800000, 0xFF800000)  # inf - inf
@settings(max_examples=800, deadline=None)
def test_fma_any_bits(a: int, b: int, c: int) -> None:
    x, y, z = from_bits(a), from_bits(b), from_bits(c)
    assert same(fma32(np.array([x]), np.array([y]), np.array([z]))[0], oracle(x, y, z))


@given(mantissas, mantissas, st.integers(-40, 40), mantissas, st.booleans())
@settings(max_examples=800, deadline=None)
def test_fma_near_ties(a: int, b: int, shift: int, c: int, negative: bool) -> None:
    """Addends of comparable size: where rounding twice would go wrong."""
    x, y = F32(a) * F32(2.0**-12), F32(b) * F32(2.0**-12)
    z = F32(c) * F32(2.0**shift) * F32(-1 if negative else 1)
    assert same(fma32(np.array([x]), np.array([y]), np.array([z]))[0], oracle(x, y, z))


def test_rounding_twice_would_fail_here() -> None:
    """The sum lies 2^-60 below a tie of binary32, which binary64 cannot see: it would round onto the tie, then up."""
    a, b, c = F32(2**-24 * (1 + 2**-18)), F32(1 - 2**-18), F32(1 + 2**-23)
    naive = F32(np.float64(a) * np.float64(b) + np.float64(c))
    assert naive == F32(1 + 2**-22)
    assert oracle(a, b, c) == c
    assert fma32(np.array([a]), np.array([b]), np.array([c]))[0] == c


@given(patterns)
@example(0x7FC00001)
@example(0xFFFFFFFF)
@example(0x33000000)  # half the least fp16 denormal: a tie, to zero
@example(0x33000001)
@example(0x477FEFFF)  # just below the overflow of fp16
@example(0x477FF000)
@settings(max_examples=500, deadline=None)
def test_to_half(bits: int) -> None:
    value = from_bits(bits)
    half = to_half(np.array([value]))[0]
    if np.isnan(value):
        assert half.view(np.uint16) == 0x7FFF
        return
    assert np.signbit(half) == np.signbit(value)
    if np.isinf(value) or abs(float(value)) >= 65520:
        assert np.isinf(half)
        return
    exact = Fraction(float(value))
    neighbours = [np.uint16(int(half.view(np.uint16) & 0x7FFF) + step) for step in (-1, 1) if half or step == 1]
    distance = abs(abs(exact) - Fraction(float(abs(half))))
    for neighbour in neighbours:
        other = neighbour.view(np.float16)
        if np.isinf(other):
            continue
        gap = abs(abs(exact) - Fraction(float(other)))
        assert distance < gap or (distance == gap and half.view(np.uint16) % 2 == 0)


def test_block_scales() -> None:
    assert power_of_two_root(1) == 1
    assert power_of_two_root(64) == F32(0.125)
    assert power_of_two_root(2).view(np.uint32) == 0x3F3504F3
    for k in range(13):
        assert power_of_two_root(1 << k) == F32(1 / np.sqrt(np.float64(1 << k)))


def test_stated_exp_accuracy_and_ends() -> None:
    t = np.linspace(-87, 88.7, 200_001, dtype=F32)
    want = np.exp(t.astype(np.float64))
    assert (np.abs(stated_exp(t) / want - 1)).max() < 2.5e-7
    ends = stated_exp(np.array([np.inf, -np.inf, 90, -105, 0, np.nan], dtype=F32))
    assert ends[:5].tolist() == [np.inf, 0, np.inf, 0, 1]
    assert np.isnan(ends[5])
    denormal = stated_exp(np.array([-95], dtype=F32))[0]
    assert 0 < denormal < np.finfo(F32).tiny
    assert denormal == pytest.approx(np.exp(-95.0), rel=1e-3)
