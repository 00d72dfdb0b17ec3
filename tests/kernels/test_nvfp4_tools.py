"""Against the tools that write the checkpoints, where they are installed (neither is a dependency)."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from glqprof_kernels.checkpoint import Checkpoint
from glqprof_kernels.nvfp4 import factory
from glqprof_kernels.nvfp4.quantise import decode, quantise
from glqprof_kernels.nvfp4.safetensors_loader import COMPRESSED_TENSORS, load_layer, save_layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_modelopt_quantises_to_the_same_bytes(dtype) -> None:
    nvfp4 = pytest.importorskip("modelopt.torch.quantization.qtensor.nvfp4_tensor", reason="nvidia-modelopt is absent")
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.exp2(torch.randint(-6, 3, (64, 1), generator=generator).float())
        weight = torch.randn(64, 96, generator=generator) * rows * 10.0 ** (seed % 9 - 4)
        weight[3, 16:32] = 0
        weight[5, 0] = -0.0
        weight = weight.to(dtype)
        ours = quantise(weight[None])
        codes, scales, scale = nvfp4.NVFP4QTensor.quantize(weight.float(), 16)
        assert torch.equal(codes._quantized_data, ours.codes[0])
        assert torch.equal(scales.view(torch.uint8).reshape(64, 6), ours.scales[0])
        assert scale.item() == ours.scale.item()


def test_compressed_tensors_reads_what_is_written(tmp_path) -> None:
    """In float32 it rounds twice, and the loader's reciprocal once: three times 2^-24."""
    reason = "compressed-tensors is absent"
    helpers = pytest.importorskip("compressed_tensors.compressors.nvfp4.helpers", reason=reason)
    forward = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward", reason=reason)
    schemes = pytest.importorskip("compressed_tensors.quantization.quant_scheme", reason=reason)
    scheme = schemes.preset_name_to_scheme("NVFP4A16", ["Linear"])
    root = "model.layers.0.mlp.experts"
    for seed in range(20):
        save_layer(
            tmp_path / "l.safetensors", factory.layer(96, 64, 3, "swiglu", 0.0, seed, "cpu"), COMPRESSED_TENSORS, root
        )
        stored = load_file(tmp_path / "l.safetensors")
        loaded = load_layer(Checkpoint(tmp_path / "l.safetensors"), 0)
        for e in range(3):
            packed = stored[f"{root}.{e}.down_proj.weight_packed"]
            theirs = forward.dequantize(
                x_q=helpers.unpack_fp4_from_uint8(packed, 96, 64, dtype=torch.float32),
                scale=stored[f"{root}.{e}.down_proj.weight_scale"].float(),
                global_scale=stored[f"{root}.{e}.down_proj.weight_global_scale"],
                dtype=torch.float32,
                args=scheme.weights,
            ).double()
            ours = decode(loaded.down, e)
            assert ((theirs - ours).abs() <= ours.abs() * 3 * 2**-24 * (1 + 1e-6)).all()
