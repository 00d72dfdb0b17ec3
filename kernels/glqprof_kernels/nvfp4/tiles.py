"""The kernels' layout of NVFP4 weights, and its inverse: what the tensor cores read, a lane's words side by side.

An *atom* is 16 rows: 16 output columns of a plain matrix, or 8 gate rows and the 8 up rows of the same 8 columns.
Along k it is a sequence of *slots* of 64 inputs, each 512 bytes of codes and 64 of block scales. The last slot is
filled up with codes 0 and scales -0: a block of these adds -0 to a sum, which changes none.

Codes of a slot: lane 4g + t of a warp has 16 bytes, two pairs of words. A pair of words is two blocks of 16 inputs of
16 rows: blocks 0, 1 and blocks 2, 3. Per block that is an operand of ``mma.m16n8k16``: register r has row
g + 8 · (r % 2) and inputs 4t + 2 · (r // 2) and the one after. Where the four bits of a code lie in its two words is
``code_bits``; csrc/decode.cuh takes them out.

Scales of a slot: for each g 8 bytes, a word for each pair of words: row g blocks 0, 1, then row g + 8 blocks 0, 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from .weights import BLOCK, ExpertMatrix, LayerWeights

ATOM_ROWS = 16
SLOT_COLUMNS = 64
SLOT_BYTES = 576
CODE_BYTES = 512
PAD_SCALE = 0x80
"""e4m3 -0: of a block of zero codes, fma(+0, -0, acc) is acc, whatever its sign."""

_SHIFTS = (0, 4, 32 - 6)
"""Rotations to the right that bring a word's first three register pairs to bits 15 and 8..6 of both halves. Those by
32 - n are shifts to the left by n: the bits that such a rotation brings around are not wanted."""
_LEFT = 0x60306030
"""The bits that these leave; the fourth pairs of two words share the bits left in both."""
_SECOND_TURN = 2
_FOURTH = (6, 32 - 4)


@cache
def code_bits() -> tuple[tuple[int, ...], ...]:
    """[16][4]: where bits m, e0, e1, s of code ``8 · block + 2 · register + half`` lie in the 64 bits of two words."""
    target = (6, 7, 8, 15)
    places = []
    for block in range(2):
        for register in range(4):
            for half in range(2):
                bits = []
                for bit in target:
                    at = bit + 16 * half
                    if register < 3:
                        bits.append(32 * block + (at + _SHIFTS[register]) % 32)
                        continue
                    at = (at + _FOURTH[block]) % 32
                    bits.append(at if _LEFT >> at & 1 else 32 + (at + _SECOND_TURN) % 32)
                places.append(tuple(bits))
    return tuple(places)


@dataclass
class PackedMatrix:
    """A matrix of all experts in tiles.

    ``tiles``: uint8 [experts, columns / 16 (gated: / 8), slots, 576]; ``scale``: float32 [experts]. ``columns`` is
    what the kernel writes (inter for a gated matrix), ``inputs`` what it reads.
    """

    tiles: Any
    scale: Any
    columns: int
    inputs: int
    gated: bool

    @property
    def experts(self) -> int:
        """Experts (E)."""
        return int(self.tiles.shape[0])

    @property
    def bytes_per_expert(self) -> int:
        """Bytes of one expert's tiles."""
        return int(self.tiles[0].numel())


@dataclass
class PackedLayer:
    """A layer as the CUDA kernels take it; ``errors`` [1] int64 counts slots whose id names no expert."""

    gate_up: PackedMatrix
    down: PackedMatrix
    activation: str
    limit: float
    errors: Any

    @property
    def hidden(self) -> int:
        """Width of the layer's input and output."""
        return self.gate_up.inputs

    @property
    def inter(self) -> int:
        """Width between the two matrices."""
        return self.down.inputs

    @property
    def experts(self) -> int:
        """Experts of the layer."""
        return self.gate_up.experts


def pack_layer(layer: LayerWeights) -> PackedLayer:
    """The layer in tiles, on its device; the scales per expert are shared, everything else is a copy."""
    errors = torch.zeros(1, dtype=torch.int64, device=layer.device)
    gated = layer.activation == "swiglu"
    return PackedLayer(
        pack(layer.gate_up, gated), pack(layer.down, False), layer.activation, float(layer.limit), errors
    )


def unpack_layer(packed: PackedLayer) -> LayerWeights:
    """The inverse of ``pack_layer``, to the bit."""
    gate_up, down = unpack(packed.gate_up, "gate_up"), unpack(packed.down, "down")
    return LayerWeights(gate_up, down, packed.activation, packed.limit)


def atom_columns(gated: bool) -> int:
    """Output columns of an atom: its 16 rows are that many gates and as many ups, or plain."""
    return ATOM_ROWS // 2 if gated else ATOM_ROWS


def pack(matrix: ExpertMatrix, gated: bool) -> PackedMatrix:
    """One matrix in tiles, made an expert at a time. ``gated``: the first half of the rows are gates, the other ups."""
    columns = matrix.rows // (2 if gated else 1)
    slots = -(-matrix.cols // SLOT_COLUMNS)
    shape = (matrix.experts, matrix.rows // ATOM_ROWS, slots, SLOT_BYTES)
    tiles = torch.empty(shape, dtype=torch.uint8, device=matrix.device)
    for expert in range(matrix.experts):
        tiles[expert, ..., :CODE_BYTES] = _pack_codes(_in_atoms(matrix.codes[expert], gated), slots)
        tiles[expert, ..., CODE_BYTES:] = _pack_scales(_in_atoms(matrix.scales[expert], gated), slots)
    return PackedMatrix(tiles, matrix.scale, columns, matrix.cols, gated)


def unpack(packed: PackedMatrix, name: str = "matrix") -> ExpertMatrix:
    """The inverse of ``pack``, to the bit."""
    codes = torch.stack([_from_atoms(_unpack_codes(t[..., :CODE_BYTES], packed), packed.gated) for t in packed.tiles])
    scales = torch.stack([_from_atoms(_unpack_scales(t[..., CODE_BYTES:], packed), packed.gated) for t in packed.tiles])
    return ExpertMatrix(codes, scales, packed.scale, name, check_values=False)


def _in_atoms(rows: Any, gated: bool) -> Any:
    """[rows, n] in the order of the atoms' rows."""
    if not gated:
        return rows
    return rows.view(2, -1, ATOM_ROWS // 2, rows.shape[1]).transpose(0, 1).reshape(rows.shape)


def _from_atoms(rows: Any, gated: bool) -> Any:
    """The inverse of ``_in_atoms``."""
    if not gated:
        return rows
    return rows.view(-1, 2, ATOM_ROWS // 2, rows.shape[1]).transpose(0, 1).reshape(rows.shape)


def _fill(values: Any, width: int, value: int) -> Any:
    missing = width - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing), value=value) if missing else values


# Axes: a atom, r row // 8, g row % 8, s slot, h pair of words, i block, t, p = register // 2, e half.
def _code_axes(codes: Any, slots: int) -> Any:
    """[rows, slots · 64] → a view [a, s, g, t, h, i, p, r, e]."""
    return codes.view(-1, 2, 8, slots, 2, 2, 4, 2, 2).permute(0, 3, 2, 6, 4, 5, 7, 1, 8)  # a r g s h i t p e


def _scale_axes(scales: Any, slots: int) -> Any:
    """[rows, slots · 4] → a view [a, s, g, h, r, i]."""
    return scales.view(-1, 2, 8, slots, 2, 2).permute(0, 3, 2, 4, 1, 5)  # a r g s h i


def _pack_codes(packed: Any, slots: int) -> Any:
    """uint8 [rows, cols / 2] → [atoms, slots, 512]."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    axes = _code_axes(_fill(codes, slots * SLOT_COLUMNS, 0), slots).flatten(-4)  # last: i p r e, 16 codes
    words = torch.zeros(axes.shape[:-1], dtype=torch.int64, device=packed.device)
    for index, places in enumerate(code_bits()):
        code = axes[..., index].to(torch.int64)
        for bit, place in enumerate(places):
            words |= (code >> bit & 1) << place
    return words.contiguous().view(torch.uint8).view(words.shape[0], slots, -1)


def _unpack_codes(tiles: Any, packed: PackedMatrix) -> Any:
    """[atoms, slots, 512] → uint8 [rows, inputs / 2]."""
    atoms, slots, _ = tiles.shape
    words = tiles.contiguous().view(torch.int64).view(atoms, slots, 8, 4, 2)
    codes = torch.zeros(*words.shape, 16, dtype=torch.uint8, device=tiles.device)
    for index, places in enumerate(code_bits()):
        for bit, place in enumerate(places):
            codes[..., index] |= ((words >> place & 1) << bit).to(torch.uint8)
    flat = torch.empty(atoms * ATOM_ROWS, slots * SLOT_COLUMNS, dtype=torch.uint8, device=tiles.device)
    axes = _code_axes(flat, slots)
    axes.copy_(codes.view(axes.shape))
    flat = flat[:, : packed.inputs]
    return flat[:, 0::2] | flat[:, 1::2] << 4


def _pack_scales(scales: Any, slots: int) -> Any:
    """uint8 [rows, cols / 16] → [atoms, slots, 64]."""
    axes = _scale_axes(_fill(scales, slots * SLOT_COLUMNS // BLOCK, PAD_SCALE), slots)
    return axes.reshape(axes.shape[0], slots, -1)


def _unpack_scales(tiles: Any, packed: PackedMatrix) -> Any:
    """[atoms, slots, 64] → uint8 [rows, inputs / 16]."""
    atoms, slots, _ = tiles.shape
    flat = torch.empty(atoms * ATOM_ROWS, slots * SLOT_COLUMNS // BLOCK, dtype=torch.uint8, device=tiles.device)
    axes = _scale_axes(flat, slots)
    axes.copy_(tiles.reshape(axes.shape))
    return flat[:, : packed.inputs // BLOCK].contiguous()
