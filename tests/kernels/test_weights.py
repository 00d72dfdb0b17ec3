"""Checks that a wrong layer must not pass, and what an absent stage is."""

from __future__ import annotations

import pytest
import torch

from glqprof_kernels import geometry
from glqprof_kernels.geometry import Geometry
from glqprof_kernels.glq import factory, ops, reference
from glqprof_kernels.glq.weights import LayerWeights, MatrixWeights
from glqprof_kernels.glq.workload import MoeWorkload, make_batch

TINY = geometry.load("tiny-odd")


def fields(stages: int = 3) -> dict[str, object]:
    up = factory.layer(TINY, 1, "cpu", stages=stages).up
    names = ("planes", "tables", "wscale", "r1", "r2", "r3", "sv", "su", "split_blocks")
    return {name: getattr(up, name) for name in names} | {"name": "up"}


def build(stages: int = 3, **changed: object) -> MatrixWeights:
    return MatrixWeights(**(fields(stages) | changed))


def test_sizes() -> None:
    m = build()
    assert (m.experts, m.rows, m.cols, m.stages, m.present) == (5, 40, 88, 3, [0, 1, 2])
    assert m.bytes_per_expert() == 40 * 11 * 2 * 3 + 40 * 2 + 12


@pytest.mark.parametrize("absent", [None, torch.empty(0, dtype=torch.int16), torch.zeros(5, 1, 1, dtype=torch.int16)])
def test_absent_planes_skip_their_stage(absent) -> None:
    planes = build().planes
    m = build(planes=[planes[0], absent, planes[2], absent][:3])
    assert m.present == [0, 2]
    assert [s.data_ptr() for s in m.present_scales()] == [m.wscale.data_ptr(), m.r2.data_ptr()]
    two = build(planes=[planes[0], planes[2]], tables=[m.tables[0], m.tables[2]], r1=m.r2)
    assert torch.equal(reference.dequantise(m, 1), reference.dequantise(two, 1))


def test_a_skipped_middle_stage_has_one_result(emulated) -> None:
    layer = factory.layer(TINY, 1, "cpu", stages=4)
    for matrix in (layer.up, layer.down):
        matrix.planes[1] = None
        matrix.present = [0, 2, 3]
    workload = MoeWorkload("tiny-odd", 1, "cpu", [layer], TINY, layer.overflow)
    inputs = make_batch(workload, 2, seed=1).per_layer[0]
    want = ops.moe(layer, *inputs, variant="v0.2.12")
    assert torch.equal(emulated.moe(layer, *inputs, "v3b")[0], want)
    exact = reference.moe(layer, *inputs)
    assert ((want.double() - exact).norm() / exact.norm()).item() < 2e-3


def test_a_plane_that_really_is_one_by_one() -> None:
    """[E, 1, 1] is a whole plane of a matrix of one row and eight columns, not an absent one."""
    shape = Geometry("least", 8, 1, 2, 1, 1, "relu2", 0.0)
    big, _ = factory.device_codebook("cpu")
    ones = torch.ones(2)
    m = MatrixWeights(
        planes=[torch.full((2, 1, 1), 700, dtype=torch.int16)],
        tables=[big],
        wscale=ones,
        r1=ones,
        r2=ones,
        r3=ones,
        sv=torch.ones(8).half(),
        su=torch.ones(2, 1).half(),
    )
    assert m.present == [0]
    assert (m.rows, m.cols) == (shape.expert_inter, shape.hidden)


def signs(shape: tuple[int, ...], value: float = 1.0) -> torch.Tensor:
    out = torch.ones(shape, dtype=torch.float16)
    out.view(-1)[-1] = value
    return out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sv": signs((88,), 0.0)}, "up: sv holds values other than"),
        ({"sv": signs((88,), 0.99951171875)}, "sv holds values other than"),
        ({"su": signs((5, 40), float("nan"))}, "su holds values other than"),
        ({"sv": signs((5, 88), -1.0)}, "sv differs between experts"),
        ({"sv": signs((4, 88))}, "sv is of 4 experts, su of 5"),
        ({"sv": signs((84,))}, "84 columns are not a multiple of 8"),
        ({"split_blocks": 48}, "split_blocks is 48; it must be 16, 32 or 64"),
        ({"planes": []}, "0 index planes"),
        ({"planes": [None]}, "first index plane is absent"),
        ({"planes": [torch.zeros(5, 40, 12, dtype=torch.int16)]}, r"shape \(5, 40, 12\); it must be \(5, 40, 11\)"),
        ({"planes": [torch.zeros(5, 40, 11, dtype=torch.int32)]}, "int32; it must be int16"),
        ({"wscale": torch.ones(5).double()}, "wscale is torch.float64"),
        ({"r2": torch.ones(4)}, r"r2 is torch.float32 \(4,\)"),
        ({"tables": []}, "3 index planes but 0 codebooks"),
        ({"tables": [torch.zeros(65_536, 8)] * 3}, "codebook 1 must be float16"),
    ],
)
def test_refused(changed, message) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changed)


def test_indices_beyond_the_small_codebook() -> None:
    planes = list(build().planes)
    for wrong, said in ((256, "reaches 256"), (-1, "reaches -1")):
        planes[2] = planes[2].clone()
        planes[2][4, 39, 10] = wrong
        with pytest.raises(ValueError, match=rf"index plane 3 {said}; its codebook has 256"):
            build(planes=planes)


def test_sv_per_expert_that_agrees() -> None:
    assert torch.equal(build(sv=build().sv.expand(5, 88)).sv, build().sv)


def test_layers_whose_matrices_do_not_fit() -> None:
    layer = factory.layer(TINY, 1, "cpu")
    other = factory.layer(Geometry("other", 88, 48, 5, 2, 1, "relu2", 0.0), 1, "cpu")
    fewer = factory.layer(Geometry("fewer", 88, 40, 4, 2, 1, "relu2", 0.0), 1, "cpu")
    wider = factory.layer(Geometry("wider", 96, 40, 5, 2, 1, "relu2", 0.0), 1, "cpu")
    for down, message in [
        (other.down, "up writes 40 values; with relu2 it must be 48"),
        (fewer.down, "up has 5 experts, down 4"),
        (wider.down, "up reads 88 values but down writes 96"),
    ]:
        with pytest.raises(ValueError, match=message):
            LayerWeights(layer.up, down)
    with pytest.raises(ValueError, match="with swiglu it must be 80"):
        LayerWeights(layer.up, layer.down, "swiglu")
    with pytest.raises(ValueError, match="activation is 'gelu'"):
        LayerWeights(layer.up, layer.down, "gelu")


def test_factory_is_seeded_and_mixes_stages() -> None:
    first, second = (factory.layer(TINY, 3, "cpu", stages=3) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.up.planes, second.up.planes, strict=True))
    assert not torch.equal(first.up.planes[0], factory.layer(TINY, 4, "cpu").up.planes[0])
    stages = [factory.stages_of_layer(i) for i in range(23)]
    assert stages.count(3) == 12
    assert stages.count(2) == 11
    with pytest.raises(ValueError, match="stages is 5"):
        factory.stages_of_layer(0, 5)
