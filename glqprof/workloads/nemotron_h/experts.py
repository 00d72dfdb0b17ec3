"""The routed experts of a model's MoE layers, computed by a variant's kernels or, on the CPU, its exact implementation.

`compute` turns the layers' weights into one `ExpertLayer` a layer, called as ``(x, ids, weights) → out``: x [tokens,
hidden] of the model's dtype, ids [tokens, top_k] int64, weights [tokens, top_k] float32, out [tokens, hidden] of x's
dtype. GLQ rounds x to fp16 first, NVFP4 and bf16 to bf16, as their contracts say; out is rounded to x's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.sizes import Sizes
from glqprof.workloads.nemotron_h.variants import GLQ, NVFP4, ExpertVariant

SEED_STEP = 1_000_003
"""Layer i of seed s draws from ``s * SEED_STEP + i``, as in the benches: the weights are theirs."""
FUSED_TOKENS = 8
"""Tokens of one call of the fused GLQ kernels; a prompt is several calls in one workspace."""
NVFP4_TOKENS = 512
"""Tokens of one call of the NVFP4 kernels."""


@dataclass(frozen=True)
class ExpertLayer:
    """The routed experts of one layer.

    ``dtype``: of what the kernels read and write; None where they take the model's. ``into(x, ids, weights, out)``: the
    kernels alone, x and out [tokens, hidden] of ``dtype``; it returns the tensor that holds the result, which is
    ``out`` or, where the kernels allocate their own, another one.
    """

    dtype: Any
    into: Callable[[Any, Any, Any, Any], Any]

    def __call__(self, x: Any, ids: Any, weights: Any) -> Any:
        """[tokens, hidden] of x's dtype."""
        if self.dtype is None:
            return self.into(x, ids, weights, None)
        narrow = x.to(self.dtype)
        return self.into(narrow, ids, weights, torch.empty_like(narrow)).to(x.dtype)


@dataclass
class Counters:
    """What the layers count, [1] int64 tensors: activations that became infinite, ids that name no expert."""

    infinite: list[Any] = field(default_factory=list)
    bad_ids: list[Any] = field(default_factory=list)

    @staticmethod
    def _total(tensors: list[Any]) -> int:
        return sum(int(t) for t in {id(t): t for t in tensors}.values())

    def read(self) -> tuple[int, int]:
        """(infinite activations, ids that name no expert) so far, over all layers; waits for the GPU."""
        return self._total(self.infinite), self._total(self.bad_ids)


def prepare(variant: ExpertVariant, device: str) -> None:
    """Build or load the variant's CUDA extension, a minute at the first use; InputError where it cannot be built."""
    if device != "cuda" or variant.kind not in (GLQ, NVFP4):
        return
    from importlib import import_module

    try:
        import_module(f"glqprof_kernels.{variant.kind}.extension").load()
    except RuntimeError as error:
        raise InputError(f"--variant {variant.name}", " ".join(str(error).split())) from None


def random_layers(sizes: Sizes, kind: str, seed: int, device: Any) -> Iterator[Any]:
    """Seeded random weights of each MoE layer in turn, made on the device: GLQ's or NVFP4's ``LayerWeights``.

    GLQ's have two or three stages, so that 12 of 23 layers have three. bf16 is dequantised from GLQ's.
    """
    if kind == NVFP4:
        from glqprof_kernels.nvfp4 import factory as nvfp4

        for index in range(sizes.moe_layers):
            yield nvfp4.layer(
                sizes.hidden,
                sizes.expert_inter,
                sizes.experts,
                sizes.activation,
                0.0,
                seed=seed * SEED_STEP + index,
                device=device,
            )
        return
    from glqprof_kernels.geometry import Geometry
    from glqprof_kernels.glq import factory as glq

    shape = Geometry(
        name=sizes.name,
        hidden=sizes.hidden,
        expert_inter=sizes.expert_inter,
        experts=sizes.experts,
        top_k=sizes.top_k,
        moe_layers=sizes.moe_layers,
        activation=sizes.activation,
        activation_limit=0.0,
    )
    tables = glq.device_codebook(device)
    overflow = torch.zeros(1, dtype=torch.int64, device=device)
    for index in range(sizes.moe_layers):
        layer = glq.layer(
            shape, seed * SEED_STEP + index, device, stages=glq.stages_of_layer(index, "mixed"), tables=tables
        )
        layer.overflow = overflow
        yield layer


def compute(variant: ExpertVariant, layers: Iterable[Any], top_k: int, counters: Counters) -> list[ExpertLayer]:
    """One callable a layer. ``layers`` are taken one at a time, so that only what the variant keeps stays in memory."""
    if variant.kind == GLQ:
        make = _glq_fused if variant.name.startswith("fused") else _glq_host_loop
    elif variant.kind == NVFP4:
        make = _nvfp4
    else:
        make = _bf16
    return make(variant, layers, top_k, counters)


def _is_cuda(layer: Any) -> bool:
    return bool(torch.device(layer.device).type == "cuda")


def _glq_host_loop(variant: ExpertVariant, layers: Iterable[Any], top_k: int, counters: Counters) -> list[ExpertLayer]:
    from glqprof_kernels.glq import ops
    from glqprof_kernels.glq.exact.host import Log, host_layer

    def on_gpu(handle: Any) -> ExpertLayer:
        code = ops.VARIANT_CODES[variant.kernel]

        def run(x: Any, ids: Any, weights: Any, out: Any) -> Any:
            handle.run(code, x, ids, weights, False, out)
            return out

        return ExpertLayer(torch.float16, run)

    def on_cpu(layer: Any, overflow: Any) -> ExpertLayer:
        def run(x: Any, ids: Any, weights: Any, out: Any) -> Any:
            result, infinite = ops.exact_moe(layer, x, ids, weights, variant.kernel, False, Log())
            overflow.add_(infinite)
            return out.copy_(result)

        return ExpertLayer(torch.float16, run)

    made = []
    for layer in layers:
        counters.infinite.append(layer.overflow)
        made.append(on_gpu(ops.cuda_layer(layer)) if _is_cuda(layer) else on_cpu(host_layer(layer), layer.overflow))
    return made


def _glq_fused(variant: ExpertVariant, layers: Iterable[Any], top_k: int, counters: Counters) -> list[ExpertLayer]:
    from glqprof_kernels.glq import fused, ops
    from glqprof_kernels.glq.exact.host import Log

    tables = fused.Tables()
    packed = [fused.pack_layer(layer, tables) for layer in layers]
    if not packed:
        return []
    counters.infinite += [layer.overflow for layer in packed]
    counters.bad_ids += [layer.errors for layer in packed]

    def on_cpu(layer: Any) -> ExpertLayer:
        def run(x: Any, ids: Any, weights: Any, out: Any) -> Any:
            result, infinite = ops.exact_fused(layer, x, ids, weights, variant.kernel, Log())
            layer.overflow.add_(infinite)
            return out.copy_(result)

        return ExpertLayer(torch.float16, run)

    if packed[0].up.su.device.type != "cuda":
        return [on_cpu(layer) for layer in packed]
    runner = fused.FusedRun(packed, FUSED_TOKENS, top_k, fast=variant.kernel == "fused-fast")
    return [_in_parts(runner, index, FUSED_TOKENS, torch.float16) for index in range(len(packed))]


def _nvfp4(variant: ExpertVariant, layers: Iterable[Any], top_k: int, counters: Counters) -> list[ExpertLayer]:
    from glqprof_kernels.nvfp4 import ops, tiles
    from glqprof_kernels.nvfp4.exact import moe as exact
    from glqprof_kernels.nvfp4.exact.product import host_layer

    def on_cpu(layer: Any) -> ExpertLayer:
        def run(x: Any, ids: Any, weights: Any, out: Any) -> Any:
            bits = x.contiguous().view(torch.uint16).numpy()
            result = exact.moe(layer, bits, ids.numpy(), weights.numpy())
            return out.copy_(torch.from_numpy(result).view(torch.bfloat16))

        return ExpertLayer(torch.bfloat16, run)

    cpu: list[ExpertLayer] = []
    packed = []
    for layer in layers:
        if _is_cuda(layer):
            packed.append(tiles.pack_layer(layer))
        else:
            cpu.append(on_cpu(host_layer(layer)))
    if not packed:
        return cpu
    counters.bad_ids += [layer.errors for layer in packed]
    runner = ops.MoeRun(packed, NVFP4_TOKENS, top_k, variant.kernel)
    return [_in_parts(runner, index, NVFP4_TOKENS, torch.bfloat16) for index in range(len(packed))]


def _in_parts(runner: Any, index: int, tokens: int, dtype: Any) -> ExpertLayer:
    """A layer of a runner whose workspace holds ``tokens`` tokens: more run after each other."""

    def run(x: Any, ids: Any, weights: Any, out: Any) -> Any:
        for first in range(0, len(x), tokens):
            part = slice(first, first + tokens)
            runner.layer(index, x[part], ids[part], weights[part], out[part])
        return out

    return ExpertLayer(dtype, run)


def _bf16(variant: ExpertVariant, layers: Iterable[Any], top_k: int, counters: Counters) -> list[ExpertLayer]:
    from glqprof_kernels import bf16

    def one(layer: Any) -> ExpertLayer:
        if variant.name == "bf16-loop":
            return ExpertLayer(None, lambda x, ids, weights, out: bf16.run_loop(layer, x, ids, weights))
        if layer.up.device.type != "cuda":
            return ExpertLayer(None, lambda x, ids, weights, out: bf16.run_plain(layer, x, ids, weights))
        product = bf16.grouped_mm()
        return ExpertLayer(None, lambda x, ids, weights, out: bf16.run_grouped(layer, product, x, ids, weights))

    return [one(layer) for layer in dense_layers(layers)]


def dense_layers(layers: Iterable[Any]) -> Iterator[Any]:
    """Each layer in bf16: dequantised where it is GLQ's or NVFP4's, as it is where it is a ``Bf16Layer``."""
    from glqprof_kernels.bf16 import Bf16Layer

    for layer in layers:
        if isinstance(layer, Bf16Layer):
            yield layer
        elif hasattr(layer, "gate_up"):
            from glqprof_kernels.nvfp4 import baselines

            yield baselines.dense(layer)
        else:
            from glqprof_kernels.glq import bf16 as glq_bf16

            yield glq_bf16.dequantise(layer)


class Experts(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """In the place of a MoE module's ``experts``: called with hidden states, expert ids and routing weights.

    For inference: no gradient passes.
    """

    def __init__(self, run: ExpertLayer, variant: str) -> None:
        super().__init__()
        self.run, self.variant = run, variant

    def forward(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        """[tokens, hidden] of the dtype of ``hidden_states``."""
        with torch.no_grad():
            return self.run(hidden_states, top_k_index, top_k_weights)

    def extra_repr(self) -> str:
        """The variant's name, in the model's repr."""
        return self.variant
