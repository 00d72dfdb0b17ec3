"""e2m1 and e4m3 against their definitions: every code, every byte, and rounding against rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glqprof_kernels.nvfp4 import codes

# OCP Microscaling Formats 1.0, table of FP4 E2M1.
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_all_sixteen_codes() -> None:
    assert codes.e2m1_table().tolist() == [*E2M1, *(-v for v in E2M1)]
    assert math.copysign(1, codes.e2m1_table()[8].item()) == -1
    assert codes.encode_e2m1(codes.e2m1_table()).tolist() == list(range(16))


def test_all_256_scale_bytes() -> None:
    """torch's own conversion of float8_e4m3fn is the independent table."""
    byte = torch.arange(256).to(torch.uint8)
    want = byte.view(torch.float8_e4m3fn).float()
    table = codes.e4m3_table()
    assert torch.equal(torch.isnan(table).nonzero().flatten(), torch.tensor([0x7F, 0xFF]))
    good = ~torch.isnan(want)
    assert torch.equal(table[good].view(torch.int32), want[good].view(torch.int32))
    assert torch.equal(codes.decode_e4m3(byte)[good], want[good])
    assert torch.equal(codes.encode_e4m3(table[good]), byte[good])
    assert table[0x7E] == codes.E4M3_MAX == 448
    assert table[0x01] == codes.E4M3_MIN == 2**-9
    assert table[0x08] == 2**-6  # the smallest normal number


def nearest(value: Fraction, positive: list[Fraction]) -> int:
    """The code of the nearest of ascending values, of two equally near ones the even code."""
    gaps = [abs(abs(value) - candidate) for candidate in positive]
    best = [code for code, gap in enumerate(gaps) if gap == min(gaps)]
    return best[0] if len(best) == 1 else next(code for code in best if code % 2 == 0)


@given(st.floats(width=32, allow_nan=False))
def test_rounding_is_to_nearest_even(value: float) -> None:
    positive = [Fraction(v) for v in E2M1]
    wide = [Fraction(codes.e4m3_value(b)) for b in range(0x7F)]
    sign = math.copysign(1, value) < 0
    # Beyond the largest value everything is the largest.
    small = Fraction(min(abs(value), 6.0)), Fraction(min(abs(value), 448.0))
    assert codes.encode_e2m1(torch.tensor([value])).item() == nearest(small[0], positive) + 8 * sign
    assert codes.encode_e4m3(torch.tensor([value])).item() == nearest(small[1], wide) + 128 * sign


def test_ties_of_e2m1() -> None:
    """Halfway values go to the even code: 0.25 to 0, 0.75 to 1, 1.25 to 1, 1.75 to 2, 2.5 to 2, 3.5 to 4, 5 to 4."""
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    want = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0])
    for sign in (1, -1):
        assert torch.equal(codes.decode_e2m1(codes.encode_e2m1(sign * ties)), sign * want)
    above = torch.nextafter(ties, torch.tensor(9.0))
    assert codes.decode_e2m1(codes.encode_e2m1(above)).tolist() == [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_e4m3_agrees_with_torch_inside_the_range() -> None:
    generator = torch.Generator().manual_seed(3)
    value = torch.randn(20_000, generator=generator) * torch.logspace(-4, 2.3, 20_000)
    value = value[value.abs() <= 448]
    assert torch.equal(codes.encode_e4m3(value), value.to(torch.float8_e4m3fn).view(torch.uint8))


@given(st.lists(st.integers(0, 15), min_size=1, max_size=40))
def test_packing_is_a_round_trip_with_the_lower_column_in_the_low_nibble(values: list[int]) -> None:
    code = torch.tensor([*values, *reversed(values)], dtype=torch.uint8)
    packed = codes.pack(code)
    assert packed[0].item() == code[0].item() + 16 * code[1].item()
    assert torch.equal(codes.unpack(packed), code)


def test_every_byte_unpacks_and_packs_to_itself() -> None:
    byte = torch.arange(256).to(torch.uint8)
    assert torch.equal(codes.pack(codes.unpack(byte)), byte)


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN cannot be quantised to e2m1"):
        codes.encode_e2m1(torch.tensor([1.0, float("nan")]))
    with pytest.raises(ValueError, match="NaN cannot be quantised to e4m3"):
        codes.encode_e4m3(torch.tensor([float("nan")]))
    with pytest.raises(ValueError, match="3 codes do not fill bytes"):
        codes.pack(torch.zeros(3, dtype=torch.uint8))
