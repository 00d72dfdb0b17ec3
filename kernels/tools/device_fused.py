"""The fused GLQ kernels on a GPU: bits against v3b, times of every way to launch them, times within a kernel.

    PYTHONPATH=.:kernels python3 kernels/tools/device_fused.py --out FOLDER [--layers 23] [--no-bf16] [--quick]

Writes ``fused_device.json``; prints a short table last. Its times are a quick look (medians over fresh batches, one way
after the other); claims come from ``glqprof bench glq-moe``, which interleaves.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch

from glqprof.bench.registry import Registry
from glqprof_kernels import geometry
from glqprof_kernels.geometry import Geometry
from glqprof_kernels.glq import extension, factory, fused, ops, reference, variants
from glqprof_kernels.glq.workload import MoeWorkload, adversarial, make_batch

SHAPES = [
    geometry.load("tiny-odd"),
    Geometry("odd", 1048, 264, 4, 2, 1, "relu2", 0.0),
    Geometry("gated-odd", 520, 264, 3, 2, 1, "swiglu", 10.0),
    Geometry("cascade-16", 2688, 1856, 16, 6, 1, "relu2", 0.0),
    Geometry("qwen-16", 2048, 512, 16, 8, 1, "swiglu", 0.0),
    Geometry("glm-16", 4096, 2048, 16, 8, 1, "swiglu", 10.0),
]
QUICK_SHAPES = [SHAPES[0], SHAPES[2], SHAPES[3]]
EXACT_CONFIGS = {
    "fused": {},
    "two launches": {"one_launch": False},
    "two dependent": {"one_launch": False, "dependent": True},
}
FAST_CONFIGS = {
    "fast": {},
    "fast two": {"one_launch": False, "dependent": True},
}
REPLAYS = 40
BATCHES = 6


def configs() -> list[tuple[str, bool, dict]]:
    """(label, fast, configuration)."""
    return [(k, False, v) for k, v in EXACT_CONFIGS.items()] + [(k, True, v) for k, v in FAST_CONFIGS.items()]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two fp16 tensors have the same bytes."""
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def check_bits(quick: bool, shapes: list[Geometry], every: tuple[int, ...]) -> dict:
    """Every configuration against v3b (exact) or float64 (fast) on random and hostile inputs."""
    wrong: list[str] = []
    checked = 0
    ratios = []
    for shape, stages in itertools.product(shapes, every):
        large = shape.hidden > 2000
        if large and stages == 1:
            continue
        split_blocks = {1: 16, 2: 64, 3: 64 if large else 32, 4: 16}[stages]
        layer = factory.layer(shape, seed=stages, device="cuda", stages=stages, split_blocks=split_blocks)
        packed = fused.pack_layer(layer)
        workload = MoeWorkload(shape.name, 1, "cuda", [layer], shape, layer.overflow)
        batches = [(f"{rows} rows", make_batch(workload, rows, seed=rows)) for rows in (1, 2, 4, 8)]
        if not large or stages == 3:
            batches += adversarial(workload, 2)
        wants = []
        exact: dict[str, torch.Tensor] = {}
        for label, batch in batches:
            before = int(layer.overflow)
            out = ops.moe(layer, *batch.per_layer[0], variant="v3b", warn_overflow=False)
            wants.append((label, batch.per_layer[0], out, int(layer.overflow) - before))
        for name, fast, config in configs():
            default = name in ("fused", "fast")
            if quick and not default:
                continue
            runner = fused.FusedRun([packed], 8, shape.top_k, fast=fast, **config)
            for label, inputs, want, infinite in wants:
                if large and not default and label not in ("1 rows", "4 rows"):
                    continue
                case = f"{shape.name}, {stages} stages, {label}: {name}"
                out = torch.empty_like(want)
                out.view(torch.uint8).fill_(0xA5)
                before = int(layer.overflow)
                runner.layer(0, *inputs, out)
                torch.cuda.synchronize()
                checked += 1
                if not (runner.workspace == 0xFF).all():
                    wrong.append(f"{case}: the workspace is not empty")
                if not fast:
                    if not same(out, want):
                        share = (out.view(torch.int16) != want.view(torch.int16)).float().mean().item()
                        wrong.append(f"{case}: {share:.2%} differ")
                    if int(layer.overflow) - before != infinite:
                        wrong.append(f"{case}: overflow counted {int(layer.overflow) - before} times, not {infinite}")
                elif label.endswith("rows"):
                    if label not in exact:
                        exact[label] = reference.moe(layer, *inputs)
                    truth = exact[label]
                    mine, theirs = (((o.double() - truth).norm() / truth.norm()).item() for o in (out, want))
                    ratios.append(mine / theirs)
                    if not mine <= theirs:
                        wrong.append(f"{case}: error {mine:.2e}, v3b {theirs:.2e}")
    return {"checked": checked, "wrong": wrong, "fast_error_over_v3b": [min(ratios), max(ratios)] if ratios else []}


def check_replay(packed: fused.FusedLayer, shape: Geometry, workload: MoeWorkload, replays: int) -> list[str]:
    """A graph replayed with changing ids equals eager calls, and two streams with a run object each do not disturb."""
    wrong = []
    for fast in (False, True):
        runs = [fused.FusedRun([packed], 8, shape.top_k, fast=fast) for _ in range(3)]
        x, ids, weights = (t.clone() for t in make_batch(workload, 2, seed=0).per_layer[0])
        outs = [torch.empty_like(x) for _ in range(3)]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            runs[0].layer(0, x, ids, weights, outs[0])
        differing = 0
        for _ in range(replays):
            x.normal_()
            ids.copy_(torch.randint(-1, shape.experts, ids.shape, device="cuda"))
            weights.uniform_()
            graph.replay()
            runs[1].layer(0, x, ids, weights, outs[1])
            differing += not same(outs[0], outs[1])
        if differing:
            wrong.append(f"fast={fast}: {differing} of {replays} replays differ from eager")
        want = [torch.empty_like(x) for _ in range(2)]
        inputs = [make_batch(workload, 2, seed=s).per_layer[0] for s in (11, 12)]
        for k in range(2):
            runs[2].layer(0, *inputs[k], want[k])
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(2)]
        differing = 0
        for _ in range(50):
            for k in range(2):
                with torch.cuda.stream(streams[k]):
                    for _ in range(4):
                        runs[k].layer(0, *inputs[k], outs[k])
            torch.cuda.synchronize()
            differing += not (same(outs[0], want[0]) and same(outs[1], want[1]))
        if differing:
            wrong.append(f"fast={fast}: {differing} of 50 two-stream rounds differ")
    return wrong


def timed(run, batches, outs, capture: bool) -> dict[str, float | None]:
    """Median milliseconds: eager calls by events, and replays of one graph a batch, the batches in turn."""
    run(batches[0], outs)
    torch.cuda.synchronize()
    eager = []
    for batch in batches * 2:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(batch, outs)
        end.record()
        torch.cuda.synchronize()
        eager.append(start.elapsed_time(end))
    if not capture:
        return {"eager_ms": statistics.median(eager), "graph_ms": None}
    graphs = []
    for batch in batches:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(batch, outs)
        graphs.append(graph)
    replayed = []
    for index in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graphs[index % len(graphs)].replay()
        end.record()
        end.synchronize()
        replayed.append(start.elapsed_time(end))
    middle = statistics.median(replayed)
    return {"eager_ms": statistics.median(eager), "graph_ms": middle, "graph_min_ms": min(replayed)}


def phases(runner: fused.FusedRun, batch, out, layers: range) -> dict:
    """Within the kernels, per stage count: microseconds between marks (median and maximum over thread blocks)."""
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    names = ("start", "sums read", "slots", "vectors", "table", "product", "end")
    found: dict[str, list] = {}
    for index in layers:
        timeline = torch.zeros(2, blocks, 8, 2, dtype=torch.int64, device="cuda")
        handle = runner.handles[index]
        x, ids, weights = batch.per_layer[index]
        handle.run(x, ids, weights, False, out[index], runner.workspace, runner.config, timeline)
        torch.cuda.synchronize()
        ns = timeline[..., 0].double().cpu() / 1e3
        for phase, label in enumerate(("up", "down")):
            began = ns[phase, :, 0]
            start = began[began > 0].min() if (began > 0).any() else ns[0, :, 0].min()
            row = {}
            for k, name in enumerate(names):
                seen = ns[phase, :, k][ns[phase, :, k] > 0] - start  # blocks without work set no mark
                row[name] = [seen.median().item(), seen.max().item()] if len(seen) else [0.0, 0.0]
            found.setdefault(label, []).append(row)
        found.setdefault("layer", []).append((ns.max() - ns[0, :, 0].min()).item())
    result: dict = {"layer_us": statistics.median(found["layer"])}
    for label in ("up", "down"):
        result[label] = {
            n: [round(statistics.median(one[n][k] for one in found[label]), 2) for k in (0, 1)] for n in names
        }
    return result


def main() -> int:
    """Run everything; exit 1 when a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=23)
    parser.add_argument("--replays", type=int, default=1000)
    parser.add_argument("--no-bf16", action="store_true")
    parser.add_argument("--quick", action="store_true", help="bits of few shapes and the default configurations only")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    failed: list[str] = []
    results: dict = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "times": {}, "phases": {}}

    def step(label: str) -> None:
        print(f"[{time.perf_counter() - begin:5.1f} s] {label}", flush=True)
        (options.out / "fused_device.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    def attempt(label: str, work) -> None:
        try:
            work()
        except Exception:  # one part that fails must not cost the others' results
            traceback.print_exc()
            failed.append(label)

    step(f"{results['gpu']}, torch {torch.__version__}: building")
    extension.load()
    step("bits")

    def look_at_bits() -> None:
        chosen = (QUICK_SHAPES, (2, 3)) if options.quick else (SHAPES, (1, 2, 3, 4))
        found = check_bits(options.quick, *chosen)
        results["bits"] = found
        print(f"  {found['checked']} checked, {len(found['wrong'])} wrong")
        print(f"  fused-fast: error over v3b's, least and most: {found['fast_error_over_v3b']}")
        for line in found["wrong"][:25]:
            print(f"  {line}")
        if found["wrong"]:
            failed.append("bits")

    attempt("bits", look_at_bits)
    step("graph replay and two streams")

    def replay() -> None:
        shape = SHAPES[3]
        layer = factory.layer(shape, seed=1, device="cuda", stages=3)
        workload = MoeWorkload(shape.name, 1, "cuda", [layer], shape, layer.overflow)
        results["replay"] = check_replay(fused.pack_layer(layer), shape, workload, options.replays)
        print(f"  {results['replay'] or 'all equal'}")
        if results["replay"]:
            failed.append("replay")

    attempt("replay", replay)

    step(f"weights of {options.layers} layers")
    registry = Registry()
    variants.register(registry)
    group = registry.groups[variants.GROUP]
    workload = group.workload("cascade2-30b", options.layers, 0, "cuda", {})
    torch.cuda.synchronize()
    step("packing")
    layers = variants.packed_layers(workload)
    torch.cuda.synchronize()
    step(f"{torch.cuda.memory_allocated() / 1e9:.1f} GB made")
    batches = [group.batch(workload, 1, 100 + index) for index in range(BATCHES)]
    out = group.out(workload, batches[0])
    by_rows: dict[int, torch.Tensor] = {}

    def baseline(rows: int) -> torch.Tensor:
        if rows not in by_rows:
            first = group.batch(workload, rows, 100)
            by_rows[rows] = group.out(workload, first)
            built("v3b")(first, by_rows[rows])
        return by_rows[rows]

    def measure(label: str, run, rows: int = 1, tolerance: bool = False, capture: bool = True) -> None:
        inputs = batches if rows == 1 else [group.batch(workload, rows, 100 + index) for index in range(3)]
        target = group.out(workload, inputs[0])
        target.view(torch.uint8).fill_(0xA5)
        run(inputs[0], target)
        torch.cuda.synchronize()
        want = baseline(rows)
        found = timed(run, inputs, group.out(workload, inputs[0]), capture)
        found["differs"] = (target.view(torch.int16) != want.view(torch.int16)).float().mean().item()
        if found["differs"] and not tolerance:
            failed.append(f"{label}: bits")
        results["times"][label] = found

    def runner_of(fast: bool, config: dict) -> fused.FusedRun:
        return fused.FusedRun(layers, 8, workload.shape.top_k, fast=fast, **config)

    def whole(fast: bool, config: dict):
        runner = runner_of(fast, config)

        def run(batch, target) -> None:
            for i, (inputs, one) in enumerate(zip(batch.per_layer, target.unbind(0), strict=True)):
                runner.layer(i, *inputs, one)

        return run

    def built(name: str):
        return registry.variants[variants.GROUP, name].build(workload)

    def all_configurations() -> None:
        step("v3b")
        attempt("v3b", lambda: measure("v3b", built("v3b"), capture=False))
        for label, fast, config in configs():
            step(label)
            attempt(label, lambda f=fast, c=config, label=label: measure(label, whole(f, c), 1, f))
        for rows in (2, 4, 8):
            for fast in (False, True):
                label = f"{'fast' if fast else 'fused'} x{rows}"
                step(label)
                attempt(label, lambda f=fast, r=rows, label=label: measure(label, whole(f, {}), r, f))

    all_configurations()
    step("per-phase times")
    two = [i for i, one in enumerate(layers) if len(one.up.codes) == 2][:6]
    three = [i for i, one in enumerate(layers) if len(one.up.codes) == 3][:6]
    for label, fast, config in (
        ("fused", False, {}),
        ("two launches", False, {"one_launch": False}),
        ("fast", True, {}),
    ):
        for stages, chosen in ((2, two), (3, three)):

            def look(label=label, fast=fast, config=config, stages=stages, chosen=chosen) -> None:
                runner = runner_of(fast, config)
                phases(runner, batches[0], out, chosen[:1])
                results["phases"][f"{label} {stages} stages"] = phases(runner, batches[1], out, chosen)

            attempt(f"phases of {label}", look)
    if not options.no_bf16:
        for name in ("bf16", "bf16-loop"):
            step(name)
            attempt(name, lambda name=name: measure(name, built(name), 1, True))
    step("done" if not failed else f"FAILED: {', '.join(failed)}")
    for label, found in results["phases"].items():
        print(f"\n{label}: layer {found['layer_us']:.1f} us; us after the first start, median / last block")
        for phase in ("up", "down"):
            print(f"  {phase:5}" + "  ".join(f"{n} {a:.1f}/{b:.1f}" for n, (a, b) in found[phase].items()))
    if results["times"]:
        print(f"\n{'':18} {'graph ms':>9} {'min':>8} {'eager ms':>9}  differs")
    for label, found in results["times"].items():
        graph = found.get("graph_ms")
        cells = f"{graph:9.3f} {found['graph_min_ms']:8.3f}" if graph is not None else f"{'-':>9} {'-':>8}"
        print(f"{label:18} {cells} {found['eager_ms']:9.3f}  {found['differs']:.2%}")
    bits = results.get("bits", {"checked": 0, "wrong": []})
    print(f"bits: {bits['checked']} checked, {len(bits['wrong'])} wrong; {failed or 'all passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
