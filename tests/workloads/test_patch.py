"""`glqprof.patch` on a model that transformers made, as a user would load one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import glqprof  # noqa: E402
from glqprof.workloads.nemotron_h import experts, sizes  # noqa: E402

pytestmark = pytest.mark.xdist_group("decode")
TINY = sizes.load_sizes("tiny")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.NemotronHConfig(**TINY.config_arguments())
    made = transformers.NemotronHForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    for name, p in made.named_parameters():
        if "experts." in name:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    return made


def logits(model):
    ids = torch.randint(0, TINY.vocab, (2, 9), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        return model(input_ids=ids).logits


def distance(a, b):
    return float((a - b).norm() / b.norm())


def test_bf16_computes_the_models_own_experts_and_remove_puts_them_back(model):
    own = logits(model)
    for variant in ("bf16", "bf16-loop"):
        patched = glqprof.patch(model, variant)
        assert (patched.variant, patched.layers) == (variant, 3)
        assert "bf16" in repr(model.model.layers[1].mixer.experts)
        assert 0 < distance(logits(model), own) + 1e-12 < 0.02
        patched.remove()
        patched.remove()
        assert torch.equal(logits(model), own)


def test_given_glq_weights_are_what_is_computed(model):
    """Against the same experts, dequantised, as the model's own parameters."""
    layers = list(experts.random_layers(TINY, "glq", 7, "cpu"))
    own = [(m.up_proj.data, m.down_proj.data) for m in (model.model.layers[i].mixer.experts for i in (1, 4, 6))]
    for index, dense in zip((1, 4, 6), experts.dense_layers(layers), strict=True):
        module = model.model.layers[index].mixer.experts
        module.up_proj.data, module.down_proj.data = dense.up, dense.down
    unpatched = logits(model)
    for index, (up, down) in zip((1, 4, 6), own, strict=True):
        module = model.model.layers[index].mixer.experts
        module.up_proj.data, module.down_proj.data = up, down
    seen = []
    for variant in ("v0.2.12", "v3a", "v3b", "fused", "bf16"):
        with glqprof.patch(model, variant, weights=layers) as patched:
            seen.append(logits(model))
            assert (patched.infinite_activations, patched.bad_ids) == (0, 0)
    assert all(torch.equal(seen[0], other) for other in seen[1:4])
    assert all(distance(one, unpatched) < 0.03 for one in seen)
    assert distance(unpatched, logits(model)) > 0.5


def test_quantised_experts_are_close_to_the_models_own(model):
    """One layer alone, since later routers choose other experts: NVFP4's weights are a tenth off (e2m1 steps are a
    quarter to a half of the value), relu² doubles what it squares, and the second matrix adds its own tenth."""
    moe = model.model.layers[1].mixer
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(6, TINY.hidden, generator=generator).to(torch.bfloat16)
    ids = torch.rand(6, TINY.experts, generator=generator).topk(2).indices
    weights = torch.full((6, 2), 1.25)
    own = moe.experts(x, ids, weights).float().detach()
    with glqprof.patch(model, "nvfp4-base-ring", weights="quantise"):
        quantised = moe.experts(x, ids, weights).float()
    assert 0.05 < distance(quantised, own) < 0.3
    assert not torch.equal(quantised, own)


def test_random_weights_are_the_seeds(model):
    def decoded(variant, seed):
        with glqprof.patch(model, variant, weights="random", seed=seed):
            return logits(model)

    assert torch.equal(decoded("v3b", 3), decoded("fused", 3))
    assert not torch.equal(decoded("v3b", 3), decoded("v3b", 4))
    assert distance(decoded("bf16", 3), decoded("v3b", 3)) < 0.03


def test_generate_runs_on_a_patched_model(model):
    prompt = torch.tensor([[5, 6, 7]])
    with glqprof.patch(model, "fused", weights="random"):
        out = model.generate(prompt, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert out.shape == (1, 8)


def test_outside_no_grad_it_runs_and_passes_no_gradient(model):
    moe = model.model.layers[1].mixer
    x = torch.ones(1, 1, TINY.hidden, dtype=torch.bfloat16, requires_grad=True)
    for variant in ("v3b", "fused", "nvfp4-base-ring", "bf16"):
        with glqprof.patch(model, variant, weights="random"):
            ids, weights = torch.tensor([[0, 1]]), torch.ones(1, 2)
            assert not moe.experts(x[0], ids, weights).requires_grad
            assert moe(x).shape == x.shape


def test_float_models_keep_their_dtype(model):
    config = transformers.NemotronHConfig(**TINY.config_arguments())
    wide = transformers.NemotronHForCausalLM._from_config(config, dtype=torch.float32).eval()
    for variant in ("v3b", "nvfp4-half-deep", "bf16"):
        with glqprof.patch(wide, variant, weights="random"):
            assert logits(wide).isfinite().all()


def glq(seed=0, **changes):
    from dataclasses import replace

    return list(experts.random_layers(replace(TINY, **changes), "glq", seed, "cpu"))


@pytest.mark.parametrize(
    ("variant", "weights", "words"),
    [
        ("v3c", None, "'v3c' is no variant; there are v0.2.12"),
        ("transformers", None, "the model's own code"),
        ("fused", None, "own experts are not GLQ, which fused computes; give weights=LAYERS, or weights='random'"),
        ("fused", "quantise", "own experts are not GLQ"),
        ("nvfp4-base-ring", None, "or weights='quantise'"),
        ("bf16", "quantise", "own experts are not bf16, which bf16 computes"),
        ("fused", "noise", "weights='noise' means nothing"),
        ("fused", lambda: glq()[:2], "2 of 3 MoE layers"),
        ("fused", lambda: [*glq(), *glq()], "more than 3 MoE layers"),
        ("fused", lambda: [], "0 of 3 MoE layers"),
        ("fused", lambda: glq(experts=4), r"MoE layer 0: weights are .* \(4, 32, 64, 'relu2'\); the model has \(8, 32"),
        ("fused", lambda: list(experts.random_layers(TINY, "nvfp4", 0, "cpu")), "fused takes glqprof_kernels.glq"),
        ("nvfp4-base-ring", glq, "takes glqprof_kernels.nvfp4"),
        ("v3b", lambda: [1, 2, 3], "weights are int"),
    ],
)
def test_what_cannot_be_patched_is_said_and_nothing_changes(model, variant, weights, words):
    before = logits(model)
    with pytest.raises(glqprof.InputError, match=words):
        glqprof.patch(model, variant, weights=weights() if callable(weights) else weights)
    assert torch.equal(logits(model), before)


def test_other_models_and_patched_ones_are_refused(model):
    with pytest.raises(glqprof.InputError, match="Linear has no NemotronHMoE layer"):
        glqprof.patch(torch.nn.Linear(2, 2), "fused", weights="random")
    with (
        glqprof.patch(model, "fused", weights="random"),
        pytest.raises(glqprof.InputError, match=r"patched already; remove\(\) that first"),
    ):
        glqprof.patch(model, "bf16")


def test_codebooks_that_fused_cannot_hold_are_one_line(model):
    layers = glq()
    layers[0].up.tables[0] = (layers[0].up.tables[0] * 3).contiguous()
    with pytest.raises(glqprof.InputError, match=r"fused cannot take these weights: .* multiples of 1/2"):
        glqprof.patch(model, "fused", weights=layers)
