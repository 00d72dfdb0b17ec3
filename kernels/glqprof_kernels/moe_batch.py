"""The inputs of one decode step of MoE layers, for the groups that bench them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass
class MoeBatch:
    """Inputs of one decode step of ``rows`` tokens: each layer has its own x, ids and weights.

    x [layers, rows, hidden] in the group's dtype, ids [layers, rows, top_k] int64, weights [layers, rows, top_k] fp32.
    ``host_ids`` and ``host_weights`` are CPU copies, from which launches and bytes are predicted.
    """

    rows: int
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    host_ids: torch.Tensor
    host_weights: torch.Tensor
    per_layer: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        """Slice once, so that a call does not pay for it."""
        self.per_layer = list(zip(self.x.unbind(0), self.ids.unbind(0), self.weights.unbind(0), strict=True))

    def input_tensors(self) -> Sequence[torch.Tensor]:
        """x, ids and weights."""
        return (self.x, self.ids, self.weights)

    def active_slots(self, layer: int) -> int:
        """(token, expert) pairs of the layer that are computed: those whose weight is not 0."""
        return int((self.host_weights[layer] != 0).sum())

    def active_experts(self, layer: int) -> int:
        """Distinct experts of the layer that are read."""
        return int(torch.unique(self.host_ids[layer][self.host_weights[layer] != 0]).numel())


def device_batch(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype, device: str
) -> MoeBatch:
    """A batch from CPU tensors of any float type, moved to ``device`` with x cast to ``dtype``."""
    ids, weights = ids.to(torch.int64).contiguous(), weights.to(torch.float32).contiguous()
    return MoeBatch(
        rows=x.shape[1],
        x=x.to(dtype).to(device),
        ids=ids.to(device),
        weights=weights.to(device),
        host_ids=ids,
        host_weights=weights,
    )


def strided(base: MoeBatch, device: str) -> MoeBatch:
    """The same values seen through strides: every second element of x, columns of a wider table of ids and weights."""
    wide_x = torch.full((*base.x.shape[:-1], 2 * base.x.shape[-1] + 1), float("nan"), dtype=base.x.dtype)
    wide_x[..., 1::2] = base.x.cpu()
    wide_ids = torch.full((*base.ids.shape[:-1], base.ids.shape[-1] + 3), -1)
    wide_ids[..., 2:-1] = base.host_ids
    wide_weights = torch.zeros(wide_ids.shape)
    wide_weights[..., 2:-1] = base.host_weights
    return MoeBatch(
        rows=base.rows,
        x=wide_x.to(device)[..., 1::2],
        ids=wide_ids.to(device)[..., 2:-1],
        weights=wide_weights.to(device)[..., 2:-1],
        host_ids=base.host_ids,
        host_weights=base.host_weights,
    )
