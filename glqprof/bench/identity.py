"""Comparing outputs: byte for byte between variants, and by relative error with float64.

Elements are compared as bytes: −0 differs from +0, and one NaN payload from another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glqprof.bench.calls import POISON
from glqprof.bench.registry import Tensor
from glqprof.traces.schema.bench import Differing


def as_integers(tensor: Tensor) -> Tensor:
    """Return the tensor's elements, flat, as integers of their size: equal integers are equal bytes."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(-1).view(integers[tensor.element_size()])


def differs(out: Tensor, base: Tensor) -> Tensor:
    """Return bool [elements]: the elements of which any byte differs. Raises ValueError on another shape or dtype."""
    if out.shape != base.shape or out.dtype != base.dtype:
        raise ValueError(f"{out.dtype} {tuple(out.shape)} cannot have the bytes of {base.dtype} {tuple(base.shape)}")
    result: Tensor = as_integers(out) != as_integers(base)
    return result


def holds(tensor: Tensor, value: int = POISON) -> Tensor:
    """Return bool [elements]: the elements all of whose bytes are ``value``."""
    size = tensor.element_size()
    pattern = int.from_bytes(bytes([value]) * size, "little", signed=size > 1)
    result: Tensor = as_integers(tensor) == pattern
    return result


def same_bits(out: Tensor, base: Tensor) -> bool:
    """Whether the two tensors hold the same bytes."""
    return not bool(differs(out, base).any())


@dataclass(frozen=True)
class Difference:
    """One comparison: ``count`` of ``elements`` differ; by how much among those finite on both sides."""

    count: int
    elements: int
    max_abs: float
    max_rel: float


def difference(out: Tensor, base: Tensor) -> Difference:
    """Compare two outputs of one shape and dtype; ``max_rel`` is of the largest finite |base| (0 if there is none)."""
    import torch

    unequal = differs(out, base)
    count = int(unequal.sum())
    if count == 0:
        return Difference(0, out.numel(), 0.0, 0.0)
    a, b = out.reshape(-1).to(torch.float64), base.reshape(-1).to(torch.float64)
    both = torch.isfinite(a) & torch.isfinite(b)
    gaps = torch.where(both, (a - b).abs(), 0.0)
    largest = float(torch.where(torch.isfinite(b), b.abs(), 0.0).max())
    max_abs = float(gaps.max())
    return Difference(count, out.numel(), max_abs, max_abs / largest if largest else 0.0)


def total(labelled: list[tuple[str, Difference]]) -> Differing:
    """Add the comparisons of several batches up; the batch named is the one where the most elements differ."""
    count = sum(item.count for _, item in labelled)
    elements = sum(item.elements for _, item in labelled)
    worst = max(labelled, key=lambda pair: pair[1].count, default=("", Difference(0, 0, 0.0, 0.0)))
    return Differing(
        count=count,
        share=count / elements if elements else 0.0,
        elements=elements,
        max_abs=max((item.max_abs for _, item in labelled), default=0.0),
        max_rel=max((item.max_rel for _, item in labelled), default=0.0),
        batch=worst[0] if count else "",
    )


def errors(out: Tensor, reference: Any) -> tuple[float, float]:
    """Return (largest |out − ref|, worst relative error) against a float64 reference of the same shape.

    The relative error is ‖out − ref‖₂ ÷ ‖ref‖₂ of each slice along the first dimension (a layer), the largest of them,
    so that one wrong layer cannot hide among right ones. A NaN or infinity on one side only makes both infinite.
    """
    import torch

    a = out.to(torch.float64).reshape(out.shape[0], -1)
    b = reference.to(device=out.device, dtype=torch.float64).reshape(out.shape[0], -1)
    if not bool((torch.isfinite(a) == torch.isfinite(b)).all()):
        return float("inf"), float("inf")
    both = torch.isfinite(b)
    gap = torch.where(both, a - b, 0.0)
    size = torch.linalg.vector_norm(torch.where(both, b, 0.0), dim=1)
    error = torch.linalg.vector_norm(gap, dim=1)
    relative = torch.where(error == 0, 0.0, error / size)  # an all-zero layer that is all zero is exact
    return float(gap.abs().max()), float(relative.max())
