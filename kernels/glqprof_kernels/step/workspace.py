"""Scratch memory of the kernels that several thread blocks finish together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

COUNTER_BYTES = 4096
"""Counters of finished thread blocks: zero between calls, since the last block of a call sets them back."""
COUNTERS = COUNTER_BYTES // 4
MAX_BATCH = 8
CHUNK = 64
"""Positions of the KV cache that one thread block of ``attend`` takes."""
HEADS_PER_BLOCK = 4
MAX_BLOCKS = 1024
"""Thread blocks of ``head_argmax`` at most."""


@dataclass(frozen=True)
class Sizes:
    """What a workspace has to serve; a field left 0 is of a kernel that is not called with it."""

    batch: int = 1
    experts: int = 0
    heads: int = 0
    head_dim: int = 0
    capacity: int = 0

    @property
    def splits(self) -> int:
        """Chunks of a full KV cache."""
        return -(-self.capacity // CHUNK)

    @property
    def partial_bytes(self) -> int:
        """The largest of what ``route``, ``attend`` and ``head_argmax`` hand from block to block."""
        route = 4 * self.batch * self.experts
        attend = 4 * self.batch * self.heads * self.splits * (self.head_dim + 2)
        return max(route, attend, 8 * self.batch * MAX_BLOCKS)


class Workspace:
    """Counters and partial results, made once; the kernels of one stream share it, calls on two streams need two.

    ``memory`` [COUNTER_BYTES + sizes.partial_bytes] uint8 on ``device``, its counters zeroed.
    """

    def __init__(self, sizes: Sizes, device: Any) -> None:
        self.sizes = sizes
        self.memory = torch.zeros(COUNTER_BYTES + sizes.partial_bytes, dtype=torch.uint8, device=device)

    def require(self, device: Any, **needed: int) -> None:
        """ValueError where the workspace is elsewhere, or smaller than a call needs."""
        if self.memory.device != device:
            raise ValueError(f"the workspace is on {self.memory.device}, the tensors on {device}")
        for name, value in needed.items():
            if getattr(self.sizes, name) < value:
                raise ValueError(f"the workspace is for {name} {getattr(self.sizes, name)}; this call needs {value}")
