"""The E8 codebook: 65,536 lattice vectors of eight coordinates, the first 256 of which are the small codebook.

Definition: E8 is the integer vectors with an even sum and the half-integer vectors with an even sum. Sorted by norm²,
then by coordinates ascending lexicographically, the first 65,536 are taken: complete shells of norm² 0 to 10 and a
part of norm² 12. Every coordinate is a multiple of ½ in [-3, 3], so it is exact in fp16.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

ENTRIES = 65_536
SMALL_ENTRIES = 256
SHELLS = {0: 1, 2: 240, 4: 2_160, 6: 6_720, 8: 17_520, 10: 30_240, 12: 8_655}
"""Entries of each norm² in the codebook; all but the last shell are complete."""


def _coset(coordinates: range, max_norm: int) -> np.ndarray:
    """Return the 8-vectors over ``coordinates`` (doubled units) of norm² ≤ ``max_norm`` whose halves have an even sum.

    Two halves of four coordinates are combined, since 7⁴ × 7⁴ pairs of norms fit memory and 7⁸ vectors would not.
    """
    half = np.stack(np.meshgrid(*[np.array(coordinates, dtype=np.int8)] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    norm = (half.astype(np.int32) ** 2).sum(axis=1)
    half, norm = half[norm <= max_norm], norm[norm <= max_norm]
    total = half.astype(np.int32).sum(axis=1)
    left, right = np.nonzero((norm[:, None] + norm[None, :] <= max_norm) & ((total[:, None] + total[None, :]) % 4 == 0))
    return np.concatenate([half[left], half[right]], axis=1)


@cache
def _generated() -> np.ndarray:
    max_norm = 4 * max(SHELLS)  # coordinates are doubled, so norms are quadrupled
    vectors = np.concatenate([_coset(range(-6, 7, 2), max_norm), _coset(range(-5, 6, 2), max_norm)])
    norm = (vectors.astype(np.int32) ** 2).sum(axis=1)
    order = np.lexsort([*(vectors[:, k] for k in reversed(range(8))), norm])
    table = (vectors[order[:ENTRIES]].astype(np.float32) / 2).astype(np.float16)
    check(table)
    table.setflags(write=False)
    return table


def generate() -> np.ndarray:
    """The codebook by its definition: [65536, 8] float16, read-only, checked; made once a process (about 0.3 s)."""
    return _generated()


def check(table: np.ndarray) -> None:
    """Raise ValueError unless ``table`` is a codebook that E8 allows, in any order.

    [65536, 8]; every coordinate a multiple of ½ in [-3, 3]; every row a lattice vector; no row twice; the shell counts
    of ``SHELLS``. A zero of either sign is accepted.
    """
    if table.shape != (ENTRIES, 8):
        raise ValueError(f"a codebook has shape ({ENTRIES}, 8), not {table.shape}")
    values = table.astype(np.float64)
    doubled = values * 2
    if not (np.isfinite(values).all() and (doubled == np.rint(doubled)).all() and (np.abs(values) <= 3).all()):
        raise ValueError("a codebook's coordinates are multiples of 1/2 in [-3, 3]")
    whole = doubled.astype(np.int64)
    if not ((whole % 2 == whole[:, :1] % 2).all() and (whole.sum(axis=1) % 4 == 0).all()):
        raise ValueError("a codebook row is not an E8 vector: all integers or all half-integers, with an even sum")
    norms, counts = np.unique((whole**2).sum(axis=1) // 4, return_counts=True)
    found = dict(zip(norms.tolist(), counts.tolist(), strict=True))
    if found != SHELLS:
        raise ValueError(f"a codebook holds {SHELLS} entries by norm²; this one {found}")
    if len(np.unique(whole, axis=0)) != ENTRIES:
        raise ValueError("a codebook names a lattice vector twice")


def load(path: Path | str, key: str | None = None) -> np.ndarray:
    """A codebook made elsewhere, in its own order: [65536, 8] float16, checked.

    ``.npy``, ``.pt`` (a tensor, or a dict of tensors) or ``.safetensors``; ``key`` names the tensor where the file
    holds several. Raises ValueError, naming the file, when it is not a codebook.
    """
    path = Path(path)
    table = _read(path, key)
    try:
        check(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return np.ascontiguousarray(table.astype(np.float16))


def _read(path: Path, key: str | None) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix in (".pt", ".pth"):
        import torch

        found = torch.load(path, map_location="cpu", weights_only=True)
        tensors = {"": found} if isinstance(found, torch.Tensor) else dict(found)
    elif path.suffix == ".safetensors":
        from safetensors.torch import load_file

        tensors = load_file(path)
    else:
        raise ValueError(f"{path}: a codebook file is .npy, .pt or .safetensors")
    if key is None and len(tensors) != 1:
        raise ValueError(f"{path}: holds {len(tensors)} tensors ({', '.join(sorted(tensors))}); name one with key=")
    name = next(iter(tensors)) if key is None else key
    if name not in tensors:
        raise ValueError(f"{path}: no tensor {name!r}; it holds {', '.join(sorted(tensors))}")
    return tensors[name].float().numpy()
