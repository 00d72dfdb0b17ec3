"""The NVFP4 kernels on a GPU: twelve variants of the same bytes, near float64, replayed graphs, streams, wrong ids."""

from __future__ import annotations

import pytest
import torch

from glqprof_kernels.geometry import Geometry
from glqprof_kernels.nvfp4 import factory, ops, reference, routing, tiles

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

SMALL = Geometry("small", 96, 160, 6, 3, 1, "swiglu", 0.5)  # k of both matrices ends in half a slot
PLAIN = Geometry("plain", 160, 96, 6, 3, 1, "relu2", 0.0)
SHAPES = [
    SMALL,
    PLAIN,
    Geometry("cascade-12", 2688, 1856, 12, 6, 1, "relu2", 0.0),
    Geometry("qwen-16", 2048, 512, 16, 8, 1, "swiglu", 0.0),
    Geometry("glm-16", 4096, 2048, 16, 8, 1, "swiglu", 10.0),
]
REL_ERR = 1e-2


def setup(shape: Geometry, seed: int = 1):
    made = factory.layer(
        shape.hidden, shape.expert_inter, shape.experts, shape.activation, shape.activation_limit, seed, "cuda"
    )
    return made, tiles.pack_layer(made)


def inputs(shape: Geometry, rows: int, seed: int = 0, hot: int = 0):
    generator = torch.Generator().manual_seed(1000 * rows + seed)
    x = torch.randn(rows, shape.hidden, generator=generator).to(torch.bfloat16)
    ids = torch.randint(0, hot or shape.experts, (rows, shape.top_k), generator=generator)
    weights = torch.rand(rows, shape.top_k, generator=generator) + 0.1
    return x.cuda(), ids.cuda(), weights.cuda()


def call(run: ops.MoeRun, x, ids, weights, mask_invalid=False, index=0) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=torch.bfloat16, device="cuda")
    out.view(torch.uint8).fill_(0xA5)
    run.layer(index, x, ids, weights, out, mask_invalid)
    return out


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def relative(out: torch.Tensor, want: torch.Tensor) -> float:
    return ((out.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_all_variants_have_the_same_bytes(shape) -> None:
    made, packed = setup(shape)
    runs = {variant: ops.MoeRun([packed], 300, shape.top_k, variant) for variant in ops.VARIANTS}
    for rows in (1, 2, 4, 5, 8, 9, 16, 300):
        for hot in (0, shape.top_k):
            given = inputs(shape, rows, hot=hot)
            want = call(runs["base-regs"], *given)
            assert relative(want, reference.moe(made, *given)) < REL_ERR, (rows, hot)
            for variant, run in runs.items():
                assert same_bits(call(run, *given), want), (rows, hot, variant)


@pytest.mark.parametrize("config", [{"dependent": False}, {"item_rows": 16}, {"warps": 2}, {"blocks": 300}], ids=str)
def test_how_it_is_launched_changes_no_byte(config) -> None:
    shape = SHAPES[4]
    _, packed = setup(shape)
    for rows in (1, 7):
        given = inputs(shape, rows)
        want = call(ops.MoeRun([packed], 8, shape.top_k, "base-regs"), *given)
        for variant in ops.VARIANTS:
            if config.get("item_rows", 0) > 8 and variant.startswith("quarter"):  # its items hold eight rows
                with pytest.raises(ValueError, match="quarter"):
                    call(ops.MoeRun([packed], 8, shape.top_k, variant, **config), *given)
                continue
            assert same_bits(call(ops.MoeRun([packed], 8, shape.top_k, variant, **config), *given), want), variant


@pytest.mark.parametrize("depth", [4, 6, 8, 12, 16])
def test_every_depth(depth) -> None:
    for shape in (SHAPES[2], SHAPES[3]):
        _, packed = setup(shape)
        given = inputs(shape, 9)
        want = call(ops.MoeRun([packed], 9, shape.top_k, "base-regs"), *given)
        for schedule in ops.SCHEDULES:
            run = ops.MoeRun([packed], 9, shape.top_k, f"{schedule}-deep", depth=depth)
            assert run.choice(0, 9, shape.top_k)[0][1] == depth
            assert same_bits(call(run, *given), want), schedule


@pytest.mark.parametrize("rows", [1, 16, 300])
def test_the_plan_is_the_one_by_definition(rows) -> None:
    _, packed = setup(SMALL)
    for seed in range(8):
        x, ids, weights = inputs(SMALL, rows, seed, hot=seed % 4)
        ids[0, 0] = -1
        weights[rows // 2, 1] = 0
        run = ops.MoeRun([packed], rows, 3, "base-ring", item_rows=16)
        call(run, x, ids, weights, mask_invalid=True)
        want = routing.make_plan(ids.cpu().numpy(), SMALL.experts, weights.cpu().numpy(), mask_invalid=True)
        got = run.plan(0, rows, 3)
        for name in ("rows", "expert", "start", "count"):
            assert got[name] == getattr(want, name).tolist(), name


@pytest.mark.parametrize("shape", [SMALL, PLAIN], ids=lambda shape: shape.name)
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38, 1e-40])
def test_values_that_are_not_ordinary(shape, value) -> None:
    _, packed = setup(shape)
    x, ids, weights = inputs(shape, 3)
    x[1, 5] = value
    x[0] = 0
    weights[2, 0] = 0
    outs = [call(ops.MoeRun([packed], 3, 3, variant), x, ids, weights) for variant in ops.VARIANTS]
    assert all(same_bits(out, outs[0]) for out in outs)
    assert torch.isfinite(outs[0][2]).all()
    assert (outs[0][0] == 0).all()


@pytest.mark.parametrize("variant", ["base-regs", "waves-ring", "half-deep"])
def test_replays_with_changing_ids_equal_eager_calls(variant) -> None:
    shape = SHAPES[3]
    _, packed = setup(shape)
    captured, eager = (ops.MoeRun([packed], 6, shape.top_k, variant) for _ in range(2))
    x, ids, weights = inputs(shape, 6)
    out = call(captured, x, ids, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.layer(0, x, ids, weights, out)
    for _ in range(300):
        x.normal_()
        ids.copy_(torch.randint(-1, shape.experts, ids.shape, device="cuda"))
        weights.uniform_()
        out.view(torch.uint8).fill_(0xA5)
        graph.replay()
        assert same_bits(out, call(eager, x, ids, weights))
    assert int(packed.errors) > 0


@pytest.mark.parametrize("variant", ops.VARIANTS)
def test_layers_follow_each_other_in_one_workspace(variant) -> None:
    """Each layer's launches may start while the layer before still runs."""
    shape = SHAPES[2]
    made = [setup(shape, seed) for seed in range(3)]
    given = [inputs(shape, 3, seed) for seed in range(3)]
    run = ops.MoeRun([packed for _, packed in made], 3, shape.top_k, variant)
    wants = []
    for index, one in enumerate(given):
        wants.append(call(run, *one, index=index))
        torch.cuda.synchronize()
    for _ in range(50):
        outs = [call(run, *one, index=index) for index, one in enumerate(given)]
        assert all(same_bits(out, want) for out, want in zip(outs, wants, strict=True))


@pytest.mark.parametrize("variant", ["base-ring", "half-regs", "waves-deep"])
def test_four_streams_at_once(variant) -> None:
    shape = SHAPES[4]
    _, packed = setup(shape)
    runs = [ops.MoeRun([packed], 2, shape.top_k, variant) for _ in range(4)]
    given = [inputs(shape, 2, seed) for seed in range(4)]
    wants = [call(run, *one) for run, one in zip(runs, given, strict=True)]
    outs = [torch.empty_like(want) for want in wants]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    for _ in range(30):
        for out, stream, run, one in zip(outs, streams, runs, given, strict=True):
            with torch.cuda.stream(stream):
                out.view(torch.uint8).fill_(0xA5)
                for _ in range(4):
                    run.layer(0, *one, out)
        torch.cuda.synchronize()
        assert all(same_bits(out, want) for out, want in zip(outs, wants, strict=True))


@pytest.mark.parametrize("bad", [-1, 6, 2**40])
def test_ids_of_no_expert(bad) -> None:
    _, packed = setup(SMALL)
    run = ops.MoeRun([packed], 4, 3)
    x, ids, weights = inputs(SMALL, 2)
    ids[1, 0] = 0
    without = weights.clone()
    without[1, 0] = 0
    want = call(run, x, ids, without)
    ids[1, 0] = bad
    assert same_bits(call(run, x, ids, weights), want)
    assert int(packed.errors) == 1
    assert same_bits(call(run, x, ids, weights, mask_invalid=True), want)
    assert int(packed.errors) == 1
    assert same_bits(ops.nvfp4_moe(packed, x, ids, weights, mask_invalid=True), want)


def test_strided_inputs() -> None:
    _, packed = setup(SMALL)
    run = ops.MoeRun([packed], 5, 3)
    x, ids, weights = inputs(SMALL, 5)
    want = call(run, x, ids, weights)
    wide = torch.full((5, 2 * 96 + 1), float("nan"), dtype=torch.bfloat16, device="cuda")
    wide[:, 1::2] = x
    out = torch.empty_like(want)
    run.layer(0, wide[:, 1::2], ids.T.contiguous().T, weights.T.contiguous().T, out)
    assert same_bits(out, want)


def test_outputs_of_the_experts() -> None:
    _, packed = setup(PLAIN)
    x, ids, weights = inputs(PLAIN, 3)
    outs = []
    for variant in ops.VARIANTS:
        run = ops.MoeRun([packed], 3, 3, variant)
        wide = torch.full((3, 3, PLAIN.hidden), float("nan"), device="cuda")
        run.layer(0, x, ids, weights, wide)
        narrow = torch.full_like(wide, float("nan"), dtype=torch.bfloat16)
        run.layer(0, x, ids, weights, narrow)
        assert same_bits(narrow, wide.to(torch.bfloat16))
        outs.append(wide)
    assert all(same_bits(out, outs[0]) for out in outs)
    total = torch.zeros(3, PLAIN.hidden, device="cuda")
    for k in range(3):
        total += weights[:, k, None] * outs[0][:, k]
    assert same_bits(total.to(torch.bfloat16), call(ops.MoeRun([packed], 3, 3), x, ids, weights))


def test_nothing_is_allocated() -> None:
    _, packed = setup(SMALL)
    run = ops.MoeRun([packed], 8, 3)
    given = inputs(SMALL, 8)
    out = call(run, *given)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    run.layer(0, *given, out)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_what_does_not_fit_is_refused() -> None:
    _, packed = setup(SMALL)
    run = ops.MoeRun([packed], 1, 3)
    x, ids, weights = inputs(SMALL, 8)
    with pytest.raises(ValueError, match="the workspace is too small for 8 tokens"):
        call(run, x, ids, weights)
    with pytest.raises(ValueError, match="x must be bf16, not Float"):
        run.layer(0, x[:1].float(), ids[:1], weights[:1], torch.empty_like(x[:1]))
    with pytest.raises(ValueError, match="ids must be int64, not Int"):
        run.layer(0, x[:1], ids[:1].int(), weights[:1], torch.empty_like(x[:1]))
    with pytest.raises(ValueError, match=r"out has shape \[8, 96\], not \[1, 96\]"):
        run.layer(0, x[:1], ids[:1], weights[:1], torch.empty_like(x))
    with pytest.raises(ValueError, match="one call takes 32768"):
        ops.MoeRun([packed], 20_000, 3)
    with pytest.raises(ValueError, match="depth is 1; it must be 4, 6, 8, 12 or 16"):
        call(ops.MoeRun([packed], 8, 3, "base-deep", depth=1), x, ids, weights)
