"""The quantiser against its definition, worked out by hand and in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glqprof_kernels.nvfp4 import codes, factory
from glqprof_kernels.nvfp4.quantise import decode, quantise
from glqprof_kernels.nvfp4.weights import ExpertMatrix


def test_a_matrix_worked_out_by_hand() -> None:
    """The largest weight is 2688 = 6 · 448, so the global scale is 1.

    Block 0 of row 0 holds it: s = 448, and w / 448 is rounded. Block 1 has 12 as its largest: s = 12 / 6 = 2.
    """
    weight = torch.zeros(1, 32, 32)
    weight[0, 0, :5] = torch.tensor([2688.0, -1344.0, 448.0, 100.0, -112.0])
    weight[0, 0, 16:20] = torch.tensor([12.0, 5.0, -1.0, 0.4])
    weight[0, 1, 0] = -0.0
    matrix = quantise(weight)
    assert matrix.scale.tolist() == [1.0]
    assert codes.decode_e4m3(matrix.scales[0, 0]).tolist() == [448.0, 2.0]
    # 2688/448 = 6, -3, 1, 0.22 → 0, -0.25 → -0 (a tie, to even); 12/2 = 6, 2.5 → 2 (tie), -0.5, 0.2 → 0.
    got = decode(matrix, 0)[0]
    assert got[:5].tolist() == [2688.0, -1344.0, 448.0, 0.0, 0.0]
    assert got[16:20].tolist() == [12.0, 4.0, -1.0, 0.0]
    assert codes.unpack(matrix.codes[0, 0])[:5].tolist() == [7, 13, 2, 0, 8]
    assert codes.unpack(matrix.codes[0, 1])[0] == 0  # -0 is code 0
    # Blocks of zeros have scale 1, as in ModelOpt.
    assert (matrix.scales[0, 1:] == 0x38).all()
    assert codes.e4m3_value(0x38) == 1.0


def definition(weight: np.ndarray) -> tuple[np.float32, list[list[float]], list[list[float]]]:
    """Scale, block scales and weights of one expert in scalar float32 arithmetic, straight from the definition."""
    f32 = np.float32
    scale = f32(np.abs(weight).max()) / f32(2688)
    scales, values = [], []
    for row in weight:
        scales.append([])
        values.append([])
        for block in row.reshape(-1, 16):
            amax = f32(np.abs(block).max())
            s = f32(max(amax / (f32(6) * scale), f32(2**-9)) if amax else 1)
            s = float(torch.tensor(min(float(s), 448.0)).to(torch.float8_e4m3fn).float())
            scales[-1].append(s)
            values[-1].extend(float(v / (f32(s) * scale)) for v in block)
    return scale, scales, values


@given(st.integers(0, 2**32 - 1), st.floats(-20, 20))
@settings(max_examples=20, deadline=None)
def test_random_weights_follow_the_definition(seed: int, log_size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(2, 32, 32, generator=generator) * 2.0**log_size
    weight *= torch.exp2(torch.randint(-20, 3, (2, 32, 1), generator=generator).float())
    matrix = quantise(weight)
    for e in range(2):
        scale, scales, values = definition(weight[e].numpy())
        assert matrix.scale[e].item() == scale
        assert codes.decode_e4m3(matrix.scales[e]).tolist() == scales
        want = codes.encode_e2m1(torch.tensor(values, dtype=torch.float32) + 0.0)
        assert torch.equal(codes.unpack(matrix.codes[e]), want)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_quantising_decoded_weights_changes_nothing(seed: int) -> None:
    """A matrix whose every block uses its range is a fixed point: codes, block scales and scale to the bit."""
    generator = torch.Generator().manual_seed(seed)
    code = torch.randint(0, 16, (2, 32, 64), generator=generator).to(torch.uint8)
    code[code == 8] = 0  # a decoded -0 is not a negative weight
    code[..., ::16] = 7  # the largest magnitude in each block
    scales = torch.randint(1, 0x7F, (2, 32, 4), generator=generator).to(torch.uint8)
    scales[:, 0, 0] = 0x7E
    scale = torch.exp2(torch.randint(-20, 20, (2,), generator=generator).float())
    matrix = ExpertMatrix(codes.pack(code), scales, scale)
    again = quantise(torch.stack([decode(matrix, e) for e in range(2)]).float())
    assert torch.equal(again.codes, matrix.codes)
    assert torch.equal(again.scales, matrix.scales)
    assert torch.equal(again.scale, matrix.scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_error_is_within_half_a_step(dtype) -> None:
    """e2m1's widest gap is 4 to 6, so an unclipped weight is off by at most its scale; s itself is off by 1/16."""
    weight = torch.randn(3, 64, 96, generator=torch.Generator().manual_seed(5)).to(dtype)
    matrix = quantise(weight)
    blocks = weight.double().unflatten(-1, (-1, 16))
    step = codes.decode_e4m3(matrix.scales).double() * matrix.scale.double()[:, None, None]
    got = torch.stack([decode(matrix, e) for e in range(3)]).unflatten(-1, (-1, 16))
    assert ((got - blocks).abs() <= step[..., None] * 1.0 + 1e-12).all()
    assert (got - blocks).norm() / blocks.norm() < 0.12


def test_extremes() -> None:
    zero = quantise(torch.zeros(1, 32, 32))
    assert (decode(zero, 0) == 0).all()
    huge = quantise(torch.full((1, 32, 32), torch.finfo(torch.float32).max))
    assert torch.isfinite(decode(huge, 0)).all()
    assert decode(huge, 0)[0, 0].item() == pytest.approx(torch.finfo(torch.float32).max, rel=1e-6)
    tiny = quantise(torch.full((1, 32, 32), 1e-44))
    assert torch.isfinite(tiny.scale).all()
    assert tiny.scale.item() > 0


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.zeros(32, 32), "takes floats \\[E, N, K\\]"),
        (torch.zeros(1, 32, 32, dtype=torch.float64), "takes floats"),
        (torch.zeros(1, 32, 40), "40 columns are not a multiple of 16"),
        (torch.zeros(1, 32, 48), "48 columns \\(K, inputs\\) are not a multiple of 32"),
        (torch.zeros(1, 40, 32), "40 rows \\(N, outputs\\) are not a multiple of 32"),
        (torch.full((1, 32, 32), float("inf")), "NaN or infinity"),
    ],
)
def test_what_cannot_be_quantised_is_refused(weight, message) -> None:
    with pytest.raises(ValueError, match=message):
        quantise(weight)


def test_random_weights_of_the_bench_keep_the_size_of_their_inputs() -> None:
    generator = torch.Generator().manual_seed(1)
    matrix = factory.matrix(4, 128, 256, generator, "cpu", "m")
    x = torch.randn(256, 200, generator=generator, dtype=torch.float64)
    for e in range(4):
        assert 0.6 < (decode(matrix, e) @ x).std() < 1.4
    matrix = ExpertMatrix(matrix.codes, matrix.scales, matrix.scale)  # the checks that the factory skips
    assert len(torch.unique(matrix.scale)) == 4
