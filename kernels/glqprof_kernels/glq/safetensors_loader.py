"""Real GLQ layers from safetensors files.

How tensors are named differs between checkpoints, so the names are an argument: ``Names`` holds one pattern a field,
filled with ``{layer}``, ``{matrix}`` and, where a checkpoint stores experts apart, ``{expert}``. The default is this
project's own convention; a checkpoint made elsewhere needs patterns of its own.

A pattern without ``{expert}`` names a tensor of all experts, stacked along the first dimension. A pattern with it names
one expert's tensor; they are stacked here. An optional field (``index2`` … ``r3``) may be missing: its stage is absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..checkpoint import Checkpoint
from .weights import LayerWeights, MatrixWeights, is_absent

Tensor = Any  # torch.Tensor


@dataclass(frozen=True)
class Names:
    """Tensor-name patterns. ``up`` and ``down`` are what ``{matrix}`` stands for; ``codebook`` "" means generated."""

    index1: str = "model.layers.{layer}.mlp.experts.{matrix}.index1"
    index2: str = "model.layers.{layer}.mlp.experts.{matrix}.index2"
    index3: str = "model.layers.{layer}.mlp.experts.{matrix}.index3"
    index4: str = "model.layers.{layer}.mlp.experts.{matrix}.index4"
    wscale: str = "model.layers.{layer}.mlp.experts.{matrix}.wscale"
    r1: str = "model.layers.{layer}.mlp.experts.{matrix}.r1"
    r2: str = "model.layers.{layer}.mlp.experts.{matrix}.r2"
    r3: str = "model.layers.{layer}.mlp.experts.{matrix}.r3"
    sv: str = "model.layers.{layer}.mlp.experts.{matrix}.sv"
    su: str = "model.layers.{layer}.mlp.experts.{matrix}.su"
    split_blocks: str = "model.layers.{layer}.mlp.experts.{matrix}.split_blocks"
    codebook: str = "glq.codebook"
    up: str = "up"
    down: str = "down"


_OPTIONAL = {"index2", "index3", "index4", "r1", "r2", "r3", "split_blocks"}


def load_layer(
    checkpoint: Checkpoint,
    layer: int,
    *,
    names: Names | None = None,
    experts: int | None = None,
    codebook: Any = None,
    small_stages: Sequence[int] = (3,),
    activation: str = "relu2",
    limit: float = 0.0,
    device: Any = "cpu",
) -> LayerWeights:
    """One layer's weights, checked (ValueError).

    ``experts``: how many there are, needed where a pattern holds ``{expert}``. ``codebook``: [65536, 8] fp16 array;
    without it the checkpoint's own tensor, else the generated one. ``small_stages``: the stages, 1-based, that read the
    first 256 entries.
    """
    from .codebook import check
    from .factory import device_codebook

    names = names or Names()
    if codebook is None and names.codebook and names.codebook in checkpoint:
        codebook = checkpoint.read(names.codebook, "cpu").numpy()
        check(codebook)
    big, small = device_codebook(device, codebook)

    def field(name: str, matrix: str) -> Tensor | None:
        pattern = getattr(names, name)
        if "{expert}" not in pattern:
            full = pattern.format(layer=layer, matrix=matrix)
            if name in _OPTIONAL and full not in checkpoint:
                return None
            return checkpoint.read(full, device)
        if experts is None:
            raise ValueError(f"the pattern {pattern!r} names each expert; pass experts=")
        each = [pattern.format(layer=layer, matrix=matrix, expert=e) for e in range(experts)]
        if name in _OPTIONAL and each[0] not in checkpoint:
            return None
        import torch

        return torch.stack([checkpoint.read(one, device) for one in each])

    def matrix(label: str) -> MatrixWeights:
        import torch

        found = {f.name: field(f.name, label) for f in fields(Names) if f.name not in ("codebook", "up", "down")}
        wscale = found["wscale"].reshape(-1).float()
        ones = torch.ones_like(wscale)

        def factor(name: str, plane: Tensor | None) -> Tensor:
            if found[name] is not None:
                return found[name].reshape(-1).float()
            if not is_absent(plane):
                raise ValueError(f"{label}: a stage's index plane is there but its factor {name} is not")
            return ones

        planes = [found[f"index{s}"] for s in (1, 2, 3, 4)]
        split = found["split_blocks"]
        split_blocks = 64 if split is None else int(split.reshape(-1)[0])
        if split is not None and not bool((split == split_blocks).all()):
            raise ValueError(f"{label}: split_blocks differs between experts")
        return MatrixWeights(
            planes=[
                None if plane is None else _as_int16(plane, f"{label}.index{s + 1}") for s, plane in enumerate(planes)
            ],
            tables=[small if s in small_stages else big for s in (1, 2, 3, 4)],
            wscale=wscale,
            r1=factor("r1", planes[1]),
            r2=factor("r2", planes[2]),
            r3=factor("r3", planes[3]),
            sv=found["sv"],
            su=found["su"],
            split_blocks=split_blocks,
            name=label,
        )

    return LayerWeights(matrix(names.up), matrix(names.down), activation, limit)


def _as_int16(plane: Tensor, label: str) -> Tensor:
    """Index planes as int16; uint16 and wider integers are accepted where their values fit 16 bits."""
    import torch

    if plane.dtype in (torch.int16, torch.uint16):
        return plane.view(torch.int16)
    if plane.dtype not in (torch.int32, torch.int64, torch.uint8):
        raise ValueError(f"{label} is {plane.dtype}; index planes are integers of at most 16 bits")
    wide = plane.to(torch.int64)
    if plane.numel() and not -32_768 <= int(wide.min()) <= int(wide.max()) <= 65_535:
        raise ValueError(f"{label} holds values beyond 16 bits")
    return torch.where(wide > 32_767, wide - 65_536, wide).to(torch.int16)
