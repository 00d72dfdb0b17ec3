"""The state of a decode in buffers whose addresses and sizes never change: keys and values, convolution, recurrent.

transformers' own ``StaticCache`` holds them, so that the model's forward, glqprof's loop and a CUDA graph of either
read and write the same tensors. A prompt is read into a dynamic cache first, as without a graph, and copied over.
"""

from __future__ import annotations

from typing import Any

import torch

from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.model import LETTERS

ALIGNMENT = 64
"""Capacities are multiples of this: torch's attention kernels want a mask whose rows are aligned."""


def capacity_for(tokens: int) -> int:
    """The smallest aligned capacity that holds so many tokens."""
    return -(-tokens // ALIGNMENT) * ALIGNMENT


class StaticState:
    """The decode state of ``batch`` sequences of equal length.

    ``cache``: the transformers ``StaticCache``. ``capacity``: tokens that the keys and values have room for. ``used``:
    tokens in the state, counted by the host. ``lengths``: the same on the device, int64, one element an attention layer
    (one in all where there is none): the model's attention layers each advance their own, ``position`` is the first's,
    [1]. Keys and values are [batch, kv_heads, capacity, head_dim] of the model's dtype, zero where nothing is yet;
    conv_states [batch, conv_dim, K]; recurrent_states [batch, heads, head_dim, state].
    """

    def __init__(self, model: Any, prompt_cache: Any, capacity: int, used: int) -> None:
        """Copy ``prompt_cache``, what the model filled while it read ``used`` tokens; InputError where it has not room.

        The dynamic cache is left as it is.
        """
        from transformers import StaticCache

        if used > capacity:
            raise InputError("static cache", f"{used} tokens do not fit into a capacity of {capacity}")
        self.capacity, self.used = capacity, used
        self.kinds = [LETTERS[block.block_type] for block in model.model.layers]
        self.cache = StaticCache(config=model.config, max_cache_len=capacity)
        attention = [index for index, kind in enumerate(self.kinds) if kind == "*"]
        self.lengths = torch.full((max(1, len(attention)),), used, dtype=torch.int64, device=model.device)
        for index, kind in enumerate(self.kinds):
            old, new = prompt_cache.layers[index], self.cache.layers[index]
            if kind == "*":
                new.lazy_initialization(old.keys, old.values)
                new.keys[:, :, :used].copy_(old.keys)
                new.values[:, :, :used].copy_(old.values)
                new.cumulative_length = self.lengths[attention.index(index)]
            elif kind == "M":
                if getattr(old, "record_past", False):
                    raise InputError("static cache", "the prompt's cache records the past; give one that does not")
                new.update_conv_state(old.conv_states[0].contiguous())
                new.update_recurrent_state(old.recurrent_states[0].contiguous())

    @property
    def position(self) -> Any:
        """[1] int64 on the device: where the next token's key and value go."""
        return self.lengths[:1]

    def keys_values(self, layer: int) -> tuple[Any, Any]:
        """The buffers of an attention layer."""
        return self.cache.layers[layer].keys, self.cache.layers[layer].values

    def conv_recurrent(self, layer: int) -> tuple[Any, Any]:
        """The buffers of a Mamba-2 layer."""
        return self.cache.layers[layer].conv_states[0], self.cache.layers[layer].recurrent_states[0]

    def tensors(self) -> list[Any]:
        """Every buffer, the lengths first."""
        held = [self.lengths]
        for index, kind in enumerate(self.kinds):
            if kind == "*":
                held += self.keys_values(index)
            elif kind == "M":
                held += self.conv_recurrent(index)
        return held

    def snapshot(self) -> list[Any]:
        """Copies of every buffer, for `restore`."""
        return [tensor.clone() for tensor in self.tensors()]

    def restore(self, saved: list[Any]) -> None:
        """Write a snapshot's values into the buffers, in stream order; the host's count stays."""
        for tensor, value in zip(self.tensors(), saved, strict=True):
            tensor.copy_(value)

    def check_room(self, tokens: int = 1) -> None:
        """InputError where so many more tokens do not fit: asked before a step, since a step cannot ask."""
        if self.used + tokens > self.capacity:
            raise InputError(
                "static cache",
                f"holds {self.used} of {self.capacity} tokens, {tokens} more do not fit; make it larger",
            )

    def take(self, tokens: int = 1) -> None:
        """Count tokens that a step is about to add; InputError, and nothing changed, where they do not fit."""
        self.check_room(tokens)
        self.used += tokens
