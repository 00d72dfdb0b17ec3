"""`glqprof.graph_decode` on the CPU, where no graph is: the tokens, where it stops, what it refuses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import glqprof  # noqa: E402
from glqprof.workloads.nemotron_h import decode, model, sizes  # noqa: E402
from glqprof.workloads.nemotron_h.paths import How  # noqa: E402
from glqprof.workloads.nemotron_h.steps import cache_name  # noqa: E402
from glqprof.workloads.nemotron_h.variants import VARIANTS  # noqa: E402

pytestmark = pytest.mark.xdist_group("decode")
TINY = sizes.load_sizes("tiny")
SSM = {"transformers": None, "glqprof": "torch"}
PROMPT = decode.random_prompt(TINY.vocab, 9, 0, "cpu")


@pytest.fixture(scope="module")
def made():
    return model.build(TINY, VARIANTS["bf16"], 0, "cpu").model


@pytest.mark.parametrize("how", [How(cache="static"), How("glqprof", "torch", "static")],
                         ids=["transformers", "glqprof"])  # fmt: skip
def test_ids_are_the_prompt_and_the_greedy_tokens(made, how):
    wanted = decode.greedy(made, PROMPT, 11, 0, how).ids
    seen = []
    found = glqprof.graph_decode(made, PROMPT, 12, loop=how.loop, ssm=SSM[how.loop], graph=False, on_token=seen.append)
    assert found.dtype == torch.int64
    assert found.tolist() == [PROMPT[0].tolist() + wanted]
    assert seen == wanted
    shorter = glqprof.graph_decode(made, PROMPT, 3, loop=how.loop, ssm=SSM[how.loop], graph=False)
    assert torch.equal(shorter, found[:, :12])


def test_it_decodes_what_generate_does_with_a_static_cache(made):
    """An independent loop over the same buffers: transformers' own, whose cache has the capacity of this one."""
    cache = transformers.StaticCache(config=made.config, max_cache_len=64)
    out = made.generate(PROMPT, max_new_tokens=12, min_new_tokens=12, do_sample=False, eos_token_id=None,
                        pad_token_id=0, **{cache_name(): cache})  # fmt: skip
    assert torch.equal(glqprof.graph_decode(made, PROMPT, 12, graph=False), out)


def test_it_stops_after_an_end_of_sequence_and_at_nothing_else(made):
    ids = glqprof.graph_decode(made, PROMPT, 12, graph=False)[0, 9:].tolist()
    for stop in (ids[0], ids[5], [TINY.vocab - 1, ids[3]]):
        first = min(ids.index(s) for s in (stop if isinstance(stop, list) else [stop]) if s in ids)
        found = glqprof.graph_decode(made, PROMPT, 12, graph=False, eos_token_id=stop)
        assert found[0, 9:].tolist() == ids[: first + 1]
    assert torch.equal(glqprof.graph_decode(made, PROMPT, 0, graph=False), PROMPT)
    assert glqprof.graph_decode(made, PROMPT, 1, graph=False)[0, 9:].tolist() == ids[:1]


def test_a_patched_model_decodes_by_its_patch(made):
    config = transformers.NemotronHConfig(**TINY.config_arguments())
    mine = transformers.NemotronHForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    for loop in ("transformers", "glqprof"):
        found = []
        for variant in ("v3b", "fused"):
            with glqprof.patch(mine, variant, weights="random"):
                found.append(glqprof.graph_decode(mine, PROMPT, 6, graph=False, loop=loop))
        assert torch.equal(found[0], found[1])
    with glqprof.patch(mine, None, ssm="torch"):
        own = glqprof.graph_decode(mine, PROMPT, 6, graph=False)
    assert torch.equal(own, glqprof.graph_decode(mine, PROMPT, 6, graph=False))
    assert torch.equal(own, glqprof.graph_decode(mine, PROMPT, 6, graph=False, ssm="torch"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": torch.nn.Linear(2, 2)}, "takes a NemotronHForCausalLM of transformers, not Linear"),
        ({"input_ids": [[1, 2]]}, r"input_ids must be an int64 tensor \[1, length\]"),
        ({"input_ids": torch.ones(1, 3)}, "input_ids must be an int64 tensor"),
        ({"input_ids": PROMPT.expand(2, -1)}, r"one sequence of at least one token, and input_ids is \[2, 9\]"),
        ({"input_ids": PROMPT[:, :0]}, "one sequence of at least one token"),
        ({"input_ids": PROMPT + TINY.vocab}, "input_ids holds ids outside 0 to 511"),
        ({"input_ids": PROMPT - 600}, "input_ids holds ids outside"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1; it must be 0 or more"),
        ({"graph": True}, "graph_decode: graph: needs a CUDA GPU, and the model is on the cpu; leave it out"),
        ({"loop": "vllm"}, "loop: 'vllm' means nothing"),
        ({"ssm": "fast"}, "ssm: 'fast' means nothing"),
    ],
)
def test_what_it_refuses(made, change, words):
    arguments = {"model": made, "input_ids": PROMPT, "max_new_tokens": 4, "graph": False} | change
    with pytest.raises(glqprof.InputError, match=words) as caught:
        glqprof.graph_decode(**arguments)
    assert str(caught.value).startswith("graph_decode: ")


def test_training_mode_is_refused(made):
    made.train()
    try:
        with pytest.raises(glqprof.InputError, match=r"training mode; call model.eval\(\) first"):
            glqprof.graph_decode(made, PROMPT, 2, graph=False)
    finally:
        made.eval()
