"""The group ``decode-step`` and its variants, for the bench's registry.

One call makes the calls of every layer of the workload, each on a token of its own: embed, add_rms_norm, and in_proj
and out_proj; or route, up and down; or q, k, v, attend and o. The router's choice is computed and not compared here
(tests/gpu/test_step.py does that): nothing after it reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from glqprof.bench.registry import Group, Registry, Run, SameBits, Tolerance, Variant

from . import ops, reference
from .workload import EPS, GEOMETRIES, Block, StepBatch, StepWorkload, adversarial, make_batch, make_workload
from .workspace import Sizes, Workspace

GROUP = "decode-step"
BASELINE = "torch"
REL_ERR = 2e-2
"""A correct variant's distance from float64: four to six roundings to bf16 in a row give 3e-3 to 8e-3, the most where
relu² doubles the error of what it squares and few values average it."""
CUDA_LAYERS = 8
"""MEMEM*EM: four Mamba-2, three MoE and one attention layer."""
ANY_COUNT = -1
"""A launch count that the registry's contract reads as "any number": a library's own kernels."""


def register(registry: Registry) -> None:
    """Add the group and its variants."""
    registry.add_group(
        Group(
            name=GROUP,
            summary="the small kernels of a decoded token: embedding, norm, router, bf16 projections, attention",
            geometries=GEOMETRIES,
            baseline=BASELINE,
            workload=make_workload,
            batch=make_batch,
            adversarial=adversarial,
            reference=reference.layers,
            out=_out,
            cpu_geometry="tiny",
            cpu_layers=7,
            cuda_layers=CUDA_LAYERS,
            rel_err=REL_ERR,
        )
    )
    kinds = {
        BASELINE: ("plain torch, a library call a product", Tolerance(REL_ERR)),
        "cuda": ("one kernel a call, each started before the one before it ends", Tolerance(REL_ERR)),
        "cuda-serial": ("the same kernels without programmatic dependent launch", SameBits("cuda")),
    }
    for name, (summary, contract) in kinds.items():
        plain = name == BASELINE
        registry.add_variant(
            Variant(
                name=name,
                group=GROUP,
                summary=summary,
                contract=contract,
                build=_builder(plain, name == "cuda"),
                kernels=_any_kernels if plain else _kernels,
                bytes_moved=_bytes_moved,
                devices=("cuda", "cpu") if plain else ("cuda",),
                dtype="bfloat16",
                needs=() if plain else ("nvcc",),
            )
        )


def _out(workload: StepWorkload, batch: StepBatch) -> torch.Tensor:
    """[layers, rows, hidden] bf16, uninitialised."""
    return torch.empty(workload.layers, batch.rows, workload.sizes.hidden, dtype=torch.bfloat16, device=workload.device)


def _any_kernels(workload: StepWorkload, batch: StepBatch) -> Mapping[str, int]:
    return {r".*": ANY_COUNT}


def _kernels(workload: StepWorkload, batch: StepBatch) -> Mapping[str, int]:
    counts = {
        "step_embed_kernel": workload.layers,
        "step_add_rms_norm_kernel": workload.layers,
        "step_linear_kernel": 2 * workload.layers,
        "step_route_kernel": workload.count("E"),
        "step_attend_kernel": workload.count("*"),
    }
    return {name: count for name, count in counts.items() if count}


def _bytes_moved(workload: StepWorkload, batch: StepBatch) -> int:
    """Weights, the rows of the table and the cache so far once; addends read, outputs written."""
    sizes, rows = workload.sizes, batch.rows
    total = workload.layers * rows * (3 * 2 * sizes.hidden + 8)
    for block in workload.blocks:
        total += sum(w.numel() * w.element_size() for w in (block.norm, *block.weights))
        if block.kind == "*":
            total += 2 * 2 * rows * sizes.kv_heads * (workload.position + 1) * sizes.head_dim
    return total


class _Buffers:
    """What the calls of a layer hand to each other, for one number of rows."""

    def __init__(self, workload: StepWorkload, rows: int) -> None:
        sizes = workload.sizes

        def empty(width: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.empty(rows, width, dtype=dtype, device=workload.device)

        heads, kv = sizes.attention_heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.residual, self.normed = empty(sizes.hidden), empty(sizes.hidden)
        self.half = empty(sizes.hidden, torch.float16)
        projected = sizes.ssm_inter + sizes.ssm_conv_width + sizes.ssm_heads
        self.projected = empty(-(-projected // 8) * 8)[:, :projected]  # rows that the next product can read
        self.shared = empty(sizes.shared_inter)
        self.ids, self.weights = empty(sizes.top_k, torch.int64), empty(sizes.top_k, torch.float32)
        self.qkv = list(empty(heads + 2 * kv).split([heads, kv, kv], dim=1))
        self.attended = empty(heads)
        scratch = Sizes(rows, sizes.experts, sizes.attention_heads, sizes.head_dim, workload.capacity)
        self.workspace = Workspace(scratch, workload.device)


def _builder(plain: bool, dependent: bool) -> Callable[[StepWorkload], Run]:
    how: dict[str, Any] = {"implementation": "torch" if plain else "cuda", "dependent": dependent}

    def build(workload: StepWorkload) -> Run:
        if not plain:
            from . import extension

            extension.load()
        position = torch.tensor([workload.position], device=workload.device)
        buffers: dict[int, _Buffers] = {}

        def run(batch: StepBatch, out: torch.Tensor) -> None:
            if batch.rows not in buffers:
                buffers[batch.rows] = _Buffers(workload, batch.rows)
            given = zip(workload.blocks, batch.tokens, batch.addends, out, strict=True)
            for block, tokens, addends, layer_out in given:
                _layer(workload, block, buffers[batch.rows], position, tokens, addends, layer_out, how)

        return run

    return build


def _layer(
    workload: StepWorkload,
    block: Block,
    b: _Buffers,
    position: torch.Tensor,
    tokens: torch.Tensor,
    addends: torch.Tensor,
    out: torch.Tensor,
    how: dict[str, Any],
) -> None:
    sizes = workload.sizes
    ops.embed(workload.table, tokens, b.residual, **how)
    half = b.half if block.kind == "E" else None
    ops.add_rms_norm(b.residual, addends, block.norm, EPS, b.normed, out_fp16=half, **how)
    if block.kind == "M":
        ops.linear(b.normed, block.weights[0], b.projected, **how)
        ops.linear(b.projected[:, : sizes.ssm_inter], block.weights[1], out, **how)
    elif block.kind == "E":
        assert block.bias is not None
        router = (b.normed, block.weights[0], block.bias, sizes.top_k, sizes.router_scaling, True, b.ids, b.weights)
        ops.route(*router, workspace=b.workspace, **how)
        ops.linear(b.normed, block.weights[1], b.shared, activation="relu2", **how)
        ops.linear(b.shared, block.weights[2], out, **how)
    else:
        assert block.caches is not None
        ops.linear(b.normed, block.weights[:3], b.qkv, **how)
        caches = [cache[: out.shape[0]] for cache in block.caches]
        scale = sizes.head_dim**-0.5
        ops.attend(*b.qkv, *caches, position, scale, b.attended, workspace=b.workspace, **how)
        ops.linear(b.attended, block.weights[3], out, **how)
