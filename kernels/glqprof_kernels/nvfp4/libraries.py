"""NVFP4 MoE of libraries that a user may have instead: what they offer on this GPU, found without importing them.

**vLLM** serves NVFP4 experts on GPUs without FP4 tensor cores by its Marlin kernels, as weights only: bf16 inputs,
like the variants here. ``prepare_nvfp4_moe_layer_for_marlin`` lays the weights out, ``fused_marlin_moe`` computes.
Neither is a stable interface: the parameters that this module passes are looked up first.

**FlashInfer** documents NVFP4 MoE kernels of one GPU for sm_100 and later. Its mixed-precision MoE for one sm_90 GPU
takes MXFP4 (32 inputs to an e8m0 scale), and its NVFP4 MoE for sm_90 (``flashinfer.megamoe``) runs on four or eight
GPUs and quantises the inputs to e4m3. So there is nothing to compare with on one H200, and the variant says so.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch

from .weights import LayerWeights

_MARLIN_MOE = (
    "vllm.model_executor.layers.fused_moe.experts.marlin_moe",
    "vllm.model_executor.layers.fused_moe.fused_marlin_moe",
)
"""Where ``fused_marlin_moe`` is: newer versions first."""
_MARLIN_FP4 = "vllm.model_executor.layers.quantization.utils.marlin_utils_fp4"
_ACTIVATION = "vllm.model_executor.layers.fused_moe.activation"


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def vllm_unavailable(device: str) -> str:
    """Why vLLM's Marlin MoE cannot run: not installed, or too far from what this module calls; "" if it can."""
    if device != "cuda":
        return "vLLM's Marlin kernels run on CUDA only"
    if not _installed("vllm"):
        return "vLLM is not installed"
    return _marlin_problem()


@cache
def _marlin_problem() -> str:
    try:
        # vLLM sets up a logger on stdout when it is imported; stdout is for the bench's result.
        with redirect_stdout(sys.stderr):
            Marlin()
    except Exception as error:  # vLLM's import runs much code of its own, which fails in many ways
        text = str(error).strip().splitlines()
        return f"vLLM {_version('vllm')}: {text[0] if text else type(error).__name__}"
    return ""


def flashinfer_unavailable(device: str) -> str:
    """Why FlashInfer is no baseline here; never ""."""
    if not _installed("flashinfer"):
        return "FlashInfer is not installed"
    version = _version("flashinfer-python", "flashinfer")
    return f"FlashInfer {version} has no NVFP4 MoE for bf16 inputs on one sm_90 GPU"


class Marlin:
    """vLLM's functions, their parameters checked (RuntimeError naming the first that is missing)."""

    def __init__(self) -> None:
        """Import what is needed."""
        self.prepare = getattr(import_module(_MARLIN_FP4), "prepare_nvfp4_moe_layer_for_marlin", None)
        _need(
            self.prepare,
            "prepare_nvfp4_moe_layer_for_marlin",
            ("w13", "w13_scale", "w13_scale_2", "w2", "w2_scale", "w2_scale_2", "is_act_and_mul"),
        )
        self.compute = next((f for f in map(_marlin_moe, _MARLIN_MOE) if f is not None), None)
        wanted = ("bias1", "bias2", "w1_scale", "w2_scale", "topk_weights", "topk_ids", "quant_type_id")
        wanted += ("activation", "global_scale1", "global_scale2", "workspace", "output")
        _need(self.compute, "fused_marlin_moe", wanted)
        self.activation = import_module(_ACTIVATION)
        self.quant_type = import_module("vllm.scalar_type").scalar_types.float4_e2m1f.id

    def layer(self, weights: LayerWeights) -> MarlinLayer:
        """The layer in Marlin's layout; NotImplementedError for a clamp that this version cannot do."""
        return MarlinLayer(self, weights)

    def clamp(self, limit: float) -> dict[str, Any]:
        """Arguments that clamp SwiGLU."""
        if limit == 0:
            return {}
        config = getattr(self.activation, "ApplyMoEActivationConfig", None)
        if config is None or "activation_config" not in inspect.signature(self.compute).parameters:
            raise NotImplementedError(f"vLLM {_version('vllm')} cannot clamp SwiGLU in fused_marlin_moe")
        return {"activation_config": config(clamp_limit=limit)}


def _marlin_moe(module: str) -> Any:
    try:
        return getattr(import_module(module), "fused_marlin_moe", None)
    except ModuleNotFoundError:
        return None


def _need(function: Any, name: str, parameters: tuple[str, ...]) -> None:
    if function is None:
        raise RuntimeError(f"has no {name}")
    there = inspect.signature(function).parameters
    missing = [parameter for parameter in parameters if parameter not in there]
    if missing:
        raise RuntimeError(f"{name} has no parameter {missing[0]}")


class MarlinLayer:
    """One layer's weights in Marlin's layout."""

    def __init__(self, marlin: Marlin, layer: LayerWeights) -> None:
        """Re-lay the weights out."""
        self._marlin = marlin
        gated = layer.activation == "swiglu"
        # What vLLM's function reads of its own layer object.
        self._sizes = SimpleNamespace(
            num_experts=layer.experts,
            hidden_size=layer.hidden,
            intermediate_size_per_partition=layer.inter,
            params_dtype=torch.bfloat16,
        )
        self._w13, self._w13_scale, self._w13_scale_2, self._w2, self._w2_scale, self._w2_scale_2 = marlin.prepare(
            self._sizes,
            w13=layer.gate_up.codes,
            w13_scale=layer.gate_up.scales.view(torch.float8_e4m3fn),
            w13_scale_2=layer.gate_up.scale,
            w2=layer.down.codes,
            w2_scale=layer.down.scales.view(torch.float8_e4m3fn),
            w2_scale_2=layer.down.scale,
            is_act_and_mul=gated,
        )
        kinds = marlin.activation.MoEActivation
        self._more = {"activation": kinds.SILU if gated else kinds.RELU2_NO_MUL, **marlin.clamp(layer.limit)}

    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
        """``out`` [tokens, hidden] bf16 of x bf16, ids and weights [tokens, top_k]."""
        self._marlin.compute(
            x.contiguous(),
            self._w13,
            self._w2,
            bias1=None,
            bias2=None,
            w1_scale=self._w13_scale,
            w2_scale=self._w2_scale,
            topk_weights=weights.contiguous(),
            topk_ids=ids.to(torch.int32).contiguous(),
            quant_type_id=self._marlin.quant_type,
            global_scale1=self._w13_scale_2,
            global_scale2=self._w2_scale_2,
            workspace=getattr(self._sizes, "workspace", None),
            output=out,
            **self._more,
        )
