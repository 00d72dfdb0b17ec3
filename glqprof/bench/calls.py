"""The calls of one timed block: static buffers on rotating weight sets, refilled with fresh inputs, outputs poisoned.

The buffers stay where they are, as in a real decode and as a captured graph requires; what they hold is new in every
block. Call number i works on weight set i mod S, so that S × (bytes of a call) pass between two uses of a weight.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glqprof.bench.registry import Group, Tensor
from glqprof.errors import InputError

POISON = 0xA5
OTHER_POISON = 0x5A
"""A second pattern: an element that legitimately computes to 0xA5 bytes cannot also be found holding this one."""

MAX_SETS = 256
"""More weight sets than this would spend the run on making them."""
CACHE_FACTOR = 3
"""How many times the L2 must be overflown between two uses of the same weights."""


@dataclass(frozen=True)
class Seeds:
    """Seeds of fresh inputs: no two blocks and no two calls share one."""

    base: int

    def call(self, block: int, index: int) -> int:
        """Return the seed of call ``index`` of block number ``block``."""
        return (self.base * 1_000_003 + block) * MAX_CALLS + index


MAX_CALLS = 512
"""Calls in one block at most."""


def sets_needed(l2_bytes: int, call_bytes: int, warm: bool) -> int:
    """Return how many weight sets must rotate for cold timing; 1 when warm was asked for or no cache is controlled.

    Raises InputError when a call moves so little that ``MAX_SETS`` do not overflow the cache.
    """
    if warm or l2_bytes == 0:
        return 1
    sets = max(1, math.ceil(CACHE_FACTOR * l2_bytes / max(call_bytes, 1)))
    if sets > MAX_SETS:
        raise InputError(
            "--layers",
            f"a call moves {call_bytes} bytes: {MAX_SETS} weight sets do not fill {CACHE_FACTOR} × {l2_bytes} bytes "
            "of L2; ask for more layers or rows, or for --warm",
        )
    return sets


def calls_per_block(sets: int, fastest_s: float, slowest_s: float, target_s: float, limit_s: float) -> int:
    """Return the calls of one block: whole rotations, at least ``target_s`` for the faster variant.

    The slower one is kept under ``limit_s`` where one rotation allows it.
    """
    wanted = math.ceil(target_s / max(fastest_s, 1e-9))
    affordable = max(1, int(limit_s / max(slowest_s, 1e-9)))
    rotations = max(1, round(min(wanted, affordable) / sets))
    return min(rotations * sets, MAX_CALLS // sets * sets)


def poison(out: Tensor, value: int = POISON) -> None:
    """Fill every byte of a contiguous tensor with ``value``."""
    import torch

    if not out.is_contiguous():
        raise ValueError("the group's out() must be contiguous, so that each of its bytes can be poisoned")
    out.view(torch.uint8).fill_(value)


def digest(tensor: Tensor) -> bytes:
    """Return a 16-byte hash of a tensor's bytes in logical order."""
    import torch

    raw = tensor.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(raw, digest_size=16).digest()


class CallSet:
    """The batches and outputs of ``count`` calls at ``rows`` rows over the given weight sets."""

    def __init__(self, group: Group, workloads: Sequence[Any], rows: int, count: int, seeds: Seeds, warm: bool) -> None:
        """Allocate the static buffers; their first contents are those of block 0."""
        self.group = group
        self.workloads = [workloads[index % len(workloads)] for index in range(count)]
        self._rows = rows
        self._seeds = seeds
        self._warm = warm
        self.batches = [self._fresh(0, index) for index in range(count)]
        self.outs = [group.out(w, b) for w, b in zip(self.workloads, self.batches, strict=True)]
        self.inputs: list[bytes] = []
        """The digest of each call's inputs as filled in; see ``input_digests`` for what they are now."""

    def _fresh(self, block: int, index: int) -> Any:
        # Warm timing repeats one input within a block, so that the same experts are touched again.
        return self.group.batch(self.workloads[index], self._rows, self._seeds.call(block, 0 if self._warm else index))

    def refill(self, block: int) -> None:
        """Put the fresh inputs of block number ``block`` into the static buffers and poison every output.

        Block 0 is what the batches were made with: only then does a batch's host-side knowledge fit its buffers.
        """
        for index, batch in enumerate(self.batches):
            fresh = self._fresh(block, index)
            for target, source in zip(batch.input_tensors(), fresh.input_tensors(), strict=True):
                target.copy_(source)
        self.inputs = self.input_digests()
        for out in self.outs:
            poison(out)

    def input_digests(self) -> list[bytes]:
        """Return the digest of every call's present inputs."""
        return [b"".join(digest(tensor) for tensor in batch.input_tensors()) for batch in self.batches]
