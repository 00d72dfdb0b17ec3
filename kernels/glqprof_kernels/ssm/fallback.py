"""The step in plain torch, rounding where transformers' own decode branch does: the variant ``torch``.

The order of operations is that of ``NemotronHMamba2Mixer`` without its optional kernels (transformers 5.17 to 5.24):
the convolution, dt, dt·B, dt·B·x, the state as C reads it, y and D·x are each rounded to the inputs' dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .weights import StepWeights


def step(
    weights: StepWeights,
    projected: torch.Tensor,
    conv_state: torch.Tensor,
    state: torch.Tensor,
    conv_state_out: torch.Tensor,
    state_out: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write ``out`` and the new states, which may be the old ones; shapes as in `glqprof_kernels.ssm.step`."""
    w, batch = weights, projected.shape[0]
    gate, channels, dt = projected.split([w.inter, w.conv_dim, w.heads], dim=-1)

    window = torch.cat([conv_state[..., 1:], channels[..., None].to(conv_state.dtype)], dim=-1).to(w.conv_weight.dtype)
    conv_state_out.copy_(window)
    convolved = F.silu(F.conv1d(window, w.conv_weight[:, None], w.conv_bias, groups=w.conv_dim))[..., 0]
    x, b, c = convolved.to(channels.dtype).split([w.inter, w.groups * w.state, w.groups * w.state], dim=-1)
    x = x.reshape(batch, w.heads, w.head_dim)
    per_head = w.heads // w.groups
    b = b.reshape(batch, w.groups, w.state).repeat_interleave(per_head, dim=1)
    c = c.reshape(batch, w.groups, w.state).repeat_interleave(per_head, dim=1)

    dt = F.softplus(dt + w.dt_bias.to(dt.dtype))
    decay = torch.exp(dt.float() * w.a)
    update = (dt[..., None] * b)[:, :, None, :] * x[..., None]
    new_state = state * decay[..., None, None] + update
    state_out.copy_(new_state)

    y = torch.bmm(new_state.to(c.dtype).flatten(0, 1), c.reshape(-1, w.state, 1)).reshape(x.shape)
    y = (y + x * w.d[:, None]).to(x.dtype).reshape(batch, w.inter)
    out.copy_(gated_norm(w, y, gate))


def gated_norm(weights: StepWeights, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """RMSNorm of y · silu(gate) over each group's channels, [batch, inter]; rounded before the weight and after it."""
    gated = y.float() * F.silu(gate.float())
    grouped = gated.unflatten(-1, (weights.groups, -1))
    normal = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + weights.eps)
    return weights.norm_weight * normal.flatten(-2).to(y.dtype)
