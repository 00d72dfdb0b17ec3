"""The group ``ssm-step`` and its variants, for the bench's registry.

One call computes one token of every layer of the workload, each on inputs and states of its own. ``unfused`` and
``fused`` promise the same bytes, and run the exact implementation on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from glqprof.bench.registry import Group, LaunchLog, Registry, Run, SameBits, Tolerance, Variant

from . import exact, ops, reference
from .workload import TINY_NAME, SsmBatch, SsmWorkload, adversarial, geometries, make_batch, make_workload

GROUP = "ssm-step"
BASELINE = "torch"
EXACT_REL_ERR = 1e-2
"""A correct variant's distance from float64: bf16 in and out gives 2e-3 to 4e-3."""
FALLBACK_REL_ERR = 2e-2
"""The fallback rounds dt, dt·B·x and the state that C reads to bf16 as well: up to 6e-3 on one row of the tiny size."""
CUDA_LAYERS = 23
"""A token of cascade2-30b; fewer layers would be fewer dependent launches."""


def register(registry: Registry) -> None:
    """Add the group and its variants."""
    registry.add_group(
        Group(
            name=GROUP,
            summary="Mamba-2 decode step: convolution, state update, gated norm; bf16 activations, fp32 state",
            geometries=tuple(geometries()),
            baseline=BASELINE,
            workload=make_workload,
            batch=make_batch,
            adversarial=adversarial,
            reference=_reference,
            out=_out,
            cpu_geometry=TINY_NAME,
            cpu_layers=2,
            cuda_layers=CUDA_LAYERS,
            rel_err=FALLBACK_REL_ERR,
        )
    )
    registry.add_variant(
        Variant(
            name="torch",
            group=GROUP,
            summary="plain torch, rounding where transformers' fallback does",
            contract=Tolerance(FALLBACK_REL_ERR),
            build=_build_torch,
            kernels=lambda workload, batch: {r".*": -1},  # torch's business
            bytes_moved=_bytes_moved,
            dtype="bfloat16",
        )
    )
    registry.add_variant(
        _kernel("unfused", "three launches a layer: convolution, state, norm", Tolerance(EXACT_REL_ERR))
    )
    registry.add_variant(_kernel("fused", "one launch a layer", SameBits("unfused")))


def _reference(workload: SsmWorkload, batch: SsmBatch) -> torch.Tensor:
    """[layers, rows, inter] float64."""
    layers = zip(workload.weights, batch.projected.unbind(0), batch.states, strict=True)
    return torch.stack([reference.step(w, projected, *states[:2]).out for w, projected, states in layers])


def _out(workload: SsmWorkload, batch: SsmBatch) -> torch.Tensor:
    """[layers, rows, inter] bf16, uninitialised."""
    return torch.empty(workload.layers, batch.rows, workload.hidden, dtype=torch.bfloat16, device=workload.device)


def _bytes_moved(workload: SsmWorkload, batch: SsmBatch) -> int:
    """States read and written, weights, inputs and outputs, once each."""
    w = workload.weights[0]
    state_bytes = torch.finfo(workload.state_dtype).bits // 8
    row = 2 * (w.projected + w.inter) + 2 * 2 * w.conv_dim * w.kernel + 2 * state_bytes * w.inter * w.state
    parameters = (w.conv_weight, w.conv_bias, w.norm_weight, w.dt_bias, w.d, w.a)
    weights = sum(t.numel() * t.element_size() for t in parameters if t is not None)
    return workload.layers * (batch.rows * row + weights)


def _run(workload: SsmWorkload, **options: Any) -> Run:
    def run(batch: SsmBatch, out: torch.Tensor) -> None:
        layers = zip(workload.weights, batch.projected.unbind(0), batch.states, out.unbind(0), strict=True)
        for w, projected, (conv_state, state, new_conv_state, new_state), layer_out in layers:
            ops.step(
                w,
                projected,
                conv_state,
                state,
                layer_out,
                conv_state_out=new_conv_state,
                state_out=new_state,
                **options,
            )

    return run


def _build_torch(workload: SsmWorkload) -> Run:
    return _run(workload, variant="torch")


def _kernel(name: str, summary: str, contract: SameBits | Tolerance) -> Variant:
    log = LaunchLog()

    def build(workload: SsmWorkload) -> Run:
        if torch.device(workload.device).type == "cuda":
            return _build_cuda(workload, name)
        return _build_exact(workload, name, log)

    def kernels(workload: SsmWorkload, batch: SsmBatch) -> Mapping[str, int]:
        return dict.fromkeys(exact.KERNELS[name], workload.layers)

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


def _build_cuda(workload: SsmWorkload, name: str) -> Run:
    ops.make_config()  # builds the extension now, not in the first timed call
    workspaces: dict[int, torch.Tensor] = {}
    for w in workload.weights:
        ops.check_supported(w)
        _ = w.cuda_layer

    def run(batch: SsmBatch, out: torch.Tensor) -> None:
        if batch.rows not in workspaces:
            workspaces[batch.rows] = ops.make_workspace(workload.weights[0], batch.rows)
        # Nothing writes the states that a call reads, so that they may always be read early.
        _run(workload, variant=name, workspace=workspaces[batch.rows], early_state=True)(batch, out)

    return run


def _build_exact(workload: SsmWorkload, name: str, log: LaunchLog) -> Run:
    def run(batch: SsmBatch, out: torch.Tensor) -> None:
        layers = zip(workload.weights, batch.projected.unbind(0), batch.states, out.unbind(0), strict=True)
        for w, projected, states, layer_out in layers:
            exact.step(w, projected, *states, layer_out, variant=name, log=log)

    return run
