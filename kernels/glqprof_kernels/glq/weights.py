"""One MoE layer's GLQ weights as tensors, with the checks that a wrong checkpoint must not pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Tensor = Any  # torch.Tensor

SPLIT_BLOCKS = (16, 32, 64)
MAX_STAGES = 4


def is_absent(plane: Tensor | None) -> bool:
    """Whether an index plane stands for "no such stage": None, empty, or of shape (experts, 1, 1).

    A matrix whose planes are really (E, 1, 1) has one row of eight columns; ``MatrixWeights`` knows its size from
    ``su`` and ``sv`` and does not ask this function then.
    """
    return plane is None or plane.numel() == 0 or (plane.dim() == 3 and tuple(plane.shape[1:]) == (1, 1))


@dataclass
class MatrixWeights:
    """One matrix of every expert: ``wscale · (C[i1] + r1·C[i2] + r2·C[i3] + r3·C[i4])``, [experts, rows, cols].

    ``planes``: up to four of [experts, rows, cols / 8] int16, read as uint16; None or an absent plane (see
    ``is_absent``) skips its stage; the first is present. ``tables``: the fp16 codebook of each stage, [entries, 8].
    ``wscale``, ``r1``, ``r2``, ``r3``: [experts] fp32. ``sv``: fp16 signs [cols], or [experts, cols] that agree.
    ``su``: fp16 signs [experts, rows]. All on one device. Construction checks everything (ValueError) and makes tensors
    contiguous.
    """

    planes: Sequence[Tensor | None]
    tables: Sequence[Tensor]
    wscale: Tensor
    r1: Tensor
    r2: Tensor
    r3: Tensor
    sv: Tensor
    su: Tensor
    split_blocks: int = 64
    name: str = "matrix"
    check_values: bool = True
    """Also read the values of signs and indices; the random factory, which made them, says no."""

    present: list[int] = field(init=False)
    """The stages present, 0-based and ascending; the first is 0."""

    def __post_init__(self) -> None:
        """Check and normalise; see the class."""
        import torch

        self._check_signs(torch)
        experts, rows = self.su.shape
        cols = self.sv.shape[0]
        if cols % 8:
            raise ValueError(f"{self.name}: {cols} columns are not a multiple of 8")
        if self.split_blocks not in SPLIT_BLOCKS:
            raise ValueError(f"{self.name}: split_blocks is {self.split_blocks}; it must be 16, 32 or 64")
        if not 1 <= len(self.planes) <= MAX_STAGES:
            raise ValueError(f"{self.name}: {len(self.planes)} index planes; there are 1 to {MAX_STAGES}")
        shape = (experts, rows, cols // 8)
        planes: list[Tensor | None] = []
        for s, plane in enumerate(self.planes):
            if plane is not None and tuple(plane.shape) == shape and plane.numel():
                if plane.dtype != torch.int16:
                    raise ValueError(f"{self.name}: index plane {s + 1} is {plane.dtype}; it must be int16")
                planes.append(plane.contiguous())
            elif is_absent(plane):
                planes.append(None)
            else:
                raise ValueError(f"{self.name}: index plane {s + 1} has shape {tuple(plane.shape)}; it must be {shape}")
        if planes[0] is None:
            raise ValueError(f"{self.name}: the first index plane is absent")
        self.planes = planes
        self.present = [s for s, plane in enumerate(planes) if plane is not None]
        self._check_tables(torch)
        for attribute in ("wscale", "r1", "r2", "r3"):
            value = getattr(self, attribute)
            if value.dtype != torch.float32 or tuple(value.shape) != (experts,):
                raise ValueError(
                    f"{self.name}: {attribute} is {value.dtype} {tuple(value.shape)}; it must be float32 ({experts},)"
                )
            setattr(self, attribute, value.contiguous())

    def _check_signs(self, torch: Any) -> None:
        sv, su = self.sv, self.su
        if su.dim() != 2 or sv.dim() not in (1, 2):
            raise ValueError(f"{self.name}: su has shape [experts, rows], sv [cols] or [experts, cols]")
        if self.check_values:
            for label, signs in (("sv", sv), ("su", su)):
                if not bool((signs.abs() == 1).all()):
                    raise ValueError(f"{self.name}: {label} holds values other than +1 and -1")
            if sv.dim() == 2 and not bool((sv == sv[:1]).all()):
                raise ValueError(f"{self.name}: sv differs between experts; one input transform serves a layer")
        if sv.dim() == 2:
            if sv.shape[0] != su.shape[0]:
                raise ValueError(f"{self.name}: sv is of {sv.shape[0]} experts, su of {su.shape[0]}")
            sv = sv[0]
        self.sv = sv.to(torch.float16).contiguous()
        self.su = su.to(torch.float16).contiguous()

    def _check_tables(self, torch: Any) -> None:
        if len(self.tables) < len(self.planes):
            raise ValueError(f"{self.name}: {len(self.planes)} index planes but {len(self.tables)} codebooks")
        for s in self.present:
            table = self.tables[s]
            if table.dtype != torch.float16 or table.dim() != 2 or table.shape[1] != 8:
                raise ValueError(f"{self.name}: codebook {s + 1} must be float16 [entries, 8]")
            if table.data_ptr() % 16 or not table.is_contiguous():
                raise ValueError(f"{self.name}: codebook {s + 1} must be contiguous and 16-byte aligned")
            entries = table.shape[0]
            if self.check_values and entries < 65_536:
                plane = self.planes[s]
                low, high = int(plane.min()), int(plane.max())
                if low < 0 or high >= entries:
                    reached = low if low < 0 else high
                    raise ValueError(
                        f"{self.name}: index plane {s + 1} reaches {reached}; its codebook has {entries} entries"
                    )

    @property
    def experts(self) -> int:
        """Experts."""
        return int(self.su.shape[0])

    @property
    def rows(self) -> int:
        """Output values (M)."""
        return int(self.su.shape[1])

    @property
    def cols(self) -> int:
        """Input values (N)."""
        return int(self.sv.shape[0])

    @property
    def stages(self) -> int:
        """Stages present, 1 to 4."""
        return len(self.present)

    def present_planes(self) -> list[Tensor]:
        """The index planes present, in stage order."""
        return [self.planes[s] for s in self.present]

    def present_tables(self) -> list[Tensor]:
        """The codebook of each stage present."""
        return [self.tables[s] for s in self.present]

    def present_scales(self) -> list[Tensor]:
        """``wscale``, then the r of each later stage present; each [experts] fp32."""
        return [self.wscale, *((self.r1, self.r2, self.r3)[s - 1] for s in self.present[1:])]

    def bytes_per_expert(self) -> int:
        """Bytes that one expert's product must read: indices, SU and its scales."""
        return self.rows * self.cols // 8 * 2 * self.stages + self.rows * 2 + 4 * self.stages


@dataclass
class LayerWeights:
    """One MoE layer: ``up`` [experts, inter, hidden] (2 × inter, gate first, for swiglu), ``down`` [.., hidden, inter].

    ``activation``: ``relu2`` or ``swiglu``; ``limit`` clamps SwiGLU's inputs, 0 is off. ``overflow``: [1] int64 on the
    weights' device, to which every call adds the activations that became infinite from finite values.
    """

    up: MatrixWeights
    down: MatrixWeights
    activation: str = "relu2"
    limit: float = 0.0
    overflow: Tensor = None

    def __post_init__(self) -> None:
        """Check that the two matrices fit each other (ValueError)."""
        import torch

        if self.activation not in ("relu2", "swiglu"):
            raise ValueError(f"activation is {self.activation!r}; it must be 'relu2' or 'swiglu'")
        if self.up.experts != self.down.experts:
            raise ValueError(f"up has {self.up.experts} experts, down {self.down.experts}")
        if self.up.cols != self.down.rows:
            raise ValueError(f"up reads {self.up.cols} values but down writes {self.down.rows}")
        factor = 2 if self.activation == "swiglu" else 1
        if self.up.rows != factor * self.down.cols:
            raise ValueError(
                f"up writes {self.up.rows} values; with {self.activation} it must be {factor * self.down.cols}"
            )
        if self.overflow is None:
            self.overflow = torch.zeros(1, dtype=torch.int64, device=self.up.su.device)

    @property
    def hidden(self) -> int:
        """Width of the layer's input and output."""
        return self.up.cols

    @property
    def experts(self) -> int:
        """Experts of the layer."""
        return self.up.experts

    @property
    def device(self) -> Any:
        """The weights' torch.device."""
        return self.up.su.device
