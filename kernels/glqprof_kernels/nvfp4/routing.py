"""The routing plan by definition: which rows each expert computes, in items of at most 16.

The kernels make the same plan on the device. A *row* is one (token, slot) pair, numbered ``token · top_k + slot``; an
*item* is up to 16 rows of one expert, what one pass over that expert's weights serves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ITEM_ROWS = 16
"""Rows of an item at most: the M of one mma."""


@dataclass(frozen=True)
class Plan:
    """``rows`` [R] int32: the computed rows, by expert ascending, then by row. Item i covers ``count[i]`` of them.

    They start at ``rows[start[i]]`` and all belong to ``expert[i]``. ``expert``, ``start`` and ``count`` are [items]
    int32; each item but an expert's last has 16 rows.
    """

    rows: np.ndarray
    expert: np.ndarray
    start: np.ndarray
    count: np.ndarray

    @property
    def items(self) -> int:
        """How many items there are."""
        return len(self.expert)


def check_ids(ids: np.ndarray, experts: int) -> None:
    """Raise ValueError naming the first id outside ``0 .. experts - 1``; a slot of weight 0 is checked too."""
    bad = np.argwhere((ids < 0) | (ids >= experts))
    if len(bad):
        t, k = bad[0]
        raise ValueError(
            f"ids[{t}, {k}] is {ids[t, k]}, but the experts are 0 .. {experts - 1}; "
            "pass mask_invalid=True to skip such slots"
        )


def max_items(rows: int, top_k: int, experts: int) -> int:
    """The most items that ``rows`` tokens can need: one of each expert in use is not full, the others are."""
    slots = rows * top_k
    used = min(slots, experts)
    return used + (slots - used) // ITEM_ROWS


def make_plan(ids: np.ndarray, experts: int, weights: np.ndarray | None = None, *, mask_invalid: bool = False) -> Plan:
    """The plan of integer ids [tokens, top_k].

    With ``weights`` [tokens, top_k], slots of weight 0 are left out; a NaN weight is not 0. ValueError for ids that
    name no expert, unless ``mask_invalid`` says to leave their slots out.
    """
    if ids.ndim != 2:
        raise ValueError(f"ids must be [tokens, top_k], not {list(ids.shape)}")
    if weights is not None and weights.shape != ids.shape:
        raise ValueError(f"weights have shape {list(weights.shape)}, ids {list(ids.shape)}")
    if not mask_invalid:
        check_ids(ids, experts)
    flat = ids.reshape(-1).astype(np.int64)
    wanted = (flat >= 0) & (flat < experts)
    if weights is not None:
        wanted &= weights.reshape(-1) != 0
    rows: list[int] = []
    items: list[tuple[int, int, int]] = []
    for expert in range(experts):
        mine = np.flatnonzero(wanted & (flat == expert))
        for first in range(0, len(mine), ITEM_ROWS):
            part = mine[first : first + ITEM_ROWS]
            items.append((expert, len(rows), len(part)))
            rows.extend(part.tolist())
    table = np.array(items, dtype=np.int32).reshape(-1, 3)
    return Plan(np.array(rows, dtype=np.int32), table[:, 0], table[:, 1], table[:, 2])
