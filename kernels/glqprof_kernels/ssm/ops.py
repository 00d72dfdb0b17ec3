"""The step as a function: what the arguments must be, and which implementation runs."""

from __future__ import annotations

import torch

from . import fallback
from .weights import StepWeights

VARIANTS = ("torch",)
DEFAULT_VARIANT = "torch"


@torch.no_grad()
def step(
    weights: StepWeights,
    projected: torch.Tensor,
    conv_state: torch.Tensor,
    state: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    variant: str = DEFAULT_VARIANT,
    dependent: bool = True,
    conv_state_out: torch.Tensor | None = None,
    state_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One decoded token of a Mamba-2 layer, from in_proj's output to out_proj's input; returns ``out``.

    projected [batch, inter + conv_dim + heads]: gate | x, B, C | dt. conv_state [batch, conv_dim, K] and state [batch,
    heads, head_dim, state] (fp32 or bf16) are those of transformers' cache, and are updated in place unless
    ``conv_state_out`` or ``state_out`` takes the new ones. out [batch, inter] in projected's dtype: after the gated
    norm; made when None. ``dependent``: launch so that the kernel may start before the one ahead of it has ended.

    Raises ValueError for an unknown variant and for tensors that do not fit.
    """
    if variant not in VARIANTS:
        raise ValueError(f"no SSM variant {variant!r}; there are {', '.join(VARIANTS)}")
    conv_state_out = conv_state if conv_state_out is None else conv_state_out
    state_out = state if state_out is None else state_out
    if out is None:
        out = projected.new_empty((projected.shape[0], weights.inter))
    check_inputs(weights, projected, conv_state, state, conv_state_out, state_out, out)
    fallback.step(weights, projected, conv_state, state, conv_state_out, state_out, out)
    return out


def check_inputs(
    weights: StepWeights,
    projected: torch.Tensor,
    conv_state: torch.Tensor,
    state: torch.Tensor,
    conv_state_out: torch.Tensor,
    state_out: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """ValueError for tensors of the wrong shape, dtype or device."""
    w = weights
    if projected.dim() != 2 or projected.shape[1] != w.projected:
        raise ValueError(f"projected must be [batch, {w.projected}], not {list(projected.shape)}")
    batch = projected.shape[0]
    conv_shape, state_shape = [batch, w.conv_dim, w.kernel], [batch, w.heads, w.head_dim, w.state]
    wanted = {
        "conv_state": (conv_state, conv_shape),
        "conv_state_out": (conv_state_out, conv_shape),
        "state": (state, state_shape),
        "state_out": (state_out, state_shape),
        "out": (out, [batch, w.inter]),
        "projected": (projected, list(projected.shape)),
    }
    for name, (tensor, shape) in wanted.items():
        if list(tensor.shape) != shape:
            raise ValueError(f"{name} must be {shape}, not {list(tensor.shape)}")
        if tensor.device != w.device:
            raise ValueError(f"{name} is on {tensor.device}, the weights on {w.device}")
    if projected.dtype != w.conv_weight.dtype:
        raise ValueError(f"projected is {projected.dtype}, the weights {w.conv_weight.dtype}")
    if out.dtype != projected.dtype:
        raise ValueError(f"out must be {projected.dtype} as projected, not {out.dtype}")
    if state.dtype not in (torch.float32, torch.bfloat16) or state_out.dtype != state.dtype:
        raise ValueError(f"state must be fp32 or bf16, and state_out the same, not {state.dtype} and {state_out.dtype}")
    if conv_state_out.dtype != conv_state.dtype:
        raise ValueError(f"conv_state_out must be {conv_state.dtype} as conv_state, not {conv_state_out.dtype}")
