"""GPU bytes equal the exact CPU implementation's, for every variant, size, stage count and hostile input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glqprof_kernels import geometry
from glqprof_kernels.glq import factory, fixtures, ops
from glqprof_kernels.glq.weights import LayerWeights, MatrixWeights
from glqprof_kernels.glq.workload import MoeWorkload, adversarial, make_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

INPUTS = Path(__file__).parents[1] / "kernels" / "data" / "glq_inputs.npz"
VARIANTS = list(ops.EXACT)
ODD = geometry.Geometry("odd", 1048, 264, 4, 2, 1, "relu2", 0.0)  # 131 and 33 blocks
GATED = geometry.Geometry("gated", 520, 264, 3, 2, 1, "swiglu", 10.0)


def moved(layer: LayerWeights, device: str) -> LayerWeights:
    def matrix(m: MatrixWeights) -> MatrixWeights:
        tensors = {name: getattr(m, name).to(device) for name in ("wscale", "r1", "r2", "r3", "sv", "su")}
        planes = [None if plane is None else plane.to(device) for plane in m.planes]
        tables = [table.to(device) for table in m.tables]
        return MatrixWeights(planes, tables, **tensors, split_blocks=m.split_blocks, check_values=False)

    return LayerWeights(matrix(layer.up), matrix(layer.down), layer.activation, layer.limit)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.cpu().view(torch.int16), b.cpu().view(torch.int16))


def check(layer: LayerWeights, on_gpu: LayerWeights, x, ids, weights, variants=VARIANTS) -> None:
    for variant in variants:
        want_count, got_count = int(layer.overflow), int(on_gpu.overflow)
        want = ops.moe(layer, x, ids, weights, variant=variant, warn_overflow=False)
        got = ops.moe(on_gpu, x.cuda(), ids.cuda(), weights.cuda(), variant=variant, warn_overflow=False)
        assert same_bits(got, want), variant
        assert int(on_gpu.overflow) - got_count == int(layer.overflow) - want_count, variant


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("split_blocks", [16, 32, 64])
@pytest.mark.parametrize("shape", [geometry.load("tiny-odd"), ODD, GATED], ids=lambda shape: shape.name)
def test_random(shape: geometry.Geometry, stages: int, split_blocks: int) -> None:
    layer = factory.layer(shape, seed=stages, device="cpu", stages=stages, split_blocks=split_blocks)
    on_gpu = moved(layer, "cuda")
    workload = MoeWorkload(shape.name, 1, "cpu", [layer], shape, layer.overflow)
    for rows in (1, 2, 4) if stages in (2, 3) else (2,):
        check(layer, on_gpu, *make_batch(workload, rows, seed=rows).per_layer[0])


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("shape", [geometry.load("tiny-odd"), ODD, GATED], ids=lambda shape: shape.name)
def test_adversarial(shape: geometry.Geometry, stages: int) -> None:
    layer = factory.layer(shape, seed=7, device="cpu", stages=stages, split_blocks=16)
    on_gpu = moved(layer, "cuda")
    workload = MoeWorkload(shape.name, 1, "cpu", [layer], shape, layer.overflow)
    for _, batch in adversarial(workload, 2):
        check(layer, on_gpu, *batch.per_layer[0])


def test_recorded_inputs() -> None:
    for host, gpu in zip(fixtures.load(INPUTS, "cpu"), fixtures.load(INPUTS, "cuda"), strict=True):
        check(host.layer, gpu.layer, host.x, host.ids, host.weights)


@pytest.mark.parametrize("stages", [2, 3])
def test_the_measured_geometry(stages: int) -> None:
    full = geometry.load("cascade2-30b")
    shape = geometry.Geometry(full.name, full.hidden, full.expert_inter, 3, 3, 1, full.activation, 0.0)
    layer = factory.layer(shape, seed=3, device="cpu", stages=stages)
    workload = MoeWorkload(shape.name, 1, "cpu", [layer], shape, layer.overflow)
    check(layer, moved(layer, "cuda"), *make_batch(workload, 1, seed=3).per_layer[0])


def test_expert_offsets_beyond_32_bits() -> None:
    """E*M*N/8 > 2^31: the last expert's plane starts 4.3 GB in; it must equal the same expert stored alone."""
    rows, cols, experts = 4096, 4096, 1040  # 1040 * 4096 * 512 = 2.18e9 elements
    assert experts * rows * cols // 8 > 2**31
    shape = geometry.Geometry("alone", cols, rows, 1, 1, 1, "relu2", 0.0)
    alone = factory.layer(shape, seed=5, device="cuda", stages=1)

    def spread(m: MatrixWeights) -> MatrixWeights:
        plane = torch.zeros(experts, m.rows, m.cols // 8, dtype=torch.int16, device="cuda")
        plane[-1] = m.planes[0][0]
        scale = {name: getattr(m, name).expand(experts).contiguous() for name in ("wscale", "r1", "r2", "r3")}
        su = m.su.expand(experts, -1).contiguous()
        return MatrixWeights([plane], m.tables, **scale, sv=m.sv, su=su, check_values=False)

    large = LayerWeights(spread(alone.up), spread(alone.down))
    x = torch.randn(1, cols, device="cuda").half()
    one = torch.ones(1, 1, device="cuda")
    want = ops.moe(alone, x, torch.zeros(1, 1, dtype=torch.int64, device="cuda"), one)
    for variant in ("v0.2.12", "v3a", "v3b"):
        got = ops.moe(large, x, torch.full((1, 1), experts - 1, device="cuda"), one, variant=variant)
        assert same_bits(got, want)


def test_misaligned_index_planes_and_inputs() -> None:
    shape = ODD
    layer = factory.layer(shape, seed=11, device="cpu", stages=2)
    on_gpu = moved(layer, "cuda")
    for matrix in (on_gpu.up, on_gpu.down):
        for s, plane in enumerate(matrix.planes):
            shifted = torch.empty(plane.numel() + 1, dtype=torch.int16, device="cuda")
            shifted[1:] = plane.reshape(-1)
            matrix.planes[s] = shifted[1:].view(plane.shape)
            assert matrix.planes[s].data_ptr() % 4 == 2
    workload = MoeWorkload(shape.name, 1, "cpu", [layer], shape, layer.overflow)
    x, ids, weights = make_batch(workload, 2, seed=1).per_layer[0]
    wide = torch.empty(x.numel() + 1, dtype=torch.float16, device="cuda")
    wide[1:] = x.reshape(-1).cuda()
    want = ops.moe(layer, x, ids, weights, variant="v3b")
    got = ops.moe(on_gpu, wide[1:].view(x.shape), ids.cuda(), weights.cuda(), variant="v3b")
    assert same_bits(got, want)
