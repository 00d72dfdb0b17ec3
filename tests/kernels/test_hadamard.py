"""The float64 transform: orthonormal, symmetric, block by block; and the exact transforms beside it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glqprof_kernels.glq.exact import v0_2_12, v3a, v3b, v3b_fp32act
from glqprof_kernels.glq.hadamard import blocks_of, transform

EXACT_TRANSFORMS = [v0_2_12._hadamard, v3a._rotate, v3b._transform, v3b_fp32act._fold_blocks]


def test_blocks() -> None:
    assert blocks_of(2688) == [2048, 512, 128]
    assert blocks_of(1856) == [1024, 512, 256, 64]
    assert blocks_of(88) == [64, 16, 8]
    assert blocks_of(1) == [1]
    with pytest.raises(ValueError, match="at least one"):
        blocks_of(0)


def matrix(length: int) -> np.ndarray:
    """H by scipy's definition of the Walsh-Hadamard matrix."""
    blocks = [scipy.linalg.hadamard(b) / np.sqrt(b) for b in blocks_of(length)]
    return scipy.linalg.block_diag(*blocks)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 40, 88, 200, 1856])
def test_equals_the_matrix(length: int) -> None:
    x = torch.from_numpy(np.random.default_rng(length).standard_normal((3, length)))
    assert np.allclose(transform(x).numpy(), x.numpy() @ matrix(length).T, atol=1e-12)


@given(st.integers(1, 3000))
@settings(max_examples=30, deadline=None)
def test_orthonormal(length: int) -> None:
    x = torch.from_numpy(np.random.default_rng(length).standard_normal(length))
    y = transform(x)
    assert torch.allclose(transform(y), x, atol=1e-12)
    assert torch.allclose(y.norm(), x.norm(), rtol=1e-12)


@pytest.mark.parametrize("exact", EXACT_TRANSFORMS)
@pytest.mark.parametrize("length", [1, 2, 7, 40, 88, 1856, 2688])
def test_exact_transforms_round_as_float32_does(exact, length: int) -> None:
    x = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    want = transform(torch.from_numpy(x)).numpy()
    assert np.abs(exact(x) - want).max() <= 2e-6 * np.abs(x).max() * np.sqrt(length)


@given(st.integers(1, 700), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_exact_transforms_agree_to_the_bit(length: int, seed: int) -> None:
    bits = np.random.default_rng(seed).integers(0, 2**16, length, dtype=np.uint16)
    x = bits.view(np.float16).astype(np.float32)  # any fp16 pattern: NaN, infinities, denormals, both zeros
    with np.errstate(all="ignore"):
        results = [exact(x) for exact in EXACT_TRANSFORMS]
    for other in results[1:]:
        same = (results[0].view(np.uint32) == other.view(np.uint32)) | (np.isnan(results[0]) & np.isnan(other))
        assert same.all()
