from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glqprof.bench.calls import OTHER_POISON, POISON, digest, poison
from glqprof.bench.identity import Difference, difference, differs, errors, holds, same_bits, total


def half(*bits: int) -> torch.Tensor:
    return torch.tensor([bit - 0x10000 if bit > 0x7FFF else bit for bit in bits], dtype=torch.int16).view(torch.float16)


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=40), st.data())
def test_elements_differ_exactly_where_their_bytes_do(bits, data):
    other = [data.draw(st.sampled_from([bit, bit ^ 1, bit ^ 0x8000])) for bit in bits]
    found = differs(half(*bits), half(*other)).tolist()
    assert found == [a != b for a, b in zip(bits, other, strict=True)]


def test_nan_payloads_and_signs_of_zero_count():
    assert same_bits(half(0x7FFF), half(0x7FFF))  # NaN == NaN as bytes
    assert not same_bits(half(0x7FFF), half(0x7E00))
    assert not same_bits(half(0x0000), half(0x8000))


def test_how_far_is_told_among_finite_elements_only():
    base = torch.tensor([1.0, -4.0, float("inf"), 2.0])
    out = torch.tensor([1.5, -4.0, 7.0, float("nan")])
    assert difference(out, base) == Difference(count=3, elements=4, max_abs=0.5, max_rel=0.125)


def test_another_shape_or_type_cannot_be_the_same():
    with pytest.raises(ValueError, match="cannot have the bytes"):
        differs(torch.zeros(3), torch.zeros(3, dtype=torch.float16))
    with pytest.raises(ValueError, match="cannot have the bytes"):
        differs(torch.zeros(3), torch.zeros(4))


def test_the_worst_batch_is_named():
    found = total(
        [("a", Difference(1, 10, 0.1, 0.2)), ("b", Difference(3, 10, 0.05, 0.3)), ("c", Difference(0, 20, 0, 0))]
    )
    assert (found.count, found.elements, found.share, found.batch) == (4, 40, 0.1, "b")
    assert (found.max_abs, found.max_rel) == (0.1, 0.3)


def test_one_wrong_layer_cannot_hide_among_right_ones():
    reference = torch.ones(100, 1, 8, dtype=torch.float64)
    out = reference.float()
    out[57] = 2.0
    assert errors(out, reference) == (1.0, 1.0)


def test_infinity_on_one_side_only_is_infinitely_wrong():
    reference = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    assert errors(torch.tensor([[1.0, float("inf")]]), reference) == (float("inf"), float("inf"))
    both = torch.tensor([[1.0, float("inf")]])
    assert errors(both, both.double()) == (0.0, 0.0)


def test_an_all_zero_layer_is_exact_when_it_is_zero():
    zeros = torch.zeros(1, 4)
    assert errors(zeros, zeros.double()) == (0.0, 0.0)
    assert errors(zeros + 1, zeros.double())[1] == float("inf")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_poison_fills_every_byte_and_is_found_again(dtype):
    out = torch.zeros(3, 5, dtype=dtype)
    poison(out)
    assert bool(holds(out).all())
    assert not bool(holds(out, OTHER_POISON).any())
    out[1, 2] = 1.0
    assert int(holds(out, POISON).sum()) == 14


def test_poison_refuses_what_it_cannot_fill():
    with pytest.raises(ValueError, match="contiguous"):
        poison(torch.zeros(4, 4).t())


def test_the_digest_follows_logical_order_and_every_bit():
    wide = torch.arange(8, dtype=torch.float16)
    assert digest(wide[::2]) == digest(wide[::2].clone())
    changed = wide.clone()
    changed.view(torch.int16)[3] ^= 1
    assert digest(changed) != digest(wide)
