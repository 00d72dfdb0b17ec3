"""The step kernels of csrc on CPU tensors: the device code compiled by the host's compiler, CUDA threads as fibers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.emulation_flags import FLAGS

from glqprof_kernels.step import Sizes, Workspace
from glqprof_kernels.step.extension import CSRC
from glqprof_kernels.step.workspace import COUNTER_BYTES

EMULATION = Path(__file__).parent / "emulation"
PAST_ALL_ROWS = 2**31 - 1

_P, _I, _L, _F, _B = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_bool


class _Matvec(ctypes.Structure):
    _fields_ = [
        ("x", _P),
        ("x_stride", _L),
        *((name, _I) for name in ("batch", "inputs", "outputs", "ring")),
        ("clocks", _P),
    ]


class _Segments(ctypes.Structure):
    _fields_ = [("weight", _P * 4), ("out", _P * 4), ("bias", _P * 4), ("out_stride", _L * 4), ("first", _I * 4)]


class _Linear(ctypes.Structure):
    _fields_ = [("m", _Matvec), ("s", _Segments), ("relu2", _B)]


class _Head(ctypes.Structure):
    _fields_ = [
        ("m", _Matvec),
        ("weight", _P),
        ("logits", _P),
        ("logits_stride", _L),
        ("token", _P),
        ("best", _P),
        ("counter", _P),
    ]


class _Embed(ctypes.Structure):
    _fields_ = [("table", _P), ("token", _P), ("out", _P), ("vocab", _L), ("hidden", _I)]


class _Norm(ctypes.Structure):
    _fields_ = [
        *((name, _P) for name in ("residual", "addend", "second", "weight", "out", "out_fp16")),
        ("eps", _F),
        ("hidden", _I),
        ("addend_fp16", _B),
        ("weight_fp32", _B),
    ]


class _Route(ctypes.Structure):
    _fields_ = [
        ("x", _P),
        ("x_stride", _L),
        *((name, _P) for name in ("weight", "bias", "ids", "weights", "scores", "counter")),
        ("scaling", _F),
        *((name, _I) for name in ("batch", "hidden", "experts", "top_k")),
        ("normalise", _B),
        ("weight_fp32", _B),
    ]


class _Attend(ctypes.Structure):
    _fields_ = [
        *((name, _P) for name in ("q", "k_new", "v_new", "k_cache", "v_cache", "position", "out")),
        *((name, _P) for name in ("sums", "maxima", "counters")),
        *((name, _L) for name in ("q_stride", "k_stride", "v_stride", "out_stride", "capacity")),
        ("scale", _F),
        *((name, _I) for name in ("batch", "heads", "kv_heads", "dim", "splits")),
    ]


def _at(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.data_ptr()


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy that begins at a multiple of 16 bytes, as tensors of a GPU do."""
    size = tensor.numel() * tensor.element_size()
    memory = torch.empty(size + 16, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 16 :][:size]
    return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor)


class EmulatedStep:
    """The functions of ``glqprof_kernels.step``, over outputs of the caller; each returns the kernels launched."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.emulated_step_error.restype = ctypes.c_char_p
        self.library.emulated_step_launches.restype = ctypes.c_char_p

    def _run(self, name: str, order: int, call: ctypes.Structure, *more: Any) -> list[str]:
        if getattr(self.library, f"emulated_step_{name}")(order, ctypes.byref(call), *more):
            raise RuntimeError(self.library.emulated_step_error().decode())
        return self.library.emulated_step_launches().decode().splitlines()

    def embed(self, table, token, out, order=0):
        call = _Embed(table.data_ptr(), token.data_ptr(), out.data_ptr(), *table.shape)
        return self._run("embed", order, call, token.shape[0])

    def add_rms_norm(self, residual, addend, weight, eps, out, out_fp16=None, second=None, order=0):
        fp16 = addend is not None and addend.dtype == torch.float16
        tensors = [_at(t) for t in (residual, addend, second, weight, out, out_fp16)]
        call = _Norm(*tensors, eps, residual.shape[1], fp16, weight.dtype == torch.float32)
        return self._run("add_rms_norm", order, call, residual.shape[0])

    def route(self, x, weight, bias, top_k, scaling, normalise, ids, weights, workspace=None, order=0):
        experts, hidden = weight.shape
        workspace = workspace or garbage_workspace(Sizes(x.shape[0], experts=experts))
        call = _Route(x.data_ptr(), x.stride(0), *(t.data_ptr() for t in (weight, bias, ids, weights)))
        call.counter, call.scores = halves(workspace)
        call.scaling, call.batch, call.hidden, call.experts, call.top_k = scaling, x.shape[0], hidden, experts, top_k
        call.normalise, call.weight_fp32 = normalise, weight.dtype == torch.float32
        return self._run("route", order, call)

    def linear(self, x, weights, outs, biases=None, relu2=False, order=0, **tuning):
        call = _Linear(_matvec(x, sum(w.shape[0] for w in weights)), relu2=relu2)
        first = 0
        for i in range(4):
            call.s.first[i] = first if i < len(weights) else PAST_ALL_ROWS
            if i < len(weights):
                bias = biases[i] if biases else None
                call.s.weight[i], call.s.out[i], call.s.bias[i] = _at(weights[i]), _at(outs[i]), _at(bias)
                call.s.out_stride[i] = outs[i].stride(0)
                first += weights[i].shape[0]
        return self._run("linear", order, call, _tuning(**tuning))

    def head_argmax(self, x, weight, token, logits=None, workspace=None, order=0, **tuning):
        workspace = workspace or garbage_workspace(Sizes(x.shape[0]))
        counter, best = halves(workspace)
        stride = 0 if logits is None else logits.stride(0)
        call = _Head(_matvec(x, weight.shape[0]), _at(weight), _at(logits), stride, _at(token), best, counter)
        return self._run("head_argmax", order, call, _tuning(**tuning))

    def attend(self, q, k_new, v_new, k_cache, v_cache, position, scale, out, workspace=None, order=0):
        batch, kv_heads, capacity, dim = k_cache.shape
        sizes = Sizes(batch, heads=q.shape[1] // dim, head_dim=dim, capacity=capacity)
        workspace = workspace or garbage_workspace(sizes)
        call = _Attend(*(t.data_ptr() for t in (q, k_new, v_new, k_cache, v_cache, position, out)))
        call.counters, call.sums = halves(workspace)
        call.maxima = call.sums + 4 * batch * sizes.heads * sizes.splits * dim
        call.q_stride, call.k_stride, call.v_stride, call.out_stride = (t.stride(0) for t in (q, k_new, v_new, out))
        call.capacity, call.scale, call.batch, call.heads = capacity, scale, batch, sizes.heads
        call.kv_heads, call.dim, call.splits = kv_heads, dim, sizes.splits
        return self._run("attend", order, call)


def _matvec(x: torch.Tensor, outputs: int) -> _Matvec:
    return _Matvec(x.data_ptr(), x.stride(0), x.shape[0], x.shape[1], outputs, 0, None)


def _tuning(shared_kib: int = 0, blocks: int = 3, share: int = 0, clocks: torch.Tensor | None = None) -> Any:
    return (ctypes.c_int64 * 4)(shared_kib, blocks, share, _at(clocks) or 0)


def garbage_workspace(sizes: Sizes) -> Workspace:
    """Zeroed counters; everything after them holds what no kernel may rely on."""
    workspace = Workspace(sizes, "cpu")
    memory = aligned(workspace.memory)
    memory[COUNTER_BYTES:] = 0xA5
    workspace.memory = memory
    return workspace


def halves(workspace: Workspace) -> tuple[int, int]:
    """Where the counters and the partial results lie."""
    at = workspace.memory.data_ptr()
    return at, at + COUNTER_BYTES


def build(folder: Path, csrc: Path = CSRC, *flags: str) -> EmulatedStep:
    """Compile the device code in ``csrc`` (inside a package folder beside glq's) for emulation; skips without g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++: the device code cannot be compiled for emulation")
    library = folder / "step.so"
    command = [compiler, *FLAGS, *flags, f"-I{EMULATION}", f"-I{csrc}", "-o", str(library)]
    built = subprocess.run(
        [*command, str(EMULATION / "emulated_step.cpp")], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return EmulatedStep(library)
