"""What the step kernels must compute, in float64 or by hand, for the tests on both sides of the GPU."""

from __future__ import annotations

import torch

BF16 = torch.bfloat16
HALF_ULP = 2.0**-8
"""bf16's rounding error, relative: at most, of an output that is rounded once."""


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Normal values in bf16, the same on every machine."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(BF16)


def relative(out: torch.Tensor, want: torch.Tensor) -> float:
    """‖out − want‖₂ ÷ ‖want‖₂; 0 where both are all zeros."""
    out, want = out.double().cpu(), want.double().cpu()
    gap = (out - want).norm()
    return 0.0 if gap == 0 else (gap / want.norm()).item()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Byte for byte, also where there is NaN."""
    return a.dtype == b.dtype and torch.equal(
        a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8)
    )


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """[batch, outputs] float64."""
    y = x.double() @ weight.double().T
    return y if bias is None else y + bias.double()


def relu2(y: torch.Tensor) -> torch.Tensor:
    """Of the value rounded to bf16, rounded again; NaN stays."""
    rounded = y.to(BF16)
    return torch.square(torch.where(rounded < 0, torch.zeros_like(rounded), rounded))


def residual_sum(residual: torch.Tensor, addend: torch.Tensor, second: torch.Tensor | None) -> torch.Tensor:
    """bf16(residual + a): every step rounded, and each exact before that, since float64 holds any sum of two."""
    total = addend.double().to(BF16)
    if second is not None:
        total = (total.double() + second.double()).to(BF16)
    return (residual.double() + total.double()).to(BF16)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """float64."""
    d = x.double()
    return weight.double() * d / (d.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def route(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, top_k: int, scaling: float, normalise: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(scores + bias, ids, weights), in float64 for inputs without NaN."""
    scores = (x.double() @ weight.double().T).sigmoid()
    choice = scores + bias.double()
    ids = torch.sort(choice, dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, ids)
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return choice, ids, weights * scaling


def attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, position: int, scale: float
) -> torch.Tensor:
    """[batch, heads * dim] float64, over 0 .. position of caches that hold the new key and value."""
    batch, kv_heads, _, dim = k_cache.shape
    heads = q.shape[1] // dim
    k, v = (c[:, :, : position + 1].double().repeat_interleave(heads // kv_heads, dim=1) for c in (k_cache, v_cache))
    shares = ((q.double().reshape(batch, heads, 1, dim) @ k.transpose(2, 3)) * scale).softmax(-1)
    return (shares @ v).reshape(batch, -1)
