"""The step kernels' plain torch implementation against transformers' own modules, float64 and counted cases."""

from __future__ import annotations

import math

import pytest
import torch

from glqprof_kernels import step
from glqprof_kernels.step import checks

BF16 = torch.bfloat16


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(BF16)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def relative(out: torch.Tensor, want: torch.Tensor) -> float:
    return ((out.double() - want).norm() / want.norm()).item()


@pytest.fixture(scope="module")
def nemotron():
    return pytest.importorskip("transformers.models.nemotron_h.modeling_nemotron_h")


def test_embedding_rows_and_tokens_outside_the_vocabulary() -> None:
    table = draw(5, 16)
    out = step.embed(table, torch.tensor([3, 0, -1, 5, 4]), implementation="torch")
    assert same(out[[0, 1, 4]], table[[3, 0, 4]])
    assert out[2:4].isnan().all()


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_norm_has_the_bits_of_the_model(nemotron, rows) -> None:
    norm = nemotron.NemotronHRMSNorm(88, eps=1e-5)
    norm.weight.data = draw(88, seed=1)
    residual, routed, shared = draw(rows, 88, seed=2), draw(rows, 88, seed=3).half(), draw(rows, 88, seed=4)
    # The model's order: experts' output in the hidden dtype, plus the shared expert's, then the residual add.
    want_residual = residual + (routed.to(BF16) + shared)
    halves = torch.empty(rows, 88, dtype=torch.float16)
    given = residual.clone()
    out = step.add_rms_norm(
        given, routed, norm.weight.data, 1e-5, out_fp16=halves, second=shared, implementation="torch"
    )
    assert same(given, want_residual)
    assert same(out, norm(want_residual).detach())
    assert same(halves, out.half())


def test_norm_without_an_addend_leaves_the_residual(nemotron) -> None:
    residual = draw(2, 16)
    kept = residual.clone()
    out = step.add_rms_norm(residual, None, torch.ones(16), 0.0, implementation="torch")
    assert same(residual, kept)
    assert torch.allclose(out.double().pow(2).mean(-1), torch.ones(2, dtype=torch.float64), rtol=1e-2)


def test_residual_is_rounded_at_each_add() -> None:
    # bf16 keeps 8 bits: 256 + (1 + 1) is 258, but (256 + 1) + 1 would stay 256.
    residual, one = torch.full((1, 8), 256.0, dtype=BF16), torch.ones(1, 8, dtype=BF16)
    step.add_rms_norm(residual, one, torch.ones(8), 1e-5, second=one, implementation="torch")
    assert (residual == 258).all()
    step.add_rms_norm(residual, one, torch.ones(8), 1e-5, implementation="torch")
    assert (residual == 260).all()  # 259 is half way between 258 and 260: to even


@pytest.mark.parametrize("normalise", [True, False])
def test_router_chooses_and_weighs_as_the_model(nemotron, normalise) -> None:
    config = type(
        "Config",
        (),
        {
            "num_experts_per_tok": 3,
            "num_local_experts": 12,
            "hidden_size": 40,
            "routed_scaling_factor": 2.5,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": normalise,
        },
    )()
    router = nemotron.NemotronHTopkRouter(config)
    router.weight.data = draw(12, 40, seed=1).float()
    router.e_score_correction_bias = draw(12, seed=2).float() * 0.3
    x = draw(8, 40, seed=3)
    _, want_weights, want_ids = router(x)
    ids, weights = step.route(
        x, router.weight.data, router.e_score_correction_bias, 3, 2.5, normalise, implementation="torch"
    )
    # transformers leaves the order of the chosen open: compare as maps.
    for row in range(8):
        want = dict(zip(want_ids[row].tolist(), want_weights[row].tolist(), strict=True))
        got = dict(zip(ids[row].tolist(), weights[row].tolist(), strict=True))
        assert got.keys() == want.keys()
        assert all(math.isclose(got[e], want[e], rel_tol=1e-6) for e in want)
    choice = (x.float() @ router.weight.data.T).sigmoid() + router.e_score_correction_bias
    assert (choice.gather(1, ids).diff(dim=1) <= 0).all()


def test_router_ties_go_to_the_lower_id_and_nan_stays_in_range() -> None:
    x, weight = draw(1, 8), torch.zeros(6, 8)
    bias = torch.tensor([0.0, 1.0, 0.0, 1.0, -0.0, 0.5])
    ids, weights = step.route(x, weight, bias, 5, 1.0, True, implementation="torch")
    assert ids.tolist() == [[1, 3, 5, 0, 2]]
    assert torch.allclose(weights, torch.full((1, 5), 0.2))
    weight[4] = float("nan")
    ids, weights = step.route(x, weight, bias, 3, 1.0, False, implementation="torch")
    assert ids.tolist() == [[4, 1, 3]]
    assert weights.isnan().tolist() == [[True, False, False]]


@pytest.mark.parametrize("activation", ["none", "relu2"])
def test_linear_is_the_models_mlp(nemotron, activation) -> None:
    config = type(
        "Config",
        (),
        {"hidden_size": 64, "mlp_bias": True, "mlp_hidden_act": "relu2", "intermediate_size": 48},
    )()
    mlp = nemotron.NemotronHMLP(config).to(BF16)
    x = draw(3, 64, seed=5)
    up = step.linear(
        x, mlp.up_proj.weight.data, bias=mlp.up_proj.bias.data, activation=activation, implementation="torch"
    )
    want = mlp.up_proj(x).detach()
    assert same(up, mlp.act_fn(want) if activation == "relu2" else want)
    if activation == "relu2":
        down = step.linear(up, mlp.down_proj.weight.data, bias=mlp.down_proj.bias.data, implementation="torch")
        assert same(down, mlp(x).detach())


def test_linear_over_several_weights_and_views() -> None:
    x = draw(2, 32)
    stacked = draw(24, 32, seed=1)
    whole = step.linear(x, stacked, implementation="torch")
    out = torch.zeros(2, 24, dtype=BF16)
    parts = [stacked[:16], stacked[16:20], stacked[20:]]
    views = [out[:, :16], out[:, 16:20], out[:, 20:]]
    assert step.linear(x, parts, views, implementation="torch") is not None
    assert same(out, whole)


@pytest.mark.parametrize("position", [0, 1, 63, 64, 99])
def test_attention_sees_exactly_the_positions_so_far(position) -> None:
    batch, heads, kv_heads, dim, capacity = 2, 6, 2, 16, 100
    q, k_new, v_new = draw(batch, heads * dim), draw(batch, kv_heads * dim, seed=1), draw(batch, kv_heads * dim, seed=2)
    caches = [draw(batch, kv_heads, capacity, dim, seed=s) for s in (3, 4)]
    for cache in caches:
        cache[:, :, position:] = float("nan")  # neither the old entry nor anything later may be read
    out = step.attend(q, k_new, v_new, *caches, torch.tensor([position]), 0.25, implementation="torch")
    k, v = (c[:, :, : position + 1].double() for c in caches)
    assert same(caches[0][:, :, position], k_new.view(batch, kv_heads, dim))
    assert same(caches[1][:, :, position], v_new.view(batch, kv_heads, dim))
    assert caches[0][:, :, position + 1 :].isnan().all()
    k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
    shares = ((q.double().view(batch, heads, 1, dim) @ k.transpose(2, 3)) * 0.25).softmax(-1)
    assert relative(out, (shares @ v).reshape(batch, -1)) < 2.0**-8  # half a bf16 ulp at most


@pytest.mark.parametrize("position", [-1, 4])
def test_attention_outside_the_cache_writes_nothing(position) -> None:
    caches = [draw(1, 1, 4, 8, seed=s) for s in (1, 2)]
    kept = [c.clone() for c in caches]
    out = step.attend(
        draw(1, 16), draw(1, 8), draw(1, 8), *caches, torch.tensor([position]), 1.0, implementation="torch"
    )
    assert out.isnan().all()
    assert all(same(a, b) for a, b in zip(caches, kept, strict=True))


def test_head_takes_the_lowest_of_equal_logits_after_rounding() -> None:
    # 256 and 257 are both 256 in bf16: the lower id wins although its product is smaller.
    x = torch.zeros(2, 8, dtype=BF16)
    x[0, :2] = 1
    x[1, 2] = 1
    weight = torch.zeros(5, 8, dtype=BF16)
    weight[2, 0] = 256
    weight[3, :2] = torch.tensor([256.0, 1.0])
    weight[4, 2] = float("nan")
    logits = torch.empty(2, 5, dtype=BF16)
    token = step.head_argmax(x, weight, logits=logits, implementation="torch")
    assert token.tolist() == [4, 4]  # 0 * NaN is NaN: larger than any number, as in torch.argmax
    weight[4] = 0
    assert step.head_argmax(x, weight, logits=logits, implementation="torch").tolist() == [2, 0]
    assert logits[0].tolist() == [0, 0, 256, 256, 0]


def test_what_does_not_fit_is_said_in_one_line() -> None:
    x, w = draw(1, 16), draw(4, 16)
    cases = [
        (lambda: step.linear(x, w), r"on cpu; implementation='cuda' needs a GPU"),
        (lambda: step.linear(x, w, implementation="tensor"), r"no implementation 'tensor'"),
        (lambda: step.linear(draw(9, 16), w, implementation="torch"), r"a batch of 9 rows"),
        (lambda: step.linear(draw(1, 12), draw(4, 12), implementation="torch"), r"inputs is 12; .* multiple of 8"),
        (lambda: step.linear(x.float(), w, implementation="torch"), r"x must be bf16, not torch.float32"),
        (lambda: step.linear(x, draw(4, 24), implementation="torch"), r"weight has shape \[4, 24\], not \[4, 16\]"),
        (lambda: step.linear(draw(1, 32)[:, ::2], w, implementation="torch"), r"x's rows must be contiguous"),
        (lambda: step.linear(x, draw(4, 32)[:, ::2], implementation="torch"), r"weight must be contiguous"),
        (lambda: step.linear(x, w, activation="gelu", implementation="torch"), r"must be none or relu2"),
        (lambda: step.linear(x, [w] * 5, implementation="torch"), r"5 weights; one call takes 1 to 4"),
        (lambda: step.route(x, w, torch.zeros(4), 5, 1.0, True, implementation="torch"), r"top_k is 5; .* 1 to 4"),
        (lambda: step.add_rms_norm(x, None, w[0], 0.0, second=x, implementation="torch"), r"second is given without"),
        (lambda: step.embed(w, torch.zeros(1, dtype=torch.int32), implementation="torch"), r"token must be int64"),
        (
            lambda: step.attend(x, x, x, w, w, torch.zeros(1, dtype=torch.int64), 1.0, implementation="torch"),
            r"k_cache must be \[batch, kv_heads, capacity, dim\]",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_rows_that_are_read_as_vectors_begin_at_16_bytes() -> None:
    whole = torch.zeros(3 * 40, dtype=BF16)
    first = -whole.data_ptr() % 16 // 2

    def check(offset: int, stride: int, rows: int) -> None:
        view = whole.as_strided((rows, 16), (stride, 1), first + offset)
        checks.tensor(view, "x", (rows, 16), BF16, view.device, strided_rows=True, vectors=True)

    check(0, 16, 3)
    check(8, 24, 2)
    check(0, 17, 1)  # one row: no next one that could be off
    for offset, stride, rows in ((1, 16, 1), (4, 16, 2), (0, 20, 2)):
        with pytest.raises(ValueError, match="x's rows must begin at multiples of 16 bytes"):
            check(offset, stride, rows)
        with pytest.raises(ValueError, match="on cpu; implementation='cuda' needs a GPU"):
            step.linear(whole.as_strided((rows, 16), (stride, 1), first + offset), draw(4, 16))


def test_a_workspace_knows_what_it_is_for() -> None:
    workspace = step.Workspace(step.Sizes(batch=2, experts=8), "cpu")
    workspace.require(torch.device("cpu"), batch=2, experts=8)
    with pytest.raises(ValueError, match="for experts 8; this call needs 9"):
        workspace.require(torch.device("cpu"), batch=1, experts=9)
    assert not workspace.memory.any()
