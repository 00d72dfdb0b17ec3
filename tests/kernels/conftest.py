"""The emulated kernels: the device code compiled by the host's compiler, CUDA threads as fibers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from kernels.emulation_flags import FLAGS

from glqprof_kernels.glq.extension import CSRC
from glqprof_kernels.glq.ops import ACTIVATION_CODES, VARIANT_CODES

EMULATION = Path(__file__).parent / "emulation"
ASCENDING, DESCENDING, SHUFFLED = 0, 1, 2


class _Matrix(ctypes.Structure):
    _fields_ = [
        ("stages", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("cols", ctypes.c_int32),
        ("split_blocks", ctypes.c_int32),
        ("experts", ctypes.c_int64),
        ("plane", ctypes.c_void_p * 4),
        ("table", ctypes.c_void_p * 4),
        ("scales", ctypes.c_void_p * 4),
        ("sv", ctypes.c_void_p),
        ("su", ctypes.c_void_p),
    ]


class EmulatedGlq:
    """Runs the host loops and kernels of csrc on CPU tensors."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.emulated_error.restype = ctypes.c_char_p
        self.library.emulated_launches.restype = ctypes.c_char_p
        self.library.emulated_plane_offset.restype = ctypes.c_int64
        self.library.emulated_exp.restype = ctypes.c_float
        self.library.emulated_exp.argtypes = [ctypes.c_float]
        self.library.emulated_round_to_half.restype = ctypes.c_uint16
        self.library.emulated_round_to_half.argtypes = [ctypes.c_float]

    def moe(self, layer, x, ids, weights, variant="v3b", mask_invalid=False, order=ASCENDING):
        """(out [tokens, hidden] fp16, infinite activations, kernels launched)."""
        matrices = [self._matrix(m) for m in (layer.up, layer.down)]
        out = torch.full((x.shape[0], layer.hidden), float("nan"), dtype=torch.float16)
        overflow = ctypes.c_ulonglong(0)
        ids, weights = ids.long().contiguous(), weights.contiguous()
        failed = self.library.emulated_moe(
            VARIANT_CODES[variant],
            ctypes.byref(matrices[0]),
            ctypes.byref(matrices[1]),
            ACTIVATION_CODES[layer.activation],
            ctypes.c_float(layer.limit),
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_int64(x.stride(0)),
            ctypes.c_int64(x.stride(1)),
            x.shape[0],
            ids.shape[1],
            ctypes.c_void_p(ids.data_ptr()),
            ctypes.c_void_p(weights.data_ptr()),
            int(mask_invalid),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.byref(overflow),
            order,
        )
        if failed:
            raise ValueError(self.library.emulated_error().decode())
        return out, overflow.value, self.library.emulated_launches().decode().splitlines()

    def input_rht(self, x: np.ndarray, sv: np.ndarray, order: int = ASCENDING) -> np.ndarray:
        """The transform of one fp16 vector, in fp32 before its rounding."""
        y = np.full(len(x), np.nan, dtype=np.float32)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, sv, y)]
        self.library.emulated_input_rht(*pointers, len(x), order)
        return y

    @staticmethod
    def _matrix(weights) -> _Matrix:
        matrix = _Matrix(weights.stages, weights.rows, weights.cols, weights.split_blocks, weights.experts)
        for s, (plane, table, scale) in enumerate(
            zip(weights.present_planes(), weights.present_tables(), weights.present_scales(), strict=True)
        ):
            matrix.plane[s], matrix.table[s], matrix.scales[s] = plane.data_ptr(), table.data_ptr(), scale.data_ptr()
        matrix.sv, matrix.su = weights.sv.data_ptr(), weights.su.data_ptr()
        return matrix


def _compile(library: Path, source: Path, csrc: Path, *flags: str) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++: the device code cannot be compiled for emulation")
    command = [compiler, *FLAGS, *flags, f"-I{EMULATION}", f"-I{csrc}", "-o", str(library), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


def build_emulation(folder: Path, csrc: Path = CSRC) -> EmulatedGlq:
    """Compile the device code in ``csrc`` for emulation; skips where there is no g++."""
    library = folder / "glq.so"
    _compile(library, EMULATION / "emulated_glq.cpp", csrc)
    return EmulatedGlq(library)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedGlq:
    """The emulation, built once a session."""
    return build_emulation(tmp_path_factory.mktemp("emulation"))


@pytest.fixture(scope="session")
def emulation_builder():
    """``build_emulation``, for tests that plant a fault in a copy of the sources."""
    return build_emulation


class _FusedMatrix(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("stages", "small", "rows", "cols", "split_blocks")),
        ("codes", ctypes.c_void_p * 4),
        ("scales", ctypes.c_void_p * 4),
        ("sv", ctypes.c_void_p),
        ("su", ctypes.c_void_p),
    ]


class EmulatedFused:
    """Runs the fused kernels of csrc on CPU tensors."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.emulated_fused_error.restype = ctypes.c_char_p
        self.library.emulated_fused_launches.restype = ctypes.c_char_p
        self.library.emulated_fused_workspace.restype = ctypes.c_int64

    def moe(self, layer, x, ids, weights, mask_invalid=False, order=ASCENDING, workspace=None, **config):
        """(out, kernels launched). ``layer``: a packed one, whose ``overflow`` and ``errors`` grow as on a GPU.

        ``config``: fast, blocks, shared_bytes, one_launch (0: two launches, blocks one after the other), capability,
        the ``seed`` of the blocks' turns.
        """
        c = {"fast": 0, "blocks": 3, "one_launch": 1, "capability": 90, "seed": 1}
        c |= {"shared_bytes": 227 * 1024, **config}
        up, down = self._matrix(layer.up), self._matrix(layer.down)
        out = torch.full((x.shape[0], layer.down.rows), float("nan"), dtype=torch.float16)
        workspace = self.workspace(layer, ids.numel()) if workspace is None else workspace
        ids = ids.long()
        table = layer.table
        numbers = [*ids.shape, layer.experts, ACTIVATION_CODES[layer.activation], int(mask_invalid)]
        numbers += [table.image.numel(), table.small_word, table.entries]
        numbers += [*x.stride(), *ids.stride(), *weights.stride()]
        numbers += [int(c[k]) for k in ("fast", "blocks")]
        numbers += [c["shared_bytes"], order, int(c["one_launch"]), c["capability"], c["seed"]]
        failed = self.library.emulated_fused(
            ctypes.byref(up),
            ctypes.byref(down),
            ctypes.c_void_p(table.image.data_ptr()),
            (ctypes.c_int64 * len(numbers))(*numbers),
            ctypes.c_float(layer.limit),
            *(ctypes.c_void_p(t.data_ptr()) for t in (x, ids, weights, out, layer.overflow, layer.errors, workspace)),
        )
        if failed:
            raise RuntimeError(self.library.emulated_fused_error().decode())
        return out, self.library.emulated_fused_launches().decode().splitlines()

    def workspace(self, layer, slots: int) -> torch.Tensor:
        """As before a first call: all words missing."""
        up, down = self._matrix(layer.up), self._matrix(layer.down)
        size = self.library.emulated_fused_workspace(ctypes.byref(up), ctypes.byref(down), slots)
        memory = torch.full((size + 256,), 0xFF, dtype=torch.uint8)
        return memory[-memory.data_ptr() % 256 :]

    @staticmethod
    def _matrix(m) -> _FusedMatrix:
        matrix = _FusedMatrix(len(m.codes), int(m.small), m.rows, m.cols, m.split_blocks)
        for s, (codes, scale) in enumerate(zip(m.codes, m.scales, strict=True)):
            matrix.codes[s], matrix.scales[s] = codes.data_ptr(), scale.data_ptr()
        matrix.sv, matrix.su = m.sv.data_ptr(), m.su.data_ptr()
        return matrix


def build_fused_emulation(folder: Path, csrc: Path = CSRC) -> EmulatedFused:
    """Compile the fused device code for emulation; skips where there is no g++."""
    library = folder / "fused.so"
    _compile(library, EMULATION / "emulated_fused.cpp", csrc)
    return EmulatedFused(library)


@pytest.fixture(scope="session")
def emulated_fused(tmp_path_factory: pytest.TempPathFactory) -> EmulatedFused:
    """The fused kernels' emulation, built once a session."""
    return build_fused_emulation(tmp_path_factory.mktemp("fused_emulation"))


@pytest.fixture(scope="session")
def fused_builder():
    """``build_fused_emulation``, for tests that plant a fault in a copy of the sources."""
    return build_fused_emulation
