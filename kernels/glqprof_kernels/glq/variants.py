"""The group ``glq-moe`` and its variants, for the bench's registry.

One call is one decode step: every MoE layer of the workload, each on inputs of its own. Launches and host waits are
predicted from the batch: a slot of weight 0 launches nothing.

``syncs`` counts the scalars read by ``.item()``, ``blocking_copies`` the tensors copied to pageable host memory; on
CUDA each of either is one copy and one ``cudaStreamSynchronize``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from glqprof.bench.registry import Group, LaunchLog, Registry, Run, SameBits, Tolerance, Variant

from .. import geometry as geometries
from . import bf16, fused, ops, reference
from .exact.host import host_layer
from .workload import MoeBatch, MoeWorkload, adversarial, make_batch, make_workload

GROUP = "glq-moe"
BASELINE = "v0.2.12"
EXACT_REL_ERR = 2e-3
"""A correct GLQ variant's distance from float64: about eight roundings to fp16 in a row give 6e-4 to 8e-4."""
ANY_COUNT = -1
"""A launch count that the registry's contract reads as "any number": a library's own kernels."""
FAST_REL_ERR = 5e-4
"""fused-fast rounds to fp16 only its inputs and its output: about 2e-4, below the exact variants' 6e-4."""
MAX_TOKENS = 8
"""Tokens that a fused variant's workspace holds at a time; more tokens run after each other in the same workspace."""
BF16_REL_ERR = 2e-2
"""bf16 keeps 8 bits: weights, inputs, activations and outputs rounded to it give about 5e-3."""


def register(registry: Registry) -> None:
    """Add the group and its variants."""
    registry.add_group(
        Group(
            name=GROUP,
            summary="GLQ fused MoE: E8-lattice experts behind a randomized Hadamard transform, one decode step",
            geometries=geometries.names(),
            baseline=BASELINE,
            workload=make_workload,
            batch=make_batch,
            adversarial=adversarial,
            reference=_reference,
            out=_out,
            cpu_geometry="tiny-odd",
            cpu_layers=2,
            cuda_layers=geometries.load("cascade2-30b").moe_layers,
            rel_err=EXACT_REL_ERR,
        )
    )
    registry.add_variant(
        _host_loop(
            "v0.2.12",
            "host loop; every scalar read by .item(); y zeroed before each product; 12 launches an expert",
            Tolerance(EXACT_REL_ERR),
            fused_activation=False,
            reads_items=True,
        )
    )
    registry.add_variant(
        _host_loop(
            "v3a",
            "v0.2.12 with scalars, ids and weights copied to the host once a call",
            SameBits(BASELINE),
            fused_activation=False,
            reads_items=False,
        )
    )
    registry.add_variant(
        _host_loop(
            "v3b",
            "v3a without the fills, the activation inside the output transform; 9 launches an expert",
            SameBits(BASELINE),
            fused_activation=True,
            reads_items=False,
        )
    )
    registry.add_variant(
        _host_loop(
            "v3b-fp32act",
            "v3b with relu² before the rounding to fp16, as upstream released it claiming the same bits: not so",
            SameBits(BASELINE),
            fused_activation=True,
            reads_items=False,
        )
    )
    registry.add_variant(
        _fused(
            "fused",
            "device-dispatched, all slots at once from 4-bit codewords in shared memory; 1 launch a layer",
            SameBits(BASELINE),
            r"glq_fused_kernel<.*ExactTraits",
        )
    )
    registry.add_variant(
        _fused(
            "fused-fast",
            "fused in free order: integer sums of every stage on the tensor cores, float32 between the steps",
            Tolerance(FAST_REL_ERR),
            r"glq_fused_kernel<.*FastTraits",
        )
    )
    registry.add_variant(
        _bf16("bf16", "the same experts in bf16 through torch's grouped_mm", _build_grouped, _grouped_kernels)
    )
    registry.add_variant(
        _bf16(
            "bf16-loop",
            "the same experts in bf16, a loop over (token, expert) that copies each expert's weights out by device ids",
            _build_loop,
            _loop_kernels,
        )
    )


def _reference(workload: MoeWorkload, batch: MoeBatch) -> torch.Tensor:
    """[layers, rows, hidden] float64."""
    layers = zip(workload.weights, batch.per_layer, strict=True)
    return torch.stack([reference.moe(layer, *inputs) for layer, inputs in layers])


def _out(workload: MoeWorkload, batch: MoeBatch) -> torch.Tensor:
    """[layers, rows, hidden] fp16, uninitialised."""
    return torch.empty(workload.layers, batch.rows, workload.shape.hidden, dtype=torch.float16, device=workload.device)


def _bytes_moved(workload: MoeWorkload, batch: MoeBatch) -> int:
    """Indices, signs and scales of the experts used, once each; inputs and outputs; the codebook's 1 MiB once."""
    total = 65_536 * 8 * 2
    for index, layer in enumerate(workload.weights):
        experts = batch.active_experts(index)
        total += experts * (layer.up.bytes_per_expert() + layer.down.bytes_per_expert())
        total += 2 * (layer.up.cols + layer.down.cols)  # SV
        total += batch.rows * (2 * 2 * layer.hidden + batch.ids.shape[-1] * 12)
    return total


def _host_loop(
    name: str, summary: str, contract: SameBits | Tolerance, *, fused_activation: bool, reads_items: bool
) -> Variant:
    log = LaunchLog()

    def build(workload: MoeWorkload) -> Run:
        if torch.device(workload.device).type == "cuda":
            return _build_cuda(workload, name)
        return _build_exact(workload, name, log)

    def kernels(workload: MoeWorkload, batch: MoeBatch) -> Mapping[str, int]:
        slots = sum(batch.active_slots(layer) for layer in range(workload.layers))
        calls = workload.layers
        counts = {
            r"glq_matvec_splitk_kernel": 2 * slots,
            r"glq_reduce_splits_kernel": 2 * slots,
            r"glq_input_rht_kernel": slots + calls,
            r"glq_cast_kernel": slots + calls,
            r"glq_weighted_add_kernel": slots,
        }
        if fused_activation:
            counts |= {
                r"glq_output_rht_act_kernel": slots,
                r"glq_output_rht_kernel": slots,
                r"glq_fill_zero_kernel": calls,
            }
        else:
            counts |= {
                r"glq_output_rht_kernel": 2 * slots,
                rf"glq_{workload.shape.activation}_kernel": slots,
                r"glq_fill_zero_kernel": 2 * slots + calls,
            }
        # torch makes a strided tensor contiguous on the GPU before it copies it to the host.
        strided = sum(not t.is_contiguous() for _, *routing in batch.per_layer for t in routing)
        if strided and torch.device(workload.device).type == "cuda":
            counts[r"direct_copy_kernel"] = strided
        return counts

    def syncs(workload: MoeWorkload, batch: MoeBatch) -> int:
        if not reads_items:
            return 0
        layers = enumerate(workload.weights)
        return sum(batch.active_slots(index) * (layer.up.stages + layer.down.stages) for index, layer in layers)

    def blocking_copies(workload: MoeWorkload, batch: MoeBatch) -> int:
        if reads_items:
            return 2 * workload.layers
        return sum(2 + layer.up.stages + layer.down.stages for layer in workload.weights)

    return Variant(
        name=name,
        group=GROUP,
        summary=summary,
        contract=contract,
        build=build,
        kernels=kernels,
        bytes_moved=_bytes_moved,
        syncs=syncs,
        blocking_copies=blocking_copies,
        capturable=False,
        capture_note="it reads expert ids back to the host",
        launch_log=log,
        needs=("nvcc",),
    )


def _build_cuda(workload: MoeWorkload, name: str) -> Run:
    handles = [ops.cuda_layer(layer) for layer in workload.weights]
    code = ops.VARIANT_CODES[name]

    def run(batch: MoeBatch, out: torch.Tensor) -> None:
        for handle, (x, ids, weights), layer_out in zip(handles, batch.per_layer, out.unbind(0), strict=True):
            handle.run(code, x, ids, weights, False, layer_out)

    return run


def _build_exact(workload: MoeWorkload, name: str, log: LaunchLog) -> Run:
    layers = [host_layer(layer) for layer in workload.weights]

    def run(batch: MoeBatch, out: torch.Tensor) -> None:
        for layer, (x, ids, weights), layer_out in zip(layers, batch.per_layer, out.unbind(0), strict=True):
            result, infinite = ops.exact_moe(layer, x, ids, weights, name, False, log)
            layer_out.copy_(result)
            workload.overflow += infinite

    return run


def packed_layers(workload: MoeWorkload) -> list[fused.FusedLayer]:
    """The workload's layers in the fused layout, made once; the original planes stay, for the other variants."""
    if workload.packed is None:
        tables = fused.Tables()
        workload.packed = [fused.pack_layer(layer, tables) for layer in workload.weights]
    return workload.packed


def _fused(name: str, summary: str, contract: SameBits | Tolerance, kernel: str) -> Variant:
    log = LaunchLog()
    on_cpu = r"glq_fused_kernel"

    def is_cuda(workload: MoeWorkload) -> bool:
        return torch.device(workload.device).type == "cuda"

    def build(workload: MoeWorkload) -> Run:
        layers = packed_layers(workload)
        if not is_cuda(workload):
            return _build_packed(workload, layers, name, log)
        runner = fused.FusedRun(layers, MAX_TOKENS, workload.shape.top_k, fast=name == "fused-fast")

        def run(batch: MoeBatch, out: torch.Tensor) -> None:
            for index, (inputs, layer_out) in enumerate(zip(batch.per_layer, out.unbind(0), strict=True)):
                for first in range(0, batch.rows, MAX_TOKENS):
                    part = slice(first, first + MAX_TOKENS)
                    runner.layer(index, *(tensor[part] for tensor in inputs), layer_out[part])

        return run

    def kernels(workload: MoeWorkload, batch: MoeBatch) -> Mapping[str, int]:
        calls = -(-batch.rows // MAX_TOKENS) if is_cuda(workload) else 1
        return {kernel if is_cuda(workload) else on_cpu: workload.layers * calls}

    return Variant(
        name=name,
        group=GROUP,
        summary=summary,
        contract=contract,
        build=build,
        kernels=kernels,
        bytes_moved=_bytes_moved,
        launch_log=log,
        needs=("nvcc",),
    )


def _build_packed(workload: MoeWorkload, layers: list[fused.FusedLayer], name: str, log: LaunchLog) -> Run:
    def run(batch: MoeBatch, out: torch.Tensor) -> None:
        for layer, (x, ids, weights), layer_out in zip(layers, batch.per_layer, out.unbind(0), strict=True):
            result, infinite = ops.exact_fused(layer, x, ids, weights, name, log)
            layer_out.copy_(result)
            workload.overflow += infinite

    return run


def _bf16(
    name: str,
    summary: str,
    build: Callable[[MoeWorkload], Run],
    kernels: Callable[[MoeWorkload, MoeBatch], Mapping[str, int]],
) -> Variant:
    def bytes_moved(workload: MoeWorkload, batch: MoeBatch) -> int:
        total = 0
        for index, layer in enumerate(workload.weights):
            weights = 2 * (layer.up.rows * layer.up.cols + layer.down.rows * layer.down.cols)
            total += batch.active_experts(index) * weights
            total += batch.rows * (2 * 2 * layer.hidden + batch.ids.shape[-1] * 12)
        return total

    return Variant(
        name=name,
        group=GROUP,
        summary=summary,
        contract=Tolerance(BF16_REL_ERR),
        build=build,
        kernels=kernels,
        bytes_moved=bytes_moved,
        dtype="bfloat16",
    )


def _grouped_kernels(workload: MoeWorkload, batch: MoeBatch) -> Mapping[str, int]:
    """The two grouped products must be CUTLASS's grouped kernel and not torch's loop; the rest is torch's business."""
    return {r"GroupProblemShape": 2 * workload.layers, r".*": ANY_COUNT}


def _loop_kernels(workload: MoeWorkload, batch: MoeBatch) -> Mapping[str, int]:
    """Each expert's two matrices are copied out by one gather each; the rest is torch's business."""
    return {r"(?i)indexselect|gather": 2 * batch.ids.numel(), r".*": ANY_COUNT}


def _dense(workload: MoeWorkload) -> list[bf16.Bf16Layer]:
    if workload.dense is None:
        workload.dense = [bf16.dequantise(layer) for layer in workload.weights]
    return workload.dense


def _build_grouped(workload: MoeWorkload) -> Run:
    layers = _dense(workload)
    if torch.device(workload.device).type != "cuda":
        return _run_each(layers, bf16.run_plain)
    product = bf16.grouped_mm()

    def grouped(layer: bf16.Bf16Layer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return bf16.run_grouped(layer, product, x, ids, weights)

    return _run_each(layers, grouped)


def _build_loop(workload: MoeWorkload) -> Run:
    return _run_each(_dense(workload), bf16.run_loop)


def _run_each(layers: list[bf16.Bf16Layer], compute: Callable[..., torch.Tensor]) -> Run:
    def run(batch: MoeBatch, out: torch.Tensor) -> None:
        for layer, inputs, layer_out in zip(layers, batch.per_layer, out.unbind(0), strict=True):
            layer_out.copy_(compute(layer, *inputs))

    return run
