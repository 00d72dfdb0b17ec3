"""A layer's weights as numpy arrays: data for the exact implementations, no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..weights import LayerWeights, MatrixWeights


@dataclass(frozen=True)
class HostMatrix:
    """``planes[s]`` [E, M, N/8] uint16, ``tables[s]`` [entries, 8] float32, ``scales[s]`` [E] float32 (wscale, r…)."""

    planes: list[np.ndarray]
    tables: list[np.ndarray]
    scales: list[np.ndarray]
    sv: np.ndarray
    su: np.ndarray
    split_blocks: int

    @property
    def rows(self) -> int:
        """M."""
        return self.su.shape[1]

    @property
    def cols(self) -> int:
        """N."""
        return self.sv.shape[0]


@dataclass(frozen=True)
class HostLayer:
    """Both matrices, the activation and its limit."""

    up: HostMatrix
    down: HostMatrix
    activation: str
    limit: np.float32

    @property
    def experts(self) -> int:
        """Experts."""
        return self.up.su.shape[0]


@dataclass(frozen=True)
class HostCall:
    """x [tokens, hidden] float16, ids [tokens, top_k] int64, weights [tokens, top_k] float32."""

    x: np.ndarray
    ids: np.ndarray
    weights: np.ndarray

    def slots(self, experts: int) -> list[tuple[int, int, np.float32]]:
        """(token, expert, weight) of the slots that take part, in top-k order: weight 0 and masked ids are skipped."""
        return [
            (t, int(e), w)
            for t in range(self.ids.shape[0])
            for e, w in zip(self.ids[t], self.weights[t], strict=True)
            if w != 0 and 0 <= e < experts
        ]


def host_matrix(matrix: MatrixWeights) -> HostMatrix:
    """Copy-free where the tensors are on the CPU; tables become float32, which is exact."""
    return HostMatrix(
        planes=[plane.cpu().numpy().view(np.uint16) for plane in matrix.present_planes()],
        tables=[table.cpu().numpy().astype(np.float32) for table in matrix.present_tables()],
        scales=[scale.cpu().numpy() for scale in matrix.present_scales()],
        sv=matrix.sv.cpu().numpy().astype(np.float32),
        su=matrix.su.cpu().numpy().astype(np.float32),
        split_blocks=matrix.split_blocks,
    )


def host_layer(layer: LayerWeights) -> HostLayer:
    """The layer's arrays."""
    return HostLayer(host_matrix(layer.up), host_matrix(layer.down), layer.activation, np.float32(layer.limit))


@dataclass
class Log:
    """What a schedule would have asked of the GPU: kernels in launch order, and its host synchronisations.

    ``glqprof.bench.registry.LaunchLog`` has the same fields and can stand in for it.
    """

    kernels: list[str] = field(default_factory=list)
    syncs: int = 0
    blocking_copies: int = 0
