"""The NVFP4 kernels of csrc on CPU tensors: the device code compiled by the host's compiler, CUDA threads as fibers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from kernels.emulation_flags import FLAGS

from glqprof_kernels.nvfp4.extension import CSRC
from glqprof_kernels.nvfp4.ops import PIPELINES, SCHEDULES, read_plan, split_variant

EMULATION = Path(__file__).parent / "emulation"
LAYER, EXPERTS_ONLY = 15, 7


class _Matrix(ctypes.Structure):
    _fields_ = [
        ("tiles", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("columns", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
    ]


class EmulatedNvfp4:
    """Runs one layer's launches; ``packed.errors`` grows as on a GPU."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.emulated_nvfp4_error.restype = ctypes.c_char_p
        self.library.emulated_nvfp4_launches.restype = ctypes.c_char_p
        self.library.emulated_nvfp4_workspace.restype = ctypes.c_int64

    def moe(self, packed, x, ids, weights, variant, mask_invalid=False, experts_as=None, **config):
        """(out [tokens, hidden] bf16, plan as a dict, kernels launched).

        ``experts_as``: a dtype; then the result is the expert outputs [tokens, top_k, hidden] of it, skipped slots NaN.
        ``config``: warps, depth, item_rows, blocks, shared_bytes, order, rows_once.
        """
        c = {"warps": 0, "depth": 0, "item_rows": 0, "blocks": 2, "shared_bytes": 227 * 1024, "order": 0}
        c |= {"rows_once": True, **config}
        schedule, pipeline = split_variant(variant)
        gate_up, down = self._matrix(packed.gate_up), self._matrix(packed.down)
        narrow = experts_as == torch.bfloat16
        numbers = [*ids.shape, packed.experts, int(packed.activation == "swiglu"), int(mask_invalid), x.stride(0)]
        numbers += [*ids.stride(), *weights.stride(), SCHEDULES[schedule], PIPELINES[pipeline], c["warps"], c["depth"]]
        numbers += [c["item_rows"], c["blocks"], int(narrow), c["shared_bytes"], c["order"]]
        numbers += [LAYER if experts_as is None else EXPERTS_ONLY, x.stride(1), int(c["rows_once"])]
        n = (ctypes.c_int64 * len(numbers))(*numbers)
        size = self.library.emulated_nvfp4_workspace(ctypes.byref(gate_up), ctypes.byref(down), n)
        if size < 0:
            raise RuntimeError(self.library.emulated_nvfp4_error().decode())
        memory = torch.full((size + 256,), 0xA5, dtype=torch.uint8)
        workspace = memory[-memory.data_ptr() % 256 :]
        if experts_as is None:
            out = torch.empty(ids.shape[0], packed.hidden, dtype=torch.bfloat16)
            out.view(torch.uint8).fill_(0xA5)
            targets = [ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(0)]
        else:
            out = torch.full((*ids.shape, packed.hidden), float("nan"), dtype=experts_as)
            targets = [ctypes.c_void_p(0), ctypes.c_void_p(out.data_ptr())]
        plan_at = ctypes.c_int64(0)
        failed = self.library.emulated_nvfp4(
            ctypes.byref(gate_up),
            ctypes.byref(down),
            n,
            ctypes.c_float(packed.limit),
            *(ctypes.c_void_p(t.data_ptr()) for t in (x, ids, weights)),
            *targets,
            ctypes.c_void_p(packed.errors.data_ptr()),
            ctypes.c_void_p(workspace.data_ptr()),
            ctypes.byref(plan_at),
        )
        if failed:
            raise RuntimeError(self.library.emulated_nvfp4_error().decode())
        plan = read_plan(workspace[plan_at.value :], ids.shape[1])
        return out, plan, self.library.emulated_nvfp4_launches().decode().splitlines()

    def choice(self, hidden, inter, experts, top_k, gated, tokens, variant, depth=0, rows_once=True) -> list:
        """[warps, stages, shared-memory bytes] of gate-up and of down on an H200."""
        schedule, pipeline = split_variant(variant)
        numbers = [tokens, top_k, experts, int(gated), 0, hidden, top_k, 1, top_k, 1, SCHEDULES[schedule]]
        numbers += [PIPELINES[pipeline], 0, depth, *[0] * 7, int(rows_once)]
        found = (ctypes.c_int32 * 6)()
        gate_up, down = _Matrix(0, 0, inter, hidden), _Matrix(0, 0, hidden, inter)
        n = (ctypes.c_int64 * len(numbers))(*numbers)
        self.library.emulated_nvfp4_choice(ctypes.byref(gate_up), ctypes.byref(down), n, found)
        return [list(found[:3]), list(found[3:])]

    @staticmethod
    def _matrix(m) -> _Matrix:
        return _Matrix(m.tiles.data_ptr(), m.scale.data_ptr(), m.columns, m.inputs)


def build(folder: Path, csrc: Path = CSRC, *flags: str) -> EmulatedNvfp4:
    """Compile the device code in ``csrc`` (inside a package folder beside glq's) for emulation; skips without g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++: the device code cannot be compiled for emulation")
    library = folder / "nvfp4.so"
    source = EMULATION / "emulated_nvfp4.cpp"
    command = [compiler, *FLAGS, *flags, f"-I{EMULATION}", f"-I{csrc}", "-o", str(library), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return EmulatedNvfp4(library)
