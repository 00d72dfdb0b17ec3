"""One text through two ways of decoding: the tokens are given, so that one difference does not become all of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import torch

from glqprof.workloads.nemotron_h import runs
from glqprof.workloads.nemotron_h.paths import How


@dataclass
class Taught:
    """``logits`` of each token [tokens, vocab] float32, ``chosen`` the argmaxes, ``state`` the static buffers' copies
    (of a dynamic cache: its tensors, keys and values cut to the length)."""

    logits: Any
    chosen: list[int]
    state: list[Any]


def teach(model: Any, prompt: Any, text: list[int], how: How, each: Any = None) -> Taught:
    """Decode ``text`` token by token after the prompt, whatever the loop would have chosen.

    ``each(index, run)`` is called after every token.
    """
    logits, chosen = [], []
    with torch.inference_mode():
        prompted = runs.read_prompt(model, prompt)
        with runs.token_run(model, prompted, how, len(text)) as run:
            for index, token in enumerate(text):
                run.step.token.fill_(token)
                chosen.append(run())
                logits.append(run.step.logits.float().cpu().clone())
                if each is not None:
                    each(index, run)
            state = held(model, prompted, run)
    return Taught(torch.cat(logits), chosen, state)


def held(model: Any, prompted: Any, run: Any) -> list[Any]:
    """Keys, values, convolution and recurrent states in the model's order."""
    cache = prompted.cache if run.step.state is None else run.step.state.cache
    tensors = []
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            length = int(layer.get_seq_length())
            tensors += [layer.keys[:, :, :length].cpu().clone(), layer.values[:, :, :length].cpu().clone()]
        elif getattr(layer, "conv_states", {}).get(0) is not None:
            tensors += [layer.conv_states[0].cpu().clone(), layer.recurrent_states[0].cpu().clone()]
    return tensors


def distance(a: Any, b: Any) -> float:
    """Of the norm."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def typical(found: Any, want: Any) -> float:
    """The median token's distance: where two experts' scores nearly tie, a rounding chooses the other, and that token
    is far off."""
    return statistics.median(distance(a, b) for a, b in zip(found, want, strict=True))


def same_bytes(a: Any, b: Any) -> bool:
    """Equal shapes and bytes, NaN and the sign of zero included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))
