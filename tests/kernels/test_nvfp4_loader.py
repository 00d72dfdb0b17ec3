"""NVFP4 layers from safetensors files that the tests write, in the layouts of both tools."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from glqprof_kernels.checkpoint import Checkpoint
from glqprof_kernels.nvfp4 import factory
from glqprof_kernels.nvfp4.quantise import decode, quantise
from glqprof_kernels.nvfp4.safetensors_loader import (
    COMPRESSED_TENSORS,
    MODELOPT,
    Names,
    layer_tensors,
    load_layer,
    save_layer,
)
from glqprof_kernels.nvfp4.weights import LayerWeights

ROOT = "model.layers.3.mlp.experts"


def layer(activation: str = "swiglu") -> LayerWeights:
    return factory.layer(64, 32, 3, activation, 0.0, 8, "cpu")


def same(a: LayerWeights, b: LayerWeights) -> bool:
    return all(
        torch.equal(getattr(getattr(a, which), field), getattr(getattr(b, which), field))
        for which in ("gate_up", "down")
        for field in ("codes", "scales", "scale")
    )


def load(tmp_path, tensors, **options) -> LayerWeights:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    return load_layer(Checkpoint(tmp_path / "model.safetensors"), 3, **options)


@pytest.mark.parametrize("activation", ["swiglu", "relu2"])
def test_modelopt_round_trip(tmp_path, activation) -> None:
    original = layer(activation)
    save_layer(tmp_path / "m.safetensors", original, MODELOPT, ROOT)
    names = load_file(tmp_path / "m.safetensors")
    assert names[f"{ROOT}.2.down_proj.weight"].shape == (64, 16)
    assert names[f"{ROOT}.2.down_proj.weight_scale"].dtype == torch.float8_e4m3fn
    assert names[f"{ROOT}.2.down_proj.weight_scale_2"].shape == ()
    loaded = load_layer(Checkpoint(tmp_path / "m.safetensors"), 3)
    assert loaded.activation == activation
    assert same(original, loaded)


def test_the_global_scales_are_each_others_reciprocal(tmp_path) -> None:
    """One weight of code 1.0 and block scale 2, global scale 0.25: ModelOpt stores 0.25, compressed-tensors 4."""
    original = layer("relu2")
    for matrix in (original.gate_up, original.down):
        matrix.codes.fill_(0x22)
        matrix.scales.fill_(0x40)
        matrix.scale.fill_(0.25)
    modelopt = layer_tensors(original, MODELOPT, ROOT)
    compressed = layer_tensors(original, COMPRESSED_TENSORS, ROOT)
    assert modelopt[f"{ROOT}.0.up_proj.weight_scale_2"].item() == 0.25
    assert compressed[f"{ROOT}.0.up_proj.weight_global_scale"].tolist() == [4.0]
    for tensors in (modelopt, compressed):
        loaded = load(tmp_path, tensors)
        assert (decode(loaded.gate_up, 1) == 0.5).all()
        assert (decode(loaded.down, 2) == 0.5).all()


def test_a_reciprocal_of_a_reciprocal_is_stable() -> None:
    """Every mantissa: the loaded scale survives writing and loading, the stored one need not."""
    stored = torch.arange(0x3F800000, 0x40000000, dtype=torch.int32).view(torch.float32)
    loaded = 1 / stored
    assert torch.equal(1 / (1 / loaded), loaded)
    assert not torch.equal(1 / loaded, stored)


def test_compressed_tensors_round_trip(tmp_path) -> None:
    """Codes and block scales to the bit; the scale to the bit from the second time on, since 1/(1/s) need not be s."""
    original = layer()
    first = load(tmp_path, layer_tensors(original, COMPRESSED_TENSORS, ROOT))
    assert torch.equal(first.gate_up.codes, original.gate_up.codes)
    assert torch.equal(first.gate_up.scales, original.gate_up.scales)
    assert torch.allclose(first.gate_up.scale, original.gate_up.scale, rtol=2**-23, atol=0)
    for number in range(200):  # global scales as a tool would store them, of any size
        stored = torch.rand(3, generator=torch.Generator().manual_seed(number)) * 10.0 ** (number % 9 - 4)
        first.down.scale.copy_(1 / stored)
        first.gate_up.scale.copy_(1 / stored.flip(0))
        again = layer_tensors(first, COMPRESSED_TENSORS, ROOT)
        written = torch.cat([again[f"{ROOT}.{e}.down_proj.weight_global_scale"] for e in range(3)])
        assert torch.equal(1 / written, 1 / stored)
    assert same(first, load(tmp_path, layer_tensors(first, COMPRESSED_TENSORS, ROOT)))


@pytest.mark.parametrize(
    "root", ["backbone.layers.3.mixer.experts", "model.language_model.layers.3.mlp.experts", "layers.3.experts"]
)
def test_the_experts_are_found(tmp_path, root) -> None:
    original = layer("relu2")
    tensors = layer_tensors(original, MODELOPT, root)
    tensors |= {"model.layers.3.mlp.shared_experts.up_proj.weight": torch.zeros(4)}
    tensors |= layer_tensors(layer("relu2"), MODELOPT, root.replace("3", "13"))
    tensors |= {f"{root}.{e}.up_proj.input_scale": torch.ones(()) for e in range(3)}
    assert same(original, load(tmp_path, tensors))


def test_names_of_another_convention(tmp_path) -> None:
    names = Names(experts="blocks.{layer}.moe", gate="w1", up="w3", down="w2")
    original = layer()
    tensors = layer_tensors(original, MODELOPT, "blocks.3.moe", names)
    assert "blocks.3.moe.0.w3.weight" in tensors
    loaded = load(tmp_path, tensors, names=names, limit=10.0)
    assert same(original, loaded)
    assert loaded.limit == 10


def test_a_sharded_folder(tmp_path) -> None:
    original = layer()
    tensors = layer_tensors(original, MODELOPT, ROOT)
    shards = {"a.safetensors": {}, "b.safetensors": {}}
    for index, (name, tensor) in enumerate(tensors.items()):
        shards["ab"[index % 2] + ".safetensors"][name] = tensor
    for file, part in shards.items():
        save_file(part, tmp_path / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert same(original, load_layer(Checkpoint(tmp_path), 3))
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="is no safetensors index"):
        Checkpoint(tmp_path)


def fused(original: LayerWeights, transpose: bool, one_scale: bool) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, matrix in (("gate_up_proj", original.gate_up), ("down_proj", original.down)):
        codes, scales = matrix.codes, matrix.scales
        if transpose:
            codes, scales = codes.transpose(1, 2), scales.transpose(1, 2)
        tensors[f"{ROOT}.{name}"] = codes
        tensors[f"{ROOT}.{name}_weight_scale"] = scales.contiguous().view(torch.float8_e4m3fn)
        tensors[f"{ROOT}.{name}_weight_scale_2"] = matrix.scale[0].clone() if one_scale else matrix.scale
    return tensors


@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("one_scale", [True, False])
def test_all_experts_in_one_tensor(tmp_path, transpose, one_scale) -> None:
    original = layer()
    if one_scale:
        original.gate_up.scale.fill_(0.5)
        original.down.scale.fill_(0.25)
    tensors = fused(original, transpose, one_scale)
    assert same(original, load(tmp_path, tensors))
    tensors[f"{ROOT}.gate_up_proj_bias"] = torch.zeros(3, 64)
    with pytest.raises(ValueError, match="gate_up_proj_bias"):
        load(tmp_path, tensors)


# Gate and up under two global scales.


def test_global_scales_a_power_of_two_apart_are_joined_exactly(tmp_path) -> None:
    generator = torch.Generator().manual_seed(0)
    gate = quantise(torch.randn(3, 32, 64, generator=generator))
    up = quantise(torch.randn(3, 32, 64, generator=generator))
    down = quantise(torch.randn(3, 64, 32, generator=generator))
    up.scale.copy_(gate.scale * torch.tensor([0.5, 1.0, 2.0]))
    tensors = layer_tensors(LayerWeights(up, down, "relu2"), MODELOPT, ROOT)
    tensors |= layer_tensors(LayerWeights(gate, down, "relu2"), MODELOPT, ROOT, Names(up="gate_proj"))
    loaded = load(tmp_path, tensors)
    for e in range(3):
        assert torch.equal(decode(loaded.gate_up, e), torch.cat((decode(gate, e), decode(up, e))))


def test_global_scales_that_cannot_be_joined_are_refused(tmp_path) -> None:
    tensors = layer_tensors(layer(), MODELOPT, ROOT)
    tensors[f"{ROOT}.1.up_proj.weight_scale_2"] = torch.tensor(0.3)
    with pytest.raises(
        ValueError, match=rf"{ROOT}.1: the global scales of gate_proj \(.*\) and up_proj \(0.3\) differ"
    ):
        load(tmp_path, tensors)


# Checkpoints that must not pass.


def changed(**changes) -> dict[str, torch.Tensor]:
    """ModelOpt's tensors; ``None`` removes one of expert 1, a tensor replaces it."""
    tensors = layer_tensors(layer(), MODELOPT, ROOT)
    for name, value in changes.items():
        full = f"{ROOT}.1.{name.replace('__', '.')}"
        if value is None:
            del tensors[full]
        else:
            tensors[full] = value
    return tensors


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (changed(down_proj__weight_scale=None), r"no tensor 'model.layers.3.mlp.experts.1.down_proj.weight_scale'"),
        (changed(up_proj__weight_scale_2=None), r"no tensor '.*1.up_proj.weight_scale_2'"),
        (
            changed(up_proj__weight=torch.zeros(32, 64)),
            "1.up_proj.weight is torch.float32; NVFP4 stores it as torch.uint8",
        ),
        (
            changed(up_proj__weight_scale=torch.zeros(32, 4, dtype=torch.uint8)),
            "1.up_proj.weight_scale is torch.uint8; NVFP4 stores it as torch.float8_e4m3fn",
        ),
        (changed(down_proj__weight_scale_2=torch.ones(2)), r"weight_scale_2 has shape \[2\]; it is one number"),
        (changed(down_proj__weight_scale_2=torch.tensor(0.0)), "of expert 1 is 0.0; a global scale is positive"),
        (changed(down_proj__weight_scale_2=torch.tensor(float("nan"))), "of expert 1 is nan"),
        (
            changed(down_proj__weight=torch.zeros(64, 32, dtype=torch.uint8)),
            r"has shape \[64, 32\], but that of expert 0",
        ),
        (changed(gate_proj__weight_packed=torch.zeros(32, 32, dtype=torch.uint8)), "mixes ModelOpt's tensors"),
        (changed(gate_proj__pre_quant_scale=torch.ones(64)), "pre_quant_scale"),
        (
            {name: t for name, t in changed().items() if ".experts.1." not in name},
            "expert 1 is missing; found 2 experts",
        ),
        ({f"{ROOT}.0.up_proj.weight": torch.zeros(32, 64)}, "0.up_proj.weight is torch.float32; NVFP4 stores"),
        ({f"{ROOT}.0.up_proj.qweight": torch.zeros(32, 64)}, "holds no NVFP4 tensors of up_proj"),
        ({"model.layers.2.mlp.experts.0.up_proj.weight": torch.zeros(4)}, "layer 3: the checkpoint has no experts"),
        (
            changed() | {"mtp.layers.3.mlp.experts.0.up_proj.weight": torch.zeros(4)},
            "has model.layers.3.mlp.experts and mtp.layers.3.mlp.experts; pass Names",
        ),
        (
            changed(down_proj__weight_scale=torch.full((64, 2), 127, dtype=torch.uint8).view(torch.float8_e4m3fn)),
            r"down_proj: scales\[1, 0, 0\] is 0x7F, the e4m3 NaN",
        ),
    ],
)
def test_one_clear_line_says_what_is_wrong(tmp_path, tensors, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path, tensors)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none(tmp_path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        Checkpoint(tmp_path / "x.safetensors")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no \.safetensors file"):
        Checkpoint(tmp_path / "empty")
