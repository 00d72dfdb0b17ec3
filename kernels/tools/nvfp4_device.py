"""What the device scripts of the NVFP4 kernels share: layers, inputs, graphs of cold calls, interleaved replays."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glqprof_kernels import bf16, geometry
from glqprof_kernels.nvfp4 import factory, ops, tiles

COLD_BYTES = 200e6
"""What the calls of one graph read together: more than three times the 60 MB of L2."""


@dataclass
class Clock:
    """A phase's time limit, its results and where they go."""

    path: Path
    limit_s: float
    results: dict[str, Any]
    begin: float = 0.0

    def __post_init__(self) -> None:
        self.begin = time.monotonic()

    def left(self) -> bool:
        """Whether there is time for more."""
        return time.monotonic() - self.begin < self.limit_s

    def write(self) -> None:
        """The results so far."""
        self.results["seconds"] = round(time.monotonic() - self.begin, 1)
        self.path.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")


@dataclass
class Layer:
    """A layer's packed weights; ``dense``: in bf16, for the yardstick."""

    shape: geometry.Geometry
    experts: int
    weights: Any
    packed: tiles.PackedLayer
    dense: Any = None

    @property
    def expert_bytes(self) -> tuple[int, int]:
        """Bytes of one expert's gate-up and down matrices."""
        return self.packed.gate_up.bytes_per_expert, self.packed.down.bytes_per_expert


def make_layer(shape: geometry.Geometry, experts: int, seed: int, limit: float | None = None) -> Layer:
    """Random weights on the GPU, also in tiles; ``limit``: other than the geometry's clamp."""
    limit = shape.activation_limit if limit is None else limit
    made = factory.layer(shape.hidden, shape.expert_inter, experts, shape.activation, limit, seed=seed, device="cuda")
    return Layer(shape, experts, made, tiles.pack_layer(made))


def make_inputs(layer: Layer, rows: int, seed: int, skewed: bool = False, first: int | None = None) -> tuple[Any, ...]:
    """x, ids, weights on the GPU, ids on the host; ``first``: one row of the experts from there on, all different."""
    generator = torch.Generator().manual_seed(seed)
    top_k = layer.shape.top_k
    x = torch.randn(rows, layer.shape.hidden, generator=generator).to(torch.bfloat16).cuda()
    scores = torch.rand(rows, layer.experts, generator=generator)
    if skewed:
        scores = scores ** torch.arange(1, layer.experts + 1).float().pow(1.2)
    ids = scores.topk(top_k, dim=-1).indices
    if first is not None:
        ids[0] = (first + torch.arange(top_k)) % layer.experts
    weights = torch.rand(rows, top_k, generator=generator) + 0.1
    return x, ids.cuda(), weights.cuda(), ids


def poisoned(x: Any) -> Any:
    """An output for x, filled with 0xA5."""
    out = torch.empty(x.shape, dtype=torch.bfloat16, device="cuda")
    out.view(torch.uint8).fill_(0xA5)
    return out


def same(a: Any, b: Any) -> bool:
    """Whether two bf16 tensors have the same bytes."""
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def copy_gb_per_s() -> float:
    """Device-to-device copy of 2 GiB, read + written, the median of 12."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / statistics.median(replay_us(lambda: target.copy_(source), 12)) / 1e3


def replay_us(work: Callable[[], Any], times: int) -> list[float]:
    """Microseconds of ``work``, each time behind one that keeps the GPU busy: launches do not count."""
    taken = []
    for _ in range(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        work()
        start.record()
        work()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1e3)
    return taken


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of ``work``, which ran once before."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def summary(taken: list[float], calls: int) -> dict[str, float]:
    """Median and deciles of one call, from times of ``calls`` of them."""
    each = sorted(t / calls for t in taken)
    last = len(each) - 1
    return {"us": statistics.median(each), "p10": each[round(0.1 * last)], "p90": each[round(0.9 * last)]}


class Calls:
    """Calls of one layer on inputs of their own, each with a workspace that holds its plan: kernels can run alone."""

    def __init__(self, layer: Layer, rows: int) -> None:
        self.layer = layer
        self.rows = rows
        size = rows * layer.shape.top_k * sum(layer.expert_bytes) * 0.9
        self.number = max(6, min(24, int(COLD_BYTES / size) + 1))
        step = layer.shape.top_k
        firsts = [i * step if rows == 1 else None for i in range(self.number)]
        self.inputs = [make_inputs(layer, rows, 100 + i, first=first) for i, first in enumerate(firsts)]
        self.outs = [poisoned(one[0]) for one in self.inputs]
        active = [len(one[3].unique()) for one in self.inputs]
        self.bytes = [statistics.mean(active) * each for each in layer.expert_bytes]

    def graphs(self, variant: str, parts: dict[str, int], **config: Any) -> dict[str, torch.cuda.CUDAGraph]:
        """A graph of all calls for each part, a choice of kernels."""
        packed, top_k = self.layer.packed, self.layer.shape.top_k
        runs = [ops.MoeRun([packed], self.rows, top_k, variant, **config) for _ in self.inputs]

        def all_calls(which: int) -> None:
            for run, (x, ids, weights, _), out in zip(runs, self.inputs, self.outs, strict=True):
                run.layer(0, x, ids, weights, out, which=which)

        all_calls(ops.WHOLE_LAYER)  # makes the plans
        made = {name: captured(lambda which=which: all_calls(which)) for name, which in parts.items()}
        self.kept = [*getattr(self, "kept", []), runs]
        return made

    def dense_graph(self) -> torch.cuda.CUDAGraph:
        """All calls by torch's grouped_mm over bf16 weights, the routing and the weighted sum included."""
        product = bf16.grouped_mm()

        def all_calls() -> None:
            for x, ids, weights, _ in self.inputs:
                bf16.run_grouped(self.layer.dense, product, x, ids, weights)

        return captured(all_calls)


TOGETHER = {"experts": ops.GATE_UP | ops.DOWN, "layer": ops.WHOLE_LAYER}
ALONE = {"gate_up": ops.GATE_UP, "down": ops.DOWN}


def interleaved(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int) -> dict[str, list[float]]:
    """Replays of all graphs, A B ... B A, the first round dropped."""
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(rounds + 1):
        order = list(graphs) if number % 2 == 0 else list(reversed(graphs))
        for name in order:
            found = replay_us(graphs[name].replay, 1)
            if number:
                taken[name] += found
    return taken
