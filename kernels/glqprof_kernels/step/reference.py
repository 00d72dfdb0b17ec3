"""The calls of ``workload`` in float64, without any rounding between them."""

from __future__ import annotations

import torch

from .workload import EPS, Block, StepBatch, StepWorkload


def layers(workload: StepWorkload, batch: StepBatch) -> torch.Tensor:
    """[layers, rows, hidden] float64; a token outside the vocabulary gives NaN."""
    outs = [
        _layer(workload, block, tokens, addends)
        for block, tokens, addends in zip(workload.blocks, batch.tokens, batch.addends, strict=True)
    ]
    return torch.stack(outs)


def _layer(workload: StepWorkload, block: Block, tokens: torch.Tensor, addends: torch.Tensor) -> torch.Tensor:
    sizes = workload.sizes
    known = (tokens >= 0) & (tokens < sizes.vocab)
    embedded = workload.table[tokens.clamp(0, sizes.vocab - 1)].double()
    x = embedded.masked_fill(~known[:, None], float("nan")) + addends.double()
    x = block.norm.double() * x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    if block.kind == "M":
        return (x @ block.weights[0].double().T)[:, : sizes.ssm_inter] @ block.weights[1].double().T
    if block.kind == "E":
        return (x @ block.weights[1].double().T).clamp(min=0).square() @ block.weights[2].double().T
    assert block.caches is not None
    q, k_new, v_new = (x @ w.double().T for w in block.weights[:3])
    rows, kv_heads, dim = x.shape[0], sizes.kv_heads, sizes.head_dim
    k, v = (
        torch.cat([cache[:rows, :, : workload.position].double(), new.view(rows, kv_heads, 1, dim)], dim=2)
        for cache, new in zip(block.caches, (k_new, v_new), strict=True)
    )
    shares = (q.view(rows, kv_heads, -1, dim) @ k.transpose(2, 3) * dim**-0.5).softmax(-1)
    return (shares @ v).reshape(rows, -1) @ block.weights[3].double().T
