"""The tiny model on the CPU: same bits where they are promised, float64, independent counts of sizes and weights."""

from __future__ import annotations

import hashlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from glqprof import annotate  # noqa: E402
from glqprof.errors import InputError  # noqa: E402
from glqprof.workloads.nemotron_h import decode, experts, model, sizes  # noqa: E402
from glqprof.workloads.nemotron_h.variants import BF16, GLQ, VARIANTS  # noqa: E402

pytestmark = pytest.mark.xdist_group("decode")  # one worker imports transformers
TINY = sizes.load_sizes("tiny")
CASCADE = sizes.load_sizes("cascade2-30b")


def distance(a, b):
    return float((a - b).norm() / b.norm())


def test_the_variants_are_those_of_the_kernels():
    from glqprof_kernels.glq import ops as glq
    from glqprof_kernels.nvfp4 import ops as nvfp4

    named = {kind: {v.kernel for v in VARIANTS.values() if v.kind == kind} for kind in ("glq", "nvfp4")}
    assert named == {"glq": {*glq.EXACT, *glq.FUSED}, "nvfp4": set(nvfp4.VARIANTS)}


@pytest.mark.parametrize("name", [v.name for v in VARIANTS.values() if v.same_bits_as])
def test_same_bits_are_the_same_logits_and_tokens(tiny_run, name):
    run, base = tiny_run(name), tiny_run(VARIANTS[name].same_bits_as)
    assert torch.equal(run.logits.view(torch.int32), base.logits.view(torch.int32))
    assert annotate.sha_of(run.decoded.ids) == annotate.sha_of(base.decoded.ids)


@pytest.mark.parametrize("name", ["v3b-fp32act", "fused-fast", "bf16", "bf16-loop", "transformers"])
def test_the_others_compute_the_same_experts_in_other_bits(tiny_run, name, record_property):
    run, base = tiny_run(name), tiny_run("v0.2.12")
    assert not torch.equal(run.logits, base.logits)
    error = distance(run.logits, base.logits)
    record_property("distance from v0.2.12", error)
    record_property("same tokens", run.decoded.ids == base.decoded.ids)
    assert error < 0.03  # bf16 keeps 8 bits: three MoE layers and seven roundings of the residual


def test_nvfp4_has_experts_of_its_own(tiny_run):
    assert distance(tiny_run("nvfp4-base-regs").logits, tiny_run("v3b").logits) > 0.5


def moe_calls(run):
    """(inputs and output) of each MoE layer's experts over the model's own prompt."""
    calls, handles = [], []
    for block in run.model.model.layers:
        if model.LETTERS[block.block_type] == "E":
            experts_module = block.mixer.experts
            handles.append(experts_module.register_forward_hook(lambda m, i, out: calls.append((i, out))))
    with torch.inference_mode():
        run.model(input_ids=run.prompt)
    for handle in handles:
        handle.remove()
    return calls


@pytest.mark.parametrize(
    ("name", "bound"), [("v3b", 4e-3), ("fused", 4e-3), ("fused-fast", 3e-3), ("transformers", 2e-2), ("bf16", 2e-2)]
)
def test_experts_are_close_to_float64(tiny_run, name, bound):
    """On the model's own activations: the kernels' bound, and the rounding to the model's bf16 (1.1e-3 of the norm)."""
    from glqprof_kernels.glq import reference

    calls = moe_calls(tiny_run(name))
    layers = list(experts.random_layers(TINY, GLQ, 0, "cpu"))
    assert len(calls) == len(layers) == 3
    for layer, ((x, ids, weights), out) in zip(layers, calls, strict=True):
        assert weights.sum(-1).allclose(torch.tensor(2.5), rtol=1e-5)
        assert distance(out.double(), reference.moe(layer, x, ids, weights)) < bound


def test_nvfp4_experts_are_close_to_float64(tiny_run):
    from glqprof_kernels.nvfp4 import reference

    calls = moe_calls(tiny_run("nvfp4-waves-ring"))
    for layer, (inputs, out) in zip(experts.random_layers(TINY, "nvfp4", 0, "cpu"), calls, strict=True):
        assert distance(out.double(), reference.moe(layer, *inputs)) < 1e-2


def test_the_loop_decodes_what_generate_does(tiny_run):
    """An independent loop over the same model: transformers' own."""
    run = tiny_run("v3b")
    wanted = len(run.decoded.ids)
    out = run.model.generate(
        run.prompt, max_new_tokens=wanted, min_new_tokens=wanted, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert out[0, run.prompt.shape[1] :].tolist() == run.decoded.ids
    assert wanted == 1 + decode.WARMUP + len(run.decoded.steps_ns)


def test_a_prefix_has_the_weights_of_the_whole(tiny_run):
    whole = tiny_run("bf16").model.state_dict()
    part = model.build(TINY.prefix(4), VARIANTS["bf16"], 0, "cpu").model.state_dict()
    assert set(part) < set(whole)
    # what writes to the residual is scaled by the number of layers, 4 and 7
    for name, value in part.items():
        if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
            assert distance(value.float() * 2, whole[name].float() * 7**0.5) < 4e-3
        else:
            assert torch.equal(value, whole[name]), name


@pytest.mark.parametrize("layers", range(1, 8))
def test_every_prefix_decodes(layers):
    built = model.build(TINY.prefix(layers), VARIANTS["v3b"], 0, "cpu")
    decoded = decode.greedy(built.model, decode.random_prompt(TINY.vocab, 5, 0, "cpu"), 2, 0)
    assert len(decoded.ids) == 3
    assert decoded.finite
    assert len(built.model.model.layers) == layers


def test_a_prompt_of_one_token_and_one_longer_than_a_chunk(tiny_run):
    run = tiny_run("v3b")
    for length in (1, TINY.ssm_chunk * 2 + 1):
        prompt = decode.random_prompt(TINY.vocab, length, 3, "cpu")
        first = decode.greedy(run.model, prompt, 1, 0).ids[0]
        with torch.inference_mode():
            assert first == int(run.model(input_ids=prompt).logits[0, -1].argmax())


def test_seeds():
    def weights(seed):
        return model.build(TINY.prefix(2), VARIANTS["v3b"], seed, "cpu").model.state_dict()

    one, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(one[name], again[name]) for name in one)
    name = "model.layers.0.mixer.in_proj.weight"
    assert not torch.equal(one[name], other[name])
    assert not torch.equal(one[name].flatten()[:64], one["lm_head.weight"].flatten()[:64])
    assert float(one["lm_head.weight"].float().std()) == pytest.approx(64**-0.5, rel=0.02)


def test_what_stays_fp32_is_what_transformers_keeps():
    """The router's bias in every version, its weight since the one that declares so; everything else is bf16."""
    built = model.build(TINY, VARIANTS["v3b"], 0, "cpu").model
    kept = model.transformers_classes().model._keep_in_fp32_modules_strict
    assert any("e_score_correction_bias" in name for name in kept)
    for name, tensor in built.state_dict().items():
        if any(part in name for part in kept):
            assert tensor.dtype == torch.float32, name
        elif not name.endswith("gate.weight"):  # created as fp32 in some versions
            assert tensor.dtype == torch.bfloat16, name
    assert all(tensor.device.type == "cpu" for tensor in built.state_dict().values())


def test_the_geometry_is_cascades():
    """Against transformers' own count of parameters, and the 31.6 B of the model's name card."""
    classes = model.transformers_classes()
    with torch.device("meta"):
        whole = classes.model._from_config(classes.config(**CASCADE.config_arguments()), dtype=torch.bfloat16)
    counted = sum(p.numel() for p in whole.parameters())
    assert counted == pytest.approx(31.6e9, rel=2e-3)
    assert counted == CASCADE.other_parameters() + CASCADE.moe_layers * CASCADE.expert_parameters()
    assert (len(CASCADE.layers), CASCADE.layers.count("M"), CASCADE.moe_layers) == (52, 23, 23)
    mixer = whole.model.layers[0].mixer
    assert mixer.in_proj.weight.shape == (2 * 4096 + 2 * 8 * 128 + 64, 2688)
    assert mixer.conv1d.weight.shape == (4096 + 2 * 8 * 128, 1, 4)
    moe = whole.model.layers[1].mixer
    assert moe.shared_experts.up_proj.weight.shape == (3712, 2688)
    assert (moe.gate.top_k, moe.gate.routed_scaling_factor, moe.gate.norm_topk_prob) == (6, 2.5, True)
    assert whole.lm_head.weight.shape == (131072, 2688)


def test_memory_is_what_the_tensors_hold():
    """GLQ: 12 of 23 layers have three planes of 16 bits for eight weights, the others two: 18.5 GB of indices."""
    glq = model.bytes_needed(CASCADE, VARIANTS["v3b"]) - 2 * CASCADE.other_parameters()
    assert glq == (12 * 3 + 11 * 2) * CASCADE.expert_parameters() * 2 // 8
    assert model.bytes_needed(CASCADE, VARIANTS["fused"]) < 32e9
    planes = [p for layer in experts.random_layers(TINY, GLQ, 0, "cpu") for m in (layer.up, layer.down)
              for p in m.present_planes()]  # fmt: skip
    assert model.bytes_needed(TINY, VARIANTS["v3b"]) - 2 * TINY.other_parameters() == sum(p.nbytes for p in planes)
    largest = 2 * 8 * 32 * 64 * 3 * 2 // 8  # one GLQ layer of three stages at a time is what bf16 is made from
    dense = list(experts.dense_layers(experts.random_layers(TINY, BF16, 0, "cpu")))
    held = sum(layer.up.nbytes + layer.down.nbytes for layer in dense)
    assert model.bytes_needed(TINY, VARIANTS["bf16"]) - 2 * TINY.other_parameters() - held == largest


def test_too_little_memory_is_said_before_any_is_taken(monkeypatch):
    monkeypatch.setattr(model, "_free_host_bytes", lambda: int(20e9))
    with pytest.raises(InputError, match=r"cascade2-30b fused: 52 layers need .* GB, this machine has 20.0 free"):
        model.build(CASCADE, VARIANTS["fused"], 0, "cpu")


class Recorder:
    def __init__(self):
        self.events = []

    def push(self, name):
        self.events.append(name)

    def pop(self):
        self.events.append(")")

    def start(self):
        self.events.append("start")

    def stop(self):
        self.events.append("stop")


def test_tokens_and_layers_are_ranges(tiny_run, monkeypatch):
    run = tiny_run("v3b")
    monkeypatch.setattr(annotate, "_state", annotate._State())
    recorder = Recorder()
    annotate.attach(recorder)
    decode.greedy(run.model, run.prompt, 2, 1)
    layers = ["00_M", "01_E", "02_M", "03_*", "04_E", "05_M", "06_E", "07_head"]
    forward = [word for name in layers for word in (f"layer_{name}", ")")]
    marked = [word for i in range(2) for word in (f"decode_token_{i}", *forward, ")")]
    assert recorder.events == [*forward, *forward, "start", *marked, "stop"]


def test_the_token_hash_is_of_every_id_after_the_prompt(tiny_run, monkeypatch):
    result = decode.run_decode("tiny", "v3b", "cpu", prompt=9, tokens=20)
    ids = tiny_run("v3b").decoded.ids
    assert result.token_sha == hashlib.sha256(",".join(map(str, ids)).encode("ascii")).hexdigest()
    assert len(ids) == 24
    assert len(set(ids)) > 10  # a text, not one token again and again


def test_infinite_activations_are_a_warning(monkeypatch):
    """relu² overflows fp16 from 256 on: a scale a thousand times too large must be said."""
    honest = experts.random_layers

    def loud(*arguments):
        for layer in honest(*arguments):
            layer.up.wscale *= 1000
            yield layer

    monkeypatch.setattr(model, "random_layers", loud)
    for variant in ("v3b", "fused"):
        result = decode.run_decode("tiny", variant, "cpu", prompt=4, tokens=1, warmup=0)
        assert any("became infinite" in warning for warning in result.warnings), variant
