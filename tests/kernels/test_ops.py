"""The torch operator: registered properly, traces, warns, and refuses what it must."""

from __future__ import annotations

import warnings

import pytest
import torch

from glqprof_kernels import geometry
from glqprof_kernels.glq import factory, ops
from glqprof_kernels.glq.workload import MoeWorkload, make_batch

TINY = geometry.load("tiny-odd")


@pytest.fixture
def layer():
    return factory.layer(TINY, 2, "cpu", stages=3)


def inputs(layer, rows: int = 2):
    workload = MoeWorkload("tiny-odd", 1, "cpu", [layer], TINY, layer.overflow)
    return make_batch(workload, rows, seed=rows).per_layer[0]


def arguments(layer, variant: str = "v3b"):
    matrices = (*ops.matrix_arguments(layer.up), *ops.matrix_arguments(layer.down))
    return (*inputs(layer), *matrices, layer.activation, 0.0, variant, False, layer.overflow)


@pytest.mark.parametrize("variant", list(ops.EXACT))
def test_opcheck(layer, variant) -> None:
    torch.library.opcheck(torch.ops.glqprof.glq_moe.default, arguments(layer, variant))


def test_traces_whole_under_compile(layer) -> None:
    def step(x, ids, weights):
        return ops.moe(layer, x, ids, weights, warn_overflow=False) + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs(layer)), step(*inputs(layer)))


def test_fake_tensors_carry_the_shape(layer) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = mode.from_tensor(torch.empty(7, TINY.hidden, dtype=torch.float16))
        out = torch.ops.glqprof.glq_moe(x, *arguments(layer)[1:])
    assert (out.shape, out.dtype) == ((7, TINY.hidden), torch.float16)


@pytest.mark.parametrize("variant", list(ops.EXACT))
@pytest.mark.parametrize("bad", [-1, 5, 2**40])
def test_ids(layer, variant, bad) -> None:
    x, ids, weights = inputs(layer)
    ids[1, 0] = bad
    with pytest.raises(ValueError, match=rf"ids\[1, 0\] is {bad}, but the experts are 0 .. 4"):
        ops.moe(layer, x, ids, weights, variant=variant)
    masked = ops.moe(layer, x, ids, weights, variant=variant, mask_invalid=True)
    weights[1, 0], ids[1, 0] = 0, 0
    assert torch.equal(masked, ops.moe(layer, x, ids, weights, variant=variant))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, i, w: (x[:, :-8], i, w), r"x must be \[tokens, 88\]"),
        (lambda x, i, w: (x[0], i, w), r"x must be \[tokens, 88\]"),
        (lambda x, i, w: (x, i[:1], w), "ids and weights must be"),
        (lambda x, i, w: (x, i, w[:, :1]), "ids and weights must be"),
        (lambda x, i, w: (x, i.float(), w), "ids must be integers"),
    ],
)
def test_wrong_inputs(layer, change, message) -> None:
    with pytest.raises(ValueError, match=message):
        ops.moe(layer, *change(*inputs(layer)))


def test_unknown_variant(layer) -> None:
    with pytest.raises(ValueError, match=r"no GLQ variant 'v4'; there are v0\.2\.12, v3a, v3b, v3b-fp32act"):
        ops.moe(layer, *inputs(layer), variant="v4")


def test_no_tokens(layer) -> None:
    x, ids, weights = inputs(layer)
    for variant in ops.EXACT:
        assert ops.moe(layer, x[:0], ids[:0], weights[:0], variant=variant).shape == (0, TINY.hidden)


def test_other_float_types_are_cast_to_fp16_first(layer) -> None:
    x, ids, weights = inputs(layer)
    want = ops.moe(layer, x, ids, weights)
    assert torch.equal(ops.moe(layer, x.float(), ids.int(), weights.double()), want)
    narrow = x.to(torch.bfloat16)
    assert torch.equal(ops.moe(layer, narrow, ids, weights), ops.moe(layer, narrow.half(), ids, weights))


@pytest.mark.parametrize("variant", list(ops.EXACT))
def test_overflow_is_counted_and_warned_about(layer, variant) -> None:
    """relu² of 256 is 65,536, which fp16 rounds to infinity: the call goes on, and says so."""
    x, ids, weights = inputs(layer, 1)
    with pytest.warns(ops.GlqOverflowWarning, match=r"\d+ activations are infinite in fp16"):
        out = ops.moe(layer, x * 1000, ids, weights, variant=variant)
    count = int(layer.overflow)
    assert 0 < count <= ids.numel() * TINY.expert_inter
    assert not torch.isfinite(out).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.moe(layer, x, ids, weights, variant=variant)
        ops.moe(layer, x * 1000, ids, weights, variant=variant, warn_overflow=False)
    assert int(layer.overflow) == 2 * count


def test_overflow_starts_at_256() -> None:
    from glqprof_kernels.glq.exact.v3a import _relu2

    h = torch.tensor([255.75, 255.875, 256.0]).half().numpy()
    assert _relu2(h).tolist() == [65408.0, 65472.0, float("inf")]
