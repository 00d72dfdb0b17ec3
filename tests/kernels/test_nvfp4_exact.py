"""The exact implementation against rational arithmetic, values worked out by hand, and float64."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glqprof.bench.registry import LaunchLog
from glqprof_kernels.nvfp4 import factory, reference
from glqprof_kernels.nvfp4.codes import e2m1_value, e4m3_value, pack
from glqprof_kernels.nvfp4.exact import moe as exact
from glqprof_kernels.nvfp4.exact import product
from glqprof_kernels.nvfp4.exact.arithmetic import from_bf16, sum_once, to_bf16
from glqprof_kernels.nvfp4.quantise import decode
from glqprof_kernels.nvfp4.weights import ExpertMatrix, LayerWeights

F32 = np.float32
INF, NAN = float("inf"), float("nan")


def round_to(value: Fraction, bits: int, lowest: int, highest: int) -> Fraction | float:
    """The nearest number of ``bits`` significant bits, ties to even; multiples of 2^lowest; inf from 2^highest on."""
    if value == 0:
        return Fraction(0)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    step = Fraction(2) ** max(exponent - bits + 1, lowest)
    rounded = round(value / step) * step  # Python rounds fractions half to even
    return rounded if abs(rounded) < Fraction(2) ** highest else math.copysign(INF, value)


def round32(value: Fraction) -> Fraction | float:
    return round_to(value, 24, -149, 128)


def round_bf16(value: Fraction) -> Fraction | float:
    return round_to(value, 8, -133, 128)


def chain(x: list[float], code: list[int], scales: list[int], scale: float) -> Fraction:
    """One output by the contract, in rational arithmetic."""
    acc = Fraction(0)
    for block, byte in enumerate(scales):
        part = range(16 * block, 16 * block + 16)
        p = round32(sum((Fraction(x[k]) * Fraction(e2m1_value(code[k])) for k in part), Fraction(0)))
        acc = round32(p * Fraction(e4m3_value(byte)) + acc)
    return round32(acc * Fraction(scale))


def test_one_product_of_16_rows_by_32_inputs() -> None:
    """A whole unit's worth, each output by fractions."""
    rng = np.random.default_rng(4)
    rows, n, k = 16, 32, 32
    code = rng.integers(0, 16, (1, n, k)).astype(np.uint8)
    scales = rng.integers(1, 0x7F, (1, n, k // 16)).astype(np.uint8)
    scale = F32(0.0123)
    x = from_bf16(to_bf16(rng.normal(size=(rows, k)) * 2.0 ** rng.integers(-12, 12, (rows, k))))
    packed = pack(torch.from_numpy(code)).numpy()
    got = product.linear(product.HostMatrix(packed, scales, np.array([scale])), 0, x)
    for r in range(rows):
        for c in range(n):
            want = chain(x[r].tolist(), code[0, c].tolist(), scales[0, c].tolist(), float(scale))
            assert got[r, c] == want, (r, c)


def test_an_output_worked_out_by_hand() -> None:
    """Two blocks in which every rounding shows.

    Block 0: 2^24 · 1 + 1 · 1 = 16777217, halfway, to even: p = 16777216; times 1.125 (0x39): acc = 18874368, exact.
    Block 1: 3 · 1.5 = 4.5; times 0.375 (0x2C): 1.6875; acc = 18874369.6875 with steps of 2: 18874370. Times 0.5.
    """
    code = np.zeros((1, 32, 32), dtype=np.uint8)
    code[0, 0, [0, 1]] = 2  # 1.0
    code[0, 0, 16] = 3  # 1.5
    scales = np.zeros((1, 32, 2), dtype=np.uint8)
    scales[0, 0] = [0x39, 0x2C]
    assert [e4m3_value(int(b)) for b in scales[0, 0]] == [1.125, 0.375]
    x = np.zeros((1, 32), dtype=F32)
    x[0, [0, 1, 16]] = [2.0**24, 1, 3]
    matrix = product.HostMatrix(pack(torch.from_numpy(code)).numpy(), scales, np.array([0.5], dtype=F32))
    assert product.linear(matrix, 0, x)[0, 0] == 18874370 / 2


def test_a_multiply_then_add_would_be_caught() -> None:
    """p · s alone needs 28 bits; rounded before the addition, the last bit is lost: the fused step keeps it."""
    p, s, acc = 2.0**23 + 1, 1.125, -(2.0**23) * 1.125
    assert F32(F32(p) * F32(s)) + F32(acc) != F32(p * s + acc)
    code = np.zeros((1, 32, 32), dtype=np.uint8)
    code[0, 0, [0, 16, 17]] = 2
    scales = np.full((1, 32, 2), 0x39, dtype=np.uint8)
    x = np.zeros((1, 32), dtype=F32)
    x[0, [0, 16, 17]] = [-(2.0**23), 2.0**23, 1]
    matrix = product.HostMatrix(pack(torch.from_numpy(code)).numpy(), scales, np.ones(1, dtype=F32))
    assert product.linear(matrix, 0, x)[0, 0] == 1.125


bf16_values = st.builds(
    lambda sign, mantissa, exponent: sign * mantissa * 2.0**exponent,
    st.sampled_from([-1, 1]),
    st.integers(0, 255),
    st.integers(-133, 119),
)


@given(st.lists(st.tuples(bf16_values, st.integers(0, 15)), min_size=16, max_size=16))
def test_a_sum_of_sixteen_products_is_rounded_once(pairs) -> None:
    """Over the whole range of bf16, where float64 sums are not exact."""
    got = sum_once(np.array([[x * e2m1_value(c) for x, c in pairs]]))[0]
    want = round32(sum((Fraction(x) * Fraction(e2m1_value(c)) for x, c in pairs), Fraction(0)))
    assert got == want
    assert got != 0 or math.copysign(1, got) == 1


def test_a_sum_that_rounding_twice_would_get_wrong() -> None:
    """2^60 + 2^36 + 2^-20: past the midpoint of binary32's step 2^37, but float64 would round the last term away."""
    terms = np.array([[2.0**60, 2.0**36, 2.0**-20, *[0.0] * 13]])
    assert F32(terms.sum()) == 2.0**60
    assert sum_once(terms)[0] == 2.0**60 + 2.0**37


@given(st.floats(width=32))
def test_bf16_rounding(value: float) -> None:
    bits = int(to_bf16(np.array([value]))[0])
    if math.isnan(value):
        assert bits == 0x7FFF
    else:
        want = value if math.isinf(value) else round_bf16(Fraction(value))
        assert from_bf16(np.array([bits], dtype=np.uint16))[0] == want
        assert bool(bits >> 15) == (math.copysign(1, value) < 0)


@given(st.integers(0, 2**32 - 1), st.sampled_from([32, 64, 160]), st.integers(0, 40))
@settings(max_examples=12, deadline=None)
def test_the_stated_bound_holds(seed: int, cols: int, spread: int) -> None:
    """Against exact rational sums, with inputs from alike to 2^±40 apart."""
    rng = np.random.default_rng(seed)
    code = rng.integers(0, 16, (1, 32, cols)).astype(np.uint8)
    scales = rng.integers(0, 0x7F, (1, 32, cols // 16)).astype(np.uint8)
    scale = rng.uniform(1e-5, 2, 1).astype(F32)
    matrix = product.HostMatrix(pack(torch.from_numpy(code)).numpy(), scales, scale)
    x = from_bf16(to_bf16(rng.normal(size=(2, cols)) * 2.0 ** rng.integers(-spread, spread + 1, (2, cols))))
    got, bound = product.linear(matrix, 0, x), product.error_bound(matrix, 0, x)
    worst = Fraction(0)
    for r in range(2):
        for n in range(0, 32, 5):
            want = Fraction(0)
            for k in range(cols):
                weight = Fraction(e2m1_value(code[0, n, k])) * Fraction(e4m3_value(scales[0, n, k // 16]))
                want += Fraction(float(x[r, k])) * weight * Fraction(float(scale[0]))
            gap = abs(Fraction(float(got[r, n])) - want)
            assert gap <= Fraction(float(bound[r, n])) * Fraction(1 + 2**-30)
            worst = max(worst, gap)
    assert worst > 0  # float32 it is


# Epilogues.


def test_relu2_rounds_before_it_squares() -> None:
    """1 + 2^-8 is halfway: 1. 1 + 3·2^-8 is halfway: 1 + 2^-6, squared 1.0314941…, to bf16 1.03125."""
    y = np.array([[1 + 2**-8, 1 + 3 * 2**-8, -3.0, -0.0, 2.0**70, NAN, -INF]], dtype=F32)
    got = exact.epilogue_relu2(y)[0]
    assert got[:5].tolist() == [1.0, 1.03125, 0.0, 0.0, INF]
    assert not np.signbit(got[2:4]).any()
    assert np.isnan(got[5])
    assert got[6] == 0


def test_swiglu_clamps_the_gate_above_and_up_on_both_sides() -> None:
    gate = np.array([20.0, -20.0, 3.0, 3.0, NAN, 1.0, INF], dtype=F32)
    up = np.array([1.0, 1.0, 20.0, -20.0, 1.0, NAN, -INF], dtype=F32)
    got = exact.epilogue_swiglu(np.concatenate([gate, up])[None], F32(10))[0]

    def silu(g: float) -> float:
        return g / (1 + math.exp(-g))

    want = [silu(10), silu(-20), silu(3) * 10, silu(3) * -10, NAN, NAN, silu(10) * -10]
    for value, expected in zip(got.tolist(), want, strict=True):
        assert value == pytest.approx(expected, rel=2**-8, nan_ok=True)
    free = exact.epilogue_swiglu(np.concatenate([gate, up])[None], F32(0))[0]
    assert free[0] == pytest.approx(20, rel=2**-8)
    assert free[3] == pytest.approx(silu(3) * -20, rel=2**-8)
    assert free[6] == -INF


def test_the_other_epilogues() -> None:
    y = np.array([[1 + 2**-8, NAN, -0.0]], dtype=F32)
    y[0, 1] = np.array([0xFFC12345], dtype=np.uint32).view(F32)[0]
    assert exact.epilogue_f32(y).view(np.uint32).tolist() == [[0x3F808000, 0x7FFFFFFF, 0x80000000]]
    assert to_bf16(exact.epilogue_bf16(y)).tolist() == [[0x3F80, 0x7FFF, 0x8000]]


def test_the_weighted_sum_keeps_the_order_of_the_slots() -> None:
    """1e8·1 + 1·1 - 1e8·1: in order 0; the other way round 1. Each step is rounded to binary32."""
    outputs = np.array([[[1e8], [1.0], [-1e8]], [[1e8], [-1e8], [1.0]]], dtype=F32)
    ones = np.ones((2, 3), dtype=F32)
    assert from_bf16(exact.combine(outputs, ones)).tolist() == [[0.0], [1.0]]


def test_a_slot_of_weight_zero_is_skipped_and_a_nan_weight_is_not() -> None:
    outputs = np.array([[[NAN, INF, -1.0], [2.0, 3.0, 4.0]]], dtype=F32)
    assert from_bf16(exact.combine(outputs, np.array([[-0.0, 1.0]], dtype=F32))).tolist() == [[2.0, 3.0, 4.0]]
    assert exact.combine(outputs, np.array([[1.0, NAN]], dtype=F32)).tolist() == [[0x7FFF] * 3]
    assert exact.combine(outputs, np.zeros((1, 2), dtype=F32)).tolist() == [[0, 0, 0]]


# The whole operation.


def layer(activation: str = "swiglu", limit: float = 0.0, seed: int = 0) -> LayerWeights:
    return factory.layer(96, 64, 5, activation, limit, seed, "cpu")


def inputs(rows: int, top_k: int = 2, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = to_bf16(rng.normal(size=(rows, 96)))
    ids = np.stack([rng.permutation(5)[:top_k] for _ in range(rows)])
    return x, ids, rng.uniform(0.1, 1, (rows, top_k)).astype(F32)


@pytest.mark.parametrize(("activation", "limit"), [("swiglu", 0.0), ("swiglu", 0.7), ("relu2", 0.0)])
def test_near_float64(activation, limit) -> None:
    weights = layer(activation, limit)
    x, ids, w = inputs(7)
    got = torch.from_numpy(from_bf16(exact.moe(product.host_layer(weights), x, ids, w))).double()
    x_wide = torch.from_numpy(from_bf16(x))
    want = reference.moe(weights, x_wide, torch.from_numpy(ids), torch.from_numpy(w))
    assert 1e-4 < (got - want).norm() / want.norm() < 6e-3
    # And the reference is what a dense product gives.
    dense = torch.zeros_like(want)
    for t in range(7):
        for k in range(2):
            h = decode(weights.gate_up, ids[t, k]) @ x_wide[t].double()
            if activation == "relu2":
                h = torch.relu(h) ** 2
            else:
                g, u = h[:64], h[64:]
                if limit:
                    g, u = g.clamp(max=weights.limit), u.clamp(-weights.limit, weights.limit)
                h = torch.nn.functional.silu(g) * u
            dense[t] += w[t, k] * (decode(weights.down, ids[t, k]) @ h)
    assert torch.allclose(dense, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ["swiglu", "relu2"])
def test_a_row_does_not_depend_on_the_others(activation) -> None:
    """40 rows on 5 experts fill items; each row alone has the same bytes."""
    host = product.host_layer(layer(activation))
    x, ids, w = inputs(40)
    together = exact.moe(host, x, ids, w)
    for t in range(0, 40, 7):
        assert (exact.moe(host, x[t : t + 1], ids[t : t + 1], w[t : t + 1])[0] == together[t]).all()


def test_repeated_ids_count_twice_and_masked_ids_not_at_all() -> None:
    host = product.host_layer(layer())
    x, _, _ = inputs(1)
    w = np.array([[0.5, 0.25]], dtype=F32)
    twice = exact.moe(host, x, np.array([[3, 3]]), w)
    once = exact.moe(host, x, np.array([[3]]), np.array([[0.75]], dtype=F32))
    assert from_bf16(twice) == pytest.approx(from_bf16(once), rel=2**-7, abs=1e-6)
    masked = exact.moe(host, x, np.array([[3, 9]]), w, mask_invalid=True)
    alone = exact.moe(host, x, np.array([[3]]), w[:, :1])
    assert (masked == alone).all()
    with pytest.raises(ValueError, match="ids"):
        exact.moe(host, x, np.array([[3, -1]]), w)


def test_nan_and_infinity_reach_the_output_as_one_nan() -> None:
    host = product.host_layer(layer())
    x, ids, w = inputs(2)
    x[0, 5] = 0x7F80  # infinity: times a zero code it is NaN
    out = exact.moe(host, x, ids, w)
    assert (out[0] == 0x7FFF).all()
    assert (out[1] != 0x7FFF).all()


def test_launches_are_logged() -> None:
    log = LaunchLog()
    exact.moe(product.host_layer(layer()), *inputs(2), log=log)
    assert log.kernels == ["nvfp4_plan_kernel", "nvfp4_gate_up_kernel", "nvfp4_down_kernel", "nvfp4_combine_kernel"]


def test_a_negative_scale_byte_and_a_zero_scale_are_numbers_like_others() -> None:
    code = torch.full((1, 32, 32), 2, dtype=torch.uint8)
    scales = torch.zeros(1, 32, 2, dtype=torch.uint8)
    scales[0, 0, 0] = 0xB8  # -1
    matrix = ExpertMatrix(pack(code), scales, torch.ones(1))
    got = product.linear(product.host_matrix(matrix), 0, np.ones((1, 32), dtype=F32))
    assert got[0, 0] == -16
    assert (got[0, 1:] == 0).all()
