"""What every implementation asks of its tensors; ValueError with one line otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .workspace import MAX_BATCH

IMPLEMENTATIONS = ("cuda", "torch")
ACTIVATIONS = ("none", "relu2")
ALIGNMENT = 16
"""Bytes at which rows that the kernels read as vectors must begin."""
MAX_SEGMENTS = 4
"""Weights that one call of ``linear`` takes."""
MAX_EXPERTS = 1024
MAX_TOP_K = 32

_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int64: "int64",
}


def implementation(name: str, device: torch.device) -> bool:
    """A known implementation that this device has; whether it reads vectors, and so needs rows that are aligned."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"no implementation {name!r}; there are {', '.join(IMPLEMENTATIONS)}")
    if name == "cuda" and device.type != "cuda":
        raise ValueError(f"the tensors are on {device}; implementation='cuda' needs a GPU: take 'torch'")
    return name == "cuda"


def batch(rows: int) -> None:
    """1 to 8 rows."""
    if not 1 <= rows <= MAX_BATCH:
        raise ValueError(f"a batch of {rows} rows; the step kernels take 1 to {MAX_BATCH}")


def tensor(
    given: torch.Tensor,
    name: str,
    shape: Sequence[int],
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    device: torch.device,
    *,
    strided_rows: bool = False,
    vectors: bool = False,
) -> None:
    """Shape, dtype and device; contiguous, or with ``strided_rows`` a matrix whose rows may be apart.

    With ``vectors`` each row (of a matrix or more) must begin at a multiple of 16 bytes.
    """
    allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if given.dtype not in allowed:
        raise ValueError(f"{name} must be {' or '.join(_NAMES[d] for d in allowed)}, not {given.dtype}")
    if tuple(given.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {list(given.shape)}, not {list(shape)}")
    if given.device != device:
        raise ValueError(f"{name} is on {given.device}, other tensors on {device}")
    if strided_rows:
        if given.shape[1] > 1 and given.stride(1) != 1:
            raise ValueError(f"{name}'s rows must be contiguous; its strides are {given.stride()}")
    elif not given.is_contiguous():
        raise ValueError(f"{name} must be contiguous; its strides are {given.stride()}")
    if vectors:
        size = given.element_size()
        row = given.stride(0) if given.dim() == 2 and given.shape[0] > 1 else given.shape[-1]
        if given.data_ptr() % ALIGNMENT or (given.dim() > 1 and row * size % ALIGNMENT and given.shape[0] > 1):
            raise ValueError(f"{name}'s rows must begin at multiples of {ALIGNMENT} bytes")


def width(value: int, name: str, most: int) -> None:
    """A multiple of 8 up to ``most``."""
    if value < 8 or value % 8 or value > most:
        raise ValueError(f"{name} is {value}; it must be a multiple of 8 up to {most}")
