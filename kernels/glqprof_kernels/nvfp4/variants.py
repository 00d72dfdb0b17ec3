"""The group ``nvfp4-moe`` and its variants, for the bench's registry.

One call computes every layer of the workload, each on inputs of its own. The twelve variants are {base, waves,
half, quarter} units × {regs, ring, deep} pipelines and promise the same bytes; on the CPU all run the exact
implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from glqprof.bench.registry import Group, LaunchLog, Registry, Run, SameBits, Tolerance, Variant

from .. import bf16
from .. import geometry as geometries
from . import baselines, libraries, reference
from .exact import moe as exact
from .exact.product import host_layer
from .workload import MoeBatch, MoeWorkload, adversarial, make_batch, make_workload, supported

GROUP = "nvfp4-moe"
BASELINE = "base-regs"
UNITS = {
    "base": "one warp walks units of 32 columns in a persistent grid",
    "waves": "units ordered so that a wave shares weights, for many rows",
    "half": "16 columns a unit, for geometries with few units",
    "quarter": "one tensor-core tile of weights a unit (8 gated columns, 16 others), twice the warps, for few rows",
}
PIPELINES = {
    "regs": "weights double-buffered in registers",
    "ring": "a ring of four shared-memory stages a warp, filled by cp.async",
    "deep": "a deeper ring, more bytes in flight",
}
EXACT_REL_ERR = 1e-2
"""A correct variant's distance from float64: bf16 activations and outputs give 2e-3 to 4e-3, and up to 7e-3 on one row
of the tiny size with relu², which doubles the error of what it squares."""
BF16_REL_ERR = 2e-2
"""bf16 weights add their own rounding: 5e-3 in all, up to 1.1e-2 where the exact kernels have 7e-3."""
MAX_ROWS = 512
"""Tokens that the workspace of a CUDA variant holds; more run after each other."""
EXPERT_KERNELS = ("nvfp4_gate_up_kernel", "nvfp4_down_kernel")
CUDA_LAYERS = 4
"""At one row 4 layers of the smallest geometry read 57 MB; the bench adds weight sets until 3 × L2 pass."""
ANY_COUNT = -1
"""A launch count that the registry's contract reads as "any number": a library's own kernels."""


def register(registry: Registry) -> None:
    """Add the group and its variants."""
    registry.add_group(
        Group(
            name=GROUP,
            summary="NVFP4 fused MoE: e2m1 experts with e4m3 block scales, bf16 activations, one decode step",
            geometries=_geometries(),
            baseline=BASELINE,
            workload=make_workload,
            batch=make_batch,
            adversarial=adversarial,
            reference=_reference,
            out=_out,
            cpu_geometry="tiny-k32",
            cpu_layers=2,
            cuda_layers=CUDA_LAYERS,
            rel_err=EXACT_REL_ERR,
        )
    )
    for unit, unit_words in UNITS.items():
        for pipeline, pipeline_words in PIPELINES.items():
            name = f"{unit}-{pipeline}"
            contract = Tolerance(EXACT_REL_ERR) if name == BASELINE else SameBits(BASELINE)
            registry.add_variant(_kernel(name, f"{unit_words}; {pipeline_words}", contract))
    registry.add_variant(
        _library("bf16", "the same experts in bf16 through torch's grouped_mm", _build_bf16, _bf16_kernels, _bf16_bytes)
    )
    registry.add_variant(
        _library(
            "dequant",
            "experts in use decoded to bf16 on the fly, then torch's matmul; reads the ids back",
            _build_dequant,
            _any_kernels,
            _bytes_moved,
            blocking_copies=lambda workload, batch: workload.layers,
            capturable=False,
            capture_note="it reads expert ids back to the host",
        )
    )
    registry.add_variant(
        _library(
            "vllm",
            "vLLM's Marlin MoE: NVFP4 weights, bf16 inputs",
            _build_vllm,
            _marlin_kernels,
            _bytes_moved,
            devices=("cuda",),
            unavailable=libraries.vllm_unavailable,
        )
    )
    registry.add_variant(
        _library(
            "flashinfer",
            "FlashInfer's NVFP4 MoE",
            _build_flashinfer,
            _any_kernels,
            _bytes_moved,
            devices=("cuda",),
            unavailable=libraries.flashinfer_unavailable,
        )
    )


def _geometries() -> tuple[str, ...]:
    """The geometries that the kernels take, the one of the stated goal first."""
    names = [name for name in geometries.names() if supported(geometries.load(name))]
    return tuple(sorted(names, key=lambda name: name != "glm-5.3-flash"))


def _reference(workload: MoeWorkload, batch: MoeBatch) -> torch.Tensor:
    """[layers, rows, hidden] float64."""
    layers = zip(workload.weights, batch.per_layer, strict=True)
    return torch.stack([reference.moe(layer, *inputs) for layer, inputs in layers])


def _out(workload: MoeWorkload, batch: MoeBatch) -> torch.Tensor:
    """[layers, rows, hidden] bf16, uninitialised."""
    return torch.empty(workload.layers, batch.rows, workload.hidden, dtype=torch.bfloat16, device=workload.device)


def _is_cuda(workload: MoeWorkload) -> bool:
    return torch.device(workload.device).type == "cuda"


def _input_bytes(workload: MoeWorkload, batch: MoeBatch) -> int:
    """x and out in bf16; ids and weights of 8 and 4 bytes."""
    return workload.layers * batch.rows * (2 * 2 * workload.hidden + 12 * workload.top_k)


def _bytes_moved(workload: MoeWorkload, batch: MoeBatch) -> int:
    """Codes and scales of the experts in use, once each; inputs, outputs, routing."""
    total = _input_bytes(workload, batch)
    for index, layer in enumerate(workload.weights):
        total += batch.active_experts(index) * (layer.gate_up.bytes_per_expert + layer.down.bytes_per_expert)
    return total


def packed_layers(workload: MoeWorkload) -> list[Any]:
    """The layers in the kernels' tile layout, made once; the originals stay, for the other variants."""
    if workload.packed is None:
        from . import tiles

        workload.packed = [tiles.pack_layer(layer) for layer in workload.weights]
    return workload.packed


def cuda_kernels(name: str) -> list[str]:
    """Expressions for the kernels of a layer on CUDA; those of the experts name the unit and the pipeline."""
    unit, pipeline = (part.capitalize() for part in name.split("-"))
    return [
        rf"{kernel}<.*\b{unit}\b.*\b{pipeline}\b" if kernel in EXPERT_KERNELS else kernel for kernel in exact.KERNELS
    ]


def _kernel(name: str, summary: str, contract: SameBits | Tolerance) -> Variant:
    log = LaunchLog()

    def build(workload: MoeWorkload) -> Run:
        return _build_cuda(workload, name) if _is_cuda(workload) else _build_exact(workload, log)

    def kernels(workload: MoeWorkload, batch: MoeBatch) -> Mapping[str, int]:
        if not _is_cuda(workload):
            return dict.fromkeys(exact.KERNELS, workload.layers)
        return dict.fromkeys(cuda_kernels(name), workload.layers * -(-batch.rows // MAX_ROWS))

    return Variant(
        name=name,
        group=GROUP,
        summary=summary,
        contract=contract,
        build=build,
        kernels=kernels,
        bytes_moved=_bytes_moved,
        dtype="bfloat16",
        launch_log=log,
        needs=("nvcc",),
    )


def _build_cuda(workload: MoeWorkload, name: str) -> Run:
    from . import ops

    runner = ops.MoeRun(packed_layers(workload), MAX_ROWS, workload.top_k, name)

    def run(batch: MoeBatch, out: torch.Tensor) -> None:
        for index, (inputs, layer_out) in enumerate(zip(batch.per_layer, out.unbind(0), strict=True)):
            for first in range(0, batch.rows, MAX_ROWS):
                part = slice(first, first + MAX_ROWS)
                runner.layer(index, *(tensor[part] for tensor in inputs), layer_out[part])

    return run


def _build_exact(workload: MoeWorkload, log: LaunchLog) -> Run:
    layers = [host_layer(layer) for layer in workload.weights]

    def run(batch: MoeBatch, out: torch.Tensor) -> None:
        for layer, (x, ids, weights), layer_out in zip(layers, batch.per_layer, out.unbind(0), strict=True):
            bits = exact.moe(layer, x.view(torch.uint16).numpy(), ids.numpy(), weights.numpy(), log=log)
            layer_out.copy_(torch.from_numpy(bits).view(torch.bfloat16))

    return run


def _library(
    name: str,
    summary: str,
    build: Callable[[MoeWorkload], Run],
    kernels: Callable[[MoeWorkload, MoeBatch], Mapping[str, int]],
    bytes_moved: Callable[[MoeWorkload, MoeBatch], int],
    **more: Any,
) -> Variant:
    return Variant(
        name=name,
        group=GROUP,
        summary=summary,
        contract=Tolerance(BF16_REL_ERR),
        build=build,
        kernels=kernels,
        bytes_moved=bytes_moved,
        dtype="bfloat16",
        **more,
    )


def _any_kernels(workload: MoeWorkload, batch: MoeBatch) -> Mapping[str, int]:
    return {r".*": ANY_COUNT}


def _bf16_kernels(workload: MoeWorkload, batch: MoeBatch) -> Mapping[str, int]:
    """The two grouped products must be CUTLASS's grouped kernel and not torch's loop; the rest is torch's business."""
    return {r"GroupProblemShape": 2 * workload.layers, r".*": ANY_COUNT}


def _marlin_kernels(workload: MoeWorkload, batch: MoeBatch) -> Mapping[str, int]:
    """The two products must be Marlin's; what surrounds them is vLLM's business."""
    return {r"(?i)marlin": 2 * workload.layers, r".*": ANY_COUNT}


def _bf16_bytes(workload: MoeWorkload, batch: MoeBatch) -> int:
    total = _input_bytes(workload, batch)
    for index, layer in enumerate(workload.weights):
        weights = layer.gate_up.rows * layer.gate_up.cols + layer.down.rows * layer.down.cols
        total += batch.active_experts(index) * 2 * weights
    return total


def _build_bf16(workload: MoeWorkload) -> Run:
    if workload.dense is None:
        workload.dense = [baselines.dense(layer) for layer in workload.weights]
    layers = workload.dense
    product = bf16.grouped_mm() if _is_cuda(workload) else None

    def run(batch: MoeBatch, out: torch.Tensor) -> None:
        for layer, inputs, layer_out in zip(layers, batch.per_layer, out.unbind(0), strict=True):
            result = bf16.run_plain(layer, *inputs) if product is None else bf16.run_grouped(layer, product, *inputs)
            layer_out.copy_(result)

    return run


def _build_dequant(workload: MoeWorkload) -> Run:
    baselines.unscaled(workload.weights[0].down, 0)  # copies its tables to the device once

    def run(batch: MoeBatch, out: torch.Tensor) -> None:
        for layer, inputs, layer_out in zip(workload.weights, batch.per_layer, out.unbind(0), strict=True):
            baselines.run_dequantised(layer, *inputs, layer_out)

    return run


def _build_vllm(workload: MoeWorkload) -> Run:
    marlin = libraries.Marlin()
    layers = [marlin.layer(layer) for layer in workload.weights]

    def run(batch: MoeBatch, out: torch.Tensor) -> None:
        for layer, inputs, layer_out in zip(layers, batch.per_layer, out.unbind(0), strict=True):
            layer.run(*inputs, layer_out)

    return run


def _build_flashinfer(workload: MoeWorkload) -> Run:
    raise RuntimeError(libraries.flashinfer_unavailable("cuda"))
