"""What the bench runs: the calls of some layers of one nemotron_h model, each layer on a token of its own.

Without the SSM step (the output projection reads the first columns of the input projection instead) and without the
routed experts, which have groups of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from glqprof.workloads.nemotron_h.sizes import Sizes, load_sizes

from .workspace import MAX_BATCH

GEOMETRIES = ("cascade2-30b", "tiny")
OPTIONS: dict[str, Any] = {"position": ""}
"""What ``options`` may hold: the decoded token's position in the KV cache ("": 1150; 99 of the tiny model)."""
EPS = 1e-5
SPARE = 50
"""Positions that the cache has after the token's."""


@dataclass
class Block:
    """One layer: ``kind`` M, E or *; weights [outputs, inputs] in the order of their use.

    M: in_proj, out_proj. E: router (fp32), up, down, and ``bias``. *: q, k, v, o, and ``caches``, k and v
    [MAX_BATCH, kv_heads, capacity, dim].
    """

    kind: str
    norm: torch.Tensor
    weights: list[torch.Tensor]
    bias: torch.Tensor | None = None
    caches: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass
class StepWorkload:
    """Random weights of the first ``layers`` layers of a model."""

    geometry: str
    layers: int
    device: str
    sizes: Sizes
    table: torch.Tensor
    """The embedding, [vocab, hidden] bf16."""
    blocks: list[Block]
    position: int

    @property
    def capacity(self) -> int:
        """Positions of the KV caches."""
        return self.position + 1 + SPARE

    def count(self, kinds: str) -> int:
        """Layers of these kinds."""
        return sum(block.kind in kinds for block in self.blocks)


@dataclass
class StepBatch:
    """Inputs of one call: ``tokens`` [layers, rows] int64, ``addends`` [layers, rows, hidden] bf16."""

    rows: int
    tokens: torch.Tensor
    addends: torch.Tensor

    def input_tensors(self) -> Sequence[torch.Tensor]:
        """Tokens and addends."""
        return (self.tokens, self.addends)


def make_workload(geometry: str, layers: int | None, seed: int, device: str, options: Any = None) -> StepWorkload:
    """Random weights of ``layers`` layers (None or 0: all of the model's); ValueError for unknown options."""
    chosen = {**OPTIONS, **(options or {})}
    unknown = sorted(set(chosen) - set(OPTIONS))
    if unknown:
        raise ValueError(f"decode-step has no option {', '.join(unknown)}; it has {', '.join(OPTIONS)}")
    sizes = load_sizes(geometry)
    sizes = sizes.prefix(layers or len(sizes.layers))
    try:
        position = int(chosen["position"] or (99 if geometry == "tiny" else 1150))
    except ValueError:
        raise ValueError(f"position is {chosen['position']!r}; it must be a whole number") from None
    if not 0 <= position <= 100_000:
        raise ValueError(f"position is {position}; it must be 0 to 100000")
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device, generator=generator).mul_(scale)

    def weight(outputs: int, inputs: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return normal(outputs, inputs, dtype=dtype, scale=inputs**-0.5)

    def block(kind: str) -> Block:
        h, shared = sizes.hidden, sizes.shared_inter
        heads, kv = sizes.attention_heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        norm = torch.ones(h, dtype=torch.bfloat16, device=device) + normal(h, scale=0.1)
        if kind == "M":
            projected = sizes.ssm_inter + sizes.ssm_conv_width + sizes.ssm_heads
            return Block(kind, norm, [weight(projected, h), weight(h, sizes.ssm_inter)])
        if kind == "E":
            weights = [weight(sizes.experts, h, torch.float32), weight(shared, h), weight(h, shared)]
            return Block(kind, norm, weights, bias=normal(sizes.experts, dtype=torch.float32, scale=0.1))
        cache = (MAX_BATCH, sizes.kv_heads, position + 1 + SPARE, sizes.head_dim)
        weights = [weight(heads, h), weight(kv, h), weight(kv, h), weight(h, heads)]
        return Block(kind, norm, weights, caches=(normal(*cache), normal(*cache)))

    table = normal(sizes.vocab, sizes.hidden)
    blocks = [block(kind) for kind in sizes.layers]
    return StepWorkload(geometry, len(blocks), device, sizes, table, blocks, position)


def make_batch(workload: StepWorkload, rows: int, seed: int) -> StepBatch:
    """Fresh tokens and addends, drawn on the CPU: the same seed gives the same bytes on every device."""
    if not 1 <= rows <= MAX_BATCH:
        raise ValueError(f"{rows} rows; decode-step takes 1 to {MAX_BATCH}")
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, workload.sizes.vocab, (workload.layers, rows), generator=generator)
    addends = torch.randn(workload.layers, rows, workload.sizes.hidden, generator=generator)
    return to_batch(workload, tokens, addends)


def to_batch(workload: StepWorkload, tokens: torch.Tensor, addends: torch.Tensor) -> StepBatch:
    """A batch from CPU tensors, on the workload's device, with addends rounded to bf16."""
    device = workload.device
    return StepBatch(tokens.shape[1], tokens.to(device), addends.to(torch.bfloat16).to(device).contiguous())


def adversarial(workload: StepWorkload, rows: int) -> list[tuple[str, StepBatch]]:
    """Hostile inputs by label, each of ``rows`` tokens but those that say how many."""
    base = make_batch(workload, rows, seed=1)
    tokens, addends = base.tokens.cpu(), base.addends.float().cpu()

    def spiked(value: float) -> torch.Tensor:
        changed = addends.clone()
        changed[:, 0, addends.shape[-1] // 3] = value
        return changed

    outside = tokens.clone()
    outside[:, 0] = -1
    tiny = torch.finfo(torch.bfloat16).smallest_normal / 128  # bf16's smallest denormal
    cases = [
        ("denormals", tokens, (addends * 8).round() * tiny),
        ("+inf", tokens, spiked(float("inf"))),
        ("-inf", tokens, spiked(float("-inf"))),
        ("NaN", tokens, spiked(float("nan"))),
        ("overflow of the squares", tokens, addends.sign() * 3e38),
        ("one value far above", tokens, spiked(1e15)),
        ("the same token everywhere", torch.zeros_like(tokens), addends),
        ("a token outside the vocabulary", outside, addends),
    ]
    made = [(label, to_batch(workload, t, a)) for label, t, a in cases]
    return [
        *made,
        ("one row", make_batch(workload, 1, seed=2)),
        ("eight rows", make_batch(workload, MAX_BATCH, seed=3)),
    ]
