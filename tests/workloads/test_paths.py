"""Which choices of a decode go together, and how a path is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.paths import CACHES, LOOPS, SDPA, SSM_VARIANTS, How, parse_path
from glqprof.workloads.nemotron_h.variants import VARIANTS

HOWS = st.builds(
    How,
    loop=st.sampled_from(LOOPS),
    ssm=st.sampled_from([None, "model", *SSM_VARIANTS]),
    cache=st.sampled_from([None, *CACHES]),
    graph=st.booleans(),
    sdpa=st.sampled_from(SDPA),
    shared_stream=st.booleans(),
    prompt_variant=st.sampled_from([None, *VARIANTS]),
)


@given(HOWS, st.sampled_from(sorted(VARIANTS)), st.sampled_from(["cuda", "cpu"]))
def test_choices_are_refused_in_one_line_or_all_filled_in(how, variant, device):
    try:
        settled = how.settled(VARIANTS[variant], device)
    except InputError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "\n" not in refusal
        return
    assert None not in (settled.ssm, settled.cache)
    assert settled.settled(VARIANTS[variant], device) == settled
    if settled.graph:
        assert device == "cuda"
        assert settled.cache == "static"
        assert variant not in ("v0.2.12", "v3a", "v3b", "v3b-fp32act")
    if settled.loop == "glqprof":
        assert settled.cache == "static"
        assert settled.ssm in SSM_VARIANTS
    # its name brings it back, but for who reads the prompt
    name, again = parse_path(settled.name(variant))
    assert name == variant
    if device == "cuda":
        expected = How(**{**vars(settled), "prompt_variant": None})
        assert again.settled(VARIANTS[variant], device) == expected


@pytest.mark.parametrize(
    ("text", "variant", "how", "options"),
    [
        ("v3b", "v3b", How(), []),
        ("fused:graph", "fused", How(graph=True), ["--graph"]),
        ("bf16:glqprof:graph", "bf16", How("glqprof", graph=True), ["--loop", "glqprof", "--graph"]),
        ("fused:ssm=fused:graph", "fused", How(ssm="fused", graph=True), ["--ssm", "fused", "--graph"]),
        ("fused:static:sdpa=math", "fused", How(cache="static", sdpa="math"), ["--cache", "static", "--sdpa", "math"]),
        ("v0.2.12:prompt=fused", "v0.2.12", How(prompt_variant="fused"), ["--prompt-variant", "fused"]),
        ("fused:glqprof:shared-stream", "fused", How("glqprof", shared_stream=True),
         ["--loop", "glqprof", "--shared-stream"]),
    ],
)  # fmt: skip
def test_paths_are_written_as_the_options_are(text, variant, how, options):
    assert parse_path(text) == (variant, how)
    assert how.options() == options
    if how.prompt_variant is None:
        assert how.name(variant) == text


def test_default_choices_are_not_in_a_name():
    fused = VARIANTS["fused"]
    assert How().settled(fused, "cuda").name("fused") == "fused"
    assert How("glqprof", graph=True).settled(fused, "cuda") == How("glqprof", "fused", "static", True)
    assert How("glqprof", graph=True).settled(fused, "cuda").name("fused") == "fused:glqprof:graph"
    assert How("glqprof").settled(fused, "cpu").name("fused") == "fused:glqprof"
    assert How("glqprof", "torch").settled(fused, "cuda").name("fused") == "fused:glqprof:ssm=torch"
    assert How(graph=True).settled(fused, "cuda").name("fused") == "fused:graph"


@pytest.mark.parametrize(
    ("how", "variant", "device", "words"),
    [
        (How(graph=True), "fused", "cpu", "--graph: needs a CUDA GPU"),
        (How(graph=True), "v3b", "cuda", "--graph with v3b: this variant reads expert ids on the host in every layer"),
        (How(graph=True, cache="dynamic"), "fused", "cuda", "--cache dynamic: a graph needs buffers that do not move"),
        (How("glqprof", cache="dynamic"), "fused", "cuda", "--cache dynamic: glqprof's loop needs buffers"),
        (How("glqprof", sdpa="math"), "fused", "cuda", "--sdpa math: is of transformers' loop"),
        (How("glqprof", "model"), "fused", "cuda", "--ssm model: is transformers' loop"),
        (How(shared_stream=True), "fused", "cuda", "--shared-stream: is of glqprof's loop on a GPU"),
        (How(prompt_variant="bf16"), "v3b", "cuda", "--prompt-variant bf16: has not the bits of v3b"),
        (How(prompt_variant="fused-fast"), "fused", "cuda", "--prompt-variant fused-fast: has not the bits of fused"),
        (How(prompt_variant="v9"), "v3b", "cuda", "--prompt-variant: 'v9' is no variant"),
        (How(loop="vllm"), "fused", "cuda", "--loop: 'vllm' means nothing; there are transformers, glqprof"),
        (How(ssm="x"), "fused", "cuda", "--ssm: 'x' means nothing; there are model, torch, unfused, fused"),
    ],
)
def test_what_excludes_each_other_is_said(how, variant, device, words):
    with pytest.raises(InputError) as caught:
        how.settled(VARIANTS[variant], device)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(("text", "words"), [
    ("fused:fast", "'fast' is no choice; there are glqprof, graph"),
    ("v9:graph", "'v9' is no variant"),
    ("fused:ssm=", "'ssm=' is no choice"),
])  # fmt: skip
def test_paths_that_mean_nothing(text, words):
    with pytest.raises(InputError, match=words):
        parse_path(text)
