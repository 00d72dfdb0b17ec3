"""The yardstick of quantised experts: the same experts dequantised to bf16 and multiplied by torch.

Two ways: one grouped GEMM over the experts' tokens, and a loop over (token, expert) whose weights are picked by device
ids. Neither reads anything back, so both can be captured in a CUDA graph. Weight 0 is a factor here, not a skip, and
ids are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Bf16Layer:
    """up [experts, inter (× 2), hidden], down [experts, hidden, inter] in bf16; acts on x without any transform."""

    up: torch.Tensor
    down: torch.Tensor
    activation: str
    limit: float


def grouped_mm() -> Callable[..., torch.Tensor]:
    """torch's grouped matrix product; RuntimeError where this torch has none."""
    found = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if found is None:
        raise RuntimeError(f"torch {torch.__version__} has no grouped_mm; the variant bf16 needs torch 2.8 or later")
    return found


def run_grouped(layer: Bf16Layer, product: Callable[..., torch.Tensor], x: Any, ids: Any, weights: Any) -> torch.Tensor:
    """[tokens, hidden] of x's dtype by two grouped products over slots sorted by expert."""
    tokens, top_k = ids.shape
    flat = ids.reshape(-1)
    by_expert, order = torch.sort(flat, stable=True)
    experts = torch.arange(layer.up.shape[0], device=x.device)
    ends = torch.searchsorted(by_expert, experts, right=True, out_int32=True)
    rows = x.to(torch.bfloat16)[torch.div(order, top_k, rounding_mode="floor")]
    hidden = product(rows, layer.up.transpose(-2, -1), offs=ends)
    outputs = product(activate(hidden, layer), layer.down.transpose(-2, -1), offs=ends)
    slots = torch.empty_like(outputs)
    slots[order] = outputs
    return (slots.view(tokens, top_k, -1).float() * weights[..., None]).sum(dim=1).to(x.dtype)


def run_loop(layer: Bf16Layer, x: Any, ids: Any, weights: Any) -> torch.Tensor:
    """[tokens, hidden] of x's dtype by a loop over (token, expert); device ids copy each expert's weights out."""
    narrow = x.to(torch.bfloat16)
    out = torch.zeros(x.shape[0], layer.down.shape[1], dtype=torch.float32, device=x.device)
    for t in range(ids.shape[0]):
        for k in range(ids.shape[1]):
            expert = ids[t, k : k + 1]
            hidden = torch.mv(layer.up.index_select(0, expert)[0], narrow[t])
            e = torch.mv(layer.down.index_select(0, expert)[0], activate(hidden, layer))
            out[t].addcmul_(e.float(), weights[t, k])
    return out.to(x.dtype)


def run_plain(layer: Bf16Layer, x: Any, ids: Any, weights: Any) -> torch.Tensor:
    """[tokens, hidden] of x's dtype on the CPU: one plain product an expert that has tokens."""
    narrow = x.to(torch.bfloat16)
    out = torch.zeros(x.shape[0], layer.down.shape[1], dtype=torch.float32)
    for e in torch.unique(ids).tolist():
        tokens, slots = torch.nonzero(ids == e, as_tuple=True)
        outputs = activate(narrow[tokens] @ layer.up[e].T, layer) @ layer.down[e].T
        out.index_add_(0, tokens, outputs.float() * weights[tokens, slots, None])
    return out.to(x.dtype)


def activate(h: torch.Tensor, layer: Any) -> torch.Tensor:
    """relu² or clamped SwiGLU of h, in h's dtype; ``layer`` has ``activation`` and ``limit``."""
    if layer.activation == "relu2":
        positive = torch.relu(h)
        return positive * positive
    gate, up = h.chunk(2, dim=-1)
    if layer.limit > 0:
        gate, up = gate.clamp(max=layer.limit), up.clamp(min=-layer.limit, max=layer.limit)
    return torch.nn.functional.silu(gate) * up
