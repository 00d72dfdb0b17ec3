"""A nemotron_h model of transformers with seeded random weights, made where it runs.

Nothing is initialised on the CPU: the model is built without storage, its routed experts are taken out, memory comes
uninitialised on the device, and each parameter is filled there by one call from a seed of its own name. So a prefix of
the layers has the weights of the whole model, and 31.6 B parameters take seconds on a GPU. Parameters that transformers
keeps in fp32 (the router's) are fp32. The same seed gives the same weights on the same kind of device.

Weights are normal with variance 1/inputs, so that activations stay about 1; those that write to the residual stream are
smaller by the root of the number of layers, as the model's own initialisation has them. The Mamba-2 parameters are that
initialisation's: A from 1 to the number of heads, D 1, time steps log-uniform from 0.001 to 0.1.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from glqprof import annotate
from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.experts import Counters, Experts, compute, dense_layers, random_layers
from glqprof.workloads.nemotron_h.sizes import Sizes
from glqprof.workloads.nemotron_h.variants import GLQ, NVFP4, ExpertVariant

LETTERS = {"linear_attention": "M", "mamba": "M", "moe": "E", "full_attention": "*", "attention": "*", "mlp": "-"}
"""The letter of each of transformers' block types, in old and new names."""
TIME_STEPS = (0.001, 0.1)
_RESIDUAL = ("out_proj.weight", "o_proj.weight", "down_proj.weight")
"""Ends of the names of parameters that write to the residual stream."""
_MEMORY_MARGIN = 1.05


@dataclass
class Built:
    """The model, ready to decode, and the counters of its experts."""

    model: Any
    counters: Counters


class Classes(NamedTuple):
    """What is used of transformers, and its version."""

    config: Any
    model: Any
    version: str


def transformers_classes() -> Classes:
    """NemotronHConfig and NemotronHForCausalLM; InputError where transformers is missing or has no nemotron_h."""
    fix = "pip install 'glqprof[torch]'"
    try:
        import transformers
    except ImportError as error:
        why = " ".join(str(error).split())
        raise InputError("transformers", f"cannot be imported ({why}), and decode runs its model: {fix}") from None
    version = transformers.__version__
    try:
        config, model = transformers.NemotronHConfig, transformers.NemotronHForCausalLM
    except (AttributeError, ImportError) as error:
        why = " ".join(str(error).split())
        raise InputError("transformers", f"{version} gives no NemotronHForCausalLM ({why}): {fix}") from None
    transformers.utils.logging.set_verbosity_error()  # it warns of each fast kernel that is not installed
    return Classes(config, model, str(version))


def bytes_needed(sizes: Sizes, variant: ExpertVariant) -> int:
    """Bytes of the weights in memory at once, an estimate: caches, activations and alignment come on top."""
    return 2 * sizes.other_parameters() + expert_bytes(sizes, variant)


def expert_bytes(sizes: Sizes, variant: ExpertVariant) -> int:
    """The routed experts' part of `bytes_needed`."""
    from glqprof_kernels.glq.factory import stages_of_layer

    per_layer = sizes.expert_parameters()
    glq = [stages_of_layer(i, "mixed") * per_layer // 4 for i in range(sizes.moe_layers)]  # 16 bits for 8 weights
    if variant.kind == GLQ:
        return sum(glq) + (max(glq, default=0) if variant.name.startswith("fused") else 0)
    if variant.kind == NVFP4:
        return sizes.moe_layers * per_layer * 9 // 16 + per_layer * 9 // 16
    return sizes.moe_layers * per_layer * 2 + max(glq, default=0)


def check_memory(sizes: Sizes, variant: ExpertVariant, device: str, experts_only: bool = False) -> None:
    """InputError where the device has less free memory than the weights, or the experts alone, need."""
    if device == "cuda":
        torch.cuda.empty_cache()  # what an earlier model left in torch's cache is free
        free: int | None = int(torch.cuda.mem_get_info()[0])
    else:
        free = _free_host_bytes()
    weights = expert_bytes(sizes, variant) if experts_only else bytes_needed(sizes, variant)
    needed = int(weights * _MEMORY_MARGIN)
    if free is not None and needed > free:
        where = "the GPU" if device == "cuda" else "this machine"
        raise InputError(
            f"{sizes.name} {variant.name}",
            f"{len(sizes.layers)} layers need {needed / 1e9:.1f} GB, {where} has {free / 1e9:.1f} free; "
            "use --layers for a prefix",
        )


def _free_host_bytes() -> int | None:
    """What Linux can give without swapping; None elsewhere."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def build(sizes: Sizes, variant: ExpertVariant, seed: int, device: str) -> Built:
    """Make the model on ``device`` (cuda or cpu) in bf16, its experts computed by ``variant``, its layers marked.

    Each layer is an NVTX range ``layer_<NN>_<letter>`` of `annotate`, the head ``layer_<NN>_head``. Raises InputError:
    no transformers, too little memory.
    """
    classes = transformers_classes()
    check_memory(sizes, variant, device)
    config = classes.config(**sizes.config_arguments())
    with torch.device("meta"):
        model = classes.model._from_config(config, dtype=torch.bfloat16)
    moes = [block.mixer for block in model.model.layers if LETTERS[block.block_type] == "E"]
    counters = Counters()
    layers = random_layers(sizes, variant.kind, seed, device)
    if variant.name == "transformers":
        _materialise(model, sizes, seed, device, skip=".experts.")
        _load_experts(moes, layers)
    else:
        for moe in moes:
            moe.experts = torch.nn.Identity()
        _materialise(model, sizes, seed, device)
        for moe, run in zip(moes, compute(variant, layers, sizes.top_k, counters), strict=True):
            moe.experts = Experts(run, variant.name)
    mark_layers(model)
    return Built(model.eval().requires_grad_(False), counters)


def _load_experts(moes: list[Any], layers: Iterator[Any]) -> None:
    for moe, layer in zip(moes, dense_layers(layers), strict=True):
        for name, values in (("up_proj", layer.up), ("down_proj", layer.down)):
            setattr(moe.experts, name, torch.nn.Parameter(values, requires_grad=False))


def _materialise(model: Any, sizes: Sizes, seed: int, device: str, skip: str = "") -> None:
    """Give every tensor of the model (but those whose names hold ``skip``) memory on the device, and its value."""
    generator = torch.Generator(device=device)
    # Loading a checkpoint applies these lists; making a model of a configuration does not in every version.
    lists = (getattr(model, name, None) or () for name in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"))
    kept = [part for names in lists for part in names]
    with torch.no_grad():
        for name, module in list(model.named_modules()):
            for store in (module._parameters, module._buffers):
                for key, tensor in store.items():
                    full = f"{name}.{key}"
                    if tensor is None or (skip and skip in full):
                        continue
                    dtype = torch.float32 if any(part in full for part in kept) else tensor.dtype
                    made = torch.empty(tensor.shape, dtype=dtype, device=device)
                    generator.manual_seed(zlib.crc32(f"{seed} {full}".encode()))
                    _fill(full, made, sizes, generator)
                    is_parameter = store is module._parameters
                    store[key] = torch.nn.Parameter(made, requires_grad=False) if is_parameter else made


def _fill(name: str, tensor: Any, sizes: Sizes, generator: Any) -> None:
    """Write a parameter's or buffer's value; InputError for one that this version of transformers has added."""
    last = name.rpartition(".")[2]
    if last == "A_log":
        heads = torch.arange(1, tensor.numel() + 1, dtype=torch.float32, device=tensor.device)
        tensor.copy_(torch.log(heads))
    elif last == "dt_bias":
        low, high = (math.log(bound) for bound in TIME_STEPS)
        drawn = torch.rand(tensor.shape, device=tensor.device, generator=generator)
        step = torch.exp(drawn * (high - low) + low)
        tensor.copy_(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step
    elif last == "D" or (last == "weight" and (".norm" in name or "norm_f" in name)):
        tensor.fill_(1.0)
    elif last == "e_score_correction_bias" or name.endswith("conv1d.bias"):
        tensor.zero_()
    elif name.endswith("embeddings.weight"):
        tensor.normal_(0.0, 1.0, generator=generator)
    elif last == "weight" and tensor.dim() >= 2:
        inputs = math.prod(tensor.shape[1:])
        smaller = len(sizes.layers) ** 0.5 if name.endswith(_RESIDUAL) else 1.0
        tensor.normal_(0.0, 1.0 / (inputs**0.5 * smaller), generator=generator)
    else:
        raise InputError("transformers", f"has a parameter {name} that is not known here; use transformers 5.17")


def mark_layers(model: Any) -> None:
    """Put a range of `annotate` around each layer's and the head's forward: no hook, one frame of Python."""

    def wrap(module: Any, name: str) -> None:
        forward = module.forward

        def marked(*arguments: Any, **named: Any) -> Any:
            with annotate.layer(name):
                return forward(*arguments, **named)

        module.forward = marked

    layers = model.model.layers
    for index, block in enumerate(layers):
        wrap(block, f"{index:02d}_{LETTERS[block.block_type]}")
    wrap(model.lm_head, f"{len(layers):02d}_head")
