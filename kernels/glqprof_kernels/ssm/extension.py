"""The SSM CUDA extension: what it is made of, and its module."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from .. import building

CSRC = Path(__file__).parent / "csrc"
SHARED = Path(__file__).parents[1] / "glq" / "csrc"
"""The scalar arithmetic, the stated exponential and the CUDA platform are GLQ's."""
SHARED_FILES = ("activation.cuh", "arithmetic.cuh", "fused_platform.cuh", "platform.cuh")
SOURCES = ("extension.cpp", "launch.cpp", "fused_cluster.cu", "fused_counter.cu", "unfused.cu")


def source_hash() -> str:
    """Sixteen hex digits over every source and the flags: any edit builds anew."""
    return building.hash_of(SOURCES, (*sorted(CSRC.iterdir()), *(SHARED / name for name in SHARED_FILES)))


def load() -> Any:
    """The extension module for the current GPU's architecture; RuntimeError saying what is missing."""
    return _load(building.current_capability("SSM"))


@cache
def _load(capability: tuple[int, int]) -> Any:
    return building.build("SSM", CSRC, SOURCES, source_hash(), capability)
