"""The way to vLLM, against a stand-in that has its documented functions; the kernels themselves need its build."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from glqprof.bench.plan import make_plan
from glqprof.bench.registry import Registry
from glqprof.errors import InputError
from glqprof_kernels.nvfp4 import libraries, reference, variants
from glqprof_kernels.nvfp4.weights import ExpertMatrix, LayerWeights
from glqprof_kernels.nvfp4.workload import make_batch, make_workload

PREPARE = """
import torch
def prepare_nvfp4_moe_layer_for_marlin(layer, w13, w13_scale, w13_scale_2, w2, w2_scale, w2_scale_2, is_act_and_mul):
    assert w13.shape == (layer.num_experts, 2 * layer.intermediate_size_per_partition, layer.hidden_size // 2)
    assert w13_scale.dtype == torch.float8_e4m3fn and layer.params_dtype == torch.bfloat16 and is_act_and_mul
    layer.workspace = "workspace"
    return w13, w13_scale, w13_scale_2, w2, w2_scale, w2_scale_2
"""
COMPUTE = """
def fused_marlin_moe(hidden_states, w1, w2, bias1, bias2, w1_scale, w2_scale, topk_weights, topk_ids, quant_type_id,
                     activation=None, global_scale1=None, global_scale2=None, workspace=None, output=None,
                     activation_config=None):
    import stand_in
    assert workspace == "workspace" and quant_type_id == 77 and bias1 is None
    stand_in.compute(hidden_states, (w1, w1_scale, global_scale1), (w2, w2_scale, global_scale2), topk_weights,
                     topk_ids, output, activation, activation_config)
"""
ACTIVATION = """
import enum
from dataclasses import dataclass
class MoEActivation(enum.Enum):
    SILU = "silu"
    RELU2_NO_MUL = "relu2_no_mul"
@dataclass
class ApplyMoEActivationConfig:
    clamp_limit: float | None = None
"""
SCALAR = """
print("vLLM talks on stdout when it is imported")
from types import SimpleNamespace
scalar_types = SimpleNamespace(float4_e2m1f=SimpleNamespace(id=77))
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Write a package ``vllm`` of the given parts and make it importable."""

    def write(parts: dict[str, str]) -> None:
        for module, text in parts.items():
            path = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            for folder in path.relative_to(tmp_path).parents:
                if folder.name:
                    (tmp_path / folder / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()

    before = set(sys.modules)
    libraries._marlin_problem.cache_clear()
    yield write
    libraries._marlin_problem.cache_clear()
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("vllm", "stand_in"):
            del sys.modules[name]


def parts(**changes: str) -> dict[str, str]:
    layers = "vllm.model_executor.layers"
    found = {
        f"{layers}.quantization.utils.marlin_utils_fp4": PREPARE,
        f"{layers}.fused_moe.experts.marlin_moe": COMPUTE,
        f"{layers}.fused_moe.activation": ACTIVATION,
        "vllm.scalar_type": SCALAR,
        "stand_in": "",
    }
    for name, text in changes.items():
        found = {module: text if module.endswith(name) else old for module, old in found.items()}
    return found


def compute(x, first, second, weights, ids, output, activation, config) -> None:
    """What the stand-in computes: the operation itself, from what was handed over."""
    assert ids.dtype == torch.int32
    assert activation.value == "silu"
    matrices = [ExpertMatrix(codes, scales.view(torch.uint8), scale) for codes, scales, scale in (first, second)]
    limit = config.clamp_limit if config else 0.0
    output.copy_(reference.moe(LayerWeights(*matrices, "swiglu", limit), x, ids.long(), weights))


@pytest.mark.parametrize("limit", [1.0, 0.0])
def test_what_is_handed_over_computes_the_operation(stand_in, capsys, limit) -> None:
    stand_in(parts())
    assert libraries.vllm_unavailable("cuda") == ""
    assert capsys.readouterr().out == ""  # stdout is for the bench's result
    importlib.import_module("stand_in").compute = compute
    registry = Registry()
    variants.register(registry)
    workload = make_workload("tiny-k32", 2, 0, "cpu", {"limit": limit})
    batch = make_batch(workload, 3, 1)
    out = torch.empty(2, 3, 96, dtype=torch.bfloat16)
    registry.variants["nvfp4-moe", "vllm"].build(workload)(batch, out)
    want = registry.groups["nvfp4-moe"].reference(workload, batch)
    assert torch.equal(out, want.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"marlin_utils_fp4": ""}, "has no prepare_nvfp4_moe_layer_for_marlin"),
        ({"marlin_moe": ""}, "has no fused_marlin_moe"),
        ({"marlin_moe": COMPUTE.replace("output=", "result=")}, "fused_marlin_moe has no parameter output"),
        ({"scalar_type": "raise ImportError('libcuda.so.1: cannot open')"}, "libcuda.so.1: cannot open"),
    ],
)
def test_a_vllm_that_does_not_fit_says_what_is_missing(stand_in, changes, why) -> None:
    stand_in(parts(**changes))
    said = libraries.vllm_unavailable("cuda")
    assert said.startswith("vLLM of unknown version: ")
    assert why in said


def test_a_clamp_that_this_vllm_cannot_do_is_refused(stand_in) -> None:
    stand_in(parts(marlin_moe=COMPUTE.replace("activation_config", "other")))
    workload = make_workload("tiny-k32", 1, 0, "cpu")
    with pytest.raises(NotImplementedError, match="cannot clamp SwiGLU"):
        libraries.Marlin().layer(workload.weights[0])


def test_what_is_not_installed_is_left_out_and_refused_by_name() -> None:
    assert libraries.vllm_unavailable("cuda") == "vLLM is not installed"
    assert libraries.flashinfer_unavailable("cuda") == "FlashInfer is not installed"
    registry = Registry()
    variants.register(registry)
    plan = make_plan(registry, "nvfp4-moe", "cuda")
    assert not {"vllm", "flashinfer"} & {variant.name for variant in plan.variants}
    with pytest.raises(InputError, match="vllm: cannot run here: vLLM is not installed"):
        make_plan(registry, "nvfp4-moe", "cuda", variants=["vllm"])


def test_flashinfer_that_is_installed_has_nothing_to_offer(tmp_path, monkeypatch) -> None:
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert "has no NVFP4 MoE for bf16 inputs on one sm_90 GPU" in libraries.flashinfer_unavailable("cuda")
