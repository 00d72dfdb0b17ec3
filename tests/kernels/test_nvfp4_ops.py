"""The NVFP4 operator: variants by name, the exact implementation on the CPU, clear errors; and its build."""

from __future__ import annotations

import pytest
import torch

from glqprof_kernels.nvfp4 import extension, factory, ops, tiles
from glqprof_kernels.nvfp4.exact import moe as exact
from glqprof_kernels.nvfp4.exact.product import host_layer


@pytest.fixture(scope="module")
def case():
    layer = factory.layer(64, 32, 4, "swiglu", 10.0, seed=2, device="cpu")
    return layer, tiles.pack_layer(layer)


def inputs(rows: int = 3):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 64, generator=generator).to(torch.bfloat16)
    return x, torch.randint(0, 4, (rows, 2), generator=generator), torch.rand(rows, 2, generator=generator)


def test_twelve_variants() -> None:
    assert len(ops.VARIANTS) == 12
    assert ops.VARIANTS[0] == "base-regs"
    assert ops.VARIANTS[-1] == "quarter-deep"
    assert {ops.split_variant(name) for name in ops.VARIANTS} == {
        (schedule, pipeline)
        for schedule in ("base", "waves", "half", "quarter")
        for pipeline in ("regs", "ring", "deep")
    }


def test_the_cpu_operator_is_the_exact_implementation(case) -> None:
    layer, packed = case
    x, ids, weights = inputs()
    want = exact.moe(host_layer(layer), x.view(torch.uint16).numpy(), ids.numpy(), weights.numpy())
    for variant in ops.VARIANTS:
        got = ops.nvfp4_moe(packed, x, ids, weights, variant=variant)
        assert torch.equal(got.view(torch.int16), torch.from_numpy(want).view(torch.int16))
    assert int(packed.errors) == 0


def test_ids_of_no_expert_are_counted_unless_masked(case) -> None:
    _, packed = case
    x, ids, weights = inputs()
    ids[0, 0], ids[2, 1] = -1, 4
    packed.errors.zero_()
    got = ops.nvfp4_moe(packed, x, ids, weights)
    assert int(packed.errors) == 2
    assert torch.equal(got, ops.nvfp4_moe(packed, x, ids, weights, mask_invalid=True))
    assert int(packed.errors) == 2
    weights[0, 0] = weights[2, 1] = 0
    assert torch.equal(got, ops.nvfp4_moe(packed, x, ids.clamp(0, 3), weights, mask_invalid=True))
    packed.errors.zero_()


def test_the_operator_traces(case) -> None:
    _, packed = case
    x, ids, weights = inputs()
    arguments = (x, ids, weights, packed.gate_up.tiles, packed.gate_up.scale, packed.down.tiles, packed.down.scale)
    options = (packed.errors, "swiglu", 10.0, "base-ring", True)
    torch.library.opcheck(torch.ops.glqprof.nvfp4_moe.default, (*arguments, *options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, i, w: (x[:, :32], i, w), r"x must be \[rows, 64\], not \[3, 32\]"),
        (lambda x, i, w: (x.float(), i, w), "x must be bf16, not torch.float32"),
        (lambda x, i, w: (x, i[:2], w), r"ids and weights must be \[rows, top_k\], not \[2, 2\] and \[3, 2\]"),
        (lambda x, i, w: (x, i.int(), w), "ids must be int64 and weights fp32, not torch.int32"),
        (lambda x, i, w: (x, i, w.double()), "ids must be int64 and weights fp32, not torch.int64 and torch.float64"),
    ],
)
def test_tensors_that_do_not_fit(case, change, message) -> None:
    with pytest.raises(ValueError, match=message):
        ops.nvfp4_moe(case[1], *change(*inputs()))


def test_unknown_variants_are_named(case) -> None:
    with pytest.raises(ValueError, match="no NVFP4 variant 'ring'; there are base-regs, base-ring"):
        ops.nvfp4_moe(case[1], *inputs(), variant="ring")
    with pytest.raises(ValueError, match="no NVFP4 variant"):
        ops.MoeRun([case[1]], 1, 2, "base")
    with pytest.raises(ValueError, match="no layers"):
        ops.MoeRun([], 1, 2)


def test_no_gpu_is_said(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="the NVFP4 CUDA kernels cannot be built: torch sees no CUDA GPU"):
        extension.load()


def test_every_source_is_built_and_hashed(monkeypatch, tmp_path) -> None:
    assert {path.name for path in extension.CSRC.iterdir() if path.suffix in (".cu", ".cpp")} == set(extension.SOURCES)
    before = extension.source_hash()
    for folder, name, changed in (("CSRC", "csrc", "ring.cuh"), ("SHARED", "shared", "activation.cuh")):
        copy = tmp_path / name
        copy.mkdir()
        for path in getattr(extension, folder).iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
        with monkeypatch.context() as patch:
            patch.setattr(extension, folder, copy)
            assert extension.source_hash() == before
            (copy / changed).write_text((copy / changed).read_text() + "\n")
            assert extension.source_hash() != before
