"""The fused kernels on a GPU: v3b's bytes, replayed graphs, two streams, ids that are no expert's."""

from __future__ import annotations

import pytest
import torch

from glqprof_kernels import geometry
from glqprof_kernels.geometry import Geometry
from glqprof_kernels.glq import factory, fused, ops, reference
from glqprof_kernels.glq.workload import MoeWorkload, adversarial, make_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

SHAPES = [
    geometry.load("tiny-odd"),
    Geometry("odd", 1048, 264, 4, 2, 1, "relu2", 0.0),
    Geometry("gated", 520, 264, 3, 2, 1, "swiglu", 10.0),
    Geometry("cascade-12", 2688, 1856, 12, 6, 1, "relu2", 0.0),
    Geometry("qwen-16", 2048, 512, 16, 8, 1, "swiglu", 0.0),
    Geometry("glm-16", 4096, 2048, 16, 8, 1, "swiglu", 10.0),
]
SMALL = SHAPES[:3]
LAUNCHES = ({}, {"cluster": 2}, {"one_launch": False}, {"one_launch": False, "dependent": True})


def setup(shape: Geometry, stages: int, split_blocks: int = 64):
    layer = factory.layer(shape, stages, "cuda", stages=stages, split_blocks=split_blocks)
    return layer, fused.pack_layer(layer), MoeWorkload(shape.name, 1, "cuda", [layer], shape, layer.overflow)


def call(runner: fused.FusedRun, x, ids, weights, mask_invalid=False) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=torch.float16, device="cuda")
    out.view(torch.uint8).fill_(0xA5)
    runner.layer(0, x, ids, weights, out, mask_invalid)
    return out


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_bits_of_v3b(shape, stages) -> None:
    layer, packed, workload = setup(shape, stages, {1: 64, 2: 64, 3: 32, 4: 16}[stages])
    runners = [fused.FusedRun([packed], 8, shape.top_k, **config) for config in LAUNCHES]
    fast = fused.FusedRun([packed], 8, shape.top_k, fast=True)
    for rows in (1, 2, 4, 8):
        inputs = make_batch(workload, rows, seed=rows).per_layer[0]
        want = ops.moe(layer, *inputs, variant="v3b", warn_overflow=False)
        for runner in runners:
            assert same_bits(call(runner, *inputs), want), rows
            assert bool((runner.workspace == 0xFF).all())
        if rows <= 2:
            exact = reference.moe(layer, *inputs)
            mine, theirs = (((o.double() - exact).norm() / exact.norm()).item() for o in (call(fast, *inputs), want))
            assert mine <= theirs


@pytest.mark.parametrize("shape", SMALL, ids=lambda shape: shape.name)
def test_hostile_inputs(shape) -> None:
    layer, packed, workload = setup(shape, 3, 16)
    runner = fused.FusedRun([packed], 8, shape.top_k)
    for label, batch in adversarial(workload, 2):
        before = int(layer.overflow)
        want = ops.moe(layer, *batch.per_layer[0], variant="v3b", warn_overflow=False)
        between = int(layer.overflow)
        assert same_bits(call(runner, *batch.per_layer[0]), want), label
        assert int(layer.overflow) - between == between - before, label


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("config", LAUNCHES, ids=str)
def test_replays_with_changing_ids_equal_eager_calls(config, fast) -> None:
    shape = SHAPES[3]
    _, packed, workload = setup(shape, 3)
    captured, eager = (fused.FusedRun([packed], 8, shape.top_k, fast=fast, **config) for _ in range(2))
    x, ids, weights = (t.clone() for t in make_batch(workload, 2, seed=0).per_layer[0])
    out = call(captured, x, ids, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.layer(0, x, ids, weights, out)
    for _ in range(1000):
        x.normal_()
        ids.copy_(torch.randint(-1, shape.experts, ids.shape, device="cuda"))
        weights.uniform_()
        out.view(torch.uint8).fill_(0xA5)
        graph.replay()
        assert same_bits(out, call(eager, x, ids, weights))
    assert int(packed.errors) > 0


@pytest.mark.parametrize("config", LAUNCHES, ids=str)
def test_two_streams_at_once(config) -> None:
    shape = SHAPES[3]
    layer, packed, workload = setup(shape, 2)
    runners = [fused.FusedRun([packed], 8, shape.top_k, **config) for _ in range(2)]
    inputs = [make_batch(workload, 2, seed=seed).per_layer[0] for seed in (1, 2)]
    wants = [ops.moe(layer, *one, variant="v3b") for one in inputs]
    outs = [torch.empty_like(want) for want in wants]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(30):
        for out, stream, runner, one in zip(outs, streams, runners, inputs, strict=True):
            with torch.cuda.stream(stream):
                out.view(torch.uint8).fill_(0xA5)
                for _ in range(4):
                    runner.layer(0, *one, out)
        torch.cuda.synchronize()
        assert all(same_bits(out, want) for out, want in zip(outs, wants, strict=True))


def test_nothing_is_allocated() -> None:
    shape = SHAPES[0]
    _, packed, workload = setup(shape, 2)
    runner = fused.FusedRun([packed], 8, shape.top_k)
    inputs = make_batch(workload, 8, seed=1).per_layer[0]
    out = call(runner, *inputs)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    runner.layer(0, *inputs, out)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_a_workspace_too_small_is_refused() -> None:
    shape = SHAPES[1]
    _, packed, workload = setup(shape, 2)
    runner = fused.FusedRun([packed], 1, shape.top_k)
    with pytest.raises(ValueError, match="the workspace is too small for 8 tokens"):
        call(runner, *make_batch(workload, 8, seed=1).per_layer[0])


@pytest.mark.parametrize("bad", [-1, 4, 2**40])
def test_ids_of_no_expert(bad) -> None:
    layer, packed, workload = setup(SHAPES[1], 2)
    runner = fused.FusedRun([packed], 8, SHAPES[1].top_k)
    x, ids, weights = make_batch(workload, 2, seed=3).per_layer[0]
    ids[1, 0] = bad
    want = ops.moe(layer, x, ids, weights, mask_invalid=True)
    assert same_bits(call(runner, x, ids, weights), want)
    assert int(packed.errors) == 1
    assert same_bits(call(runner, x, ids, weights, mask_invalid=True), want)
    assert int(packed.errors) == 1
