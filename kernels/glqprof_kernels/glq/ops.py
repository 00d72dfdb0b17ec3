"""``glqprof::glq_moe`` as a torch operator: it traces and compiles; on the CPU the exact implementation runs.

``moe(layer, x, ids, weights, variant=…)`` is the convenient form. The operator itself takes plain tensors, since an
operator's schema knows no dataclasses.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from . import fused
from .exact import fused as exact_fused_schedules
from .exact import v0_2_12, v3a, v3b, v3b_fp32act
from .exact.host import HostCall, HostLayer, HostMatrix, Log
from .routing import check_ids
from .weights import LayerWeights, MatrixWeights

EXACT = {"v0.2.12": v0_2_12.moe, "v3a": v3a.moe, "v3b": v3b.moe, "v3b-fp32act": v3b_fp32act.moe}
"""The exact CPU implementation of each variant."""

FUSED = {"fused": exact_fused_schedules.moe, "fused-fast": exact_fused_schedules.moe_fast}
"""The CPU implementation of each fused variant, on packed layers."""

VARIANT_CODES = {name: code for code, name in enumerate(EXACT)}
"""The extension's number of each variant (csrc/host_loop.h)."""

ACTIVATION_CODES = {"relu2": 0, "swiglu": 1}


class GlqOverflowWarning(RuntimeWarning):
    """Activations that are too large for fp16 became infinite."""


@torch.library.custom_op("glqprof::glq_moe", mutates_args=("overflow",), device_types="cpu")
def glq_moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    up_planes: list[torch.Tensor],
    up_tables: list[torch.Tensor],
    up_scales: list[torch.Tensor],
    up_sv: torch.Tensor,
    up_su: torch.Tensor,
    up_split_blocks: int,
    down_planes: list[torch.Tensor],
    down_tables: list[torch.Tensor],
    down_scales: list[torch.Tensor],
    down_sv: torch.Tensor,
    down_su: torch.Tensor,
    down_split_blocks: int,
    activation: str,
    limit: float,
    variant: str,
    mask_invalid: bool,
    overflow: torch.Tensor,
) -> torch.Tensor:
    """Output of one MoE layer: [tokens, hidden] fp16.

    x [tokens, hidden] fp16, ids [tokens, top_k] integers, weights [tokens, top_k] fp32; the rest as in
    ``weights.MatrixWeights``, stages present only. ``overflow`` [1] int64 grows by the activations that became
    infinite.
    ValueError for ids outside the experts, unless ``mask_invalid``.
    """

    def host(planes: Any, tables: Any, scales: Any, sv: Any, su: Any, split_blocks: int) -> HostMatrix:
        import numpy as np

        return HostMatrix(
            planes=[plane.numpy().view(np.uint16) for plane in planes],
            tables=[table.float().numpy() for table in tables],
            scales=[scale.numpy() for scale in scales],
            sv=sv.float().numpy(),
            su=su.float().numpy(),
            split_blocks=split_blocks,
        )

    import numpy as np

    layer = HostLayer(
        host(up_planes, up_tables, up_scales, up_sv, up_su, up_split_blocks),
        host(down_planes, down_tables, down_scales, down_sv, down_su, down_split_blocks),
        activation,
        np.float32(limit),
    )
    out, infinite = exact_moe(layer, x, ids, weights, variant, mask_invalid, Log())
    overflow += infinite
    return out


def exact_moe(
    layer: HostLayer, x: Any, ids: Any, weights: Any, variant: str, mask_invalid: bool, log: Any
) -> tuple[torch.Tensor, int]:
    """The exact implementation on CPU tensors: (out [tokens, hidden] fp16, activations that became infinite)."""
    _check_variant(variant)
    if x.dim() != 2 or x.shape[1] != layer.up.cols:
        raise ValueError(f"x must be [tokens, {layer.up.cols}], not {list(x.shape)}")
    if x.dtype != torch.float16:
        raise ValueError(f"x must be fp16, not {x.dtype}")
    if ids.dim() != 2 or ids.shape[0] != x.shape[0] or ids.shape != weights.shape:
        raise ValueError(f"ids and weights must be [tokens, top_k], not {list(ids.shape)} and {list(weights.shape)}")
    if ids.dtype not in (torch.int64, torch.int32) or weights.dtype != torch.float32:
        raise ValueError(f"ids must be integers and weights fp32, not {ids.dtype} and {weights.dtype}")
    call = HostCall(x.numpy(), ids.long().numpy(), weights.numpy())
    check_ids(call.ids, layer.experts, mask_invalid)
    out, infinite = EXACT[variant](layer, call, log)
    return torch.from_numpy(out), infinite


def exact_fused(
    layer: fused.FusedLayer, x: Any, ids: Any, weights: Any, variant: str, log: Any
) -> tuple[torch.Tensor, int]:
    """A fused variant on CPU tensors: ids of no expert are skipped, and counted in ``layer.errors``."""
    call = HostCall(x.numpy(), ids.long().numpy(), weights.numpy())
    layer.errors.add_(int(((call.ids < 0) | (call.ids >= layer.experts)).sum()))
    out, infinite = FUSED[variant](layer, call, log)
    return torch.from_numpy(out), infinite


@glq_moe.register_fake
def _(x: Any, *args: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


@glq_moe.register_kernel("cuda")
def _(
    x: Any,
    ids: Any,
    weights: Any,
    up_planes: Any,
    up_tables: Any,
    up_scales: Any,
    up_sv: Any,
    up_su: Any,
    up_split_blocks: int,
    down_planes: Any,
    down_tables: Any,
    down_scales: Any,
    down_sv: Any,
    down_su: Any,
    down_split_blocks: int,
    activation: str,
    limit: float,
    variant: str,
    mask_invalid: bool,
    overflow: Any,
) -> torch.Tensor:
    from . import extension

    _check_variant(variant)
    module = extension.load()
    up = module.Matrix(up_planes, up_tables, up_scales, up_sv, up_su, up_split_blocks)
    down = module.Matrix(down_planes, down_tables, down_scales, down_sv, down_su, down_split_blocks)
    layer = module.Layer(up, down, ACTIVATION_CODES[activation], limit, overflow)
    out = torch.empty(x.shape, dtype=torch.float16, device=x.device)
    layer.run(VARIANT_CODES[variant], x, ids, weights, mask_invalid, out)
    return out


def _check_variant(variant: str) -> None:
    if variant not in EXACT:
        raise ValueError(f"no GLQ variant {variant!r}; there are {', '.join(EXACT)}")


def matrix_arguments(matrix: MatrixWeights) -> tuple[Any, ...]:
    """A matrix as the operator's and the extension's arguments."""
    return (
        matrix.present_planes(),
        matrix.present_tables(),
        matrix.present_scales(),
        matrix.sv,
        matrix.su,
        matrix.split_blocks,
    )


def cuda_layer(layer: LayerWeights) -> Any:
    """The extension's handle of a layer: holds its tensors, so that a call passes only the inputs."""
    from . import extension

    module = extension.load()
    return module.Layer(
        module.Matrix(*matrix_arguments(layer.up)),
        module.Matrix(*matrix_arguments(layer.down)),
        ACTIVATION_CODES[layer.activation],
        layer.limit,
        layer.overflow,
    )


def moe(
    layer: LayerWeights,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    *,
    variant: str = "v3b",
    mask_invalid: bool = False,
    warn_overflow: bool = True,
) -> torch.Tensor:
    """Output of one MoE layer, [tokens, hidden] fp16, on the weights' device; x of any float type is cast to fp16.

    ``warn_overflow`` waits for the result and warns (``GlqOverflowWarning``) when activations became infinite; the
    count stays in ``layer.overflow`` either way.
    """
    before = int(layer.overflow) if warn_overflow else 0
    out = torch.ops.glqprof.glq_moe(
        x.to(torch.float16),
        ids,
        weights.to(torch.float32),
        *matrix_arguments(layer.up),
        *matrix_arguments(layer.down),
        layer.activation,
        float(layer.limit),
        variant,
        mask_invalid,
        layer.overflow,
    )
    if warn_overflow:
        report_overflow(int(layer.overflow) - before)
    return out


def report_overflow(count: int) -> None:
    """Warn when ``count`` activations became infinite."""
    if count:
        warnings.warn(
            f"{count} activations are infinite in fp16 (relu² overflows from 256 on): the output holds inf or NaN",
            GlqOverflowWarning,
            stacklevel=3,
        )
