"""The step as a function: what the arguments must be, and which implementation runs."""

from __future__ import annotations

from typing import Any

import torch

from . import exact, fallback
from .weights import StepWeights

VARIANTS = ("torch", "unfused", "fused")
"""``unfused`` and ``fused`` have the same bits as each other; ``torch`` is transformers' fallback."""
DEFAULT_VARIANT = "fused"
EXCHANGES = {"auto": -1, "cluster": 0, "counter": 1}
"""How the thread blocks of a group of the norm hand over their sums of squares."""
STATE_WIDTHS = (16, 32, 64, 128, 256)
MAX_TAPS, MAX_GROUP = 4, 4096


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
    early_state: bool = False,
    conv_state_out: torch.Tensor | None = None,
    state_out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    exchange: str = "auto",
    chunks: int = 0,
) -> torch.Tensor:
    """One decoded token of a Mamba-2 layer, from in_proj's output to out_proj's input; returns ``out``.

    projected [batch, inter + conv_dim + heads]: gate | x, B, C | dt. conv_state [batch, conv_dim, K] and state [batch,
    heads, head_dim, state] (fp32 or bf16) are those of transformers' cache, and are updated in place unless
    ``conv_state_out`` or ``state_out`` takes the new ones. out [batch, inter] in projected's dtype: after the gated
    norm; made when None. On the CPU, ``unfused`` and ``fused`` run their exact implementation.

    On a GPU the kernels run on the current stream, allocate nothing when ``out`` is given (``unfused``, and ``fused``
    where it exchanges by counters, need a `make_workspace` for that) and can be captured in a CUDA graph.
    ``dependent``: a kernel may start before the one ahead of it has ended (programmatic dependent launch, sm_90), and
    waits before it reads or writes what others do. ``early_state``: ``fused`` reads the states before that wait. Right
    only if whatever wrote these states has ended by then, which takes a kernel between the two that was launched in the
    ordinary way or lets the next one start only after its own wait, as all of this package do; or a graph's beginning
    (docs/kernels/ssm.md). ``exchange`` and ``chunks`` (of 32 channels a thread block) are for measurements.

    Raises ValueError for an unknown variant, sizes outside the kernels' limits, and tensors that do not fit.
    """
    if variant not in VARIANTS:
        raise ValueError(f"no SSM variant {variant!r}; there are {', '.join(VARIANTS)}")
    if exchange not in EXCHANGES:
        raise ValueError(f"no exchange {exchange!r}; there are {', '.join(EXCHANGES)}")
    conv_state_out = conv_state if conv_state_out is None else conv_state_out
    state_out = state if state_out is None else state_out
    if out is None:
        out = projected.new_empty((projected.shape[0], weights.inter))
    tensors = (projected, conv_state, state, conv_state_out, state_out, out)
    if variant == "torch":
        check_inputs(weights, *tensors)
        fallback.step(weights, *tensors)
        return out
    check_supported(weights)
    if weights.device.type != "cuda":
        check_inputs(weights, *tensors)
        if conv_state.dtype != torch.bfloat16:
            raise ValueError(f"conv_state must be bf16, not {conv_state.dtype}")
        exact.step(weights, *tensors, variant=variant)
        return out
    fused = variant == "fused"
    layer, config = weights.cuda_layer, make_config(dependent, exchange, chunks)
    if workspace is None and not fused:  # its counters are not used
        size = layer.workspace_bytes(projected.shape[0])
        workspace = torch.empty(size, dtype=torch.uint8, device=weights.device)
    elif workspace is None and layer.choice(config)[0] == EXCHANGES["counter"]:
        workspace = make_workspace(weights, projected.shape[0])
    layer.run(*tensors, workspace, fused, early_state, config)
    return out


def make_config(dependent: bool = True, exchange: str = "auto", chunks: int = 0) -> Any:
    """The extension's Config."""
    from . import extension

    made = extension.load().Config()
    made.dependent, made.exchange, made.chunks = dependent, EXCHANGES[exchange], chunks
    return made


def make_workspace(weights: StepWeights, batch: int) -> torch.Tensor:
    """Memory that steps of up to ``batch`` sequences may share, one after the other, on one stream; uint8, zeroed.

    Layers of the same sizes can share it. Its counters are zero again after every step.
    """
    return torch.zeros(weights.cuda_layer.workspace_bytes(batch), dtype=torch.uint8, device=weights.device)


def check_supported(weights: StepWeights) -> None:
    """ValueError for weights that ``unfused`` and ``fused`` do not take."""
    w = weights
    if w.conv_weight.dtype != torch.bfloat16:
        raise ValueError(f"conv_weight must be bf16 for fused and unfused, not {w.conv_weight.dtype}")
    if w.state not in STATE_WIDTHS:
        raise ValueError(f"the state's width must be 16, 32, 64, 128 or 256 for fused and unfused, not {w.state}")
    if w.kernel > MAX_TAPS:
        raise ValueError(f"the convolution must have 1 to {MAX_TAPS} taps for fused and unfused, not {w.kernel}")
    if w.inter // w.groups > MAX_GROUP:
        raise ValueError(f"a group of {w.inter // w.groups} channels; fused and unfused take up to {MAX_GROUP}")


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
