"""The state of a decode in buffers that never move: what is copied, what a step may change, what it must not read."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from glqprof.errors import InputError  # noqa: E402
from glqprof.workloads.nemotron_h import decode, graph, model, runs, sizes, static_cache  # noqa: E402
from glqprof.workloads.nemotron_h.paths import How  # noqa: E402
from glqprof.workloads.nemotron_h.variants import VARIANTS  # noqa: E402
from support.teacher import distance, same_bytes, teach  # noqa: E402

pytestmark = pytest.mark.xdist_group("decode")
TINY = sizes.load_sizes("tiny")
STATIC = How(cache="static")


@pytest.fixture(scope="module")
def made():
    return model.build(TINY, VARIANTS["bf16"], 0, "cpu").model


@pytest.fixture
def prompted(made):
    with torch.inference_mode():
        yield runs.read_prompt(made, decode.random_prompt(TINY.vocab, 9, 0, "cpu"))


def text(count, seed=5):
    return decode.random_prompt(TINY.vocab, count, seed, "cpu")[0].tolist()


@pytest.mark.parametrize(("tokens", "capacity"), [(1, 64), (64, 64), (65, 128), (1155, 1216)])
def test_capacities_are_aligned(tokens, capacity):
    assert static_cache.capacity_for(tokens) == capacity


def test_the_prompts_state_is_copied_and_nothing_is_after_it(made, prompted):
    state = static_cache.StaticState(made, prompted.cache, 20, 9)
    assert (state.capacity, state.used, state.position.tolist()) == (20, 9, [9])
    assert state.kinds == list("MEM*EME")
    attention, mamba = 3, (0, 2, 5)
    for new, old in zip(state.keys_values(attention), (prompted.cache.layers[3].keys, prompted.cache.layers[3].values),
                        strict=True):  # fmt: skip
        assert new.shape == (1, TINY.kv_heads, 20, TINY.head_dim)
        assert same_bytes(new[:, :, :9], old)
        assert not new[:, :, 9:].any()
    for index in mamba:
        conv, recurrent = state.conv_recurrent(index)
        assert conv.shape == (1, TINY.ssm_conv_width, TINY.ssm_conv)
        assert recurrent.shape == (1, TINY.ssm_heads, TINY.ssm_head_dim, TINY.ssm_state)
        assert same_bytes(conv, prompted.cache.layers[index].conv_states[0])
        assert same_bytes(recurrent, prompted.cache.layers[index].recurrent_states[0])
        assert recurrent.is_contiguous()
    assert len(state.tensors()) == 1 + 2 * 4


def test_each_step_leaves_what_the_dynamic_cache_holds(made):
    """After every token, not only the last: lengths to the element, states within the attention kernels' rounding."""
    prompt = decode.random_prompt(TINY.vocab, 9, 0, "cpu")
    lengths, addresses = [], []

    def look(index, run):
        lengths.append(run.step.state.lengths.tolist())
        addresses.append([t.data_ptr() for t in run.step.state.tensors()])

    for count in (1, 7, 20):
        dynamic = teach(made, prompt, text(count), How())
        static = teach(made, prompt, text(count), STATIC, look)
        assert len(static.state) == len(dynamic.state) == 8
        assert all(a.shape == b.shape for a, b in zip(static.state, dynamic.state, strict=True))
        assert all(distance(a, b) < 0.02 for a, b in zip(static.state, dynamic.state, strict=True))
        assert distance(static.logits, dynamic.logits) < 0.02
        # the first Mamba-2 layer comes before any attention: to the byte
        assert all(same_bytes(a, b) for a, b in zip(static.state[:2], dynamic.state[:2], strict=True))
    assert lengths[-20:] == [[10 + i] for i in range(20)]
    assert all(one == addresses[-20] for one in addresses[-20:])


def test_the_prompts_own_cache_is_left_alone(made, prompted):
    before = [prompted.cache.layers[0].recurrent_states[0].clone(), prompted.cache.layers[3].keys.clone()]
    with runs.token_run(made, prompted, STATIC, 4) as run:
        run(), run()
    after = [prompted.cache.layers[0].recurrent_states[0], prompted.cache.layers[3].keys]
    assert all(same_bytes(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("how", [STATIC, How("glqprof", "torch", "static")], ids=["transformers", "glqprof"])
def test_a_snapshot_brings_every_buffer_back(made, prompted, how):
    with runs.token_run(made, prompted, how, 8) as run:
        state = run.step.state
        saved = state.snapshot()
        first, logits = [run() for _ in range(3)], run.step.logits.clone()
        assert not any(same_bytes(a, b) for a, b in zip(state.tensors(), saved, strict=True))
        state.restore(saved)
        assert all(same_bytes(a, b) for a, b in zip(state.tensors(), saved, strict=True))
        run.step.token.fill_(prompted.first)
        assert [run() for _ in range(3)] == first
        assert same_bytes(run.step.logits, logits)


@pytest.mark.parametrize("how", [STATIC, How("glqprof", "torch", "static")], ids=["transformers", "glqprof"])
def test_a_full_cache_is_an_error_and_nothing_is_written(made, prompted, how, monkeypatch):
    monkeypatch.setattr(runs, "capacity_for", lambda tokens: 11)
    with runs.token_run(made, prompted, how, 8) as run:
        run(), run()
        before, token = run.step.state.snapshot(), run.step.token.clone()
        with pytest.raises(InputError, match="static cache: holds 11 of 11 tokens, 1 more do not fit; make it larger"):
            run()
        assert all(same_bytes(a, b) for a, b in zip(run.step.state.tensors(), before, strict=True))
        assert torch.equal(run.step.token, token)
    with pytest.raises(InputError, match="9 tokens do not fit into a capacity of 8"):
        static_cache.StaticState(made, prompted.cache, 8, 9)


def test_a_cache_that_records_the_past_is_refused(made):
    cache = transformers.DynamicCache(config=made.config)
    cache.activate_past_recording()
    with torch.inference_mode():
        made(input_ids=torch.tensor([[1, 2, 3]]), use_cache=True, **{runs.cache_name(): cache})
    with pytest.raises(InputError, match="records the past"):
        static_cache.StaticState(made, cache, 8, 3)


class Watch(TorchDispatchMode):
    """Names the operators that no CUDA graph could hold: they give the host a value, or a size that depends on one."""

    READS = ("aten.item", "_local_scalar_dense", "nonzero", "masked_select", "_unique", "is_nonzero", "aten.equal")

    def __init__(self):
        super().__init__()
        self.found, self.calls = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        if any(name in str(function) for name in self.READS):
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", [STATIC, How(ssm="torch", cache="static"), How("glqprof", "torch", "static")],
                         ids=lambda how: how.name("").strip(":"))  # fmt: skip
def test_a_static_step_gives_the_host_nothing(how):
    """What a capture asks of it, seen on the CPU: the model's own experts, by torch's grouped product."""
    made = model.build(TINY, VARIANTS["transformers"], 0, "cpu").model
    with torch.inference_mode():
        prompted = runs.read_prompt(made, torch.tensor([text(9)]))
        with runs.token_run(made, prompted, how, 4) as run, Watch() as watch:
            run.step.run()
        assert watch.calls > 100
        assert watch.found == []
        with Watch() as watch:
            int(run.step.token)
        assert watch.found  # the watch sees such reads


def test_what_stopped_a_capture_is_one_line_of_the_first_error():
    def fail():
        try:
            raise RuntimeError("Cannot copy between CPU and CUDA tensors\nduring capture.")
        except RuntimeError:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture") from None

    with pytest.raises(RuntimeError) as caught:
        fail()
    said = graph.cannot_be_captured(caught.value)
    assert said.startswith("this token cannot be captured (Cannot copy between CPU and CUDA tensors during capture); ")
    assert "\n" not in said
    long = RuntimeError("CUDA error: not permitted\nSearch for `cudaErrorX` in https://x\nCUDA kernel errors might be")
    assert "(CUDA error: not permitted)" in graph.cannot_be_captured(long)


def test_a_dynamic_cache_cannot_be_captured(made, prompted):
    with (
        runs.token_run(made, prompted, How(), 4) as run,
        pytest.raises(InputError, match="--graph: needs a static cache: a dynamic one moves at every token"),
    ):
        graph.CapturedRun(run.step)


def test_models_without_attention_have_one_length():
    part = model.build(TINY.prefix(2), VARIANTS["bf16"], 0, "cpu").model
    prompt = torch.tensor([text(5)])
    for how in (STATIC, How("glqprof", "torch", "static")):
        taught = teach(part, prompt, text(4), how)
        assert same_bytes(taught.logits, teach(part, prompt, text(4), How()).logits)
