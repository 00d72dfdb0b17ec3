"""Recorded cases: the bytes of layers and inputs, from which CPU and GPU outputs are hashed.

Bytes are stored, not seeds: torch's generators differ between devices and versions. The codebook is not stored, since
its definition gives it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import factory
from .weights import LayerWeights, MatrixWeights

_ARRAYS = ("wscale", "r1", "r2", "r3", "sv", "su")


@dataclass(frozen=True)
class Case:
    """One call: a layer and its inputs, by name."""

    name: str
    layer: LayerWeights
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


def save(path: Path, layers: dict[str, LayerWeights], inputs: dict[str, tuple[Any, Any, Any]]) -> None:
    """Write layers by name, and inputs (x, ids, weights; CPU) by ``layer/label``."""
    arrays: dict[str, np.ndarray] = {}
    for name, layer in layers.items():
        arrays[f"layer/{name}/kind"] = np.array([layer.activation, repr(layer.limit)])
        for label, matrix in (("up", layer.up), ("down", layer.down)):
            root = f"layer/{name}/{label}"
            arrays[f"{root}/split_blocks"] = np.array(matrix.split_blocks)
            for s, plane in enumerate(matrix.planes):
                if plane is not None:
                    arrays[f"{root}/plane{s + 1}"] = plane.numpy()
            for field in _ARRAYS:
                arrays[f"{root}/{field}"] = getattr(matrix, field).numpy()
    for name, (x, ids, weights) in inputs.items():
        for label, value in (("x", x), ("ids", ids), ("weights", weights)):
            arrays[f"input/{name}/{label}"] = value.contiguous().numpy()
    np.savez_compressed(path, **arrays)


def load(path: Path, device: Any = "cpu") -> list[Case]:
    """The cases of a file, on ``device``, in the file's order."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    big, small = factory.device_codebook(device)

    def tensor(key: str) -> torch.Tensor:
        return torch.from_numpy(arrays[key]).to(device)

    def matrix(root: str) -> MatrixWeights:
        planes = [tensor(f"{root}/plane{s}") if f"{root}/plane{s}" in arrays else None for s in (1, 2, 3, 4)]
        return MatrixWeights(
            planes=planes,
            tables=[big, big, small, big],
            **{field: tensor(f"{root}/{field}") for field in _ARRAYS},
            split_blocks=int(arrays[f"{root}/split_blocks"]),
            name=root,
        )

    layers = {}
    for key in arrays:
        if key.endswith("/kind"):
            name = key.split("/")[1]
            activation, limit = arrays[key]
            layers[name] = LayerWeights(
                matrix(f"layer/{name}/up"), matrix(f"layer/{name}/down"), str(activation), float(limit)
            )
    names = [key[len("input/") : -len("/x")] for key in arrays if key.startswith("input/") and key.endswith("/x")]
    return [
        Case(name, layers[name.split("/")[0]], *(tensor(f"input/{name}/{field}") for field in ("x", "ids", "weights")))
        for name in names
    ]


def digest(out: torch.Tensor) -> str:
    """SHA-256 of an output's bytes, hex."""
    return hashlib.sha256(out.cpu().contiguous().numpy().tobytes()).hexdigest()
