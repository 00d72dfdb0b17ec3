"""The GLQ CUDA extension: what it is made of, and its module."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from .. import building

CSRC = Path(__file__).parent / "csrc"
SOURCES = (
    "extension.cpp",
    "launch.cu",
    "fused_launch.cu",
    "fused_exact.cu",
    "fused_fast.cu",
)


def source_hash() -> str:
    """Sixteen hex digits over every file of csrc and the flags: any edit builds anew."""
    return building.hash_of(SOURCES, sorted(CSRC.iterdir()))


def load() -> Any:
    """The extension module for the current GPU's architecture; RuntimeError saying what is missing."""
    return _load(building.current_capability("GLQ"))


@cache
def _load(capability: tuple[int, int]) -> Any:
    return building.build("GLQ", CSRC, SOURCES, source_hash(), capability)
