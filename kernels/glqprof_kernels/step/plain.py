"""The kernels in plain torch: the CPU's path, and the yardstick of the bench. Same contract, other order of sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional


def embed(table: torch.Tensor, token: torch.Tensor, out: torch.Tensor) -> None:
    """Rows of the table; NaN for a token that names none."""
    valid = (token >= 0) & (token < table.shape[0])
    rows = functional.embedding(token.clamp(0, table.shape[0] - 1), table)
    out.copy_(rows.masked_fill(~valid[:, None], float("nan")))


def add_rms_norm(
    residual: torch.Tensor,
    addend: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    out_fp16: torch.Tensor | None,
    second: torch.Tensor | None,
) -> None:
    """The residual add of one layer and the norm of the next."""
    if addend is not None:
        total = addend.to(torch.bfloat16)
        residual += total if second is None else total + second
    x = residual.float()
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    out.copy_(weight.float() * normed)
    if out_fp16 is not None:
        out_fp16.copy_(out)


def route(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    top_k: int,
    scaling: float,
    normalise: bool,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> None:
    """A stable sort, since torch.topk leaves the order of ties open."""
    scores = functional.linear(x.float(), weight.float()).sigmoid()
    order = torch.sort(scores + bias, dim=-1, descending=True, stable=True).indices[:, :top_k]
    chosen = scores.gather(1, order)
    if normalise:
        chosen = chosen / (chosen.sum(dim=-1, keepdim=True) + 1e-20)
    ids.copy_(order)
    weights.copy_(chosen * scaling)


def linear(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    activation: str,
) -> None:
    """torch's own product, one call a weight."""
    for weight, out, bias in zip(weights, outs, biases, strict=True):
        y = functional.linear(x, weight, bias)
        out.copy_(torch.square(functional.relu(y)) if activation == "relu2" else y)


def attend(
    q: torch.Tensor,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Over the whole cache under a mask, in fp32: nothing depends on the position but values."""
    batch, kv_heads, capacity, dim = k_cache.shape
    valid = (position >= 0) & (position < capacity)
    at = position.clamp(0, capacity - 1)
    for cache, new in ((k_cache, k_new), (v_cache, v_new)):
        row = new.reshape(batch, kv_heads, 1, dim)
        cache.index_copy_(2, at, torch.where(valid, row, cache.index_select(2, at)))
    seen = torch.arange(capacity, device=q.device) <= at
    grouped = q.reshape(batch, kv_heads, -1, dim).float()
    scores = (grouped @ k_cache.float().transpose(2, 3)) * scale
    shares = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    # What lies past the position may be anything, NaN included, and 0 * NaN is NaN.
    result = shares @ v_cache.float().masked_fill(~seen[:, None], 0.0)
    out.copy_(torch.where(valid, result.reshape(batch, -1), float("nan")))


def head_argmax(x: torch.Tensor, weight: torch.Tensor, token: torch.Tensor, logits: torch.Tensor | None) -> None:
    """torch.argmax takes the first of equal values, and the first NaN before any number."""
    found = functional.linear(x, weight)
    if logits is not None:
        logits.copy_(found)
    token.copy_(found.argmax(dim=-1))
