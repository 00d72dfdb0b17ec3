"""Layers from safetensors files that the tests write."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from glqprof_kernels import geometry
from glqprof_kernels.glq import codebook, factory, ops
from glqprof_kernels.glq.safetensors_loader import Checkpoint, Names, load_layer
from glqprof_kernels.glq.workload import MoeWorkload, make_batch

TINY = geometry.load("tiny-odd")
ROOT = "model.layers.7.mlp.experts"


def tensors(layer) -> dict[str, torch.Tensor]:
    found = {}
    for label, matrix in (("up", layer.up), ("down", layer.down)):
        for s, plane in enumerate(matrix.planes):
            found[f"{ROOT}.{label}.index{s + 1}"] = plane
        for name in ("wscale", "r1", "r2", "r3", "su"):
            found[f"{ROOT}.{label}.{name}"] = getattr(matrix, name)
        found[f"{ROOT}.{label}.sv"] = matrix.sv
        found[f"{ROOT}.{label}.split_blocks"] = torch.tensor(matrix.split_blocks)
    return found


@pytest.fixture
def layer():
    return factory.layer(TINY, 6, "cpu", stages=3, split_blocks=32)


def same_output(a, b) -> bool:
    workload = MoeWorkload("tiny-odd", 1, "cpu", [a], TINY, a.overflow)
    inputs = make_batch(workload, 2, seed=1).per_layer[0]
    return torch.equal(ops.moe(a, *inputs), ops.moe(b, *inputs))


def test_round_trip(tmp_path, layer) -> None:
    path = tmp_path / "model.safetensors"
    save_file(tensors(layer), path)
    loaded = load_layer(Checkpoint(path), 7)
    assert loaded.up.split_blocks == 32
    assert loaded.up.present == [0, 1, 2]
    assert all(torch.equal(a, b) for a, b in zip(loaded.up.planes[:3], layer.up.planes, strict=True))
    assert same_output(loaded, layer)


def test_sharded_folder_with_its_own_codebook(tmp_path, layer) -> None:
    order = torch.from_numpy(np.random.default_rng(1).permutation(65_536))
    table = torch.from_numpy(codebook.generate().copy())[order]
    found = tensors(layer)
    back = torch.argsort(order)
    for name in found:
        if ".index1" in name or ".index2" in name:
            moved = back[found[name].long() & 0xFFFF]
            found[name] = torch.where(moved > 32767, moved - 65_536, moved).to(torch.int16)
        if ".index3" in name:  # the small codebook is the first 256 of the file's table
            found[name] = torch.zeros_like(found[name])
    names = sorted(found)
    shards = {"a.safetensors": {n: found[n] for n in names[::2]}, "b.safetensors": {n: found[n] for n in names[1::2]}}
    shards["a.safetensors"]["glq.codebook"] = table
    for file, content in shards.items():
        save_file(content, tmp_path / file)
    weight_map = {name: file for file, content in shards.items() for name in content}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded = load_layer(Checkpoint(tmp_path), 7)
    big = loaded.up.tables[0][loaded.up.planes[0].long() & 0xFFFF]
    assert torch.equal(big, layer.up.tables[0][layer.up.planes[0].long() & 0xFFFF])


def test_own_names_and_one_tensor_an_expert(tmp_path, layer) -> None:
    base = "backbone.layers.{layer}.mixer.experts.{expert}.{matrix}_proj"
    names = {name: f"{base}.{name}" for name in ("index1", "index2", "index3", "index4", "wscale", "r1", "r2", "r3")}
    names |= {"sv": f"{base}.SV", "su": f"{base}.SU", "split_blocks": f"{base}.blocks"}
    stored = {}
    for label, matrix in (("up", layer.up), ("down", layer.down)):
        for e in range(TINY.experts):
            root = f"backbone.layers.0.mixer.experts.{e}.{label}_proj"
            for s, plane in enumerate(matrix.planes):
                stored[f"{root}.index{s + 1}"] = (plane[e].int() & 0xFFFF).clone()  # a checkpoint of wider integers
            for name in ("wscale", "r1", "r2"):
                stored[f"{root}.{name}"] = getattr(matrix, name)[e].clone()
            stored[f"{root}.SV"], stored[f"{root}.SU"] = matrix.sv.clone(), matrix.su[e].clone()
            stored[f"{root}.blocks"] = torch.tensor(32)
    path = tmp_path / "experts.safetensors"
    save_file(stored, path)
    loaded = load_layer(Checkpoint([path]), 0, names=Names(**names), experts=5)
    assert same_output(loaded, layer)
    with pytest.raises(ValueError, match="names each expert; pass experts="):
        load_layer(Checkpoint(path), 0, names=Names(**names))
    stored["backbone.layers.0.mixer.experts.3.up_proj.SV"] *= -1
    save_file(stored, path)
    with pytest.raises(ValueError, match="up: sv differs between experts"):
        load_layer(Checkpoint(path), 0, names=Names(**names), experts=5)


def test_absent_and_missing(tmp_path, layer) -> None:
    found = tensors(layer)
    found[f"{ROOT}.up.index3"] = torch.zeros(5, 1, 1, dtype=torch.int16)
    del found[f"{ROOT}.down.index3"]
    path = tmp_path / "model.safetensors"
    save_file(found, path)
    loaded = load_layer(Checkpoint(path), 7)
    assert loaded.up.present == loaded.down.present == [0, 1]
    del found[f"{ROOT}.up.r1"]
    save_file(found, path)
    with pytest.raises(ValueError, match="index plane is there but its factor r1 is not"):
        load_layer(Checkpoint(path), 7)
    del found[f"{ROOT}.up.wscale"]
    save_file(found, path)
    with pytest.raises(ValueError, match=r"no tensor 'model.layers.7.mlp.experts.up.wscale'"):
        load_layer(Checkpoint(path), 7)


def test_unreadable(tmp_path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"not safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors: not a readable safetensors file"):
        Checkpoint(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no \.safetensors file"):
        Checkpoint(tmp_path / "empty")
