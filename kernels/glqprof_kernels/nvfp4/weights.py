"""NVFP4 expert weights as tensors, in the order of the checkpoints, with the checks that a wrong one must not pass."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

Tensor = Any  # torch.Tensor

BLOCK = 16
"""Inputs that share a scale."""
TILE = 32
"""The kernels' granularity: rows and columns of a matrix are multiples of it."""
NAN_SCALE = 0x7F
"""The e4m3 byte of NaN; with the sign bit it is 0xFF. e4m3 (the "fn" form) has no infinity."""
ACTIVATIONS = ("swiglu", "relu2")
FLOAT32_MAX = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True)
class ExpertMatrix:
    """One matrix of every expert, as NVFP4: ``value[n, k] = e2m1(code) · e4m3(scales[n, k // 16]) · scale``.

    ``codes``: uint8 [experts, rows, cols / 2], two e2m1 codes a byte, the lower column in the low nibble. ``scales``:
    uint8 [experts, rows, cols / 16], the bytes of e4m3 block scales. ``scale``: float32 [experts], multiplied. All on
    one device. Construction checks dtypes, shapes and values (ValueError) and makes tensors contiguous.
    """

    codes: Tensor
    scales: Tensor
    scale: Tensor
    name: str = "matrix"
    check_values: bool = True
    """Also read the scales' values, which on a GPU waits for it; the random factory, which made them, says no."""

    def __post_init__(self) -> None:
        """Check and normalise; see the class."""
        import torch

        fields = (("codes", torch.uint8, 3), ("scales", torch.uint8, 3), ("scale", torch.float32, 1))
        for label, dtype, dims in fields:
            tensor = getattr(self, label)
            if tensor.dtype != dtype or tensor.dim() != dims:
                found = f"{label} is {tensor.dtype} {list(tensor.shape)}"
                raise ValueError(f"{self.name}: {found}; it must be {dtype} of {dims} dimensions")
            object.__setattr__(self, label, tensor.contiguous())
        if not self.codes.device == self.scales.device == self.scale.device:
            devices = ", ".join(f"{label} on {getattr(self, label).device}" for label, _, _ in fields)
            raise ValueError(f"{self.name}: {devices}; all must be on one device")
        experts, rows, half = self.codes.shape
        cols = 2 * half
        if not experts or not rows or not cols:
            raise ValueError(f"{self.name}: codes of shape {list(self.codes.shape)} hold no weight")
        for what, size in (("rows (N, outputs)", rows), ("columns (K, inputs)", cols)):
            if size % TILE:
                raise ValueError(f"{self.name}: {size} {what} are not a multiple of {TILE}, which the kernels need")
        if tuple(self.scales.shape) != (experts, rows, cols // BLOCK):
            expected = [experts, rows, cols // BLOCK]
            raise ValueError(f"{self.name}: scales have shape {list(self.scales.shape)}; these codes need {expected}")
        if tuple(self.scale.shape) != (experts,):
            raise ValueError(f"{self.name}: scale has shape {list(self.scale.shape)}; it must be [{experts}]")
        if self.check_values:
            self._check_values(torch)

    def _check_values(self, torch: Any) -> None:
        nan = (self.scales & 0x7F) == NAN_SCALE
        if bool(nan.any()):
            expert, row, block = (int(i) for i in torch.nonzero(nan)[0])
            byte = int(self.scales[expert, row, block])
            raise ValueError(f"{self.name}: scales[{expert}, {row}, {block}] is 0x{byte:02X}, the e4m3 NaN")
        bad = ~torch.isfinite(self.scale)
        if bool(bad.any()):
            expert = int(torch.nonzero(bad)[0])
            raise ValueError(f"{self.name}: scale[{expert}] is {float(self.scale[expert])}; it must be finite")

    @property
    def experts(self) -> int:
        """Experts (E)."""
        return int(self.codes.shape[0])

    @property
    def rows(self) -> int:
        """Output values (N)."""
        return int(self.codes.shape[1])

    @property
    def cols(self) -> int:
        """Input values (K)."""
        return 2 * int(self.codes.shape[2])

    @property
    def device(self) -> Any:
        """The tensors' torch.device."""
        return self.codes.device

    @property
    def bytes_per_expert(self) -> int:
        """Bytes that one expert's product must read: codes, block scales and its scale; 0.5625 a weight."""
        return self.rows * self.cols // 2 + self.rows * self.cols // BLOCK + 4


@dataclass
class LayerWeights:
    """The routed experts of one MoE layer.

    ``gate_up`` [experts, N, hidden]: N is 2 × inter with the gate's rows first for ``swiglu``, inter for ``relu2``.
    ``down`` [experts, hidden, inter]. ``limit`` clamps SwiGLU's inputs (gate to ≤ limit, up to ±limit), 0 is off;
    it is rounded to float32, which the kernels compare with.
    """

    gate_up: ExpertMatrix
    down: ExpertMatrix
    activation: str
    limit: float = 0.0

    def __post_init__(self) -> None:
        """Check that the two matrices fit each other (ValueError)."""
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation is {self.activation!r}; it must be 'swiglu' or 'relu2'")
        if not 0 <= self.limit <= FLOAT32_MAX:
            raise ValueError(f"limit is {self.limit}; it must be 0 (off) or a positive number")
        if self.limit and self.activation != "swiglu":
            raise ValueError(f"limit is {self.limit}, but only swiglu is clamped")
        self.limit = struct.unpack("f", struct.pack("f", self.limit))[0]
        if self.gate_up.experts != self.down.experts:
            raise ValueError(f"gate_up has {self.gate_up.experts} experts, down {self.down.experts}")
        if self.gate_up.device != self.down.device:
            raise ValueError(f"gate_up is on {self.gate_up.device}, down on {self.down.device}")
        if self.gate_up.cols != self.down.rows:
            raise ValueError(f"gate_up reads {self.gate_up.cols} values but down writes {self.down.rows}")
        factor = 2 if self.activation == "swiglu" else 1
        needed = factor * self.down.cols
        if self.gate_up.rows != needed:
            raise ValueError(f"gate_up writes {self.gate_up.rows} values; with {self.activation} it must be {needed}")

    @property
    def hidden(self) -> int:
        """Width of the layer's input and output."""
        return self.gate_up.cols

    @property
    def inter(self) -> int:
        """Width between the two matrices."""
        return self.down.cols

    @property
    def experts(self) -> int:
        """Experts of the layer."""
        return self.gate_up.experts

    @property
    def device(self) -> Any:
        """The weights' torch.device."""
        return self.gate_up.device
