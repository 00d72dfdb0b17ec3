"""What an expert matrix and a layer refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from glqprof_kernels.nvfp4.weights import ExpertMatrix, LayerWeights


def matrix(experts: int = 2, rows: int = 64, cols: int = 32) -> ExpertMatrix:
    return ExpertMatrix(
        torch.zeros(experts, rows, cols // 2, dtype=torch.uint8),
        torch.zeros(experts, rows, cols // 16, dtype=torch.uint8),
        torch.ones(experts),
    )


def test_sizes() -> None:
    found = matrix(3, 64, 96)
    assert (found.experts, found.rows, found.cols) == (3, 64, 96)
    assert found.bytes_per_expert == 64 * 96 * 9 // 16 + 4
    layer = LayerWeights(matrix(2, 128, 96), matrix(2, 96, 64), "swiglu", 10.0)
    assert (layer.hidden, layer.inter, layer.experts) == (96, 64, 2)
    assert LayerWeights(matrix(2, 64, 96), matrix(2, 96, 64), "relu2").limit == 0


def test_strided_tensors_become_contiguous() -> None:
    base = matrix(2, 64, 64)
    codes = torch.randint(0, 256, (2, 32, 64), dtype=torch.uint8).transpose(1, 2)
    found = replace(base, codes=codes)
    assert found.codes.is_contiguous()
    assert torch.equal(found.codes, codes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codes": torch.zeros(2, 64, 16, dtype=torch.int8)}, "codes is torch.int8"),
        ({"codes": torch.zeros(64, 16, dtype=torch.uint8)}, "must be torch.uint8 of 3 dimensions"),
        ({"scales": torch.zeros(2, 64, 2).to(torch.float8_e4m3fn)}, "scales is torch.float8_e4m3fn"),
        ({"scales": torch.zeros(2, 64, 4, dtype=torch.uint8)}, r"scales have shape \[2, 64, 4\]; these codes need"),
        ({"scale": torch.ones(2, dtype=torch.float64)}, "scale is torch.float64"),
        ({"scale": torch.ones(3)}, r"scale has shape \[3\]; it must be \[2\]"),
        ({"scale": torch.tensor([1.0, float("nan")])}, r"scale\[1\] is nan"),
        ({"codes": torch.zeros(2, 48, 16, dtype=torch.uint8)}, r"48 rows \(N, outputs\) are not a multiple of 32"),
        ({"codes": torch.zeros(2, 64, 24, dtype=torch.uint8)}, r"48 columns \(K, inputs\) are not a multiple of 32"),
        ({"codes": torch.zeros(0, 64, 16, dtype=torch.uint8)}, "hold no weight"),
        ({"codes": torch.zeros(2, 64, 16, dtype=torch.uint8, device="meta")}, "all must be on one device"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        replace(matrix(), **changes)


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_a_nan_scale_is_named(byte) -> None:
    scales = matrix().scales.clone()
    scales[1, 5, 1] = byte
    with pytest.raises(ValueError, match=rf"scales\[1, 5, 1\] is 0x{byte:02X}, the e4m3 NaN"):
        replace(matrix(), scales=scales)


@pytest.mark.parametrize(
    ("gate_up", "down", "activation", "limit", "message"),
    [
        (matrix(), matrix(2, 32, 64), "silu", 0.0, "activation is 'silu'"),
        (matrix(), matrix(2, 32, 64), "relu2", 10.0, "only swiglu is clamped"),
        (matrix(), matrix(2, 32, 32), "swiglu", -1.0, "limit is -1.0"),
        (matrix(), matrix(2, 32, 32), "swiglu", float("nan"), "limit is nan"),
        (matrix(3), matrix(2, 32, 64), "relu2", 0.0, "gate_up has 3 experts, down 2"),
        (matrix(), matrix(2, 64, 64), "relu2", 0.0, "gate_up reads 32 values but down writes 64"),
        (matrix(), matrix(2, 32, 64), "swiglu", 0.0, "with swiglu it must be 128"),
        (matrix(), matrix(2, 32, 32), "relu2", 0.0, "with relu2 it must be 32"),
    ],
)
def test_layers_that_do_not_fit_are_refused(gate_up, down, activation, limit, message) -> None:
    with pytest.raises(ValueError, match=message):
        LayerWeights(gate_up, down, activation, limit)
