"""The SSM kernels of csrc on CPU tensors: the device code compiled by the host's compiler, CUDA threads as fibers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from kernels.emulation_flags import FLAGS

from glqprof_kernels.ssm.extension import CSRC
from glqprof_kernels.ssm.ops import EXCHANGES

EMULATION = Path(__file__).parent / "emulation"
ORDERS = (0, 1, 2)
"""Threads of a block in ascending, descending and shuffled order."""


class EmulatedSsm:
    """Runs one step's launches."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.emulated_ssm_error.restype = ctypes.c_char_p
        self.library.emulated_ssm_launches.restype = ctypes.c_char_p
        self.library.emulated_ssm_workspace.restype = ctypes.c_int64
        self.library.emulated_ssm_softplus.restype = ctypes.c_float
        self.library.emulated_ssm_softplus.argtypes = [ctypes.c_float]

    def step(self, weights, projected, conv_state, state, into=None, workspace=None, **config):
        """(out, kernels launched); states change in place, or go to ``into`` (conv_state, state).

        ``config``: fused, early, exchange, chunks, capability, largest_cluster, order.
        """
        c = {"fused": True, "early": True, "exchange": "auto", "chunks": 0, "capability": 90, "largest_cluster": 16}
        c |= {"order": 0, **config}
        w, batch = weights, projected.shape[0]
        conv_out, state_out = into or (conv_state, state)
        out = torch.empty(batch, w.inter, dtype=torch.bfloat16)
        out.view(torch.uint8).fill_(0xA5)
        wide = sum(
            bit
            for bit, t in ((1, w.conv_bias), (2, w.dt_bias), (4, w.d), (8, w.norm_weight))
            if t is not None and t.dtype == torch.float32
        )
        numbers = [batch, w.heads, w.head_dim, w.state, w.groups, w.kernel, wide, int(state.dtype == torch.bfloat16)]
        numbers += [int(c["early"]), EXCHANGES[c["exchange"]], c["chunks"], int(c["fused"]), c["capability"]]
        numbers += [c["largest_cluster"], c["order"]]
        numbers += [t.stride(0) for t in (projected, conv_state, conv_out, state, state_out, out)]
        n = (ctypes.c_int64 * len(numbers))(*numbers)
        if workspace is None:
            workspace = self.workspace(weights, batch)
        tensors = [projected, conv_state, conv_out, state, state_out, out]
        tensors += [w.conv_weight, w.conv_bias, w.dt_bias, w.a, w.d, w.norm_weight, workspace]
        pointers = (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))
        if self.library.emulated_ssm(n, pointers, ctypes.c_float(w.eps)):
            raise ValueError(self.library.emulated_ssm_error().decode())
        return out, self.library.emulated_ssm_launches().decode().splitlines()

    def workspace(self, weights, batch: int) -> torch.Tensor:
        """Zeroed counters, everything else garbage."""
        w = weights
        numbers = [batch, w.heads, w.head_dim, w.state, w.groups, w.kernel, *[0] * 15]
        size = self.library.emulated_ssm_workspace((ctypes.c_int64 * len(numbers))(*numbers))
        memory = torch.full((size + 256,), 0xA5, dtype=torch.uint8)
        memory = memory[-memory.data_ptr() % 256 :]
        memory[: self.counter_bytes(w, batch)] = 0
        return memory

    @staticmethod
    def counter_bytes(weights, batch: int) -> int:
        """Bytes of the counters, which are zero between steps."""
        return batch * weights.groups * 4


def build(folder: Path, csrc: Path = CSRC, *flags: str) -> EmulatedSsm:
    """Compile the device code in ``csrc`` (in a package folder beside glq's) for emulation; skips without g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++: the device code cannot be compiled for emulation")
    library = folder / "ssm.so"
    source = EMULATION / "emulated_ssm.cpp"
    command = [compiler, *FLAGS, *flags, f"-I{EMULATION}", f"-I{csrc}", "-o", str(library), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return EmulatedSsm(library)
