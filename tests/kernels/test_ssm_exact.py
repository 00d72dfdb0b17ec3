"""The step's contract in numpy: near float64, nearer than transformers' fallback, and right in each of its parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernels.test_ssm_fallback import make_mixer, prefilled

from glqprof_kernels import ssm
from glqprof_kernels.ssm import exact, factory, ops, reference
from glqprof_kernels.ssm.factory import TINY, Sizes

ODD = Sizes(heads=6, head_dim=20, state=32, groups=2, taps=3)


@pytest.mark.parametrize("sizes", [TINY, ODD, Sizes(heads=4, head_dim=64, state=128, groups=2)], ids=str)
def test_error_is_below_the_fallbacks(sizes) -> None:
    """Over 12 tokens of a few sequences, each from the float64 state of the token before."""
    weights = factory.layer(sizes, 4, "cpu")
    conv_state, state = factory.states(weights, 16, 7)
    error = {(variant, what): 0.0 for variant in ("torch", "fused") for what in ("out", "state")}
    size = {"out": 0.0, "state": 0.0}
    for token in range(12):
        projected = factory.projected(weights, 16, 50 + token)
        want = reference.step(weights, projected, conv_state, state)
        for variant in ("torch", "fused"):
            mine = [conv_state.clone(), state.clone()]
            out = ssm.step(weights, projected, *mine, variant=variant)
            error[variant, "out"] += float((out.double() - want.out).square().sum())
            error[variant, "state"] += float((mine[1].double() - want.state).square().sum())
        size["out"] += float(want.out.square().sum())
        size["state"] += float(want.state.square().sum())
        conv_state, state = mine[0], want.state.float()
    for what in ("out", "state"):
        assert error["fused", what] <= error["torch", what]
        assert (error["fused", what] / size[what]) ** 0.5 < 4e-3  # bf16 keeps 2^-9


def test_reference_of_a_case_by_hand() -> None:
    """One head of one row: every number of the step on paper."""
    weights = ssm.StepWeights(
        conv_weight=torch.tensor([[0.5, 1.0], [2.0, 1.0], [1.0, 0.0]]),
        conv_bias=torch.tensor([0.0, 0.25, 0.0]),
        dt_bias=torch.tensor([0.5]),
        a=torch.tensor([-1.0]),
        d=torch.tensor([3.0]),
        norm_weight=torch.tensor([2.0]),
        eps=0.0,
        heads=1,
        head_dim=1,
        state=1,
        groups=1,
    )
    projected = torch.tensor([[4.0, 1.0, -1.0, 9.0, -0.5]])  # gate, x, B, C, dt
    conv_state = torch.tensor([[[7.0, 2.0], [7.0, 1.0], [7.0, 3.0]]])
    state = torch.tensor([[[[10.0]]]])
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    x, b, c = 2.0 * sigmoid(2.0), 1.25 * sigmoid(1.25), 3.0 * sigmoid(3.0)  # 2·0.5 + 1·1; 1·2 − 1·1 + 0.25; 3·1 + 9·0
    dt = np.log(2.0)  # softplus(0)
    new = 10.0 * np.exp(-dt) + dt * x * b  # half of the old state stays
    gated = (new * c + 3.0 * x) * 4.0 * sigmoid(4.0)
    got = reference.step(weights, projected, conv_state, state)
    assert got.state.item() == pytest.approx(5.0 + dt * x * b, rel=1e-14)
    assert got.out.item() == pytest.approx(2.0 * np.sign(gated), rel=1e-14)  # one value normalised is its sign
    assert new == pytest.approx(got.state.item())


def test_softplus_is_within_three_units_of_the_last_place() -> None:
    z = np.concatenate([np.linspace(-104, 100, 200_001), np.logspace(-30, 1, 20_000), -np.logspace(-30, 1, 20_000)])
    z = z.astype(np.float32)
    want = np.logaddexp(z.astype(np.float64), 0)
    unit = np.spacing(want.astype(np.float32)).astype(np.float64)
    assert (np.abs(exact.softplus(z) - want) / unit).max() < 3
    special = exact.softplus(np.array([np.inf, -np.inf, np.nan, 0.0], dtype=np.float32))
    assert special[0] == np.inf
    assert special[1] == 0
    assert np.isnan(special[2])
    assert special[3] == np.float32(np.log(2))


def test_convolution_keeps_the_last_inputs() -> None:
    weights = factory.layer(ODD, 1, "cpu")
    conv_state, state = factory.states(weights, 2, 3)
    before, projected = conv_state.clone(), factory.projected(weights, 2, 4)
    for variant in ssm.VARIANTS:
        conv_state.copy_(before)
        ssm.step(weights, projected, conv_state, state.clone(), variant=variant)
        assert torch.equal(conv_state[..., :-1], before[..., 1:])
        assert torch.equal(conv_state[..., -1], projected[:, weights.inter : weights.inter + weights.conv_dim])


def test_a_chunk_is_summed_as_the_contract_says() -> None:
    """33 rows: a tree over 32, then the one row of the second chunk; values whose sum depends on the order."""
    sizes = Sizes(heads=1, head_dim=33, state=16, groups=1)
    weights = factory.layer(sizes, 1, "cpu")
    y = (np.float32(2) ** np.arange(33)).reshape(1, 33).astype(np.float32)
    gate = np.full((1, 33), 3.0, dtype=np.float32)
    host = exact.host_weights(weights)
    v = y * exact.silu(gate)
    squares = (v * v)[0]
    tree = squares[:32]
    while len(tree) > 1:
        tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
    total = tree[0] + squares[32]
    scale = np.float32(1) / np.sqrt(total / np.float32(33) + np.float32(1e-5))
    want = exact.to_bf16(host.norm_weight * exact.as_bf16(v * scale))
    np.testing.assert_array_equal(exact.norm(host, y, gate), want)


def test_a_bf16_state_is_the_fp32_one_rounded() -> None:
    weights = factory.layer(TINY, 1, "cpu")
    conv_state, state = factory.states(weights, 2, 3, torch.bfloat16)
    wide = state.float()
    out = ssm.step(weights, factory.projected(weights, 2, 4), conv_state.clone(), state)
    again = ssm.step(weights, factory.projected(weights, 2, 4), conv_state.clone(), wide)
    assert torch.equal(out, again)
    assert torch.equal(state, wide.bfloat16())


def test_in_the_mixers_place() -> None:
    """Twenty tokens after a prompt, each variant's states its own: both stay near transformers' mixer."""
    mixer, config = make_mixer()
    conv_state, state, tokens, run = prefilled(mixer, config, 2)
    weights = ssm.StepWeights.of(mixer)
    mine = [conv_state.clone(), state.clone()]
    for _ in range(20):
        hidden = tokens(1)
        want = run(hidden)
        with torch.no_grad():
            got = mixer.out_proj(ssm.step(weights, mixer.in_proj(hidden)[:, 0], *mine))[:, None]
        assert ((got - want).float().norm() / want.float().norm()) < 0.02
        assert torch.equal(mine[0], conv_state)
        assert ((mine[1] - state).norm() / state.norm()) < 0.01


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (Sizes(2, 16, 24, 1), "the state's width must be 16, 32, 64, 128 or 256 for fused and unfused, not 24"),
        (Sizes(2, 16, 16, 1, taps=5), "the convolution must have 1 to 4 taps for fused and unfused, not 5"),
        (Sizes(65, 64, 16, 1), "a group of 4160 channels; fused and unfused take up to 4096"),
    ],
)
def test_sizes_outside_the_limits_are_refused(sizes, words) -> None:
    weights = factory.layer(sizes, 1, "cpu")
    arguments = (factory.projected(weights, 1, 1), *factory.states(weights, 1, 1))
    for variant in ("fused", "unfused"):
        with pytest.raises(ValueError, match=words):
            ssm.step(weights, *arguments, variant=variant)
    assert torch.isfinite(ssm.step(weights, *arguments, variant="torch")).all()


def test_what_does_not_fit_is_refused() -> None:
    weights = factory.layer(TINY, 1, "cpu")
    projected, (conv_state, state) = factory.projected(weights, 2, 1), factory.states(weights, 2, 1)
    cases = [
        ((projected[:, 1:], conv_state, state), {}, r"projected must be \[batch, 196\], not \[2, 195\]"),
        ((projected, conv_state[:1], state), {}, r"conv_state must be \[2, 128, 4\]"),
        ((projected, conv_state, state[..., :8]), {}, r"state must be \[2, 4, 16, 16\]"),
        ((projected, conv_state, state.double()), {}, "state must be fp32 or bf16"),
        ((projected, conv_state.float(), state), {}, "conv_state must be bf16"),
        ((projected.float(), conv_state, state), {}, "projected is torch.float32, the weights torch.bfloat16"),
        ((projected, conv_state, state, torch.empty(2, 64)), {}, "out must be torch.bfloat16"),
        ((projected, conv_state, state), {"variant": "fast"}, "no SSM variant 'fast'; there are torch, unfused, fused"),
        ((projected, conv_state, state), {"exchange": "ring"}, "no exchange 'ring'; there are auto, cluster, counter"),
    ]
    before = conv_state.clone(), state.clone()
    for arguments, options, words in cases:
        with pytest.raises(ValueError, match=words):
            ssm.step(weights, *arguments, **options)
    assert torch.equal(conv_state, before[0])
    assert torch.equal(state, before[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": 3}, "the groups must divide the heads"),
        ({"conv_weight": torch.zeros(128, 4, 1)}, "conv_weight must be .conv_dim, K."),
        ({"conv_weight": torch.zeros(127, 4)}, r"conv_weight must be \[128, 4\], not \[127, 4\]"),
        ({"d": torch.zeros(5)}, r"d must be \[4\], not \[5\]"),
        ({"a": torch.zeros(4, dtype=torch.bfloat16)}, "a must be fp32"),
        ({"dt_bias": torch.zeros(4, dtype=torch.int32)}, "dt_bias must be of a float type"),
        ({"norm_weight": torch.zeros(64, device="meta")}, "norm_weight is on meta, conv_weight on cpu"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change, words) -> None:
    w = factory.layer(TINY, 1, "cpu")
    fields = {name: getattr(w, name) for name in ssm.StepWeights.__dataclass_fields__}
    with pytest.raises(ValueError, match=words):
        ssm.StepWeights(**{**fields, **change})


def test_an_empty_batch_is_no_work() -> None:
    weights = factory.layer(TINY, 1, "cpu")
    for variant in ssm.VARIANTS:
        out = ssm.step(weights, factory.projected(weights, 0, 1), *factory.states(weights, 0, 1), variant=variant)
        assert out.shape == (0, 64)


def test_limits_are_those_of_the_source() -> None:
    from glqprof_kernels.ssm.extension import CSRC

    source = (CSRC / "step_call.h").read_text()
    assert f"kMaxTaps = {ops.MAX_TAPS};" in source
    assert f"kMaxChunks = {ops.MAX_GROUP // exact.CHUNK_ROWS};" in source
    assert f"kChunkRows = {exact.CHUNK_ROWS};" in source
