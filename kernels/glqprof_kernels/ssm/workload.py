"""What the bench runs: Mamba-2 layers of one model in the middle of a text, one token's inputs, and hostile inputs.

A step changes its states, and a bench must be able to repeat a call. So every call reads the workload's states and
writes the new ones elsewhere: the same traffic as in place, and the same result each time.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import torch

from . import factory
from .factory import TINY, Sizes
from .weights import StepWeights

OPTIONS: dict[str, Any] = {"state": "fp32"}
"""What ``options`` may hold, with the defaults: the state's dtype, fp32 or bf16."""
STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TINY_NAME = "tiny-ssm"
TINY_LAYERS = 2


def geometries() -> dict[str, tuple[Sizes, int]]:
    """(sizes, Mamba-2 layers) of the models in glqprof's ``data/geometries.toml`` that have such layers; a tiny one."""
    tables = tomllib.loads((files("glqprof") / "data" / "geometries.toml").read_text(encoding="utf-8"))
    found = {}
    for name, table in tables.items():
        if "ssm_heads" in table:
            fields = ("ssm_heads", "ssm_head_dim", "ssm_state", "ssm_groups", "ssm_conv")
            found[name] = (Sizes(*(table[key] for key in fields)), table["layers"].count("M"))
    return {**found, TINY_NAME: (TINY, TINY_LAYERS)}


@dataclass
class SsmWorkload:
    """Random weights and states of some Mamba-2 layers, each layer with its own."""

    geometry: str
    layers: int
    device: str
    seed: int
    weights: list[StepWeights]
    state_dtype: torch.dtype
    states: list[list[torch.Tensor]] = field(default_factory=list)
    """[conv_state, state] of each layer, for the most rows that were asked for so far."""
    new_states: list[list[torch.Tensor]] = field(default_factory=list)
    """Where a call's states go: all variants write here."""

    @property
    def hidden(self) -> int:
        """Width of out."""
        return self.weights[0].inter

    def states_of(self, rows: int) -> list[tuple[torch.Tensor, ...]]:
        """conv_state, state and where the new ones go, for each layer and ``rows`` sequences: views."""
        if not self.states or self.states[0][0].shape[0] < rows:
            # A sequence's states do not depend on how many there are, so that results do not either.
            drawn = [
                [
                    factory.states(w, 1, (self.seed * 1_000_003 + index) * 4099 + row, self.state_dtype)
                    for row in range(rows)
                ]
                for index, w in enumerate(self.weights)
            ]
            self.states = [[torch.cat(parts) for parts in zip(*layer, strict=True)] for layer in drawn]
            self.new_states = [[torch.empty_like(t) for t in pair] for pair in self.states]
        pairs = zip(self.states, self.new_states, strict=True)
        return [tuple(t[:rows] for t in (*old, *new)) for old, new in pairs]


@dataclass
class SsmBatch:
    """One token of ``rows`` sequences: projected [layers, rows, inter + conv_dim + heads] bf16.

    ``states``: for each layer conv_state, state, and where the new ones go.
    """

    rows: int
    projected: torch.Tensor
    states: list[tuple[torch.Tensor, ...]]

    def input_tensors(self) -> Sequence[torch.Tensor]:
        """The fresh input; states belong to the workload, and stay."""
        return (self.projected,)


def make_workload(geometry: str, layers: int | None, seed: int, device: str, options: Any = None) -> SsmWorkload:
    """Random weights of ``layers`` layers (None or 0: as many as the model has); ValueError for unknown options."""
    chosen = {**OPTIONS, **(options or {})}
    unknown = sorted(set(chosen) - set(OPTIONS))
    if unknown:
        raise ValueError(f"ssm-step has no option {', '.join(unknown)}; it has {', '.join(OPTIONS)}")
    if chosen["state"] not in STATE_DTYPES:
        raise ValueError(f"state is {chosen['state']!r}; it must be {' or '.join(STATE_DTYPES)}")
    sizes, model_layers = geometries()[geometry]
    count = layers or model_layers
    weights = [factory.layer(sizes, seed * 1_000_003 + index, device) for index in range(count)]
    return SsmWorkload(geometry, count, device, seed, weights, STATE_DTYPES[chosen["state"]])


def make_batch(workload: SsmWorkload, rows: int, seed: int) -> SsmBatch:
    """Fresh inputs, normal; drawn on the CPU, so that the same seed gives the same bytes on every device."""
    width = workload.weights[0].projected
    drawn = torch.randn(workload.layers, rows, width, generator=torch.Generator().manual_seed(seed))
    return to_batch(workload, drawn)


def to_batch(workload: SsmWorkload, projected: torch.Tensor) -> SsmBatch:
    """A batch from a CPU tensor of any float type, rounded to bf16 and moved to the workload's device."""
    rows = projected.shape[1]
    return SsmBatch(rows, projected.to(torch.bfloat16).to(workload.device), workload.states_of(rows))


def adversarial(workload: SsmWorkload, rows: int) -> list[tuple[str, SsmBatch]]:
    """Hostile inputs by label, each of ``rows`` sequences but ``one row``."""
    w = workload.weights[0]
    base = make_batch(workload, rows, seed=1).projected.float().cpu()
    dt = slice(w.inter + w.conv_dim, None)

    def changed(where: slice | int, value: torch.Tensor | float) -> SsmBatch:
        projected = base.clone()
        projected[..., 0 if isinstance(where, int) else slice(None), where] = value
        return to_batch(workload, projected)

    def spiked(at: int, value: float) -> SsmBatch:
        projected = base.clone()
        projected[:, 0, at] = value
        return to_batch(workload, projected)

    zeros = torch.zeros_like(base)
    zeros[..., 1::2] = -0.0
    tiny = torch.finfo(torch.bfloat16).smallest_normal / 128  # bf16's smallest denormal
    wide = (
        base
        * torch.logspace(-30, 30, base.shape[-1])[
            torch.randperm(base.shape[-1], generator=torch.Generator().manual_seed(2))
        ]
    )
    spread = torch.full((*base.shape[:2], base.shape[2] + 3), float("nan"), dtype=torch.bfloat16)
    spread[..., : base.shape[2]] = base
    strided = spread.to(workload.device)[..., : base.shape[2]]
    return [
        ("zeros of both signs", to_batch(workload, zeros)),
        ("denormals", to_batch(workload, (base * 8).round() * tiny)),
        ("+inf in x", spiked(w.inter, float("inf"))),
        ("-inf in B", spiked(2 * w.inter, float("-inf"))),
        ("NaN in C", spiked(w.inter + w.conv_dim - 1, float("nan"))),
        ("NaN in dt", spiked(w.inter + w.conv_dim, float("nan"))),
        ("inf in the gate", spiked(0, float("inf"))),
        ("large time steps", changed(dt, 60.0)),
        ("no time step", changed(dt, -200.0)),
        ("overflow of the products", to_batch(workload, base.sign() * 3e38)),
        ("exponents far apart", to_batch(workload, wide)),
        ("closed gates", changed(slice(0, w.inter), -100.0)),
        ("one row", make_batch(workload, 1, seed=2)),
        ("non-contiguous views", SsmBatch(rows, strided, workload.states_of(rows))),
    ]
