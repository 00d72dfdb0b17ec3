"""Float64 reference of the step: the mathematics, with no rounding in between. Inputs are what the caller rounded."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .weights import StepWeights


class Reference(NamedTuple):
    """out [batch, inter] and state [batch, heads, head_dim, state], float64."""

    out: torch.Tensor
    state: torch.Tensor


def step(weights: StepWeights, projected: torch.Tensor, conv_state: torch.Tensor, state: torch.Tensor) -> Reference:
    """One token of Mamba-2 (Dao and Gu, 2024, section 7.1's block with a grouped, gated RMSNorm); changes nothing.

    ``h' = exp(dt·A)·h + dt·x⊗B; y = h'·C + D·x; out = w · RMSNorm_group(y · silu(gate))``, dt = softplus(raw + bias),
    x, B and C the SiLU of the depthwise convolution over the last K inputs.
    """
    w = weights
    double = torch.float64
    gate, channels, dt = projected.to(double).split([w.inter, w.conv_dim, w.heads], dim=-1)
    window = torch.cat([conv_state.to(double)[..., 1:], channels[..., None]], dim=-1)
    convolved = (window * w.conv_weight.to(double)).sum(dim=-1)
    if w.conv_bias is not None:
        convolved = convolved + w.conv_bias.to(double)
    convolved = convolved * torch.sigmoid(convolved)
    x, b, c = convolved.split([w.inter, w.groups * w.state, w.groups * w.state], dim=-1)
    x = x.unflatten(-1, (w.heads, w.head_dim))
    group = torch.arange(w.heads, device=w.device) // (w.heads // w.groups)
    b, c = (v.unflatten(-1, (w.groups, w.state))[:, group] for v in (b, c))
    dt = torch.logaddexp(dt + w.dt_bias.to(double), torch.zeros_like(dt))
    decay = torch.exp(dt * w.a.to(double))
    new = state.to(double) * decay[..., None, None] + (dt[..., None] * x)[..., None] * b[:, :, None, :]
    y = torch.einsum("bhpn,bhn->bhp", new, c) + w.d.to(double)[:, None] * x
    gated = y.flatten(1) * gate * torch.sigmoid(gate)
    grouped = gated.unflatten(-1, (w.groups, -1))
    normal = grouped / torch.sqrt(grouped.square().mean(-1, keepdim=True) + w.eps)
    return Reference(w.norm_weight.to(double) * normal.flatten(1), new)
