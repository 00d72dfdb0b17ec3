"""Swap the one-token branch of a model's Mamba-2 mixers for a step of `glqprof_kernels.ssm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.paths import SSM_VARIANTS

MAX_BATCH = 8
"""Sequences of one call of the CUDA steps; more are computed by the model's own code."""


def mamba_modules(model: Any) -> list[Any]:
    """The model's Mamba-2 mixers in order, by the name of their class: transformers need not be imported."""
    return [m for m in model.modules() if any(c.__name__ == "NemotronHMamba2Mixer" for c in type(m).__mro__)]


def patch_mixers(mixers: list[Any], variant: str, subject: str) -> Callable[[], None]:
    """Give each mixer a forward that decodes by ``variant``; returns what puts the own ones back.

    The step takes single tokens of up to 8 sequences that have a state in the cache; no gradient passes. Prompts,
    tokens without a cache or under a padding mask, caches that record the past (for assisted decoding) and states on
    another device run the model's own code. InputError about ``subject``, and nothing changed, for what no step takes.
    """
    if variant not in SSM_VARIANTS:
        raise InputError(subject, f"ssm={variant!r} means nothing; there are {', '.join(SSM_VARIANTS)}")
    steps = []
    for mixer in mixers:
        if "forward" in vars(mixer):
            raise InputError(subject, "the Mamba-2 layers are patched already; remove() that first")
        steps.append(_step_of(mixer, variant, subject))
    for mixer, step in zip(mixers, steps, strict=True):
        mixer.forward = _forward(mixer, step)

    def remove() -> None:
        for mixer in mixers:
            vars(mixer).pop("forward", None)

    return remove


def prepare_ssm(variant: str, device: Any, subject: str) -> None:
    """Build or load the step's CUDA extension; InputError where it cannot be built."""
    if variant == "torch" or torch.device(device).type != "cuda":
        return
    from glqprof_kernels.ssm import extension

    try:
        extension.load()
    except RuntimeError as error:
        raise InputError(subject, " ".join(str(error).split())) from None


def _step_of(mixer: Any, variant: str, subject: str) -> Callable[[Any, Any, Any], Any]:
    """(projected, conv_state, state) → the input of out_proj, of one mixer."""
    from glqprof_kernels.ssm import StepWeights, step
    from glqprof_kernels.ssm.ops import check_supported

    device, dtype = mixer.conv1d.weight.device, mixer.conv1d.weight.dtype
    if variant != "torch" and dtype != torch.bfloat16:
        raise InputError(subject, f"ssm={variant!r} computes bf16, and the model is {dtype}; give 'torch'")
    prepare_ssm(variant, device, subject)
    try:
        weights = StepWeights.of(mixer)
        if variant != "torch":
            check_supported(weights)
    except ValueError as error:
        raise InputError(subject, f"ssm={variant!r} cannot take this model: {error}") from error
    return lambda projected, conv, state: step(weights, projected, conv, state, variant=variant)


def _forward(mixer: Any, step: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    own = mixer.forward

    def forward(hidden_states: Any, *arguments: Any, **named: Any) -> Any:
        states = None if arguments else _states(mixer, hidden_states, named)
        if states is None:
            return own(hidden_states, *arguments, **named)
        projected = mixer.in_proj(hidden_states[:, 0])
        return mixer.out_proj(step(projected, *states))[:, None]

    return forward


def _states(mixer: Any, hidden: Any, named: dict[str, Any]) -> tuple[Any, Any] | None:
    """The mixer's states where the step may advance them; None where its own code must run."""
    cache = named.get("cache", named.get("cache_params"))  # 5.24 and 5.17
    if cache is None or named.get("attention_mask") is not None:
        return None
    if hidden.shape[1] != 1 or hidden.shape[0] > MAX_BATCH:
        return None
    layer = cache.layers[mixer.layer_idx]
    if not layer.has_previous_state[0] or layer.record_past:
        return None
    states = layer.conv_states[0], layer.recurrent_states[0]
    if any(state is None or not state.is_contiguous() or state.device != hidden.device for state in states):
        return None
    return states
