"""The variant ``torch`` against transformers' own mixer: the same bytes in bf16, token after token."""

from __future__ import annotations

import inspect

import pytest
import torch

from glqprof.workloads.nemotron_h.sizes import load_sizes
from glqprof_kernels import ssm

transformers = pytest.importorskip("transformers")
TINY = load_sizes("tiny")
PROMPT = 19  # not a whole number of the prompt scan's chunks of 16


def make_mixer(dtype: torch.dtype = torch.bfloat16, bias: bool = True):
    """A tiny model's first layer with random parameters, its configuration, and the class of its module."""
    config = transformers.NemotronHConfig(**TINY.config_arguments(), use_conv_bias=bias)
    mixer = transformers.NemotronHForCausalLM._from_config(config, dtype=dtype).model.layers[0].mixer
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in mixer.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            scale = parameter.shape[1] ** -0.5 if name.endswith("proj.weight") else 0.5
            parameter.copy_(drawn * scale + (1.0 if name in ("D", "norm.weight") else 0.0))
    return mixer.eval(), config


def prefilled(mixer, config, batch: int):
    """transformers' cache after a prompt, and a function that runs the mixer on one more token."""
    cache = transformers.DynamicCache(config=config)
    name = "cache" if "cache" in inspect.signature(mixer.forward).parameters else "cache_params"
    generator = torch.Generator().manual_seed(7)
    dtype = mixer.in_proj.weight.dtype

    def tokens(count: int) -> torch.Tensor:
        return torch.randn(batch, count, TINY.hidden, generator=generator).to(dtype)

    def run(hidden: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False), torch.no_grad():
            return mixer(hidden, **{name: cache})

    run(tokens(PROMPT))
    layer = cache.layers[0]
    return layer.conv_states[0], layer.recurrent_states[0], tokens, run


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("batch", [1, 3])
def test_as_the_mixer(batch, dtype, bias) -> None:
    mixer, config = make_mixer(dtype, bias)
    conv_state, state, tokens, run = prefilled(mixer, config, batch)
    assert (conv_state.dtype, state.dtype) == (dtype, torch.float32)
    mine = conv_state.clone(), state.clone()
    weights = ssm.StepWeights.of(mixer)
    assert (weights.inter, weights.conv_dim, weights.kernel) == (64, 128, 4)
    for _ in range(5):
        hidden = tokens(1)
        want = run(hidden)
        with torch.no_grad():
            out = ssm.step(weights, mixer.in_proj(hidden)[:, 0], *mine, variant="torch")
            got = mixer.out_proj(out)[:, None]
        if dtype == torch.bfloat16:
            assert torch.equal(mine[0], conv_state)
            assert torch.equal(mine[1], state)
            assert torch.equal(got, want)
        else:  # torch's exp and softplus differ in the last place between layouts, which bf16 hides
            torch.testing.assert_close(mine, (conv_state, state), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_new_states_may_go_elsewhere() -> None:
    mixer, config = make_mixer()
    conv_state, state, tokens, _ = prefilled(mixer, config, 2)
    weights = ssm.StepWeights.of(mixer)
    with torch.no_grad():
        projected = mixer.in_proj(tokens(1))[:, 0]
    before = conv_state.clone(), state.clone()
    after = torch.empty_like(conv_state), torch.empty_like(state)
    out = ssm.step(weights, projected, conv_state, state, variant="torch", conv_state_out=after[0], state_out=after[1])
    assert torch.equal(conv_state, before[0])
    assert torch.equal(state, before[1])
    again = torch.empty_like(out)
    assert ssm.step(weights, projected, conv_state, state, again, variant="torch") is again
    assert torch.equal(again, out)
    assert torch.equal(conv_state, after[0])
    assert torch.equal(state, after[1])


def test_another_activation_is_refused() -> None:
    mixer, _ = make_mixer()
    mixer.activation = "relu"
    with pytest.raises(ValueError, match="'relu'; the step computes SiLU"):
        ssm.StepWeights.of(mixer)
