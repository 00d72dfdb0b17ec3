"""Geometries by name, from glqprof's ``data/geometries.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Geometry:
    """Sizes of one model's MoE layers, in elements.

    ``expert_inter`` is the width between an expert's two matrices. ``activation`` is ``relu2`` (not gated) or
    ``swiglu`` (gated: the first matrix writes 2 × ``expert_inter``); ``activation_limit`` clamps SwiGLU's inputs, 0 is
    off.
    """

    name: str
    hidden: int
    expert_inter: int
    experts: int
    top_k: int
    moe_layers: int
    activation: str
    activation_limit: float

    @property
    def up_rows(self) -> int:
        """Values that an expert's first matrix writes."""
        return self.expert_inter * (2 if self.activation == "swiglu" else 1)


@cache
def _tables() -> dict[str, dict[str, object]]:
    return tomllib.loads((files("glqprof") / "data" / "geometries.toml").read_text(encoding="utf-8"))


def names() -> tuple[str, ...]:
    """The known geometries, in the file's order."""
    return tuple(_tables())


def load(name: str) -> Geometry:
    """The geometry of that name; raises ValueError naming the known ones."""
    table = _tables().get(name)
    if table is None:
        raise ValueError(f"no geometry {name!r}; there are {', '.join(names())}")
    return Geometry(
        name=name,
        hidden=int(table["hidden"]),
        expert_inter=int(table["expert_inter"]),
        experts=int(table["experts"]),
        top_k=int(table["top_k"]),
        moe_layers=int(table["moe_layers"]),
        activation=str(table["activation"]),
        activation_limit=float(table["activation_limit"]),
    )
