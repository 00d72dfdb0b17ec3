"""`glqprof.patch(model, ssm=...)` on a model of transformers: when the step runs, and when the model's own code."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import glqprof  # noqa: E402
import glqprof_kernels.ssm  # noqa: E402
from glqprof.workloads.nemotron_h import runs, sizes, ssm_patch  # noqa: E402
from glqprof.workloads.nemotron_h.paths import How  # noqa: E402
from support.teacher import distance, teach  # noqa: E402

pytestmark = pytest.mark.xdist_group("decode")
TINY = sizes.load_sizes("tiny")
LAYERS = TINY.layers.count("M")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.NemotronHConfig(**TINY.config_arguments())
    made = transformers.NemotronHForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    for name, p in made.named_parameters():
        if p.dim() > 1 and "conv1d" not in name:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    return made


@pytest.fixture
def calls(monkeypatch):
    """Rows of every call of the step."""
    seen = []
    own = glqprof_kernels.ssm.step

    def step(weights, projected, *arguments, **named):
        seen.append(projected.shape[0])
        return own(weights, projected, *arguments, **named)

    monkeypatch.setattr(glqprof_kernels.ssm, "step", step)
    return seen


def text(rows, length, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, TINY.vocab, (rows, length), generator=generator)


def decoded(model, prompt, steps=4, cache=None, **named):
    """Logits of the prompt and of the tokens after it."""
    found = []
    name = runs.cache_name()
    with torch.inference_mode():
        out = model(input_ids=prompt, use_cache=True, **named, **({} if cache is None else {name: cache}))
        for _ in range(steps):
            found.append(out.logits[:, -1].clone())
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            out = model(input_ids=token, use_cache=True, **{name: out[name]})
    return torch.stack(found)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_single_tokens_are_the_steps_and_have_the_models_bytes(model, calls, rows):
    prompt = text(rows, 7)
    own = decoded(model, prompt)
    with glqprof.patch(model, None, ssm="torch") as patched:
        assert (patched.variant, patched.layers, patched.ssm, patched.ssm_layers) == ("", 0, "torch", LAYERS)
        assert repr(patched) == "<Patched: SSM step torch in 3 Mamba-2 layers>"
        assert (patched.infinite_activations, patched.bad_ids) == (0, 0)
        found = decoded(model, prompt)
    assert calls == [rows] * LAYERS * 4  # the prompt is the model's
    assert torch.equal(found, own)
    assert torch.equal(decoded(model, prompt), own)
    assert len(calls) == LAYERS * 4


def test_the_kernels_exact_implementation_is_close(model, calls):
    """Fewer roundings than transformers' fallback; over a text that neither chose."""
    prompt = text(1, 7)
    words = text(1, 8, 5)[0].tolist()
    own = teach(model, prompt, words, How())
    found = {}
    for variant in ("fused", "unfused"):
        with glqprof.patch(model, None, ssm=variant):
            found[variant] = teach(model, prompt, words, How())
        assert distance(found[variant].logits, own.logits) < 0.03
        assert not torch.equal(found[variant].logits, own.logits)
    assert torch.equal(found["fused"].logits, found["unfused"].logits)
    assert calls == [1] * LAYERS * 8 * 2


def test_kernels_ask_for_bf16_and_for_widths_that_they_have():
    config = transformers.NemotronHConfig(**TINY.config_arguments())
    wide = transformers.NemotronHForCausalLM._from_config(config, dtype=torch.float32).eval()
    with pytest.raises(glqprof.InputError, match="ssm='fused' computes bf16, and the model is"):
        glqprof.patch(wide, None, ssm="fused")
    with glqprof.patch(wide, None, ssm="torch"):
        assert decoded(wide, text(1, 5)).isfinite().all()
    config = transformers.NemotronHConfig(**TINY.config_arguments() | {"ssm_state_size": 24})
    odd = transformers.NemotronHForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    with pytest.raises(glqprof.InputError, match="ssm='fused' cannot take this model: the state's width must be"):
        glqprof.patch(odd, None, ssm="fused")
    assert not any("forward" in vars(mixer) for mixer in ssm_patch.mamba_modules(odd))


def test_more_sequences_than_a_kernel_takes_are_the_models(model, calls):
    prompt = text(ssm_patch.MAX_BATCH + 1, 5)
    own = decoded(model, prompt)
    with glqprof.patch(model, None, ssm="torch"):
        assert torch.equal(decoded(model, prompt), own)
    assert calls == []


def test_a_prompt_of_one_token_and_a_prompt_in_two_parts_are_the_models(model, calls):
    name = runs.cache_name()
    prompt = text(1, 9)

    def parts(*cuts):
        cache = None
        with torch.inference_mode():
            for part in prompt.split(cuts, dim=1):
                out = model(input_ids=part, use_cache=True, **({} if cache is None else {name: cache}))
                cache = out[name]
        return out.logits

    for cuts, expected in (((1, 8), 0), ((4, 5), 0), ((8, 1), LAYERS)):
        own = parts(*cuts)
        with glqprof.patch(model, None, ssm="torch"):
            assert torch.equal(parts(*cuts), own)
        assert len(calls) == expected


def test_padded_prompts_decode_what_the_model_does(model):
    """Left padding, as generate has it; the mask concerns the prompt, and a single token is never padding."""
    prompt = text(2, 6)
    prompt[0, :3] = 0
    mask = (prompt != 0).long()
    arguments = {"attention_mask": mask, "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    own = model.generate(prompt, pad_token_id=0, eos_token_id=None, **arguments)
    with glqprof.patch(model, None, ssm="torch"):
        found = model.generate(prompt, pad_token_id=0, eos_token_id=None, **arguments)
    assert torch.equal(found, own)


def test_a_mask_on_the_token_is_the_models(model, calls):
    mixer = model.model.layers[0].mixer
    prompt = text(1, 5)
    with torch.inference_mode():
        hidden = model.model.embeddings(text(1, 1, 4))
        name = "cache" if runs.cache_name() == "cache" else "cache_params"

        def masked():
            cache = model(input_ids=prompt, use_cache=True)[runs.cache_name()]
            return mixer(hidden, attention_mask=torch.zeros(1, 1, dtype=torch.long), **{name: cache})

        own = masked()
        with glqprof.patch(model, None, ssm="torch"):
            assert torch.equal(masked(), own)
            assert calls == []
            cache = model(input_ids=prompt, use_cache=True)[runs.cache_name()]
            assert not torch.equal(mixer(hidden, **{name: cache}), own)
            assert calls == [1]
            mixer(hidden)  # no cache
            assert calls == [1]


def test_a_cache_that_records_the_past_is_the_models(model, calls):
    def recorded():
        cache = transformers.DynamicCache(config=model.config)
        cache.activate_past_recording()
        return decoded(model, text(1, 6), cache=cache)

    own = recorded()
    with glqprof.patch(model, None, ssm="torch"):
        assert torch.equal(recorded(), own)
    assert calls == []


def test_static_caches_too(model, calls):
    def static():
        return decoded(model, text(1, 6), cache=transformers.StaticCache(config=model.config, max_cache_len=32))

    own = static()
    with glqprof.patch(model, None, ssm="torch"):
        assert torch.equal(static(), own)
    assert len(calls) == LAYERS * 4


def test_with_experts_and_in_generate(model, calls):
    prompt = text(1, 6)
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    with glqprof.patch(model, "fused", weights="random"):
        experts_only = model.generate(prompt, **options)
    assert calls == []
    with glqprof.patch(model, "fused", ssm="torch", weights="random") as patched:
        assert repr(patched) == "<Patched: fused in 3 MoE layers, SSM step torch in 3 Mamba-2 layers>"
        assert torch.equal(model.generate(prompt, **options), experts_only)
        assert len(calls) == LAYERS * 4
    assert not any("forward" in vars(mixer) for mixer in ssm_patch.mamba_modules(model))
    assert not hasattr(model.model.layers[1].mixer.experts, "variant")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"experts": None}, "experts=None and ssm=None leave nothing to patch"),
        ({"experts": None, "ssm": "torch", "weights": "random"}, "keeps the model's own experts, and weights were"),
        ({"experts": None, "ssm": "fast"}, "ssm='fast' means nothing; there are torch, unfused, fused"),
        ({"experts": "v9", "ssm": "torch"}, "'v9' is no variant"),
        ({"experts": "fused", "ssm": "torch"}, "own experts are not GLQ"),
    ],
)
def test_what_cannot_be_patched_is_said_and_nothing_changes(model, calls, arguments, words):
    with pytest.raises(glqprof.InputError, match=words):
        glqprof.patch(model, **arguments)
    decoded(model, text(1, 4))
    assert calls == []


def test_two_patches_and_other_models_are_refused(model):
    with (
        glqprof.patch(model, None, ssm="torch"),
        pytest.raises(glqprof.InputError, match=r"Mamba-2 layers are patched already; remove\(\) that first"),
    ):
        glqprof.patch(model, None, ssm="torch")
    with pytest.raises(glqprof.InputError, match="Linear has no NemotronHMamba2Mixer layer"):
        glqprof.patch(torch.nn.Linear(2, 2), None, ssm="torch")
    config = transformers.NemotronHConfig(**TINY.config_arguments() | {"mamba_hidden_act": "gelu"})
    other = transformers.NemotronHForCausalLM._from_config(config, dtype=torch.bfloat16)
    with pytest.raises(glqprof.InputError, match="ssm='torch' cannot take this model: the mixer's activation"):
        glqprof.patch(other, None, ssm="torch")
    assert not any("forward" in vars(mixer) for mixer in ssm_patch.mamba_modules(other))
