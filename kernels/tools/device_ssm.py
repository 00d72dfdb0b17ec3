"""The SSM step on a GPU: bytes of every schedule, errors, replayed graphs, and times of a model's layers, cold.

    PYTHONPATH=.:kernels python3 kernels/tools/device_ssm.py --out FOLDER [--layers 23] [check] [time] [sanitize]

Writes ``ssm-device.json``; prints a short table last; exit status 1 where a check failed. Times are medians over
replays of a graph (or loop) of several sets of layers, more than three times the L2 between two uses of a state; claims
come from ``glqprof bench ssm-step``, which interleaves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glqprof_kernels import ssm
from glqprof_kernels.ssm import factory, ops, reference
from glqprof_kernels.ssm.factory import TINY, Sizes

CASCADE = Sizes(heads=64, head_dim=64, state=128, groups=8)
SHAPES = {
    "cascade2": CASCADE,
    "tiny": TINY,
    "odd": Sizes(heads=6, head_dim=20, state=32, groups=2, taps=3),
    "wide": Sizes(heads=8, head_dim=40, state=256, groups=2, conv_bias=False),
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "unfused": {"variant": "unfused"},
    "cluster, 1 chunk": {"exchange": "cluster", "chunks": 1},
    "cluster, 2 chunks": {"exchange": "cluster", "chunks": 2},
    "counter": {"exchange": "counter"},
}
WAYS: dict[str, dict[str, Any]] = {
    "graph": {"dependent": False},
    "graph+PDL": {"dependent": True},
    "graph+PDL+early": {"dependent": True, "early_state": True},
}
SETS, ROUNDS, REPLAYS = 4, 2, 15
COPY_TB_S = 4.2
"""What a copy reaches on the H200 (docs/performance.md); the floor's rate."""


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same bytes."""
    return torch.equal(a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8))


def host(w: ssm.StepWeights) -> ssm.StepWeights:
    """The same weights on the CPU."""
    tensors = (w.conv_weight, w.conv_bias, w.dt_bias, w.a, w.d, w.norm_weight)
    moved = [None if t is None else t.cpu() for t in tensors]
    return ssm.StepWeights(*moved, w.eps, w.heads, w.head_dim, w.state, w.groups)


def fits(weights: ssm.StepWeights, schedule: dict[str, Any]) -> bool:
    """Whether the device can run the schedule at these sizes."""
    if "exchange" not in schedule:
        return True
    try:
        weights.cuda_layer.choice(ops.make_config(True, schedule["exchange"], schedule.get("chunks", 0)))
    except ValueError:
        return False
    return True


def check(replays: bool = True) -> dict[str, Any]:
    """Bytes against the CPU's exact implementation, errors against float64, a graph's replays against eager steps."""
    wrong: list[str] = []
    checked = 0
    errors = {}
    for name, sizes in SHAPES.items():
        weights = factory.layer(sizes, 1, "cuda")
        cpu = host(weights)
        for batch in (1, 2, 8) if name == "cascade2" else (1, 3):
            projected, states = factory.projected(weights, batch, batch), factory.states(weights, batch, 7)
            wanted = [t.cpu() for t in states]
            want = ssm.step(cpu, projected.cpu(), *wanted)
            for label, schedule in SCHEDULES.items():
                if not fits(weights, schedule):
                    continue
                for way, options in WAYS.items():
                    mine = [t.clone() for t in states]
                    torch.cuda.synchronize()
                    out = ssm.step(weights, projected, *mine, **schedule, **options)
                    checked += 1
                    for what, got, expected in (
                        ("out", out, want),
                        ("conv", mine[0], wanted[0]),
                        ("state", mine[1], wanted[1]),
                    ):
                        if not same(got, expected):
                            share = (got.cpu() != expected).float().mean().item()
                            wrong.append(f"{name}, batch {batch}, {label}, {way}: {share:.2%} of {what} differ")
            truth = reference.step(weights, projected, *states)
            for variant in ssm.VARIANTS:
                mine = [t.clone() for t in states]
                out = ssm.step(weights, projected, *mine, variant=variant)
                errors[f"{name}, batch {batch}, {variant}"] = [
                    ((got.double() - exact).norm() / exact.norm()).item()
                    for got, exact in ((out, truth.out), (mine[1], truth.state))
                ]
    for label, schedule in SCHEDULES.items():
        for way, options in WAYS.items() if replays else ():
            wrong += check_replay(f"{label}, {way}", {**schedule, **options})
    return {"checked": checked, "wrong": wrong, "errors_out_state": errors}


def check_replay(label: str, options: dict[str, Any]) -> list[str]:
    """100 replays of two layers' graph against eager unfused steps."""
    layers = [factory.layer(CASCADE, 5 + k, "cuda") for k in range(2)]
    if not fits(layers[0], options):
        return []
    states = [factory.states(w, 1, 7 + k) for k, w in enumerate(layers)]
    eager = [[t.clone() for t in pair] for pair in states]
    projected = factory.projected(layers[0], 1, 9)
    outs = [torch.empty(1, w.inter, dtype=torch.bfloat16, device="cuda") for w in layers]
    space = ops.make_workspace(layers[0], 1)
    for k, w in enumerate(layers):
        ssm.step(w, projected, *[t.clone() for t in states[k]], outs[k], workspace=space, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for k, w in enumerate(layers):
            ssm.step(w, projected, *states[k], outs[k], workspace=space, **options)
    for token in range(100):
        projected.normal_()
        graph.replay()
        wants = [ssm.step(w, projected, *eager[k], variant="unfused", dependent=False) for k, w in enumerate(layers)]
        if not all(same(a, b) for a, b in zip(outs, wants, strict=True)):
            return [f"replay, {label}: token {token} differs"]
    if not all(same(a, b) for mine, other in zip(states, eager, strict=True) for a, b in zip(mine, other, strict=True)):
        return [f"replay, {label}: states differ after 100 tokens"]
    return []


class Layers:
    """``SETS`` sets of ``count`` layers with inputs, states and outputs of their own."""

    def __init__(self, sizes: Sizes, count: int, batch: int) -> None:
        self.count = count
        self.calls = []
        for index in range(SETS * count):
            w = factory.layer(sizes, index, "cuda")
            projected = torch.randn(batch, w.projected, device="cuda").bfloat16()
            conv_state = torch.randn(batch, w.conv_dim, w.kernel, device="cuda").bfloat16()
            state = torch.randn(batch, w.heads, w.head_dim, w.state, device="cuda") * 0.3
            out = torch.empty(batch, w.inter, dtype=torch.bfloat16, device="cuda")
            self.calls.append((w, projected, conv_state, state, out))
        self.space = ops.make_workspace(self.calls[0][0], batch)

    def bytes_of_token(self) -> int:
        """What one set must read and write."""
        weights, projected, conv_state, state, out = self.calls[0]
        parameters = (weights.conv_weight, weights.conv_bias, weights.norm_weight)
        moved = [*(t for t in parameters if t is not None), projected, out, conv_state, conv_state, state, state]
        return self.count * sum(t.numel() * t.element_size() for t in moved)

    def run(self, **options: Any) -> None:
        """Every set once."""
        for call in self.calls:
            ssm.step(*call, workspace=self.space, **options)


def median_us(body: Any, tokens: int) -> float:
    """Microseconds a token of ``body``, which does ``tokens``; median of ``REPLAYS`` after two for warming up."""
    times = []
    for index in range(REPLAYS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        body()
        end.record()
        end.synchronize()
        if index >= 2:
            times.append(start.elapsed_time(end) * 1000 / tokens)
    return statistics.median(times)


def graph_us(layers: Layers, options: dict[str, Any]) -> float:
    """Microseconds a token in a graph of ``SETS`` × ``ROUNDS`` tokens."""
    layers.run(**options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(ROUNDS):
            layers.run(**options)
    return median_us(graph.replay, SETS * ROUNDS)


def timings(count: int) -> list[dict[str, Any]]:
    """Rows of the table."""
    rows: list[dict[str, Any]] = []

    def add(shape: str, batch: int, variant: str, way: str, us: float, moved: int) -> None:
        floor = moved / (COPY_TB_S * 1e6)
        rows.append(
            {
                "shape": shape,
                "batch": batch,
                "variant": variant,
                "way": way,
                "us": us,
                "us_layer": us / count,
                "floor_us": floor,
            }
        )

    for batch in (1, 2, 4, 8):
        layers = Layers(CASCADE, count, batch)
        moved = layers.bytes_of_token()
        if batch == 1:
            for variant, options in (
                ("torch", {"variant": "torch"}),
                ("unfused", {"variant": "unfused"}),
                ("fused", {}),
            ):
                add("cascade2", 1, variant, "eager", median_us(partial(layers.run, **options), SETS), moved)
            try:
                add("cascade2", 1, "torch", "graph", graph_us(layers, {"variant": "torch"}), moved)
            except RuntimeError as error:  # torch's own kernels need not be capturable
                print(f"torch in a graph: {str(error).splitlines()[0]}")
        for label, schedule in SCHEDULES.items():
            if not fits(layers.calls[0][0], schedule):
                print(f"{label}: not on this device")
                continue
            for way, options in WAYS.items():
                if (batch > 1 and way == "graph") or (label == "unfused" and way == "graph+PDL+early"):
                    continue
                add("cascade2", batch, label, way, graph_us(layers, {**schedule, **options}), moved)
        del layers
        torch.cuda.empty_cache()
    layers = Layers(TINY, count, 1)  # launches and latencies alone
    for way, options in WAYS.items():
        add("tiny", 1, "fused", way, graph_us(layers, {"exchange": "auto", **options}), layers.bytes_of_token())
    return rows


def main() -> int:
    """Check, time, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", metavar="check|time|sanitize", default=[])
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--layers", type=int, default=23)
    options = parser.parse_args()
    if set(options.what) - {"check", "time", "sanitize"}:
        parser.error("say check, time, sanitize, or nothing for check and time")
    what = options.what or ["check", "time"]
    start = time.time()
    probe = factory.layer(CASCADE, 0, "cuda")
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "largest_cluster": probe.cuda_layer.largest_cluster(),
        "choice": list(probe.cuda_layer.choice(ops.make_config())),
        "layers": options.layers,
    }
    print(
        f"built after {time.time() - start:.0f} s; "
        f"largest cluster {result['largest_cluster']}, choice {result['choice']}"
    )
    if "check" in what or "sanitize" in what:
        result["check"] = check(replays="check" in what)
        checked, faults = result["check"]["checked"], len(result["check"]["wrong"])
        print(f"{checked} steps checked, {faults} faults; {time.time() - start:.0f} s")
        for line in result["check"]["wrong"][:20]:
            print(f"  WRONG {line}")
        for label, (out, state) in result["check"]["errors_out_state"].items():
            print(f"  error against float64, {label:28} out {out:.2e}  state {state:.2e}")
    if "time" in what:
        result["time"] = timings(options.layers)
        print(f"{options.layers} layers, cold; µs a token (floor: bytes at {COPY_TB_S} TB/s)")
        print(f"{'shape':9} {'batch':>5} {'variant':18} {'way':16} {'µs':>8} {'a layer':>8} {'floor':>7} {'ratio':>6}")
        for r in result["time"]:
            print(
                f"{r['shape']:9} {r['batch']:5} {r['variant']:18} {r['way']:16} {r['us']:8.1f} {r['us_layer']:8.2f} "
                f"{r['floor_us']:7.1f} {r['us'] / r['floor_us']:6.1f}"
            )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "ssm-device.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{time.time() - start:.0f} s")
    return 1 if result.get("check", {}).get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
