"""Models that several tests decode with, made once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

PROMPT, TOKENS = 9, 20


class Run:
    """A tiny model with one expert variant: the model, its decoded tokens, its logits on a fixed text of 24 tokens."""

    def __init__(self, name: str) -> None:
        import torch

        from glqprof.workloads.nemotron_h import decode, model, sizes, variants

        self.sizes = sizes.load_sizes("tiny")
        self.built = model.build(self.sizes, variants.VARIANTS[name], 0, "cpu")
        self.model = self.built.model
        self.prompt = decode.random_prompt(self.sizes.vocab, PROMPT, 0, "cpu")
        self.decoded = decode.greedy(self.model, self.prompt, TOKENS)
        text = decode.random_prompt(self.sizes.vocab, 24, 1, "cpu")
        with torch.inference_mode():
            self.logits: Any = self.model(input_ids=text).logits


@pytest.fixture(scope="session")
def tiny_run() -> Callable[[str], Run]:
    """The run of a variant by name, made at its first use."""
    pytest.importorskip("transformers")
    return functools.cache(Run)
