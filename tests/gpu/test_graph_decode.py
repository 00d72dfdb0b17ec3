"""A token in one CUDA graph on a GPU: the bytes of the eager run of the same step, its caches, what is refused."""

from __future__ import annotations

import gc

import pytest
import torch

pytest.importorskip("transformers")

import glqprof
from glqprof.errors import InputError
from glqprof.workloads.nemotron_h import decode, graph, model, paths, runs, sizes, static_cache, steps
from glqprof.workloads.nemotron_h.variants import VARIANTS
from support.teacher import distance, same_bytes, teach, typical

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]
TINY = sizes.load_sizes("tiny")
PREFIX = sizes.load_sizes("cascade2-30b").prefix(9)
"""MEMEM*EME: every kind of layer."""
CAPTURABLE = ["fused", "fused-fast", "nvfp4-base-ring", "nvfp4-half-deep", "bf16", "bf16-loop", "transformers"]
LOOPS = [
    paths.How(ssm="model", cache="static"),
    paths.How(ssm="fused", cache="static"),
    paths.How(ssm="unfused", cache="static"),
    paths.How("glqprof", "fused", "static"),
    paths.How("glqprof", "fused", "static", shared_stream=True),
]
PROMPT, TOKENS = 40, 12


def in_graph(how):
    from dataclasses import replace

    return replace(how, graph=True)


@pytest.fixture(scope="module")
def built():
    kept = {}

    def of(shape, name):
        if (shape.name, name) not in kept:
            kept.clear()  # one model at a time
            gc.collect()
            kept[shape.name, name] = model.build(shape, VARIANTS[name], 0, "cuda").model
        return kept[shape.name, name]

    return of


def prompt_of(shape):
    return decode.random_prompt(shape.vocab, PROMPT, 0, "cuda")


def text_of(shape):
    return decode.random_prompt(shape.vocab, TOKENS, 5, "cpu")[0].tolist()


@pytest.mark.parametrize("how", LOOPS, ids=lambda how: how.name("").strip(":"))
@pytest.mark.parametrize("name", CAPTURABLE)
@pytest.mark.parametrize("shape", [TINY, PREFIX], ids=lambda shape: shape.name)
def test_a_graph_has_the_bytes_of_the_eager_run(built, shape, name, how) -> None:
    """Logits of every token, and every cache after the last, over a text that neither chose."""
    made = built(shape, name)
    eager = teach(made, prompt_of(shape), text_of(shape), how)
    captured = teach(made, prompt_of(shape), text_of(shape), in_graph(how))
    assert torch.isfinite(eager.logits).all()
    assert same_bytes(captured.logits, eager.logits)
    assert captured.chosen == eager.chosen
    assert len(captured.state) == len(eager.state) == 2 * (shape.layers.count("M") + shape.layers.count("*"))
    assert all(same_bytes(a, b) for a, b in zip(captured.state, eager.state, strict=True))


@pytest.mark.parametrize("how", LOOPS[:1] + LOOPS[3:4], ids=["transformers", "glqprof"])
def test_a_greedy_decode_has_the_tokens_of_the_eager_one(built, how) -> None:
    made = built(PREFIX, "fused")
    eager = decode.greedy(made, prompt_of(PREFIX), 24, 3, how)
    captured = decode.greedy(made, prompt_of(PREFIX), 24, 3, in_graph(how))
    assert captured.ids == eager.ids
    assert len(set(captured.ids)) > 5
    assert captured.finite


@pytest.mark.parametrize("name", ["fused", "bf16", "nvfp4-base-ring"])
def test_other_steps_and_the_own_loop_are_close_to_the_models(built, name) -> None:
    """Other orders of sums in bf16, over a text that is given. Nothing has chosen an expert before the first layer's
    state, so that is close for every token; the logits are so for all tokens but those whose experts nearly tied."""
    made = built(PREFIX, name)
    want = teach(made, prompt_of(PREFIX), text_of(PREFIX), LOOPS[0])
    for how in LOOPS[1:]:
        found = teach(made, prompt_of(PREFIX), text_of(PREFIX), how)
        assert typical(found.logits, want.logits) < 0.05, how
        assert typical(found.logits[1:], want.logits[:-1]) > 0.5  # what another token's are
        assert all(distance(a, b) < 0.02 for a, b in zip(found.state[:2], want.state[:2], strict=True)), how


def test_without_experts_the_own_loop_is_close_for_every_token() -> None:
    """Mamba-2 and attention alone: no router to choose otherwise, so every token and every cache is close."""
    from dataclasses import replace

    plain = replace(PREFIX, layers="MM*M*M")
    made = model.build(plain, VARIANTS["bf16"], 0, "cuda").model
    want = teach(made, prompt_of(plain), text_of(plain), LOOPS[0])
    for how in LOOPS[1:]:
        found = teach(made, prompt_of(plain), text_of(plain), how)
        assert distance(found.logits, want.logits) < 0.03, how
        assert all(distance(a, b) < 0.05 for a, b in zip(found.state, want.state, strict=True)), how


@pytest.mark.parametrize("how", [LOOPS[0], LOOPS[3]], ids=["transformers", "glqprof"])
def test_warm_up_and_capture_leave_state_and_token_as_they_were(built, how) -> None:
    made = built(TINY, "fused")
    with torch.inference_mode():
        prompted = runs.read_prompt(made, prompt_of(TINY))
        fresh = static_cache.StaticState(made, prompted.cache, 64, PROMPT)
        with runs.token_run(made, prompted, in_graph(how), 8) as run:
            assert run.step.state is not None
            assert run.step.state.capacity == 64
            assert all(same_bytes(a, b) for a, b in zip(run.step.state.tensors(), fresh.tensors(), strict=True))
            assert run.step.token.tolist() == [[prompted.first]]
            assert run.step.state.used == PROMPT


def test_two_graphs_on_two_streams_do_not_see_each_other(built) -> None:
    made = built(TINY, "fused")
    how = in_graph(LOOPS[0])
    texts = [decode.random_prompt(TINY.vocab, PROMPT, seed, "cuda") for seed in (0, 1)]
    alone = [decode.greedy(made, text, 10, 0, how).ids for text in texts]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with torch.inference_mode():
        prompted = [runs.read_prompt(made, text) for text in texts]
        with (
            runs.token_run(made, prompted[0], how, 10) as first,
            runs.token_run(made, prompted[1], how, 10) as second,
        ):
            found = [[prompted[0].first], [prompted[1].first]]
            torch.cuda.synchronize()
            for _ in range(10):
                for index, run in enumerate((first, second)):
                    with torch.cuda.stream(streams[index]):
                        found[index].append(run())
    assert found == alone


def test_a_full_cache_is_an_error_and_nothing_is_written(built) -> None:
    made = built(TINY, "fused")
    with torch.inference_mode():
        prompted = runs.read_prompt(made, prompt_of(TINY))
        state = static_cache.StaticState(made, prompted.cache, PROMPT + 2, PROMPT)
        token = torch.tensor([[prompted.first]], device="cuda")
        run = graph.CapturedRun(steps.TransformersStep(made, token, None, state))
        run(), run()
        before, last = state.snapshot(), token.clone()
        with pytest.raises(InputError, match="static cache: holds 42 of 42 tokens, 1 more do not fit"):
            run()
        torch.cuda.synchronize()
        assert all(same_bytes(a, b) for a, b in zip(state.tensors(), before, strict=True))
        assert torch.equal(token, last)
        with pytest.raises(InputError, match="do not fit"):
            graph.CapturedRun(steps.TransformersStep(made, token, None, state))


def test_what_reads_on_the_host_cannot_be_captured_and_is_one_line(built) -> None:
    made = built(TINY, "fused")
    moe = made.model.layers[1].mixer
    own = moe.experts

    class Reads(torch.nn.Module):
        def forward(self, x, ids, weights):
            ids.tolist()
            return own(x, ids, weights)

    moe.experts = Reads()
    try:
        with pytest.raises(InputError) as caught:
            decode.greedy(made, prompt_of(TINY), 2, 0, in_graph(LOOPS[0]))
    finally:
        moe.experts = own
    line = str(caught.value)
    assert line.startswith("--graph: this token cannot be captured (")
    assert "\n" not in line
    assert len(line) < 400
    # and the process goes on
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    eager = decode.greedy(made, prompt_of(TINY), 4, 0, LOOPS[0])
    assert decode.greedy(made, prompt_of(TINY), 4, 0, in_graph(LOOPS[0])).ids == eager.ids


def test_graph_decode_is_what_a_user_calls(built) -> None:
    made = built(TINY, "fused")
    prompt = prompt_of(TINY)
    for options in ({}, {"loop": "glqprof"}, {"ssm": "fused"}):
        seen = []
        eager = glqprof.graph_decode(made, prompt, 9, graph=False, **options)
        captured = glqprof.graph_decode(made, prompt, 9, on_token=seen.append, **options)
        assert captured.shape == (1, PROMPT + 9)
        assert torch.equal(captured, eager)
        assert captured[0, PROMPT:].tolist() == seen
    host = built(TINY, "v3b")
    with pytest.raises(InputError, match=r"graph_decode: graph with v3b: this variant reads expert ids on the host"):
        glqprof.graph_decode(host, prompt, 4)


def test_a_prompt_read_by_another_variant_of_the_same_bits_changes_nothing() -> None:
    loaded = decode.load("tiny", "v3b", "cuda")
    own = decode.decode_loaded(loaded, paths.How(), prompt=40, tokens=8)
    other = decode.decode_loaded(loaded, paths.How(prompt_variant="fused"), prompt=40, tokens=8)
    assert own.token_sha == other.token_sha
    mixers = [block.mixer for block in loaded.built.model.model.layers if hasattr(block.mixer, "gate")]
    assert [mixer.experts.variant for mixer in mixers] == ["v3b"] * 3
