"""The kernels' one interface, for both implementations.

Every function works on the current stream, takes 1 to 8 rows (a row is one sequence's token), returns its output and
allocates nothing where its outputs (and workspace) are given. Nothing is read back, so that all can be captured in a
CUDA graph. bf16 weights and activations, fp32 sums, one rounding where none other is named. Sums have an order that
depends on sizes alone, so that equal inputs give equal bytes on one GPU.

``implementation``: ``cuda``, or ``torch``, which runs on any device. ``dependent``: launched so that it may start while
the kernel before it in the stream still runs (programmatic dependent launch, sm_90 and later); same bytes. Weights are
then asked for before that kernel has ended: it must not write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import checks, plain
from .workspace import CHUNK, COUNTERS, HEADS_PER_BLOCK, Sizes, Workspace

MAX_HIDDEN = 16384
MAX_INPUTS = 10240
"""Widest input of ``linear``: each of a block's 16 warps holds a part of it in registers."""
MAX_HEAD_DIM = 256
MAX_CAPACITY = 131072


@dataclass(frozen=True)
class Tuning:
    """How ``linear`` and ``head_argmax`` stream their weights; no value changes a byte of the result.

    ``share`` of a multiprocessor's shared memory: 0 is the larger part, 1 the smaller, 2 all; -1 has ``linear`` take
    the other part than the call before, ``head_argmax`` all. ``shared_kib`` above 0: so much, in its place.
    ``blocks``: 0 is one a multiprocessor. ``clocks`` [blocks, 4] int64 on the device, for measurements: receives the
    nanoseconds at which each block started, was released by the kernel before it and had its last sum, and the number
    of its multiprocessor.
    """

    share: int = -1
    shared_kib: int = 0
    blocks: int = 0
    clocks: torch.Tensor | None = None


def _tuning(module: Any, tuning: Tuning | None, dependent: bool, device: torch.device) -> Any:
    """The extension's own."""
    made, wanted = module.Tuning(), tuning or Tuning()
    made.share, made.shared_kib, made.blocks = wanted.share, wanted.shared_kib, wanted.blocks
    made.dependent = dependent
    if wanted.clocks is not None:
        blocks = wanted.blocks or torch.cuda.get_device_properties(device).multi_processor_count
        checks.tensor(wanted.clocks, "clocks", (blocks, 4), torch.int64, device)
        made.clocks = wanted.clocks.data_ptr()
    return made


def embed(
    table: torch.Tensor,
    token: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    implementation: str = "cuda",
    dependent: bool = True,
) -> torch.Tensor:
    """Rows of ``table`` [vocab, hidden] bf16 by ``token`` [batch] int64 → ``out`` [batch, hidden] bf16.

    A token outside the vocabulary gives a row of NaN. ValueError for tensors that do not fit.
    """
    device = token.device
    vectors = checks.implementation(implementation, device)
    rows, hidden = token.shape[0], table.shape[-1]
    checks.batch(rows)
    checks.width(hidden, "hidden", MAX_HIDDEN)
    checks.tensor(token, "token", (rows,), torch.int64, device)
    checks.tensor(table, "table", (table.shape[0], hidden), torch.bfloat16, device, vectors=vectors)
    out = torch.empty(rows, hidden, dtype=torch.bfloat16, device=device) if out is None else out
    checks.tensor(out, "out", (rows, hidden), torch.bfloat16, device, vectors=vectors)
    if implementation == "torch":
        plain.embed(table, token, out)
    else:
        from . import extension

        extension.load().embed(table, token, out, dependent)
    return out


def add_rms_norm(
    residual: torch.Tensor,
    addend: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    *,
    out_fp16: torch.Tensor | None = None,
    second: torch.Tensor | None = None,
    implementation: str = "cuda",
    dependent: bool = True,
) -> torch.Tensor:
    """A layer's residual add and the next layer's norm: ``residual`` [batch, hidden] bf16 is updated in place.

    ``residual`` = bf16(residual + a) with a = bf16(``addend``), or bf16(bf16(addend) + ``second``) where there are two
    (routed and shared experts); ``addend`` is bf16 or fp16 (what GLQ's experts write), ``second`` bf16, both
    [batch, hidden]; without an addend the residual stays. ``out`` = bf16(weight · x · rsqrt(mean(x²) + eps)) of the
    updated residual, in fp32; ``weight`` [hidden] bf16 or fp32. ``out_fp16`` [batch, hidden] fp16, where given, is out
    rounded once more (what GLQ's experts read). ValueError for tensors that do not fit.
    """
    device = residual.device
    vectors = checks.implementation(implementation, device)
    rows, hidden = residual.shape[0], residual.shape[-1]
    checks.batch(rows)
    checks.width(hidden, "hidden", MAX_HIDDEN)
    shape = (rows, hidden)
    checks.tensor(residual, "residual", shape, torch.bfloat16, device, vectors=vectors)
    checks.tensor(weight, "weight", (hidden,), (torch.bfloat16, torch.float32), device, vectors=vectors)
    if addend is not None:
        checks.tensor(addend, "addend", shape, (torch.bfloat16, torch.float16), device, vectors=vectors)
    if second is not None:
        if addend is None:
            raise ValueError("second is given without addend")
        checks.tensor(second, "second", shape, torch.bfloat16, device, vectors=vectors)
    out = torch.empty_like(residual) if out is None else out
    checks.tensor(out, "out", shape, torch.bfloat16, device, vectors=vectors)
    if out_fp16 is not None:
        checks.tensor(out_fp16, "out_fp16", shape, torch.float16, device, vectors=vectors)
    if implementation == "torch":
        plain.add_rms_norm(residual, addend, weight, eps, out, out_fp16, second)
    else:
        from . import extension

        extension.load().add_rms_norm(residual, addend, second, weight, eps, out, out_fp16, dependent)
    return out


def route(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    top_k: int,
    scaling: float,
    normalise: bool,
    ids: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    *,
    workspace: Workspace | None = None,
    implementation: str = "cuda",
    dependent: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sigmoid router of one expert group: ``ids`` int64 and ``weights`` fp32, both [batch, top_k].

    ``x`` [batch, hidden] bf16, ``weight`` [experts, hidden] fp32 or bf16, ``bias`` [experts] fp32. Logits in fp32;
    score = sigmoid(logit); the ``top_k`` experts of the largest score + bias, descending, the lower id first where they
    are equal; NaN counts as larger than any number, so ids are always distinct and in range. Weights are the scores
    without bias, over their sum + 1e-20 where ``normalise``, times ``scaling``. ValueError for tensors that do not fit.
    """
    device = x.device
    vectors = checks.implementation(implementation, device)
    rows, hidden = x.shape[0], x.shape[-1]
    experts = weight.shape[0]
    checks.batch(rows)
    checks.width(hidden, "hidden", MAX_HIDDEN)
    if not 1 <= experts <= checks.MAX_EXPERTS:
        raise ValueError(f"{experts} experts; route takes 1 to {checks.MAX_EXPERTS}")
    if not 1 <= top_k <= min(experts, checks.MAX_TOP_K):
        raise ValueError(f"top_k is {top_k}; it must be 1 to {min(experts, checks.MAX_TOP_K)}")
    checks.tensor(x, "x", (rows, hidden), torch.bfloat16, device, strided_rows=True, vectors=vectors)
    checks.tensor(weight, "weight", (experts, hidden), (torch.float32, torch.bfloat16), device, vectors=vectors)
    checks.tensor(bias, "bias", (experts,), torch.float32, device)
    ids = torch.empty(rows, top_k, dtype=torch.int64, device=device) if ids is None else ids
    weights = torch.empty(rows, top_k, dtype=torch.float32, device=device) if weights is None else weights
    checks.tensor(ids, "ids", (rows, top_k), torch.int64, device)
    checks.tensor(weights, "weights", (rows, top_k), torch.float32, device)
    if implementation == "torch":
        plain.route(x, weight, bias, top_k, scaling, normalise, ids, weights)
        return ids, weights
    from . import extension

    workspace = workspace or Workspace(Sizes(rows, experts=experts), device)
    workspace.require(device, batch=rows, experts=experts)
    extension.load().route(x, weight, bias, scaling, normalise, ids, weights, workspace.memory, dependent)
    return ids, weights


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | Sequence[torch.Tensor],
    out: torch.Tensor | Sequence[torch.Tensor] | None = None,
    *,
    bias: torch.Tensor | Sequence[torch.Tensor | None] | None = None,
    activation: str = "none",
    implementation: str = "cuda",
    dependent: bool = True,
    tuning: Tuning | None = None,
) -> torch.Tensor | Sequence[torch.Tensor]:
    """``out`` [batch, outputs] = bf16(x · weightᵀ + bias) of bf16 ``x`` [batch, inputs], ``weight`` [outputs, inputs]

    ``weight`` may be a sequence of up to four matrices of the same inputs (q, k and v), in one launch; ``out``, and
    ``bias`` ([outputs] bf16) where given, are then sequences too. ``activation`` ``relu2``: relu of the rounded value,
    squared, rounded again. Rows of x and out may be apart (a view of columns). ValueError for tensors that do not fit.
    """
    device = x.device
    vectors = checks.implementation(implementation, device)
    if activation not in checks.ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; it must be {' or '.join(checks.ACTIVATIONS)}")
    single = isinstance(weight, torch.Tensor)
    matrices = [weight] if isinstance(weight, torch.Tensor) else list(weight)
    if not 1 <= len(matrices) <= checks.MAX_SEGMENTS:
        raise ValueError(f"{len(matrices)} weights; one call takes 1 to {checks.MAX_SEGMENTS}")
    rows, inputs = x.shape[0], x.shape[-1]
    checks.batch(rows)
    checks.width(inputs, "inputs", MAX_INPUTS)
    checks.tensor(x, "x", (rows, inputs), torch.bfloat16, device, strided_rows=True, vectors=vectors)
    if out is None:
        outs = [torch.empty(rows, m.shape[0], dtype=torch.bfloat16, device=device) for m in matrices]
    else:
        outs = [out] if isinstance(out, torch.Tensor) else list(out)
    biases = [bias] if isinstance(bias, torch.Tensor) else list(bias or [None] * len(matrices))
    if not len(matrices) == len(outs) == len(biases):
        raise ValueError(f"{len(matrices)} weights, {len(outs)} outputs and {len(biases)} biases")
    for matrix, y, b in zip(matrices, outs, biases, strict=True):
        outputs = matrix.shape[0]
        if outputs < 1:
            raise ValueError("a weight has no rows")
        checks.tensor(matrix, "weight", (outputs, inputs), torch.bfloat16, device, vectors=vectors)
        checks.tensor(y, "out", (rows, outputs), torch.bfloat16, device, strided_rows=True)
        if b is not None:
            checks.tensor(b, "bias", (outputs,), torch.bfloat16, device)
    if implementation == "torch":
        plain.linear(x, matrices, outs, biases, activation)
    else:
        from . import extension

        module = extension.load()
        module.linear(x, matrices, outs, biases, activation == "relu2", _tuning(module, tuning, dependent, device))
    return outs[0] if single else outs


def attend(
    q: torch.Tensor,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
    *,
    workspace: Workspace | None = None,
    implementation: str = "cuda",
    dependent: bool = True,
) -> torch.Tensor:
    """Attention of one token a sequence over its KV cache: ``out`` [batch, heads · dim] bf16.

    ``q`` [batch, heads · dim], ``k_new`` and ``v_new`` [batch, kv_heads · dim] bf16, whose rows may be apart;
    ``k_cache`` and ``v_cache`` [batch, kv_heads, capacity, dim] bf16. The new key and value are written at ``position``
    ([1] int64, on the device), then softmax(scale · q·k) · v runs over 0 .. position, in fp32; what lies past it is
    not read. heads is a multiple of kv_heads; a group of heads shares one kv head. The order of sums depends on the
    position alone, not on the capacity. A position outside the cache writes nothing and gives NaN. ValueError for
    tensors that do not fit.
    """
    device = q.device
    vectors = checks.implementation(implementation, device)
    if k_cache.dim() != 4:
        raise ValueError(f"k_cache must be [batch, kv_heads, capacity, dim], not {list(k_cache.shape)}")
    rows, kv_heads, capacity, dim = k_cache.shape
    checks.batch(rows)
    checks.width(dim, "the heads' dim", MAX_HEAD_DIM)
    if q.dim() != 2 or q.shape[1] == 0 or q.shape[1] % (kv_heads * dim):
        raise ValueError(f"q must be [batch, a multiple of {kv_heads} kv heads of {dim}], not {list(q.shape)}")
    heads = q.shape[1] // dim
    if not 1 <= capacity <= MAX_CAPACITY:
        raise ValueError(f"a cache of capacity {capacity}; attend takes 1 to {MAX_CAPACITY}")
    if rows * kv_heads * -(-heads // kv_heads // HEADS_PER_BLOCK) > COUNTERS:
        raise ValueError(f"{rows} x {heads} heads; attend takes {COUNTERS} groups of {HEADS_PER_BLOCK}")
    checks.tensor(q, "q", (rows, heads * dim), torch.bfloat16, device, strided_rows=True, vectors=vectors)
    for name, new in (("k_new", k_new), ("v_new", v_new)):
        checks.tensor(new, name, (rows, kv_heads * dim), torch.bfloat16, device, strided_rows=True, vectors=vectors)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        checks.tensor(cache, name, (rows, kv_heads, capacity, dim), torch.bfloat16, device, vectors=vectors)
    checks.tensor(position, "position", (1,), torch.int64, device)
    out = torch.empty(rows, heads * dim, dtype=torch.bfloat16, device=device) if out is None else out
    checks.tensor(out, "out", (rows, heads * dim), torch.bfloat16, device, strided_rows=True)
    if implementation == "torch":
        plain.attend(q, k_new, v_new, k_cache, v_cache, position, scale, out)
        return out
    from . import extension

    workspace = workspace or Workspace(Sizes(rows, heads=heads, head_dim=dim, capacity=capacity), device)
    workspace.require(device, batch=rows, heads=heads, head_dim=dim, capacity=capacity)
    splits = -(-capacity // CHUNK)
    extension.load().attend(
        q, k_new, v_new, k_cache, v_cache, position, scale, out, workspace.memory, splits, dependent
    )
    return out


def head_argmax(
    x: torch.Tensor,
    weight: torch.Tensor,
    token: torch.Tensor | None = None,
    *,
    logits: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    implementation: str = "cuda",
    dependent: bool = True,
    tuning: Tuning | None = None,
) -> torch.Tensor:
    """The greedy token, ``token`` [batch] int64: the row of ``weight`` [vocab, hidden] with the largest product with x.

    Products are rounded to bf16 and then compared; the lowest id where they are equal; NaN counts as larger than any
    number, as in torch.argmax. ``logits`` [batch, vocab] bf16, where given, receives them all. ``x`` [batch, hidden]
    bf16. ValueError for tensors that do not fit.
    """
    device = x.device
    vectors = checks.implementation(implementation, device)
    rows, hidden = x.shape[0], x.shape[-1]
    vocab = weight.shape[0]
    checks.batch(rows)
    checks.width(hidden, "hidden", MAX_INPUTS)
    if vocab < 1:
        raise ValueError("the head's weight has no rows")
    checks.tensor(x, "x", (rows, hidden), torch.bfloat16, device, strided_rows=True, vectors=vectors)
    checks.tensor(weight, "weight", (vocab, hidden), torch.bfloat16, device, vectors=vectors)
    token = torch.empty(rows, dtype=torch.int64, device=device) if token is None else token
    checks.tensor(token, "token", (rows,), torch.int64, device)
    if logits is not None:
        checks.tensor(logits, "logits", (rows, vocab), torch.bfloat16, device, strided_rows=True)
    if implementation == "torch":
        plain.head_argmax(x, weight, token, logits)
        return token
    from . import extension

    workspace = workspace or Workspace(Sizes(rows), device)
    workspace.require(device, batch=rows)
    module = extension.load()
    module.head_argmax(x, weight, token, logits, workspace.memory, _tuning(module, tuning, dependent, device))
    return token
