"""The step to the bit, in numpy: what ``unfused`` and ``fused`` compute on every GPU, and what they run on the CPU.

Binary32, each operation rounded once to nearest even, denormals kept; an FMA only where ``fma32`` is named. The
exponential is the stated one of ``glq.exact.stated_exp``. docs/kernels/ssm.md has the contract in words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ..glq.exact.rounding import F32, fma32
from ..glq.exact.stated_exp import stated_exp
from .weights import StepWeights

CHUNK_ROWS = 32
KERNELS = {
    "unfused": ("ssm_conv_kernel", "ssm_state_kernel", "ssm_norm_kernel"),
    "fused": ("ssm_fused_kernel",),
}
"""What a variant launches for one layer, in order."""

_ATANH = [F32(2 / k) for k in (15, 13, 11, 9, 7, 5, 3)]


def to_bf16(value: np.ndarray) -> np.ndarray:
    """float32 → bf16 bits (uint16), to nearest even, overflow to infinity; every NaN becomes 0x7FFF."""
    bits = np.asarray(value, dtype=F32).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), rounded)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """bf16 bits (uint16) → float32, exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(F32)


def as_bf16(value: np.ndarray) -> np.ndarray:
    """float32 rounded to bf16, as float32."""
    return from_bf16(to_bf16(value))


def silu(v: np.ndarray) -> np.ndarray:
    """v / (1 + exp(−v))."""
    return v / (F32(1) + stated_exp(-v))


def softplus(z: np.ndarray) -> np.ndarray:
    """max(z, 0) + log(1 + exp(−|z|)): the logarithm as 2·atanh(w), w = u / (u + 2), by its series up to w¹⁵."""
    u = stated_exp(-np.abs(z))
    w = u / (u + F32(2))
    s = w * w
    p = np.full_like(s, _ATANH[0])
    for coefficient in _ATANH[1:]:
        p = fma32(p, s, coefficient)
    log = fma32(w, p * s, w + w)
    return np.where(np.isnan(z), z, np.where(z > 0, z, F32(0)) + log).astype(F32)


def tree_sum(values: np.ndarray) -> np.ndarray:
    """Sums over the last axis, a power of two long: the upper half onto the lower, again and again."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


class HostWeights(NamedTuple):
    """`StepWeights` as float32 arrays, ``conv_weight`` [conv_dim, K]; and the weights that they are of."""

    conv_weight: np.ndarray
    conv_bias: np.ndarray
    dt_bias: np.ndarray
    a: np.ndarray
    d: np.ndarray
    norm_weight: np.ndarray
    of: StepWeights


def host_weights(weights: StepWeights) -> HostWeights:
    """The weights where numpy reads them; every conversion is exact."""
    w = weights
    bias = torch.zeros(w.conv_dim) if w.conv_bias is None else w.conv_bias
    tensors = (w.conv_weight, bias, w.dt_bias, w.a, w.d, w.norm_weight)
    return HostWeights(*(t.detach().cpu().to(torch.float32).numpy() for t in tensors), of=w)


class Stepped(NamedTuple):
    """Results: out [batch, inter] and conv_state [batch, conv_dim, K] as bf16 bits; state fp32, not yet rounded."""

    out: np.ndarray
    conv_state: np.ndarray
    state: np.ndarray


def compute(host: HostWeights, projected: np.ndarray, conv_state: np.ndarray, state: np.ndarray) -> Stepped:
    """One token. projected and conv_state are bf16 bits (uint16), state float32; shapes as `step` has them."""
    w, batch = host.of, projected.shape[0]
    inputs = from_bf16(projected)
    gate, channels, raw_dt = np.split(inputs, [w.inter, w.inter + w.conv_dim], axis=1)
    newest = projected[:, w.inter : w.inter + w.conv_dim, None]
    window = np.concatenate([conv_state[:, :, 1:], newest], axis=2)
    with np.errstate(all="ignore"):
        total = np.broadcast_to(host.conv_bias, channels.shape)
        for k in range(w.kernel):
            total = fma32(host.conv_weight[:, k], from_bf16(window[:, :, k]), total)
        convolved = as_bf16(silu(total))
        x, b, c = np.split(convolved, [w.inter, w.inter + w.groups * w.state], axis=1)
        b, c = (np.repeat(v.reshape(batch, w.groups, 1, w.state), w.inter // w.groups, axis=2) for v in (b, c))
        b, c = (v.reshape(batch, w.inter, w.state) for v in (b, c))

        dt = softplus(raw_dt + host.dt_bias)
        decay = np.repeat(stated_exp(dt * host.a), w.head_dim, axis=1)[:, :, None]
        step = np.repeat(dt, w.head_dim, axis=1) * x
        new = fma32(step[:, :, None], b, state.reshape(b.shape) * decay)

        quads, against = (v.reshape(batch, w.inter, w.state // 4, 4) for v in (new, c))
        dots = quads[..., 0] * against[..., 0]
        for k in range(1, 4):
            dots = fma32(quads[..., k], against[..., k], dots)
        y = as_bf16(fma32(np.repeat(host.d, w.head_dim), x, tree_sum(dots)))
        out = norm(host, y, gate)
    return Stepped(out, window, new.reshape(state.shape))


def norm(host: HostWeights, y: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """bf16 bits [batch, inter] of y and gate, float32: squares are summed in chunks of 32 rows, these in order."""
    w, batch = host.of, y.shape[0]
    rows = w.inter // w.groups
    gated = (y * silu(gate)).reshape(batch, w.groups, rows)
    missing = -rows % CHUNK_ROWS
    squares = np.pad(gated * gated, ((0, 0), (0, 0), (0, missing)))
    chunks = tree_sum(squares.reshape(batch, w.groups, (rows + missing) // CHUNK_ROWS, CHUNK_ROWS))
    total = chunks[..., 0]
    for k in range(1, chunks.shape[-1]):
        total = total + chunks[..., k]
    scale = F32(1) / np.sqrt(total / F32(rows) + F32(w.eps))
    return to_bf16(host.norm_weight * as_bf16(gated * scale[..., None]).reshape(batch, w.inter))


def step(
    weights: StepWeights,
    projected: torch.Tensor,
    conv_state: torch.Tensor,
    state: torch.Tensor,
    conv_state_out: torch.Tensor,
    state_out: torch.Tensor,
    out: torch.Tensor,
    *,
    variant: str,
    log: Any = None,
) -> None:
    """`glqprof_kernels.ssm.step` of CPU tensors; ``log.kernels`` grows by what the variant would launch on a GPU."""
    bits = (t.contiguous().view(torch.uint16).numpy() for t in (projected, conv_state))
    got = compute(host_weights(weights), *bits, state.to(torch.float32).numpy())
    out.copy_(torch.from_numpy(got.out).view(torch.bfloat16))
    conv_state_out.copy_(torch.from_numpy(got.conv_state).view(torch.bfloat16))
    if state_out.dtype == torch.bfloat16:
        state_out.copy_(torch.from_numpy(to_bf16(got.state)).view(torch.bfloat16))
    else:
        state_out.copy_(torch.from_numpy(got.state))
    if log is not None:
        log.kernels.extend(KERNELS[variant])
