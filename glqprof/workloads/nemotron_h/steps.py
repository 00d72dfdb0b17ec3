"""One decoded token as an object: a token id in a device buffer goes in, the next one comes out in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.model import LETTERS, transformers_classes
from glqprof.workloads.nemotron_h.static_cache import StaticState


class Step(Protocol):
    """One way to run a token. ``token``: [1, 1] int64 on the device."""

    token: Any

    @property
    def state(self) -> StaticState | None:
        """The static buffers; None with a dynamic cache."""

    @property
    def logits(self) -> Any:
        """[1, vocab] of the last token that ran."""

    def run(self) -> None:
        """Launch one token: read ``token``, advance the state, write the next token. The host reads nothing."""


class Run(Protocol):
    """Decodes one token a call and returns its id."""

    step: Step

    def __call__(self) -> int:
        """The next token; InputError, and nothing changed, where the static buffers are full."""


class TransformersStep:
    """A token through the model's own forward, with a dynamic cache or with static buffers."""

    def __init__(self, model: Any, token: Any, cache: Any, state: StaticState | None = None) -> None:
        self.model, self.token, self.state = model, token, state
        self._arguments = {cache_name(): cache if state is None else state.cache, **without_attention(model)}
        self._logits: Any = None

    @property
    def logits(self) -> Any:
        """[1, vocab] float32."""
        return self._logits

    def run(self) -> None:
        """One forward and the argmax: the likeliest token, the lowest id where several are."""
        out = self.model(input_ids=self.token, use_cache=True, logits_to_keep=1, **self._arguments)
        self._logits = out.logits[:, -1]
        torch.argmax(self._logits, -1, keepdim=True, out=self.token)


class EagerRun:
    """Calls of a step: each launches it and reads its token."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def __call__(self) -> int:
        """The next token; InputError, and nothing changed, where the static buffers are full."""
        if self.step.state is not None:
            self.step.state.take()
        self.step.run()
        return int(self.step.token)


def cache_name() -> str:
    """What this transformers calls the cache in the model's arguments: 5.24 warns of the old name."""
    import inspect

    forward = transformers_classes().model.forward
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def without_attention(model: Any) -> dict[str, Any]:
    """What a model without any attention layer must be told: its cache cannot say how many tokens it holds.

    Nothing else reads masks or positions: nemotron_h has no rotary embedding.
    """
    if any(LETTERS[block.block_type] == "*" for block in model.model.layers):
        return {}
    classes = transformers_classes()
    if "create_masks_for_generate" not in vars(classes.model):  # takes no masks, and asks the cache in any case
        problem = f"transformers {classes.version} cannot decode without an attention layer; give more layers, or 5.17"
        raise InputError("--layers", problem)
    masks = {"full_attention": None, "linear_attention": None}
    return {"attention_mask": masks, "position_ids": torch.zeros(1, 1, dtype=torch.int64, device=model.device)}


@contextlib.contextmanager
def sdpa_backend(name: str) -> Iterator[None]:
    """torch's attention by one backend only; "any": torch chooses. InputError where that backend cannot compute it."""
    if name == "any":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    try:
        with sdpa_kernel(backends[name]):
            yield
    except RuntimeError as error:
        if "No available kernel" not in str(error) and "No viable backend" not in str(error):
            raise
        why = "this backend cannot compute the model's decode attention here (flash takes no mask, which static"
        raise InputError(f"--sdpa {name}", f"{why} buffers need); give another") from None
