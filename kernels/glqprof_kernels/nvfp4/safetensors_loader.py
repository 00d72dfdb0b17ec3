"""Real NVFP4 layers from safetensors files, in the layouts of the two tools that write them; and writing them.

A linear layer named ``L`` with N outputs and K inputs is stored as

| | ModelOpt | compressed-tensors (``nvfp4-pack-quantized``) |
|---|---|---|
| codes, uint8 [N, K/2], lower column in the low nibble | ``L.weight`` | ``L.weight_packed`` |
| block scales, float8_e4m3fn [N, K/16] | ``L.weight_scale`` | ``L.weight_scale`` |
| global scale, float32, one number | ``L.weight_scale_2``, **multiplied** | ``L.weight_global_scale``, **divided by** |

The global scales are each other's reciprocal. ``LayerWeights`` holds the multiplied one: for compressed-tensors it is
1 / global rounded to float32. Experts are apart: ``….experts.E.gate_proj``, ``up_proj``, ``down_proj``; an expert
without a gate is relu².
ModelOpt also stores the experts of some models as one tensor each, ``….experts.gate_up_proj`` with the suffixes
``_weight_scale`` and ``_weight_scale_2``, as [E, K/2, N] (Llama 4) or [E, N, K/2]; the scales' shape says which.

The kernels have one scale per expert matrix, checkpoints one each for gate and up. Where these differ, the block scales
of one half are restated under the other's global scale if every product stays the same to the bit, which a power of two
often allows; else the layer is refused. ModelOpt's export gives gate and up one global scale for this reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from .codes import E4M3_MAX, decode_e4m3, encode_e4m3
from .weights import BLOCK, ExpertMatrix, LayerWeights

Tensor = Any  # torch.Tensor


@dataclass(frozen=True)
class Layout:
    """Suffixes of one linear layer's tensors; ``reciprocal``: the global scale divides."""

    name: str
    codes: str
    scales: str
    scale: str
    reciprocal: bool


MODELOPT = Layout("ModelOpt", "weight", "weight_scale", "weight_scale_2", reciprocal=False)
COMPRESSED_TENSORS = Layout(
    "compressed-tensors", "weight_packed", "weight_scale", "weight_global_scale", reciprocal=True
)
LAYOUTS = (MODELOPT, COMPRESSED_TENSORS)


@dataclass(frozen=True)
class Names:
    """How a checkpoint names things. ``experts`` "" looks for ``….layers.{layer}.….experts``."""

    experts: str = ""
    """Such as ``model.layers.{layer}.mlp.experts`` or ``backbone.layers.{layer}.mixer.experts``."""
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    gate_up: str = "gate_up_proj"


def load_layer(
    checkpoint: Checkpoint, layer: int, *, names: Names | None = None, limit: float = 0.0, device: Any = "cpu"
) -> LayerWeights:
    """The routed experts of one layer, on ``device``; ValueError, one line, for whatever is missing or does not fit.

    With a gate the activation is SwiGLU, whose ``limit`` no checkpoint's tensors state (0 is off); without, relu².
    """
    names = names or Names()
    root = names.experts.format(layer=layer) if names.experts else _find_experts(checkpoint, layer)
    inside = {name[len(root) + 1 :] for name in checkpoint.names() if name.startswith(f"{root}.")}
    if not inside:
        raise ValueError(
            f"the checkpoint has no tensor under {root!r}; pass Names(experts=...) with its own convention"
        )
    if any(name.endswith("pre_quant_scale") for name in inside):
        raise ValueError(f"{root}: has pre_quant_scale (AWQ): its inputs are scaled, which this format does not do")
    fused = [name for name in inside if name.split(".")[0].startswith(names.gate_up)]
    if fused:
        return _load_fused(checkpoint, root, names, inside, limit, device)
    numbers = sorted({int(name.split(".")[0]) for name in inside if name.split(".")[0].isdecimal()})
    if numbers != list(range(len(numbers))) or not numbers:
        missing = next((e for e in range(len(numbers)) if e not in numbers), 0)
        raise ValueError(f"{root}: expert {missing} is missing; found {len(numbers)} experts")
    layout = _layout(root, names, inside)
    gated = any(name.startswith(f"0.{names.gate}.") for name in inside)
    reader = _Reader(checkpoint, root, len(numbers), layout, device)
    up = reader.matrix(names.up)
    first = _join(reader.matrix(names.gate), up, root, names) if gated else up
    down = reader.matrix(names.down)
    return LayerWeights(first.checked(), down.checked(), "swiglu" if gated else "relu2", limit)


def _find_experts(checkpoint: Checkpoint, layer: int) -> str:
    pattern = re.compile(rf"(.*\blayers\.{layer}\.(?:[^.]+\.)*experts)\.")
    found = {match[1] for name in checkpoint.names() if (match := pattern.match(name))}
    found = {root for root in found if not root.endswith("shared_experts")}
    if len(found) != 1:
        said = " and ".join(sorted(found)) or "no experts"
        raise ValueError(f"layer {layer}: the checkpoint has {said}; pass Names(experts=...) that says which")
    return found.pop()


def _layout(root: str, names: Names, inside: set[str]) -> Layout:
    """The one layout whose tensors are there."""
    ours = [name for name in inside if name.split(".")[1:2] in ([names.gate], [names.up], [names.down])]
    present = {
        layout.name: sorted(name for name in ours if name.split(".")[-1] in (layout.codes, layout.scale))
        for layout in LAYOUTS
    }
    both = [found[0] for found in present.values() if found]
    if len(both) == 2:
        raise ValueError(f"{root}: mixes ModelOpt's tensors ({both[0]}) with compressed-tensors' ({both[1]})")
    if not both:
        projections = ", ".join(sorted({name.split(".")[1] for name in inside if "." in name}))
        raise ValueError(f"{root}: holds no NVFP4 tensors of {names.up}; its projections are {projections or 'none'}")
    return next(layout for layout in LAYOUTS if present[layout.name])


@dataclass
class _Parts:
    """A matrix before its checks, which name it as the checkpoint does."""

    codes: Tensor
    scales: Tensor
    scale: Tensor
    name: str

    def checked(self) -> ExpertMatrix:
        return ExpertMatrix(self.codes, self.scales, self.scale, self.name)


@dataclass(frozen=True)
class _Reader:
    """Reads one projection of all experts."""

    checkpoint: Checkpoint
    root: str
    experts: int
    layout: Layout
    device: Any

    def matrix(self, projection: str) -> _Parts:
        import torch

        codes = self._stack(projection, self.layout.codes, torch.uint8, 2)
        scales = self._stack(projection, self.layout.scales, torch.float8_e4m3fn, 2).view(torch.uint8)
        stored = self._stack(projection, self.layout.scale, torch.float32, None).reshape(self.experts)
        name = f"{self.root}.*.{projection}"
        return _Parts(codes, scales, _multiplied(stored, self.layout, name), name)

    def _stack(self, projection: str, suffix: str, dtype: Any, dims: int | None) -> Tensor:
        """One tensor of all experts; ``dims`` None is a single number of any shape."""
        import torch

        each = [f"{self.root}.{e}.{projection}.{suffix}" for e in range(self.experts)]
        tensors = self.checkpoint.read_all(each, self.device)
        for name, tensor in zip(each, tensors, strict=True):
            _check(name, tensor, dtype, dims)
            if dims is not None and tensor.shape != tensors[0].shape:
                first = list(tensors[0].shape)
                raise ValueError(f"{name} has shape {list(tensor.shape)}, but that of expert 0 is {first}")
        return torch.stack([tensor.reshape(()) if dims is None else tensor for tensor in tensors])


def _check(name: str, tensor: Tensor, dtype: Any, dims: int | None) -> None:
    if tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype}; NVFP4 stores it as {dtype}")
    if dims is None and tensor.numel() != 1:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; it is one number")
    if dims is not None and tensor.dim() != dims:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; it has {dims} dimensions")


def _multiplied(stored: Tensor, layout: Layout, name: str) -> Tensor:
    """The scale to multiply by; ValueError unless it is positive and finite."""
    import torch

    scale = 1.0 / stored if layout.reciprocal else stored.clone()
    bad = ~(torch.isfinite(scale) & (scale > 0))
    if bool(bad.any()):
        expert = int(torch.nonzero(bad)[0])
        value = float(stored[expert])
        raise ValueError(f"{name}.{layout.scale} of expert {expert} is {value}; a global scale is positive and finite")
    return scale


def _join(gate: _Parts, up: _Parts, root: str, names: Names) -> _Parts:
    """Gate's rows, then up's, under one scale per expert."""
    import torch

    if gate.codes.shape != up.codes.shape or gate.scales.shape != up.scales.shape:
        shapes = f"{list(gate.codes.shape[1:])} and {list(up.codes.shape[1:])}"
        raise ValueError(f"{root}: {names.gate} and {names.up} do not match: {shapes}")
    scale = gate.scale.clone()
    gate_scales, up_scales = gate.scales.clone(), up.scales.clone()
    for expert in torch.nonzero(gate.scale != up.scale).flatten().tolist():
        ours, theirs = gate.scale[expert], up.scale[expert]
        if (moved := _restate(up.scales[expert], theirs, ours)) is not None:
            up_scales[expert] = moved
        elif (moved := _restate(gate.scales[expert], ours, theirs)) is not None:
            gate_scales[expert], scale[expert] = moved, theirs
        else:
            both = f"{names.gate} ({float(ours):g}) and {names.up} ({float(theirs):g})"
            raise ValueError(
                f"{root}.{expert}: the global scales of {both} differ, and the kernels have one per expert; "
                "quantise both with one global scale"
            )
    codes = torch.cat((gate.codes, up.codes), dim=1)
    return _Parts(codes, torch.cat((gate_scales, up_scales), dim=1), scale, f"{root}.*.{names.gate}+{names.up}")


def _restate(scales: Tensor, old: Tensor, new: Tensor) -> Tensor | None:
    """The block-scale bytes under another global scale, if each product of the two stays the same; else None."""
    import torch

    wide = torch.float64
    wanted = decode_e4m3(scales).to(wide) * old.to(wide)  # exact: 4 + 24 bits
    ratio = wanted / new.to(wide)
    if not bool((ratio.abs() <= E4M3_MAX).all()):  # a NaN byte, too, is left to the checks that name it
        return None
    moved = encode_e4m3(ratio.float())
    same = decode_e4m3(moved).to(wide) * new.to(wide) == wanted
    return moved if bool(same.all()) else None


def _load_fused(
    checkpoint: Checkpoint, root: str, names: Names, inside: set[str], limit: float, device: Any
) -> LayerWeights:
    """ModelOpt's tensors of all experts: gate's rows first in gate_up, one global scale or one per expert."""
    import torch

    if f"{names.gate_up}_bias" in inside:
        raise ValueError(
            f"{root}: has {names.gate_up}_bias (gpt-oss): its biases and interleaved rows are not supported"
        )

    def matrix(projection: str) -> ExpertMatrix:
        full = [f"{root}.{projection}{suffix}" for suffix in ("", "_weight_scale", "_weight_scale_2")]
        codes, scales, scale = checkpoint.read_all(full, device)
        _check(full[0], codes, torch.uint8, 3)
        _check(full[1], scales, torch.float8_e4m3fn, 3)
        experts = codes.shape[0]
        if scale.dtype != torch.float32 or scale.numel() not in (1, experts):
            raise ValueError(
                f"{full[2]} is {scale.dtype} {list(scale.shape)}; it is float32, one number or one an expert"
            )
        scales = scales.view(torch.uint8)
        groups = BLOCK // 2  # bytes of codes to a block scale
        if tuple(codes.shape) == (experts, groups * scales.shape[1], scales.shape[2]):
            codes, scales = codes.transpose(1, 2), scales.transpose(1, 2)
        each = scale.reshape(-1).expand(experts).contiguous()
        return ExpertMatrix(codes, scales, _multiplied(each, MODELOPT, full[0]), full[0])

    return LayerWeights(matrix(names.gate_up), matrix(names.down), "swiglu", limit)


def layer_tensors(layer: LayerWeights, layout: Layout, experts: str, names: Names | None = None) -> dict[str, Tensor]:
    """The layer's tensors by name, as ``layout`` stores them; ``experts`` such as ``model.layers.3.mlp.experts``.

    What was loaded from compressed-tensors' layout loads the same again: of float32 numbers g within the normal range,
    1 / (1 / (1 / g)) is 1 / g for every one, though 1 / (1 / g) need not be g.
    """
    import torch

    names = names or Names()
    inter = layer.inter
    gated = layer.activation == "swiglu"
    parts = [
        (names.up, layer.gate_up, slice(inter, None) if gated else slice(None)),
        (names.down, layer.down, slice(None)),
    ]
    if gated:
        parts.append((names.gate, layer.gate_up, slice(0, inter)))
    found = {}
    for projection, matrix, rows in parts:
        stored = 1.0 / matrix.scale if layout.reciprocal else matrix.scale
        for e in range(matrix.experts):
            root = f"{experts}.{e}.{projection}"
            found[f"{root}.{layout.codes}"] = matrix.codes[e, rows].contiguous()
            found[f"{root}.{layout.scales}"] = matrix.scales[e, rows].contiguous().view(torch.float8_e4m3fn)
            found[f"{root}.{layout.scale}"] = stored[e : e + 1].clone() if layout.reciprocal else stored[e].clone()
    return found


def save_layer(path: Path | str, layer: LayerWeights, layout: Layout, experts: str, names: Names | None = None) -> None:
    """Write the layer's tensors into one safetensors file."""
    from safetensors.torch import save_file

    save_file(layer_tensors(layer, layout, experts, names), path)
