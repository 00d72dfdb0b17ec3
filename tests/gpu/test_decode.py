"""The nemotron_h workloads on a GPU: experts to the bit in a running model, same tokens, memory, time to start."""

from __future__ import annotations

import time
from dataclasses import fields, replace

import pytest
import torch

pytest.importorskip("transformers")

from glqprof.workloads.nemotron_h import decode, experts, model, sizes
from glqprof.workloads.nemotron_h.variants import VARIANTS
from glqprof_kernels.nvfp4 import reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]
TINY = sizes.load_sizes("tiny")
PREFIX = sizes.load_sizes("cascade2-30b").prefix(9)
"""MEMEM*EME: three MoE layers of two and three stages, and every kind of layer."""
SAME_BITS = [v.name for v in VARIANTS.values() if v.same_bits_as]


def run(shape, name, prompt=40, tokens=12):
    built = model.build(shape, VARIANTS[name], 0, "cuda")
    text = decode.random_prompt(shape.vocab, prompt, 0, "cuda")
    decoded = decode.greedy(built.model, text, tokens)
    with torch.inference_mode():
        logits = built.model(input_ids=text).logits.cpu()
    assert built.counters.read() == (0, 0)
    assert decoded.finite
    return built.model, text, decoded.ids, logits


@pytest.fixture(scope="module")
def base():
    kept = {}

    def of(shape, name):
        if (shape.name, name) not in kept:
            kept[shape.name, name] = run(shape, name)[2:]
        return kept[shape.name, name]

    return of


@pytest.mark.parametrize("shape", [TINY, PREFIX], ids=lambda shape: shape.name)
@pytest.mark.parametrize("name", SAME_BITS)
def test_same_bits_decode_the_same_tokens(base, shape, name) -> None:
    ids, logits = run(shape, name)[2:]
    want_ids, want = base(shape, VARIANTS[name].same_bits_as)
    assert torch.equal(logits.view(torch.int32), want.view(torch.int32))
    assert ids == want_ids


@pytest.mark.parametrize("name", ["fused-fast", "bf16", "bf16-loop", "transformers"])
def test_the_others_are_close(base, name) -> None:
    logits = run(PREFIX, name)[3]
    want = base(PREFIX, "v0.2.12")[1]
    assert float((logits - want).norm() / want.norm()) < 0.05


def calls_of(name):
    """(inputs, output) of each MoE layer's experts, over a prompt."""
    built, text, *_ = run(TINY, name)
    calls = []
    for module in built.modules():
        if isinstance(module, experts.Experts):
            module.register_forward_hook(lambda m, inputs, out: calls.append((inputs, out)))
    with torch.inference_mode():
        built(input_ids=text)
    assert len(calls) == TINY.moe_layers
    return calls


@pytest.mark.parametrize("name", ["v0.2.12", "v3b", "v3b-fp32act", "fused"])
def test_glq_experts_have_the_bits_of_the_exact_implementation(name) -> None:
    """On the activations of the running model: copied to the CPU, the exact implementation gives the same bytes."""
    layers = [on_cpu(layer) for layer in experts.random_layers(TINY, "glq", 0, "cuda")]
    exact = experts.compute(VARIANTS[name], layers, TINY.top_k, experts.Counters())
    for compute, (inputs, out) in zip(exact, calls_of(name), strict=True):
        want = compute(*(t.cpu() for t in inputs))
        assert torch.equal(out.cpu().view(torch.int16), want.view(torch.int16))


def on_cpu(layer):
    """A GLQ layer's weights on the CPU."""

    def moved(matrix):
        values = {field.name: getattr(matrix, field.name) for field in fields(matrix) if field.init}
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                values[name] = value.cpu()
            elif isinstance(value, list):
                values[name] = [None if part is None else part.cpu() for part in value]
        return type(matrix)(**values)

    return replace(layer, up=moved(layer.up), down=moved(layer.down), overflow=None)


@pytest.mark.parametrize("name", ["nvfp4-base-ring", "nvfp4-half-deep"])
def test_nvfp4_experts_are_close_to_float64(name) -> None:
    """The mma rounds inside as the architecture does, so the CPU has other bytes; the bound is the bench's."""
    layers = experts.random_layers(TINY, "nvfp4", 0, "cuda")
    for layer, (inputs, out) in zip(layers, calls_of(name), strict=True):
        want = reference.moe(layer, *inputs)
        assert float((out.double() - want).norm() / want.norm()) < 1e-2


def test_the_whole_model_fits_and_starts_in_time() -> None:
    """Issue 9: GLQ experts in at most 32 GB, loading and first token in at most 60 s (kernels built before)."""
    whole = sizes.load_sizes("cascade2-30b")
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB of free GPU memory")
    experts.prepare(VARIANTS["fused"], "cuda")
    torch.cuda.reset_peak_memory_stats()
    start = time.monotonic()
    built = model.build(whole, VARIANTS["fused"], 0, "cuda")
    text = decode.random_prompt(whole.vocab, 1024, 0, "cuda")
    decoded = decode.greedy(built.model, text, 2, 0)
    assert time.monotonic() - start < 60
    assert torch.cuda.max_memory_allocated() < 32e9
    assert decoded.finite
    assert built.counters.read() == (0, 0)
