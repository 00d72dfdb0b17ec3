"""glqprof's own loop on the CPU, against transformers' forward over the same weights."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from glqprof import annotate  # noqa: E402
from glqprof.errors import InputError  # noqa: E402
from glqprof.workloads.nemotron_h import decode, model, runs, sizes  # noqa: E402
from glqprof.workloads.nemotron_h.loop import GlqprofStep  # noqa: E402
from glqprof.workloads.nemotron_h.paths import How  # noqa: E402
from glqprof.workloads.nemotron_h.static_cache import StaticState  # noqa: E402
from glqprof.workloads.nemotron_h.variants import VARIANTS  # noqa: E402
from support.teacher import distance, same_bytes, teach, typical  # noqa: E402

pytestmark = pytest.mark.xdist_group("decode")
TINY = sizes.load_sizes("tiny")
OWN = How("glqprof", "torch", "static")
PROMPT = decode.random_prompt(TINY.vocab, 9, 0, "cpu")
TEXT = decode.random_prompt(TINY.vocab, 24, 5, "cpu")[0].tolist()


@pytest.fixture(scope="module")
def built():
    kept = {}

    def of(name):
        if name not in kept:
            kept[name] = lively(model.build(TINY, VARIANTS[name], 0, "cpu").model)
        return kept[name]

    return of


def lively(made):
    """Give what the workload leaves at 0 or 1 values of its own: a loop that forgot one of them would be seen.

    The norms' weights are powers of two: transformers 5.17 rounds x before that product and after it, 5.24 once.
    """
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, tensor in [*made.named_parameters(), *made.named_buffers()]:
            if "norm" in name:
                tensor.copy_(2.0 ** torch.randint(-1, 2, tensor.shape, generator=generator))
            elif name.endswith(".D"):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
            elif name.endswith("bias") and "dt_bias" not in name:
                tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))
    return made


@pytest.mark.parametrize("name", ["v3b", "fused", "fused-fast", "nvfp4-base-ring", "bf16", "transformers"])
def test_logits_tokens_and_caches_are_those_of_transformers(built, name, record_property):
    """The same bf16 roundings, and attention in fp32 as torch's math backend has it; other backends round more."""
    made = built(name)
    own = teach(made, PROMPT, TEXT, OWN)
    math = teach(made, PROMPT, TEXT, How(sdpa="math"))
    free = teach(made, PROMPT, TEXT, How())
    record_property("distance", distance(own.logits, math.logits))
    assert distance(own.logits, math.logits) < 1e-3
    assert own.chosen == math.chosen
    assert all(distance(a, b) < 1e-3 for a, b in zip(own.state, math.state, strict=True))
    assert typical(own.logits, free.logits) < 0.02
    assert all(a.dtype == b.dtype and a.shape == b.shape for a, b in zip(own.state, free.state, strict=True))


def test_the_ssm_kernels_exact_implementation_is_close(built):
    made = built("bf16")
    fused = teach(made, PROMPT, TEXT, How("glqprof", "fused", "static"))
    assert typical(fused.logits, teach(made, PROMPT, TEXT, OWN).logits) < 0.03
    unfused = teach(made, PROMPT, TEXT[:6], How("glqprof", "unfused", "static"))
    assert same_bytes(unfused.logits, fused.logits[:6])


def test_it_is_as_close_to_fp32_as_transformers_is(built):
    """The reference: the model's own code over the same weights in fp32, with its experts' products in fp32 too."""
    made = built("transformers")
    wide = lively(model.build(TINY, VARIANTS["transformers"], 0, "cpu").model).float()
    want = teach(wide, PROMPT, TEXT, How()).logits
    own = typical(teach(made, PROMPT, TEXT, OWN).logits, want)
    theirs = typical(teach(made, PROMPT, TEXT, How()).logits, want)
    assert own < 0.03
    assert own < 1.5 * theirs


@pytest.mark.parametrize("layers", range(1, 8))
def test_every_prefix_decodes(layers):
    part = lively(model.build(TINY.prefix(layers), VARIANTS["bf16"], 0, "cpu").model)
    own, theirs = teach(part, PROMPT, TEXT[:4], OWN), teach(part, PROMPT, TEXT[:4], How())
    assert distance(own.logits, theirs.logits) < 0.02


@pytest.mark.parametrize(
    "changes",
    [
        {"hybrid_override_pattern": "M-*E-ME", "intermediate_size": 96},
        {"use_bias": True, "mlp_bias": True, "hybrid_override_pattern": "M-*EMEE", "intermediate_size": 96},
        {"use_conv_bias": False, "norm_topk_prob": False},
        {"num_key_value_heads": 2, "n_groups": 4},
    ],
    ids=["mlp", "biases", "no conv bias, weights as they are", "heads"],
)
def test_other_models_of_the_family(changes):
    torch.manual_seed(0)
    config = transformers.NemotronHConfig(**TINY.config_arguments() | changes)
    made = transformers.NemotronHForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    for name, p in made.named_parameters():
        if p.dim() > 1 and "conv1d" not in name:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    lively(made)
    own, math = teach(made, PROMPT, TEXT, OWN), teach(made, PROMPT, TEXT, How(sdpa="math"))
    assert distance(own.logits, math.logits) < 0.02
    assert distance(own.logits, math.logits) < 0.2 * distance(own.logits[1:], math.logits[:-1])


def test_two_sequences_are_each_what_they_are_alone(built):
    made = built("bf16")
    prompts = torch.cat([PROMPT, decode.random_prompt(TINY.vocab, 9, 1, "cpu")])
    texts = [TEXT[:6], TEXT[6:12]]
    with torch.inference_mode():
        out = made(input_ids=prompts, use_cache=True)
        state = StaticState(made, out[runs.cache_name()], 64, 9)
        token = torch.zeros(2, 1, dtype=torch.int64)
        step = GlqprofStep(made, token, state, ssm="torch")
        rows = []
        for pair in zip(*texts, strict=True):
            token.copy_(torch.tensor(pair)[:, None])
            step.run()
            rows.append(step.logits.float().clone())
    for index, text in enumerate(texts):
        alone = teach(made, prompts[index : index + 1], text, OWN)
        assert typical(torch.stack([row[index] for row in rows]), alone.logits) < 0.01


def test_layers_and_the_head_are_ranges(built, monkeypatch):
    made = built("bf16")
    monkeypatch.setattr(annotate, "_state", annotate._State())
    events = []

    class Recorder:
        def push(self, name):
            events.append(name)

        def pop(self):
            events.append(")")

        def start(self):
            events.clear()

        def stop(self):
            events.append("stop")

    annotate.attach(Recorder())
    decode.greedy(made, PROMPT, 2, 1, OWN)
    layers = ["00_M", "01_E", "02_M", "03_*", "04_E", "05_M", "06_E", "07_head"]
    forward = [word for name in layers for word in (f"layer_{name}", ")")]
    assert events == [*(w for i in range(2) for w in (f"decode_token_{i}", *forward, ")")), "stop"]


def test_the_tokens_are_those_of_its_own_logits(built):
    made = built("fused")
    decoded = decode.greedy(made, PROMPT, 12, 3, OWN)
    taught = teach(made, PROMPT, decoded.ids[:-1], OWN)
    assert taught.chosen == decoded.ids[1:]
    assert taught.logits.argmax(-1).tolist() == decoded.ids[1:]
    assert decoded.finite


def test_nothing_is_made_anew_in_a_token(built):
    """Buffers keep their addresses, and every call of a kernel gets its outputs."""
    made = built("fused")
    with torch.inference_mode():
        prompted = runs.read_prompt(made, PROMPT)
        with runs.token_run(made, prompted, OWN, 4) as run:
            held = {k: v.data_ptr() for k, v in vars(run.step.buffers).items() if isinstance(v, torch.Tensor)}
            first = run()
            logits = run.step.logits
            run()
            assert {k: v.data_ptr() for k, v in vars(run.step.buffers).items() if k in held} == held
            assert run.step.logits is logits
            assert first == int(teach(made, PROMPT, [prompted.first], OWN).chosen[0])


def refused(change):
    config = transformers.NemotronHConfig(**TINY.config_arguments() | change)
    return transformers.NemotronHForCausalLM._from_config(config, dtype=torch.bfloat16).eval()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: refused({"moe_latent_size": 32}), "no latent projection before the experts"),
        (lambda: refused({"n_group": 2, "topk_group": 1}), "routes in one group, and the model has 2"),
        (lambda: refused({"mlp_hidden_act": "silu"}), "computes relu2, and the model has silu"),
        (lambda: refused({}).float(), "takes bf16 matrices, and the model has torch.float32"),
        (lambda: refused({"mamba_hidden_act": "gelu"}), "cannot compute layer 0: the mixer's activation is 'gelu'"),
    ],
)
def test_models_that_it_cannot_run_are_said(make, words):
    made = make()
    with pytest.raises(InputError, match=words) as caught:
        teach(made, PROMPT, TEXT[:2], OWN)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("glqprof's loop: ")


def test_the_same_run_twice_has_the_same_bytes(built):
    made = built("nvfp4-base-ring")
    one, two = teach(made, PROMPT, TEXT[:8], OWN), teach(made, PROMPT, TEXT[:8], OWN)
    assert same_bytes(one.logits, two.logits)
    assert all(same_bytes(a, b) for a, b in zip(one.state, two.state, strict=True))
