"""Ways to run the fused GLQ kernels, interleaved on a GPU: bits, then 23 layers in graphs, every way in turn.

    PYTHONPATH=.:kernels python3 kernels/tools/compare_fused.py --out FOLDER [--layers 23] [--rounds 60]

Writes ``compare_fused.json``; prints a table last. Each round replays every way's graph of one batch, in an order that
turns, so that no way has always the same neighbour. Before it ``device_fused.py``'s checks on few shapes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
import traceback
from pathlib import Path

import device_fused
import torch

from glqprof.bench.registry import Registry
from glqprof_kernels.glq import extension, factory, fused, variants
from glqprof_kernels.glq.workload import MoeWorkload

OFF = {"prefetch_kib": 0, "hints": False, "early": False, "queues": False}
WAYS = {
    "all on": {},
    "all off": OFF,
    "no prefetch": {"prefetch_kib": 0},
    "prefetch 96 KiB": {"prefetch_kib": 96},
    "no hints": {"hints": False},
    "no early input": {"early": False},
    "one queue": {"queues": False},
    "cluster 2": {"cluster": 2},
    "cluster 4": {"cluster": 4},
    "dependent": {"dependent": True},
    "cluster 2, dependent": {"cluster": 2, "dependent": True},
}
BATCHES = 3


def checks(ways: dict[str, dict], replays: int) -> list[str]:
    """What is wrong: bits of every way against v3b (fast: error against float64), graph replay, two streams."""
    device_fused.configs = lambda: [
        ("fused" if label == "all on" else label, fast, way) for fast in (False, True) for label, way in ways.items()
    ]
    device_fused.EXACT_CONFIGS, device_fused.FAST_CONFIGS = {}, {}
    found = device_fused.check_bits(False, device_fused.QUICK_SHAPES, (2, 3))
    print(f"  {found['checked']} checked, fast error over v3b's {found['fast_error_over_v3b']}", flush=True)
    shape = device_fused.SHAPES[3]
    layer = factory.layer(shape, seed=1, device="cuda", stages=3)
    workload = MoeWorkload(shape.name, 1, "cuda", [layer], shape, layer.overflow)
    wrong = list(found["wrong"]) + device_fused.check_replay(fused.pack_layer(layer), shape, workload, replays)
    for line in wrong[:20]:
        print(f"  {line}")
    return wrong


def usable(packed: fused.FusedLayer, shape, batch) -> dict[str, dict]:
    """The ways that this device launches."""
    found = {}
    for label, way in WAYS.items():
        try:
            out = torch.empty_like(batch[0])
            fused.FusedRun([packed], 8, shape.top_k, **way).layer(0, *batch, out)
            torch.cuda.synchronize()
            found[label] = way
        except Exception:
            print(f"  {label}: refused")
            traceback.print_exc(limit=1)
            with contextlib.suppress(Exception):  # the error is reported a second time by the next launch
                torch.zeros(1, device="cuda").add_(1)
    return found


def main() -> int:
    """Check, time, print; exit 1 when a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=23)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--replays", type=int, default=200)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()

    def step(label: str) -> None:
        print(f"[{time.perf_counter() - begin:5.1f} s] {label}", flush=True)

    step(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: building")
    extension.load()
    step(f"weights of {options.layers} layers")
    registry = Registry()
    variants.register(registry)
    group = registry.groups[variants.GROUP]
    workload = group.workload("cascade2-30b", options.layers, 0, "cuda", {})
    layers = variants.packed_layers(workload)
    batches = [group.batch(workload, 1, 100 + index) for index in range(BATCHES)]
    shape = workload.shape
    ways = usable(layers[0], shape, batches[0].per_layer[0])
    step(f"bits of {len(ways)} ways")
    wrong = checks(ways, options.replays)

    step("graphs")
    want = [group.out(workload, batch) for batch in batches]
    v3b = registry.variants[variants.GROUP, "v3b"].build(workload)
    for batch, out in zip(batches, want, strict=True):
        v3b(batch, out)
    graphs, runners = {}, {}
    for fast in (False, True):
        for label, way in ways.items():
            runner = fused.FusedRun(layers, 8, shape.top_k, fast=fast, **way)
            made = []
            for batch, expected in zip(batches, want, strict=True):
                out = group.out(workload, batch)

                def run(batch=batch, out=out, runner=runner) -> None:
                    for i, (inputs, one) in enumerate(zip(batch.per_layer, out.unbind(0), strict=True)):
                        runner.layer(i, *inputs, one)

                run()
                torch.cuda.synchronize()
                if not fast and not device_fused.same(out, expected):
                    wrong.append(f"{label}: bits of {options.layers} layers")
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    run()
                made.append(graph)
            graphs[fast, label], runners[fast, label] = made, runner
    step("times")
    keys = list(graphs)
    times: dict = {key: [] for key in keys}
    for round_ in range(options.rounds):
        for at in range(len(keys)):
            key = keys[(at + 7 * round_) % len(keys)]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[key][round_ % BATCHES].replay()
            end.record()
            end.synchronize()
            if round_ >= 3:
                times[key].append(start.elapsed_time(end))
    step("phases")
    results: dict = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "wrong": wrong, "times": {}}
    out = group.out(workload, batches[0])
    chosen = {n: [i for i, one in enumerate(layers) if len(one.up.codes) == n][:6] for n in (2, 3)}
    for fast in (False, True):
        for label in ("all on", "all off", "cluster 2"):
            for stages, indices in chosen.items():
                if (fast, label) not in runners or not indices:
                    continue
                runner = runners[fast, label]
                device_fused.phases(runner, batches[0], out, indices[:1])
                found = device_fused.phases(runner, batches[1], out, indices)
                name = f"{'fast' if fast else 'fused'}, {label}, {stages} stages"
                results.setdefault("phases", {})[name] = found
                print(f"{name}: layer {found['layer_us']:.1f} us; after the first start, median / last block")
                for phase in ("up", "down"):
                    cells = "  ".join(f"{n} {a:.1f}/{b:.1f}" for n, (a, b) in found[phase].items())
                    print(f"  {phase:5}{cells}")
    step("done")
    print(f"\n{'way':22} {'fused ms':>9} {'min':>7} {'fast ms':>9} {'min':>7}")
    for label in ways:
        cells = []
        for fast in (False, True):
            one = times[fast, label]
            results["times"][f"{'fast' if fast else 'fused'}, {label}"] = one
            cells.append(f"{statistics.median(one):9.4f} {min(one):7.4f}")
        print(f"{label:22} {' '.join(cells)}")
    print(f"{len(wrong)} checks wrong" if wrong else "all checks passed")
    (options.out / "compare_fused.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
