"""The whole NVFP4 MoE, to the bit: plan, gate-up with its epilogue, down, ordered weighted sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...glq.exact.rounding import F32
from ...glq.exact.stated_exp import stated_exp
from ..routing import make_plan
from .arithmetic import canonical, from_bf16, to_bf16
from .product import HostLayer, linear

KERNELS = ("nvfp4_plan_kernel", "nvfp4_gate_up_kernel", "nvfp4_down_kernel", "nvfp4_combine_kernel")
"""What a layer launches, in order."""


def epilogue_f32(y: np.ndarray) -> np.ndarray:
    """y as it is, float32, NaN as 0x7FFFFFFF."""
    return canonical(y)


def epilogue_bf16(y: np.ndarray) -> np.ndarray:
    """y rounded to bf16, as float32."""
    return from_bf16(to_bf16(y))


def epilogue_swiglu(y: np.ndarray, limit: np.float32) -> np.ndarray:
    """SwiGLU of [rows, 2 · inter], gate half first, rounded to bf16, as float32 [rows, inter].

    Where limit > 0, ``g = min(g, limit)`` and ``u = max(-limit, min(u, limit))``, a NaN staying a NaN. Then ``g / (1 +
    exp(-g)) · u`` in binary32 with the stated exp of ``glq.exact.stated_exp``, each operation rounded once.
    """
    g, u = np.split(y, 2, axis=-1)
    if limit > 0:
        g = np.where(g > limit, limit, g)
        u = np.where(u > limit, limit, np.where(u < -limit, -limit, u))
    with np.errstate(all="ignore"):
        return epilogue_bf16(g / (F32(1) + stated_exp(-g)) * u)


def epilogue_relu2(y: np.ndarray) -> np.ndarray:
    """relu² of y rounded to bf16: v = max(y, 0), v·v in binary32, rounded to bf16, as float32; a NaN stays a NaN."""
    v = epilogue_bf16(y)
    v = np.where(v > 0, v, np.where(np.isnan(v), v, F32(0)))
    with np.errstate(all="ignore"):
        return epilogue_bf16(v * v)


def activation(layer: HostLayer, y: np.ndarray) -> np.ndarray:
    """The layer's epilogue of gate-up: what the down matrix reads, bf16 as float32."""
    return epilogue_swiglu(y, layer.limit) if layer.activation == "swiglu" else epilogue_relu2(y)


def combine(outputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """bf16 bits [tokens, hidden] of expert outputs [tokens, top_k, hidden] and weights [tokens, top_k], both float32.

    Over the slots in top-k order, from +0: ``p = w·e; s = s + p``, each rounded to binary32; weight 0 is skipped.
    """
    total = np.zeros((outputs.shape[0], outputs.shape[2]), dtype=F32)
    with np.errstate(all="ignore"):
        for k in range(outputs.shape[1]):
            w = weights[:, k, None]
            total = np.where(w != 0, total + w * outputs[:, k], total)
    return to_bf16(total)


def moe(
    layer: HostLayer,
    x: np.ndarray,
    ids: np.ndarray,
    weights: np.ndarray,
    *,
    mask_invalid: bool = False,
    log: Any = None,
) -> np.ndarray:
    """bf16 bits (uint16) [tokens, hidden] of x (bf16 bits) [tokens, hidden], ids and weights [tokens, top_k].

    ValueError for ids that name no expert, unless ``mask_invalid`` says to skip their slots. ``log.kernels`` grows by
    the kernels that the layer would launch.
    """
    plan = make_plan(ids, layer.experts, weights, mask_invalid=mask_invalid)
    inputs = from_bf16(x)
    top_k = ids.shape[1]
    outputs = np.zeros((ids.size, layer.hidden), dtype=F32)
    taking_part = np.zeros(ids.size, dtype=F32)
    taking_part[plan.rows] = weights.reshape(-1)[plan.rows]
    for expert, start, count in zip(plan.expert, plan.start, plan.count, strict=True):
        rows = plan.rows[start : start + count]
        h = activation(layer, linear(layer.gate_up, expert, inputs[rows // top_k]))
        outputs[rows] = epilogue_f32(linear(layer.down, expert, h))
    if log is not None:
        log.kernels.extend(KERNELS)
    return combine(outputs.reshape(*ids.shape, -1), taking_part.reshape(ids.shape))
