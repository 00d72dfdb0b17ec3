"""The step kernels on a GPU: against float64 and the torch implementation, programmatic launches, graphs, NaN."""

from __future__ import annotations

import pytest
import torch

from glqprof_kernels import step
from glqprof_kernels.step import Sizes, Tuning, Workspace
from support import step_reference as reference
from support.step_reference import BF16, HALF_ULP, relative, residual_sum, same_bits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

WAYS = (True, False)
"""Programmatic dependent launch on and off."""


def given(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return reference.draw(*shape, seed=seed, scale=scale).cuda()


def nan_filled(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


def settled(*tensors: torch.Tensor) -> None:
    """Weights are asked for before the kernel before has ended: it must not be the one that writes them."""
    torch.cuda.synchronize()


def replayed(run, times: int = 3):
    """``run`` captured, then replayed; it returns its output tensor, the same one every time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()
    return out


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        (1, 8),
        (40, 88),
        (131, 64),
        (133, 96),
        (10304, 2688),
        (2688, 4096),
        (3712, 2688),
        (2688, 3712),
        (999, 2816),
        (500, 4104),
        (2049, 10240),
    ],
)
@pytest.mark.parametrize("batch", [1, 2, 5, 8])
def test_linear_is_one_rounding_from_float64(outputs, inputs, batch) -> None:
    x, weight, bias = given(batch, inputs), given(outputs, inputs, seed=1), given(outputs, seed=2)
    settled()
    out = nan_filled(batch, outputs)
    assert step.linear(x, weight, out) is out
    want = reference.linear(x, weight)
    assert ((out.double() - want).abs() <= HALF_ULP * want.abs() + 2e-5 * inputs**0.5).all()
    for dependent in WAYS:
        for _ in range(3):
            assert same_bits(step.linear(x, weight, dependent=dependent), out)
    for tuning in (Tuning(share=0), Tuning(share=1), Tuning(share=2), Tuning(shared_kib=220), Tuning(blocks=17)):
        assert same_bits(step.linear(x, weight, tuning=tuning), out)
    assert same_bits(replayed(lambda: step.linear(x, weight)), out)
    squared = step.linear(x, weight, bias=bias, activation="relu2")
    plain = step.linear(x, weight, bias=bias, activation="relu2", implementation="torch")
    exact = reference.relu2(reference.linear(x, weight, bias))
    assert relative(squared, exact) <= max(1.5 * relative(plain, exact), 4 * HALF_ULP)


def test_linear_rows_do_not_depend_on_the_batch() -> None:
    x, weight = given(8, 2688), given(700, 2688, seed=1)
    settled()
    whole = step.linear(x, weight)
    for row in range(8):
        assert same_bits(step.linear(x[row : row + 1], weight), whole[row : row + 1])


def test_linear_over_several_weights_and_views() -> None:
    wide = given(3, 4000)
    x = wide[:, 160 : 160 + 2688]
    weights = [given(n, 2688, seed=n) for n in (4096, 256, 255, 1)]
    out = nan_filled(3, 4096 + 256 + 255 + 1)
    views = list(out.split([4096, 256, 255, 1], dim=1))
    settled()
    step.linear(x, weights, views)
    for weight, view in zip(weights, views, strict=True):
        assert same_bits(step.linear(x.contiguous(), weight), view)


def test_infinities_and_nan_stay_in_their_rows() -> None:
    x, weight = given(2, 2688), given(300, 2688, seed=1)
    x[0, 40] = 0.0
    weight[3, 40], weight[4, 41], weight[299, 2687] = float("inf"), float("nan"), float("-inf")
    settled()
    out, want = step.linear(x, weight), reference.linear(x, weight)
    finite = want.isfinite()
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.equal(out.isinf(), want.isinf())
    assert relative(out[finite], want[finite]) < HALF_ULP


@pytest.mark.parametrize(("vocab", "hidden"), [(131072, 2688), (1000, 88), (7, 4096), (513, 5120)])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_head_takes_the_lowest_of_the_largest(vocab, hidden, batch) -> None:
    x, weight = given(batch, hidden), given(vocab, hidden, seed=1, scale=hidden**-0.5)
    weight[vocab // 2] = weight[vocab - 1]  # a tie, perhaps of the largest
    x[0] = weight[vocab - 1] * 8  # certainly
    workspace = Workspace(Sizes(batch), "cuda")
    logits = nan_filled(batch, vocab)
    settled()
    token = step.head_argmax(x, weight, logits=logits, workspace=workspace)
    assert relative(logits, reference.linear(x, weight)) < HALF_ULP
    assert token.tolist() == logits.float().argmax(dim=1).tolist()
    assert token[0].item() == vocab // 2
    for dependent in WAYS:
        again = step.head_argmax(x, weight, workspace=workspace, dependent=dependent)
        assert same_bits(again, token)
    assert same_bits(replayed(lambda: step.head_argmax(x, weight, workspace=workspace)), token)


def test_head_with_nan_and_zeros_of_both_signs() -> None:
    x = torch.eye(4, 8, dtype=BF16, device="cuda")
    weight = torch.zeros(500, 8, dtype=BF16, device="cuda")
    weight[[9, 30], 0] = 2.0
    weight[[31, 33], 1] = -1.0
    weight[:, 2] = -0.0
    weight[7, 3] = 1e30
    settled()
    assert step.head_argmax(x, weight).tolist() == [9, 0, 0, 7]
    weight[21, 3], weight[22, 3] = float("nan"), -float("nan")
    settled()
    assert step.head_argmax(x, weight).tolist() == [21] * 4  # 0 * NaN


@pytest.mark.parametrize("hidden", [8, 88, 2688, 8192, 16384])
@pytest.mark.parametrize("batch", [1, 8])
def test_norm_rounds_where_the_model_does(hidden, batch) -> None:
    residual, bf16, second = (given(batch, hidden, seed=s) for s in range(3))
    weight = given(hidden, seed=3)
    for addend, plus, scales in ((bf16, None, weight), (bf16.half(), second, weight.float()), (None, None, weight)):
        want = residual if addend is None else residual_sum(residual, addend, plus)
        for dependent in WAYS:
            updated, out, halves = (
                residual.clone(),
                nan_filled(batch, hidden),
                nan_filled(batch, hidden, dtype=torch.half),
            )
            settled()
            step.add_rms_norm(updated, addend, scales, 1e-5, out, out_fp16=halves, second=plus, dependent=dependent)
            assert same_bits(updated, want)
            assert relative(out, reference.rms_norm(want, scales, 1e-5)) < HALF_ULP
            assert same_bits(halves, out.half())


def test_embedding() -> None:
    table = given(600, 2688)
    token = torch.tensor([599, 0, 600, -1], device="cuda")
    settled()
    for dependent in WAYS:
        out = step.embed(table, token, dependent=dependent)
        assert same_bits(out[:2], table[[599, 0]])
        assert out[2:].isnan().all()


@pytest.mark.parametrize(
    ("hidden", "experts", "top_k", "fp32", "normalise"),
    [
        (2688, 128, 6, True, True),
        (2688, 128, 6, False, False),
        (88, 5, 2, True, True),
        (4096, 288, 8, True, True),
        (16384, 40, 32, False, True),
        (8, 1024, 10, True, False),
    ],
)
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_router_against_float64(hidden, experts, top_k, fp32, normalise, batch) -> None:
    x, weight = given(batch, hidden), given(experts, hidden, seed=1, scale=hidden**-0.5)
    weight = weight.float() if fp32 else weight
    bias = given(experts, seed=2).float() * 0.1
    workspace = Workspace(Sizes(batch, experts=experts), "cuda")
    settled()
    choice, want_ids, want = reference.route(x, weight, bias, top_k, 2.5, normalise)
    ids, weights = step.route(x, weight, bias, top_k, 2.5, normalise, workspace=workspace)
    assert torch.allclose(choice.gather(1, ids), choice.gather(1, want_ids), atol=1e-5)
    assert all(len(set(row)) == top_k for row in ids.tolist())
    rtol = 1e-5 if torch.equal(ids, want_ids) else 1e-3  # neighbours swapped: nearly equal scores
    assert torch.allclose(weights.double(), want, rtol=rtol)
    for dependent in WAYS:
        for _ in range(3):
            again = step.route(x, weight, bias, top_k, 2.5, normalise, workspace=workspace, dependent=dependent)
            assert same_bits(again[0], ids)
            assert same_bits(again[1], weights)
    again = replayed(lambda: step.route(x, weight, bias, top_k, 2.5, normalise, workspace=workspace))
    assert same_bits(again[0], ids)
    assert same_bits(again[1], weights)


def test_router_ties_and_nan() -> None:
    x, weight, bias = given(1, 8), torch.zeros(70, 8, device="cuda"), torch.zeros(70, device="cuda")
    bias[[3, 40, 69]] = 1.0
    bias[5] = -0.0
    settled()
    for implementation in ("cuda", "torch"):
        ids, weights = step.route(x, weight, bias, 6, 1.0, True, implementation=implementation)
        assert ids.tolist() == [[3, 40, 69, 0, 1, 2]]
        assert torch.allclose(weights, torch.full_like(weights, 1 / 6))
    weight[50] = float("nan")
    weight[33] = -float("nan")
    settled()
    for implementation in ("cuda", "torch"):
        ids, weights = step.route(x, weight, bias, 6, 1.0, False, implementation=implementation)
        assert ids.tolist() == [[33, 50, 3, 40, 69, 0]]
        assert weights.isnan().tolist() == [[True, True, False, False, False, False]]
        ids, _ = step.route(torch.full_like(x, float("nan")), weight, bias, 6, 1.0, True, implementation=implementation)
        assert ids.tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "capacity"),
    [(32, 2, 128, 1200), (2, 1, 32, 70), (6, 2, 96, 300), (5, 1, 256, 130), (4, 4, 8, 65), (3, 1, 136, 64)],
)
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_attention_against_float64(heads, kv_heads, dim, capacity, batch) -> None:
    qkv = given(batch, (heads + 2 * kv_heads) * dim)
    q, k_new, v_new = qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
    kept = [given(batch, kv_heads, capacity, dim, seed=s) for s in (4, 5)]
    workspace = Workspace(Sizes(batch, heads=heads, head_dim=dim, capacity=capacity), "cuda")
    for position in sorted({0, 1, 7, 8, 63, 64, capacity // 2, capacity - 1} & set(range(capacity))):
        at = torch.tensor([position], device="cuda")
        outs = []
        for dependent in (*WAYS, True):
            k, v = (c.clone() for c in kept)
            for cache in (k, v):
                cache[:, :, position:] = float("nan")
            out = nan_filled(batch, heads * dim)
            settled()
            step.attend(q, k_new, v_new, k, v, at, dim**-0.5, out, workspace=workspace, dependent=dependent)
            outs.append(out)
            assert same_bits(k[:, :, position], k_new.reshape(batch, kv_heads, dim))
            assert same_bits(v[:, :, position], v_new.reshape(batch, kv_heads, dim))
            assert k[:, :, position + 1 :].isnan().all()
        assert relative(outs[0], reference.attention(q, k, v, position, dim**-0.5)) < HALF_ULP, position
        assert same_bits(outs[0], outs[1])
        assert same_bits(outs[0], outs[2])


def test_attention_follows_the_position_in_a_graph() -> None:
    heads, kv_heads, dim, capacity = 32, 2, 128, 200
    q, k_new, v_new = (given(1, n * dim, seed=s) for s, n in enumerate((heads, kv_heads, kv_heads)))
    k, v = (torch.zeros(1, kv_heads, capacity, dim, dtype=BF16, device="cuda") for _ in range(2))
    at = torch.tensor([0], device="cuda")
    workspace = Workspace(Sizes(1, heads=heads, head_dim=dim, capacity=capacity), "cuda")
    out = nan_filled(1, heads * dim)
    settled()

    def run():
        step.attend(q, k_new, v_new, k, v, at, dim**-0.5, out, workspace=workspace)
        at.add_(1)

    replayed(run, times=0)
    at.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    eager_k, eager_v, other = torch.zeros_like(k), torch.zeros_like(v), nan_filled(1, heads * dim)
    for position in range(capacity):
        q.copy_(given(1, heads * dim, seed=position))
        k_new.copy_(given(1, kv_heads * dim, seed=1000 + position))
        graph.replay()
        step.attend(
            q,
            k_new,
            v_new,
            eager_k,
            eager_v,
            torch.tensor([position], device="cuda"),
            dim**-0.5,
            other,
            workspace=workspace,
        )
        assert same_bits(out, other), position
    assert same_bits(k, eager_k)


@pytest.mark.parametrize("position", [-1, 100, 2**40])
def test_attention_outside_the_cache(position) -> None:
    k, v = given(1, 1, 100, 16), given(1, 1, 100, 16, seed=1)
    kept = k.clone()
    at = torch.tensor([position], device="cuda")
    for implementation in ("cuda", "torch"):
        out = step.attend(given(1, 48), given(1, 16), given(1, 16), k, v, at, 0.25, implementation=implementation)
        assert out.isnan().all()
        assert same_bits(k, kept)


def test_a_chain_of_dependent_calls_is_the_chain_one_by_one() -> None:
    """Many short kernels in a row, each reading what the one before wrote: a missing wait shows here."""
    hidden, layers = 2688, 24
    weights = [given(hidden, hidden, seed=s, scale=hidden**-0.5) for s in range(layers)]
    small = [given(64, 64, seed=s, scale=0.125) for s in range(layers)]
    norm = given(hidden, seed=99)
    x, x_small = given(1, hidden), given(1, 64)
    settled()

    def chain(dependent: bool, wait: bool):
        residual, y, z = x.clone(), x.clone(), x_small.clone()
        for weight, little in zip(weights, small, strict=True):
            for _ in range(4):
                z = step.linear(z, little, dependent=dependent)
                if wait:
                    torch.cuda.synchronize()
            y = step.add_rms_norm(
                residual, step.linear(y, weight, dependent=dependent), norm, 1e-5, dependent=dependent
            )
            if wait:
                torch.cuda.synchronize()
        return torch.cat([residual, y, z], dim=1)

    want = chain(False, True)
    for dependent in WAYS:
        assert same_bits(chain(dependent, False), want)
        assert same_bits(replayed(lambda d=dependent: chain(d, False)), want)


def test_one_small_call_of_each() -> None:
    """What compute-sanitizer runs: every kernel and shape of a block, few blocks and short loops."""
    for batch, outputs, inputs in ((2, 40, 88), (1, 300, 64), (1, 30, 2824), (2, 20, 4104)):
        x, weight = given(batch, inputs), given(outputs, inputs, seed=1)
        settled()
        first = step.linear(x, weight, activation="relu2")
        again = step.linear(x, weight, activation="relu2", tuning=Tuning(shared_kib=80, blocks=2))
        want = reference.relu2(reference.linear(x, weight))
        assert same_bits(first, again)
        assert relative(first, want) < 4 * HALF_ULP
    residual, addend, second, norm = given(2, 88), given(2, 88, seed=1), given(2, 88, seed=2), given(88, seed=3)
    plain = residual.clone()
    router, bias, head = given(24, 88, seed=4), torch.zeros(24, device="cuda"), given(300, 88, seed=5)
    caches = [given(2, 1, 200, 16, seed=s) for s in (6, 7)]
    q, k, v, at = given(2, 96, seed=8), given(2, 16, seed=9), given(2, 16, seed=10), torch.tensor([190], device="cuda")
    settled()
    x = step.add_rms_norm(residual, addend, norm, 1e-5, second=second)
    ids, gates = step.route(x, router, bias, 3, 1.0, True)
    out = step.attend(q, k, v, *caches, at, 0.25)
    token = step.head_argmax(x, head)
    assert same_bits(step.embed(head, token), head[token])
    plain_x = step.add_rms_norm(plain, addend, norm, 1e-5, second=second, implementation="torch")
    assert same_bits(residual, plain)
    assert relative(x, plain_x) < 4 * HALF_ULP
    plain_ids, plain_gates = step.route(x, router, bias, 3, 1.0, True, implementation="torch")
    assert torch.equal(ids, plain_ids)
    assert torch.allclose(gates, plain_gates, rtol=1e-4)
    plain_out = step.attend(q, k, v, *caches, at, 0.25, implementation="torch")
    assert relative(out, plain_out) < 4 * HALF_ULP
    assert torch.equal(token, step.head_argmax(x, head, implementation="torch"))


def test_counters_are_zero_after_every_call() -> None:
    sizes = Sizes(2, experts=9, heads=4, head_dim=16, capacity=130)
    workspace = Workspace(sizes, "cuda")
    for _ in range(3):
        step.route(given(2, 16), given(9, 16), torch.zeros(9, device="cuda"), 2, 1.0, True, workspace=workspace)
        caches = [given(2, 1, 130, 16, seed=s) for s in range(2)]
        at = torch.tensor([129], device="cuda")
        step.attend(given(2, 64), given(2, 16), given(2, 16), *caches, at, 1.0, workspace=workspace)
        step.head_argmax(given(2, 16), given(50, 16), workspace=workspace)
        assert not workspace.memory[: step.workspace.COUNTER_BYTES].any()


def test_what_does_not_fit_is_refused_before_a_launch() -> None:
    x, w = given(1, 16), given(4, 16)
    cases = [
        (lambda: step.linear(given(1, 24)[:, 1:17], w), "x's rows must begin at multiples of 16 bytes"),
        (lambda: step.linear(x, given(5, 17)[:, :16]), "weight must be contiguous"),
        (lambda: step.linear(x.half(), w), "x must be bf16"),
        (lambda: step.linear(x, w.cpu()), "weight is on cpu"),
        (
            lambda: step.linear(x, w, torch.empty(1, 5, dtype=BF16, device="cuda")),
            r"out has shape \[1, 5\], not \[1, 4\]",
        ),
        (
            lambda: step.linear(given(1, 10248), given(4, 10248)),
            "inputs is 10248; it must be a multiple of 8 up to 10240",
        ),
        (lambda: step.head_argmax(x, w, workspace=Workspace(Sizes(1), "cpu")), "the workspace is on cpu"),
        (
            lambda: step.route(
                x, w, torch.zeros(4, device="cuda"), 2, 1.0, True, workspace=Workspace(Sizes(1), "cuda")
            ),
            "the workspace is for experts 0; this call needs 4",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    settled()  # nothing was launched that faults
