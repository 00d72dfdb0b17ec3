"""Builds a CUDA extension of this package on first use, cached by source, torch version and GPU architecture."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# No contraction beyond what the sources name; nvcc's default keeps denormals and rounds divisions correctly.
CUDA_FLAGS = ("-O3", "-fmad=false", "--expt-relaxed-constexpr", "-lineinfo")
HOST_FLAGS = ("-O2",)


def hash_of(sources: Sequence[str], files: Iterable[Path]) -> str:
    """Sixteen hex digits over the files, what is compiled of them, and the flags: any edit builds anew."""
    digest = hashlib.sha256(repr((tuple(sources), CUDA_FLAGS, HOST_FLAGS)).encode())
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    """Where builds are kept: ``GLQPROF_CACHE``, else ``XDG_CACHE_HOME``/glqprof, else ~/.cache/glqprof."""
    if "GLQPROF_CACHE" in os.environ:
        return Path(os.environ["GLQPROF_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "glqprof"


def unavailable_reason() -> str:
    """Why CUDA kernels cannot run here; "" when they can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed: pip install glqprof[torch]"
    if not torch.cuda.is_available():
        return "torch sees no CUDA GPU"
    if _nvcc() is None:
        return "nvcc is not found: install the CUDA toolkit, and put nvcc on the PATH or set CUDA_HOME"
    return ""


def _nvcc() -> str | None:
    from torch.utils import cpp_extension

    home = cpp_extension.CUDA_HOME
    if home and (Path(home) / "bin" / "nvcc").exists():
        return str(Path(home) / "bin" / "nvcc")
    return shutil.which("nvcc")


def current_capability(title: str) -> tuple[int, int]:
    """The current GPU's compute capability; RuntimeError saying what is missing to build the ``title`` kernels."""
    reason = unavailable_reason()
    if reason:
        raise RuntimeError(f"the {title} CUDA kernels cannot be built: {reason}")
    import torch

    return torch.cuda.get_device_capability()


def build(title: str, csrc: Path, sources: Sequence[str], source_hash: str, capability: tuple[int, int]) -> Any:
    """The extension module of ``csrc`` for one architecture; RuntimeError with the compiler's output."""
    import torch
    from torch.utils import cpp_extension

    arch = f"{capability[0]}.{capability[1]}" + ("a" if capability == (9, 0) else "")
    torch_tag = torch.__version__.replace("+", "_")
    tag = f"{source_hash}_sm{arch.replace('.', '')}"
    folder = cache_root() / "extensions" / f"torch-{torch_tag}_py{sys.version_info[0]}{sys.version_info[1]}" / tag
    name = f"glqprof_{title.lower()}_{tag}"
    built = (folder / f"{name}.so").exists()
    folder.mkdir(parents=True, exist_ok=True)
    if not built:
        what = f"building the {title} kernels for sm_{arch} (once, about a minute) in {folder}"
        print(f"glqprof: {what}", file=sys.stderr)
    start = time.perf_counter()
    before = os.environ.get("TORCH_CUDA_ARCH_LIST")
    os.environ["TORCH_CUDA_ARCH_LIST"] = arch
    try:
        module = cpp_extension.load(
            name=name,
            sources=[str(csrc / source) for source in sources],
            extra_cflags=list(HOST_FLAGS),
            extra_cuda_cflags=list(CUDA_FLAGS),
            build_directory=str(folder),
            with_cuda=True,
        )
    except Exception as error:  # the compiler's output arrives inside torch's exception
        raise RuntimeError(f"building the {title} kernels failed in {folder}:\n{error}") from error
    finally:
        if before is None:
            del os.environ["TORCH_CUDA_ARCH_LIST"]
        else:
            os.environ["TORCH_CUDA_ARCH_LIST"] = before
    if not built:
        print(f"glqprof: built in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return module
