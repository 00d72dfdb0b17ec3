"""The step kernels' CUDA extension: what it is made of, and its module."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from .. import building

CSRC = Path(__file__).parent / "csrc"
_GLQ = Path(__file__).parents[1] / "glq" / "csrc"
_NVFP4 = Path(__file__).parents[1] / "nvfp4" / "csrc"
SHARED = (
    *(_GLQ / name for name in ("activation.cuh", "arithmetic.cuh", "fused_platform.cuh", "platform.cuh")),
    _NVFP4 / "platform.cuh",
)
"""The CUDA platform is GLQ's and NVFP4's."""
SOURCES = ("extension.cpp", "linear.cu", "head_argmax.cu", "norm.cu", "route.cu", "attend.cu")


def source_hash() -> str:
    """Sixteen hex digits over every source and the flags: any edit builds anew."""
    return building.hash_of(SOURCES, (*sorted(CSRC.iterdir()), *SHARED))


def load() -> Any:
    """The extension module for the current GPU's architecture; RuntimeError saying what is missing."""
    return _load(building.current_capability("step"))


@cache
def _load(capability: tuple[int, int]) -> Any:
    return building.build("step", CSRC, SOURCES, source_hash(), capability)
