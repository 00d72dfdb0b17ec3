"""Compile all device code that needs no torch, and fail on spills or stack frames.

    python3 kernels/tools/compile_check.py [--arch sm_90a ...] [--json FILE]

Every ``kernels/glqprof_kernels/*/csrc/*.cu`` is compiled by nvcc for each architecture with ``-Xptxas -v``; ptxas'
report is parsed into registers, stack and spills a kernel. Exit 0: clean; 1: a kernel spills, has a stack frame, or
does not compile; 2: there is no nvcc.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_90a", "sm_120")
PACKAGE = Path(__file__).resolve().parents[1] / "glqprof_kernels"
FLAGS = ("-std=c++17", "-O3", "-fmad=false", "--expt-relaxed-constexpr", "-Xptxas", "-v", "-Werror", "all-warnings")

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of one kernel on one architecture; bytes of stack and spills."""

    source: str
    name: str
    arch: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int

    @property
    def clean(self) -> bool:
        """No spill and no stack frame."""
        return self.stack == self.spill_stores == self.spill_loads == 0


def parse(source: str, text: str) -> list[Kernel]:
    """Kernels in ptxas' verbose output, in its order; ValueError when an entry lacks its numbers."""
    kernels = []
    entries = list(_ENTRY.finditer(text))
    for index, entry in enumerate(entries):
        end = entries[index + 1].start() if index + 1 < len(entries) else len(text)
        part = text[entry.end() : end]
        stack, used = _STACK.search(part), _USED.search(part)
        if stack is None or used is None:
            raise ValueError(f"{source}: ptxas reported no numbers for {entry[1]}")
        kernels.append(Kernel(source, entry[1], entry[2], int(used[1]), int(stack[1]), int(stack[2]), int(stack[3])))
    return kernels


def compile_one(nvcc: str, source: Path, arch: str) -> tuple[list[Kernel], str]:
    """(kernels, "") or ([], the compiler's message)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, *FLAGS, f"-arch={arch}", "-cubin", "-o", str(Path(folder) / "out.cubin"), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    label = f"{source.parents[1].name}/{source.name}"
    text = done.stdout + done.stderr
    if done.returncode:
        return [], f"{label} for {arch}:\n{text}"
    return parse(label, text), ""


def main(arguments: list[str] | None = None) -> int:
    """Compile, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        print("error: nvcc is not on the PATH; install the CUDA toolkit", file=sys.stderr)
        return 2
    sources = sorted(PACKAGE.glob("*/csrc/*.cu"))
    jobs = [(source, arch) for source in sources for arch in options.arch]
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(lambda job: compile_one(nvcc, *job), jobs))
    kernels = [kernel for found, _ in results for kernel in found]
    messages = [message for _, message in results if message]
    for kernel in kernels:
        mark = "" if kernel.clean else "  <- stack or spills"
        print(
            f"{kernel.arch:8} {kernel.registers:4} registers {kernel.stack:5} B stack "
            f"{kernel.spill_stores:5}/{kernel.spill_loads} B spilled  {kernel.name}{mark}"
        )
    for message in messages:
        print(f"error: {message}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps([asdict(kernel) for kernel in kernels], indent=1) + "\n", encoding="utf-8")
    dirty = [kernel for kernel in kernels if not kernel.clean]
    print(f"{len(kernels)} kernels from {len(sources)} files for {', '.join(options.arch)}; {len(dirty)} not clean")
    return 1 if dirty or messages or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
