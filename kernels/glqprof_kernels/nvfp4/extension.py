"""Builds and loads the NVFP4 CUDA extension: on first use, cached by source, torch version and GPU architecture."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from ..glq.extension import cache_root, unavailable_reason

CSRC = Path(__file__).parent / "csrc"
SHARED = Path(__file__).parents[1] / "glq" / "csrc"
"""The scalar arithmetic, the activations and the CUDA platform are GLQ's."""
SHARED_FILES = ("activation.cuh", "arithmetic.cuh", "fused_platform.cuh", "platform.cuh")
SOURCES = (
    "extension.cpp",
    "launch.cu",
    *(f"experts_{s}_{p}.cu" for s, p in product(("base", "waves", "half"), ("regs", "ring", "deep"))),
)
CUDA_FLAGS = ("-O3", "-fmad=false", "--expt-relaxed-constexpr", "-lineinfo")
HOST_FLAGS = ("-O2",)


def source_hash() -> str:
    """Sixteen hex digits over every source and the flags: any edit builds anew."""
    digest = hashlib.sha256(repr((SOURCES, CUDA_FLAGS, HOST_FLAGS)).encode())
    for path in (*sorted(CSRC.iterdir()), *(SHARED / name for name in SHARED_FILES)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def load() -> Any:
    """The extension module for the current GPU's architecture; RuntimeError saying what is missing."""
    reason = unavailable_reason()
    if reason:
        raise RuntimeError(f"the NVFP4 CUDA kernels cannot be built: {reason}")
    import torch

    return _load(torch.cuda.get_device_capability())


@cache
def _load(capability: tuple[int, int]) -> Any:
    import torch
    from torch.utils import cpp_extension

    arch = f"{capability[0]}.{capability[1]}" + ("a" if capability == (9, 0) else "")
    torch_tag = torch.__version__.replace("+", "_")
    tag = f"{source_hash()}_sm{arch.replace('.', '')}"
    folder = cache_root() / "extensions" / f"torch-{torch_tag}_py{sys.version_info[0]}{sys.version_info[1]}" / tag
    name = f"glqprof_nvfp4_{tag}"
    built = (folder / f"{name}.so").exists()
    folder.mkdir(parents=True, exist_ok=True)
    if not built:
        print(f"glqprof: building the NVFP4 kernels for sm_{arch} (once, about a minute) in {folder}", file=sys.stderr)
    start = time.perf_counter()
    before = os.environ.get("TORCH_CUDA_ARCH_LIST")
    os.environ["TORCH_CUDA_ARCH_LIST"] = arch
    try:
        module = cpp_extension.load(
            name=name,
            sources=[str(CSRC / source) for source in SOURCES],
            extra_cflags=list(HOST_FLAGS),
            extra_cuda_cflags=list(CUDA_FLAGS),
            build_directory=str(folder),
            with_cuda=True,
        )
    except Exception as error:  # the compiler's output arrives inside torch's exception
        raise RuntimeError(f"building the NVFP4 kernels failed in {folder}:\n{error}") from error
    finally:
        if before is None:
            del os.environ["TORCH_CUDA_ARCH_LIST"]
        else:
            os.environ["TORCH_CUDA_ARCH_LIST"] = before
    if not built:
        print(f"glqprof: built in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return module
