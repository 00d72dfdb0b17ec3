"""Re-laid-out weights of the fused variants, and what runs them.

**Codewords** are 4-bit coordinates, ``2c + 8`` with coordinate k in bits 4k to 4k+3: 4 bytes an entry. All codebooks of
a layer but a small third stage's become one *big table* that holds one of v and -v: entries 0 to P-1 are of vectors
whose negation is in a codebook too, entries P to T-1 of the others. Code i < T is entry i, code T + i the negated entry
i < P: at most 65,536 codes. The generated codebook has P = 28,440 and T = 37,096: 148,384 bytes.

**The table image** is ``[big words, padded to 4][256 small words]``, int32. A small third stage's codes
are places in it.

**Indices**: per stage ``[experts, ceil(rows/32), ceil(blocks/8), 32 rows, 4]`` int32, rows and blocks padded with code
0. A word holds the codes of an even block and of the odd one after it, ``rotate_left(even | odd << 16, 2)``: a mask
gives four times a code, and 16 bytes are eight blocks of a row. ``pack_plane`` and ``unpack_plane`` are a round trip.

The original planes are left as they are: a packed layer takes the same number of bytes again, made expert by expert.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .weights import LayerWeights, MatrixWeights

NEGATION = 0x11111110
GROUP_ROWS = 32
CHUNK_BLOCKS = 8
SMALL_ENTRIES = 256
SMALL_STAGE = 2
MAX_SLOTS = 256
"""(token, expert) slots of one launch (csrc/fused_call.h)."""
_PACK_BYTES = 256 << 20


def nibble_words(table: np.ndarray) -> np.ndarray:
    """[entries, 8] floats → [entries] uint32; ValueError unless every coordinate is a multiple of ½ in [-3.5, 3.5]."""
    digits = table.astype(np.float64) * 2 + 8
    if not ((digits == np.rint(digits)).all() and (digits >= 1).all() and (digits <= 15).all()):
        raise ValueError("the fused variants need codebooks whose coordinates are multiples of 1/2 in [-3.5, 3.5]")
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(digits.astype(np.uint32) << shifts, axis=1)


@dataclass(frozen=True)
class Table:
    """The image (int32, on the device), T, and for every codebook by identity its entries' codes (int32)."""

    image: torch.Tensor
    entries: int
    small_word: int
    codes: dict[int, torch.Tensor]
    small: int | None
    """``id`` of the codebook that small stages read; None without one."""


def make_table(tables: list[Any], small: Any | None, device: Any) -> Table:
    """The table of the codebooks in ``tables`` ([entries, 8] tensors), and of ``small`` (at most 256 entries)."""
    distinct = {id(t): t for t in tables}
    words = {key: nibble_words(t.cpu().numpy()) for key, t in distinct.items()}
    universe = np.unique(np.concatenate(list(words.values())))
    opposite = (NEGATION - universe.astype(np.int64)).astype(np.uint32)
    paired = np.isin(opposite, universe) & (opposite != universe)
    chosen = universe[paired & (universe < opposite)]
    entries = np.concatenate([chosen, universe[~paired]])
    total = len(entries)
    if total + len(chosen) > 65_536:
        raise ValueError(f"the codebooks of a layer hold {total + len(chosen)} vectors; the fused variants allow 65536")
    coded = np.concatenate([entries, (NEGATION - chosen.astype(np.int64)).astype(np.uint32)])
    order = np.argsort(coded)
    codes = {key: order[np.searchsorted(coded[order], w)].astype(np.int32) for key, w in words.items()}
    padded = -(-total // 4) * 4
    if small is not None and padded + SMALL_ENTRIES > 65_536:
        raise ValueError(f"the big codebooks need {padded} words and a small one {SMALL_ENTRIES}; codes name 65536")
    image = np.zeros(padded + SMALL_ENTRIES, dtype=np.uint32)
    image[:total] = entries
    if small is not None:
        values = small.cpu().numpy()
        image[padded : padded + len(values)] = nibble_words(values)
        codes[id(small)] = np.arange(padded, padded + len(values), dtype=np.int32)
    return Table(
        image=torch.from_numpy(image.view(np.int32)).to(device),
        entries=total,
        small_word=padded,
        codes={key: torch.from_numpy(c).to(device) for key, c in codes.items()},
        small=None if small is None else id(small),
    )


def pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """[experts, rows, blocks] int32 codes → [experts, groups, chunks, 32, 4] int32."""
    experts, rows, blocks = codes.shape
    groups, chunks = -(-rows // GROUP_ROWS), -(-blocks // CHUNK_BLOCKS)
    room = (0, chunks * CHUNK_BLOCKS - blocks, 0, groups * GROUP_ROWS - rows)
    codes = torch.nn.functional.pad(codes, room).view(experts, groups, GROUP_ROWS, chunks, 4, 2)
    even, odd = codes.permute(0, 1, 3, 2, 4, 5).unbind(-1)
    # rotate_left(even | odd << 16, 2): odd's upper two bits come round to the bottom
    return ((odd & 0x3FFF) << 18 | even << 2 | odd >> 14).contiguous()


def pack_plane(plane: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """[experts, rows, blocks] int16 indices → packed codes, expert by expert; ``codes``: what an index becomes."""
    experts, rows, blocks = plane.shape
    groups, chunks = -(-rows // GROUP_ROWS), -(-blocks // CHUNK_BLOCKS)
    packed = torch.empty(experts, groups, chunks, GROUP_ROWS, 4, dtype=torch.int32, device=plane.device)
    step = max(1, _PACK_BYTES // (8 * max(1, rows * blocks)))
    for first in range(0, experts, step):
        part = plane[first : first + step].to(torch.int32) & 0xFFFF
        packed[first : first + step] = pack_codes(codes[part])
    return packed


def unpack_codes(packed: torch.Tensor, rows: int, blocks: int) -> torch.Tensor:
    """[experts, rows, blocks] int32 codes of packed ones."""
    experts, groups, chunks = packed.shape[:3]
    even = packed >> 2 & 0xFFFF
    odd = (packed >> 18 & 0x3FFF) | (packed & 3) << 14
    codes = torch.stack([even, odd], dim=-1).view(experts, groups, chunks, GROUP_ROWS, CHUNK_BLOCKS)
    return codes.permute(0, 1, 3, 2, 4).reshape(experts, groups * GROUP_ROWS, -1)[:, :rows, :blocks].contiguous()


def unpack_plane(packed: torch.Tensor, codes: torch.Tensor, rows: int, blocks: int) -> torch.Tensor:
    """The inverse of ``pack_plane``: int16 indices (``codes`` names no code twice)."""
    size = int(codes.max()) + 1
    index = torch.zeros(size, dtype=torch.int32, device=packed.device)
    index[codes.long()] = torch.arange(len(codes), dtype=torch.int32, device=packed.device)
    return index[unpack_codes(packed, rows, blocks)].to(torch.int16)


@dataclass(frozen=True)
class FusedMatrix:
    """One matrix: packed codes and scales of the stages present, signs, sizes; ``small``: stage 3 reads small words."""

    codes: list[torch.Tensor]
    scales: list[torch.Tensor]
    sv: torch.Tensor
    su: torch.Tensor
    rows: int
    cols: int
    split_blocks: int
    small: bool

    @property
    def blocks(self) -> int:
        """Blocks of eight in a row."""
        return self.cols // 8


@dataclass(frozen=True)
class FusedLayer:
    """A layer as the fused kernels read it; ``overflow`` is the layer's, ``errors`` [1] int64 counts ids of no expert.

    Such ids are skipped on the device; they are counted unless a call says ``mask_invalid``.
    """

    up: FusedMatrix
    down: FusedMatrix
    table: Table
    activation: str
    limit: float
    overflow: torch.Tensor
    errors: torch.Tensor

    @property
    def experts(self) -> int:
        """Experts."""
        return int(self.up.su.shape[0])


@dataclass
class Tables:
    """Tables already made, by the codebooks that they are of: layers share codebooks, and so tables."""

    made: dict[tuple[Any, ...], tuple[Table, list[Any]]] = field(default_factory=dict)

    def get(self, tables: list[Any], small: Any | None, device: Any) -> Table:
        """The table of these codebooks; kept with them, so that their identities stay theirs."""
        key = (tuple(sorted({id(t) for t in tables})), None if small is None else id(small), str(device))
        if key not in self.made:
            self.made[key] = (make_table(tables, small, device), [*tables, small])
        return self.made[key][0]


def _small_table(matrix: MatrixWeights) -> Any | None:
    """The third stage's codebook when the three-stage kernels can read it as the small one."""
    if matrix.stages != 3 or len(matrix.present_tables()[SMALL_STAGE]) > SMALL_ENTRIES:
        return None
    return matrix.present_tables()[SMALL_STAGE]


def pack_layer(layer: LayerWeights, tables: Tables | None = None) -> FusedLayer:
    """Pack a layer on its device. ValueError where its codebooks or scales do not fit the fused variants."""
    matrices = (layer.up, layer.down)
    for name, matrix in zip(("up", "down"), matrices, strict=True):
        if not all(torch.isfinite(scale).all() for scale in matrix.present_scales()):
            raise ValueError(f"the fused variants need finite scales; those of {name} are not")
    small = next((t for m in matrices if (t := _small_table(m)) is not None), None)
    uses_small = [small is not None and _small_table(m) is small for m in matrices]
    big = [
        table
        for matrix, is_small in zip(matrices, uses_small, strict=True)
        for s, table in enumerate(matrix.present_tables())
        if not (is_small and s == SMALL_STAGE)
    ]
    table = (tables or Tables()).get(big, small, layer.device)

    def pack(matrix: MatrixWeights, is_small: bool) -> FusedMatrix:
        return FusedMatrix(
            codes=[
                pack_plane(plane, table.codes[id(book)])
                for plane, book in zip(matrix.present_planes(), matrix.present_tables(), strict=True)
            ],
            scales=matrix.present_scales(),
            sv=matrix.sv,
            su=matrix.su,
            rows=matrix.rows,
            cols=matrix.cols,
            split_blocks=matrix.split_blocks,
            small=is_small,
        )

    up, down = (pack(m, s) for m, s in zip(matrices, uses_small, strict=True))
    errors = torch.zeros(1, dtype=torch.int64, device=layer.device)
    return FusedLayer(up, down, table, layer.activation, float(layer.limit), layer.overflow, errors)


CONFIG = {
    "one_launch": True,
    "dependent": False,
    "blocks": 0,
    "cluster": 1,
}
"""The extension's FusedConfig, by field; ``fast`` comes from the variant."""

ACTIVATION_CODES = {"relu2": 0, "swiglu": 1}


def cuda_layer(packed: FusedLayer, module: Any) -> Any:
    """The extension's handle of a packed layer: holds its tensors, so that a call passes only the inputs."""

    def matrix(m: FusedMatrix) -> Any:
        return module.FusedMatrix(m.codes, m.scales, m.sv, m.su, m.split_blocks, m.small)

    table = packed.table
    return module.FusedLayer(
        matrix(packed.up),
        matrix(packed.down),
        table.image,
        table.entries,
        table.small_word,
        ACTIVATION_CODES[packed.activation],
        packed.limit,
        packed.overflow,
        packed.errors,
    )


class FusedRun:
    """Packed layers with a workspace of their own: calls of one object follow each other, two objects are independent.

    ``fast`` chooses fused-fast. ``config`` overrides fields of ``CONFIG``. A call allocates nothing, reads nothing back
    and waits for nothing, so it can be captured in a CUDA graph.
    """

    def __init__(
        self, layers: list[FusedLayer], max_tokens: int, top_k: int, *, fast: bool = False, **config: Any
    ) -> None:
        from . import extension

        module = extension.load()
        self.config = module.FusedConfig()
        self.config.fast = fast
        for name, value in {**CONFIG, **config}.items():
            setattr(self.config, name, value)
        self.handles = [cuda_layer(layer, module) for layer in layers]
        size = max(handle.workspace_bytes(max_tokens, top_k) for handle in self.handles)
        # Between calls all of its bytes are 0xFF: no word is there yet.
        self.workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device=layers[0].up.su.device)

    def layer(self, index: int, x: Any, ids: Any, weights: Any, out: Any, mask_invalid: bool = False) -> None:
        """One layer: x [tokens, hidden] fp16, ids and weights [tokens, top_k] → out [tokens, hidden] fp16."""
        self.handles[index].run(x, ids, weights, mask_invalid, out, self.workspace, self.config)
