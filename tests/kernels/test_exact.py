"""The exact CPU implementations: the same bytes from four schedules, near float64, and where they must differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glqprof_kernels import geometry
from glqprof_kernels.geometry import Geometry
from glqprof_kernels.glq import factory, ops, reference
from glqprof_kernels.glq.workload import MoeWorkload, adversarial, make_batch

SAME = ["v0.2.12", "v3a", "v3b"]
SHAPES = [
    geometry.load("tiny-odd"),
    Geometry("one block", 8, 8, 2, 1, 1, "relu2", 0.0),
    Geometry("many splits", 1048, 264, 3, 2, 1, "relu2", 0.0),
    Geometry("gated", 88, 40, 3, 2, 1, "swiglu", 10.0),
    Geometry("gated, no clamp", 24, 72, 3, 2, 1, "swiglu", 0.0),
]


def run(layer, x, ids, weights, variant):
    return ops.moe(layer, x, ids, weights, variant=variant, warn_overflow=False)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def one_layer(shape: Geometry, seed: int = 0, stages: int = 2, split_blocks: int = 64):
    layer = factory.layer(shape, seed, "cpu", stages=stages, split_blocks=split_blocks)
    return layer, MoeWorkload(shape.name, 1, "cpu", [layer], shape, layer.overflow)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize(("stages", "split_blocks"), [(1, 64), (2, 16), (2, 64), (3, 32), (4, 16)])
def test_three_schedules_one_result_near_float64(shape, stages, split_blocks) -> None:
    layer, workload = one_layer(shape, stages, stages, split_blocks)
    for rows in (1, 2, 4) if shape.hidden < 1000 else (1,):
        x, ids, weights = make_batch(workload, rows, seed=rows).per_layer[0]
        outputs = [run(layer, x, ids, weights, variant) for variant in SAME]
        assert all(same_bits(outputs[0], other) for other in outputs[1:])
        want = reference.moe(layer, x, ids, weights)
        for out in (outputs[0], run(layer, x, ids, weights, "v3b-fp32act")):
            assert ((out.double() - want).norm() / want.norm()).item() < 2e-3


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]], ids=lambda shape: shape.name)
def test_adversarial(shape) -> None:
    layer, workload = one_layer(shape, 5, stages=3, split_blocks=16)
    for label, batch in adversarial(workload, 2):
        outputs = [run(layer, *batch.per_layer[0], variant) for variant in SAME]
        assert all(same_bits(outputs[0], other) for other in outputs[1:]), label
        stored = outputs[0].view(torch.int16)
        assert (stored[outputs[0].isnan()] == 0x7FFF).all(), label


@given(
    seed=st.integers(0, 2**31),
    tokens=st.integers(1, 3),
    stages=st.integers(1, 4),
    split_blocks=st.sampled_from([16, 32, 64]),
    gated=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_three_schedules_on_any_bits(seed, tokens, stages, split_blocks, gated) -> None:
    """x, weights and scales are arbitrary bit patterns: NaN with payloads, infinities, denormals, both zeros."""
    rng = np.random.default_rng(seed)
    shape = Geometry("any", 152, 40, 3, 2, 1, "swiglu" if gated else "relu2", 10.0 if gated else 0.0)
    layer, _ = one_layer(shape, seed % 1000, stages, split_blocks)
    if rng.random() < 0.3:  # hostile scales too
        layer.up.r1[:] = torch.from_numpy(rng.integers(0, 2**32, 3, dtype=np.uint32).view(np.float32))
    x = torch.from_numpy(rng.integers(0, 2**16, (tokens, 152), dtype=np.uint16).view(np.float16))
    if rng.random() < 0.8:  # mostly finite: one NaN blanks everything that it reaches
        x = torch.where(torch.isfinite(x), x, torch.zeros(())).half() * 2.0 ** int(rng.integers(-12, 1))
    ids = torch.from_numpy(rng.integers(0, 3, (tokens, 2)))
    weights = torch.from_numpy(rng.integers(0, 2**32, (tokens, 2), dtype=np.uint32).view(np.float32))
    if rng.random() < 0.8:
        weights = torch.rand(tokens, 2, generator=torch.Generator().manual_seed(seed))
    outputs = [run(layer, x, ids, weights, variant) for variant in SAME]
    assert all(same_bits(outputs[0], other) for other in outputs[1:])


def test_activation_before_rounding_is_not_the_same() -> None:
    """What the bench must catch: a large share of elements differs, by about a rounding of fp16."""
    layer, workload = one_layer(SHAPES[2], 1, stages=2)
    x, ids, weights = make_batch(workload, 4, seed=1).per_layer[0]
    rounded, unrounded = (run(layer, x, ids, weights, v) for v in ("v3b", "v3b-fp32act"))
    share = (rounded.view(torch.int16) != unrounded.view(torch.int16)).double().mean().item()
    gap = ((rounded.double() - unrounded.double()).abs().max() / rounded.double().abs().max()).item()
    assert 0.4 < share < 0.9
    assert 1e-4 < gap < 5e-3


@pytest.mark.parametrize("stages", [2, 3])
def test_the_measured_geometry(stages) -> None:
    full = geometry.load("cascade2-30b")
    shape = Geometry(full.name, full.hidden, full.expert_inter, 1, 1, 1, "relu2", 0.0)
    layer, workload = one_layer(shape, 2, stages)
    x, ids, weights = make_batch(workload, 1, seed=2).per_layer[0]
    outputs = [run(layer, x, ids, weights, variant) for variant in SAME]
    assert all(same_bits(outputs[0], other) for other in outputs[1:])
    want = reference.moe(layer, x, ids, weights)
    assert ((outputs[0].double() - want).norm() / want.norm()).item() < 2e-3


def test_weight_zero_is_skipped_even_beside_nan() -> None:
    """0 * NaN would be NaN: a skipped expert contributes nothing at all."""
    layer, workload = one_layer(SHAPES[0])
    x, ids, weights = make_batch(workload, 2, seed=4).per_layer[0]
    layer.down.wscale[ids[0, 0]] = float("nan")
    for zero in (0.0, -0.0):
        weights = torch.where(ids == ids[0, 0], zero, weights)
        for variant in ops.EXACT:
            assert torch.isfinite(run(layer, x, ids, weights, variant)).all()


def test_nan_router_row_touches_its_row_only() -> None:
    layer, workload = one_layer(SHAPES[0])
    x, ids, weights = make_batch(workload, 2, seed=4).per_layer[0]
    weights[0] = float("nan")
    for variant in ops.EXACT:
        out = run(layer, x, ids, weights, variant)
        assert (out[0].view(torch.int16) == 0x7FFF).all()
        assert torch.isfinite(out[1]).all()


def test_a_row_does_not_depend_on_the_others() -> None:
    layer, workload = one_layer(SHAPES[0], stages=3)
    x, ids, weights = make_batch(workload, 4, seed=4).per_layer[0]
    together = run(layer, x, ids, weights, "v3b")
    for t in range(4):
        alone = run(layer, x[t : t + 1], ids[t : t + 1], weights[t : t + 1], "v3b")
        assert same_bits(alone[0], together[t])


def test_zeros_keep_the_rules_sign() -> None:
    """A stored -0 appears only where the rules make one: the accumulator starts at +0 and never becomes -0."""
    layer, workload = one_layer(SHAPES[0])
    _, ids, weights = make_batch(workload, 1, seed=4).per_layer[0]
    for sign in (0.0, -0.0):
        x = torch.full((1, 88), sign, dtype=torch.float16)
        for variant in ops.EXACT:
            assert (run(layer, x, ids, -weights, variant).view(torch.int16) == 0).all()
