"""The SSM step on a GPU: the exact implementation's bytes from every schedule, near float64, graphs, streams."""

from __future__ import annotations

import pytest
import torch

from glqprof_kernels import ssm
from glqprof_kernels.ssm import factory, ops, reference
from glqprof_kernels.ssm.factory import TINY, Sizes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

CASCADE = Sizes(heads=64, head_dim=64, state=128, groups=8)
SIZES = {
    "tiny": TINY,
    "cascade2": CASCADE,
    "odd-rows": Sizes(heads=6, head_dim=20, state=32, groups=2),
    "one-group": Sizes(heads=3, head_dim=5, state=16, groups=1, taps=3, conv_bias=False),
    "two-taps": Sizes(heads=2, head_dim=64, state=64, groups=1, taps=2),
    "widest": Sizes(heads=8, head_dim=40, state=256, groups=2, taps=1),
    "large-group": Sizes(heads=16, head_dim=96, state=128, groups=1),  # 48 chunks: no cluster
}
SCHEDULES: list[dict] = [
    {"variant": "fused"},
    {"variant": "fused", "early_state": True},
    {"variant": "fused", "dependent": False},
    {"variant": "fused", "exchange": "counter"},
    {"variant": "fused", "exchange": "counter", "early_state": True},
    {"variant": "unfused"},
    {"variant": "unfused", "dependent": False},
]


def host(weights: ssm.StepWeights) -> ssm.StepWeights:
    """The same weights on the CPU."""
    w = weights
    tensors = [None if t is None else t.cpu() for t in (w.conv_weight, w.conv_bias, w.dt_bias, w.a, w.d, w.norm_weight)]
    return ssm.StepWeights(*tensors, w.eps, w.heads, w.head_dim, w.state, w.groups)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bytes; a NaN of a state is any NaN."""
    a, b = a.cpu().contiguous(), b.cpu().contiguous()
    if a.dtype == torch.float32:
        a, b = (torch.where(t.isnan(), torch.nan, t) for t in (a, b))
        return torch.equal(a.view(torch.int32), b.view(torch.int32))
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def poisoned(weights: ssm.StepWeights, batch: int) -> torch.Tensor:
    out = torch.empty(batch, weights.inter, dtype=torch.bfloat16, device="cuda")
    out.view(torch.uint8).fill_(0xA5)
    return out


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", SIZES)
def test_the_exact_bytes_from_every_schedule(name, state_dtype) -> None:
    weights = factory.layer(SIZES[name], 1, "cuda")
    for batch in (1, 2, 3, 5, 8):
        if name == "cascade2" and batch in (3, 5):
            continue
        projected, states = factory.projected(weights, batch, batch), factory.states(weights, batch, 7, state_dtype)
        wanted = [t.cpu() for t in states]
        want = ssm.step(host(weights), projected.cpu(), *wanted)
        for schedule in SCHEDULES:
            mine, out = [t.clone() for t in states], poisoned(weights, batch)
            torch.cuda.synchronize()  # an early reader must not follow the writer directly
            ssm.step(weights, projected, *mine, out, **schedule)
            for got, expected in ((out, want), (mine[0], wanted[0]), (mine[1], wanted[1])):
                assert same_bytes(got, expected), (batch, schedule)


@pytest.mark.parametrize("chunks", [1, 2])
def test_clusters_of_one_and_two_chunks_a_block(chunks) -> None:
    weights = factory.layer(CASCADE, 2, "cuda")
    if weights.cuda_layer.largest_cluster() < 16 // chunks:
        pytest.skip(f"the device holds clusters of {weights.cuda_layer.largest_cluster()}")
    assert weights.cuda_layer.choice(ops.make_config(chunks=chunks)) == (0, chunks)
    projected, states = factory.projected(weights, 2, 2), factory.states(weights, 2, 7)
    results = []
    for schedule in ({"variant": "unfused"}, {"exchange": "cluster", "chunks": chunks}):
        mine = [t.clone() for t in states]
        results.append([ssm.step(weights, projected, *mine, **schedule), *mine])
    assert all(same_bytes(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38, 1e-40, -0.0])
def test_hostile_inputs(value) -> None:
    weights = factory.layer(SIZES["odd-rows"], 3, "cuda")
    w = weights
    for at in (3, w.inter + 5, 2 * w.inter + 1, 2 * w.inter + 70, w.inter + w.conv_dim + 2):
        projected, states = factory.projected(w, 2, 5), factory.states(w, 2, 6)
        projected[0, at] = value
        states[1][0, 1, 2, 3] = value
        wanted = [t.cpu() for t in states]
        want = ssm.step(host(w), projected.cpu(), *wanted)
        for schedule in SCHEDULES:
            mine = [t.clone() for t in states]
            torch.cuda.synchronize()  # an early reader must not follow the writer directly
            out = ssm.step(w, projected, *mine, **schedule)
            assert same_bytes(out, want), schedule
            assert all(same_bytes(a, b) for a, b in zip(mine, wanted, strict=True)), schedule


@pytest.mark.parametrize("name", ["tiny", "cascade2"])
def test_error_is_below_the_fallbacks(name) -> None:
    """Against float64 over 20 tokens of a few sequences, each from the float64 state of the token before."""
    weights = factory.layer(SIZES[name], 4, "cuda")
    batch = 32 if name == "tiny" else 2
    conv_state, state = factory.states(weights, batch, 7)
    error = {(variant, what): 0.0 for variant in ssm.VARIANTS for what in ("out", "state")}
    size = {"out": 0.0, "state": 0.0}
    for token in range(20):
        projected = factory.projected(weights, batch, 50 + token)
        want = reference.step(weights, projected, conv_state, state)
        for variant in ssm.VARIANTS:
            mine = [conv_state.clone(), state.clone()]
            out = ssm.step(weights, projected, *mine, variant=variant)
            error[variant, "out"] += float((out.double() - want.out).square().sum())
            error[variant, "state"] += float((mine[1].double() - want.state).square().sum())
        size["out"] += float(want.out.square().sum())
        size["state"] += float(want.state.square().sum())
        conv_state, state = mine[0], want.state.float()
    for what in ("out", "state"):
        assert error["fused", what] == error["unfused", what] <= error["torch", what]
        assert (error["fused", what] / size[what]) ** 0.5 < 4e-3  # bf16 keeps 2^-9


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", ["tiny", "cascade2", "large-group"])
def test_a_replayed_graph_equals_eager_over_100_tokens(name, schedule) -> None:
    """Two layers in turn, so that a state is read early only after the kernel that wrote it has ended."""
    layers = [factory.layer(SIZES[name], 5 + k, "cuda") for k in range(2)]
    states = [factory.states(w, 1, 7 + k) for k, w in enumerate(layers)]
    eager = [[t.clone() for t in pair] for pair in states]
    projected = factory.projected(layers[0], 1, 9)
    outs = [poisoned(w, 1) for w in layers]
    spaces = [ops.make_workspace(w, 1) for w in layers]

    def token(all_states, into) -> None:
        for k, w in enumerate(layers):
            ssm.step(w, projected, *all_states[k], into[k], workspace=spaces[k], **schedule)

    kept = [[t.clone() for t in pair] for pair in states]
    token(states, outs)  # loads the kernels before the capture
    for pair, before in zip(states, kept, strict=True):
        for t, b in zip(pair, before, strict=True):
            t.copy_(b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token(states, outs)
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        projected.copy_(torch.randn(projected.shape, generator=generator))
        graph.replay()
        wanted = [poisoned(w, 1) for w in layers]
        for k, w in enumerate(layers):
            ssm.step(w, projected, *eager[k], wanted[k], variant="unfused", dependent=False)
        torch.cuda.synchronize()
        assert all(same_bytes(a, b) for a, b in zip(outs, wanted, strict=True))
    for mine, other in zip(states, eager, strict=True):
        assert all(same_bytes(a, b) for a, b in zip(mine, other, strict=True))


def test_the_same_state_step_after_step_without_early_reading() -> None:
    """Back to back on one state: the default must wait for the kernel ahead."""
    weights = factory.layer(CASCADE, 6, "cuda")
    states = factory.states(weights, 1, 7)
    plain = [t.clone() for t in states]
    inputs = [factory.projected(weights, 1, 100 + k) for k in range(50)]
    outs, wanted = [poisoned(weights, 1) for _ in inputs], [poisoned(weights, 1) for _ in inputs]
    torch.cuda.synchronize()
    for projected, out in zip(inputs, outs, strict=True):
        ssm.step(weights, projected, *states, out)
    for projected, out in zip(inputs, wanted, strict=True):
        ssm.step(weights, projected, *plain, out, variant="unfused", dependent=False)
    torch.cuda.synchronize()
    assert all(same_bytes(a, b) for a, b in zip(outs, wanted, strict=True))
    assert all(same_bytes(a, b) for a, b in zip(states, plain, strict=True))


@pytest.mark.parametrize("exchange", ["auto", "counter"])
def test_two_streams_do_not_disturb_each_other(exchange) -> None:
    weights = factory.layer(CASCADE, 7, "cuda")
    pairs = [factory.states(weights, 1, 20 + k) for k in range(2)]
    alone = [[t.clone() for t in pair] for pair in pairs]
    spaces = [ops.make_workspace(weights, 1) for _ in range(2)]
    inputs = [[factory.projected(weights, 1, 200 + 50 * k + i) for i in range(30)] for k in range(2)]
    outs = [[poisoned(weights, 1) for _ in row] for row in inputs]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for i in range(30):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                ssm.step(weights, inputs[k][i], *pairs[k], outs[k][i], workspace=spaces[k], exchange=exchange)
    torch.cuda.synchronize()
    for k in range(2):
        for i in range(30):
            want = ssm.step(weights, inputs[k][i], *alone[k], variant="unfused", dependent=False)
            assert same_bytes(outs[k][i], want), (k, i)
        assert all(same_bytes(a, b) for a, b in zip(pairs[k], alone[k], strict=True))


def test_nothing_is_allocated_when_all_is_given() -> None:
    weights = factory.layer(CASCADE, 8, "cuda")
    projected, states, out = factory.projected(weights, 1, 1), factory.states(weights, 1, 2), poisoned(weights, 1)
    workspace = ops.make_workspace(weights, 1)
    for variant in ("fused", "unfused"):
        ssm.step(weights, projected, *states, out, variant=variant, workspace=workspace)
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        ssm.step(weights, projected, *states, out, variant=variant, workspace=workspace)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_views() -> None:
    """Rows at a distance are right; what the kernels cannot take is refused and nothing is written."""
    weights = factory.layer(TINY, 9, "cuda")
    projected, states = factory.projected(weights, 3, 1), factory.states(weights, 3, 2)
    wanted = [t.clone() for t in states]
    want = ssm.step(weights, projected, *wanted)

    def spread(t: torch.Tensor) -> torch.Tensor:
        wide = torch.full((2 * t.shape[0], *t.shape[1:]), torch.nan, dtype=t.dtype, device="cuda")
        wide[::2] = t
        return wide[::2]

    mine = [spread(t) for t in states]
    assert same_bytes(ssm.step(weights, spread(projected), *mine), want)
    assert all(same_bytes(a, b) for a, b in zip(mine, wanted, strict=True))

    shifted = torch.empty(states[1].numel() + 1, device="cuda")[1:].view(states[1].shape).copy_(states[1])
    refused = [
        ((states[0], states[1].transpose(2, 3).contiguous().transpose(2, 3)), "contiguous within each sequence"),
        ((states[0].transpose(1, 2).contiguous().transpose(1, 2), states[1]), "contiguous within each sequence"),
        ((states[0], states[1][:1].expand(3, -1, -1, -1)), "sequences that overlap"),
        ((states[0], shifted), "must lie at multiples of 16 bytes"),
        ((states[0].float(), states[1]), "conv_state must be BFloat16, not Float"),
        ((states[0], states[1].half()), "state must be Float, not Half"),
        ((states[0][:2], states[1]), r"conv_state must be \[3, 128, 4\], not \[2, 128, 4\]"),
        ((states[0].cpu(), states[1]), "conv_state is on cpu"),
    ]
    for pair, words in refused:
        before = [t.clone() for t in pair]
        for variant in ("fused", "unfused"):
            with pytest.raises(ValueError, match=words):
                ssm.step(weights, projected, *pair, variant=variant)
        assert all(torch.equal(a, b) for a, b in zip(pair, before, strict=True))
    with pytest.raises(ValueError, match="projected must be contiguous"):
        ssm.step(weights, projected.t().contiguous().t(), *states)
    with pytest.raises(ValueError, match="the workspace must be"):
        ssm.step(weights, projected, *states, variant="unfused", workspace=torch.zeros(8, device="cuda").byte())
