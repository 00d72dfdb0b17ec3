"""Ways to run the fused GLQ kernels, and older versions of them, interleaved on a GPU: bits, then 23 layers in graphs.

    PYTHONPATH=.:kernels python3 kernels/tools/compare_fused.py --out FOLDER [--old v8=CSRC ...] [--layers 23]

Writes ``compare_fused.json``; prints a table last. Each round replays every way's graph of one batch, in an order that
turns, so that no way has always the same neighbour. Before it ``device_fused.py``'s checks on few shapes. ``CSRC``: the
``csrc`` folder of an older commit (``git archive``); its layout of weights must be today's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import device_fused
import torch

from glqprof.bench.registry import Registry
from glqprof_kernels import building
from glqprof_kernels.glq import extension, factory, fused, variants
from glqprof_kernels.glq.workload import MoeWorkload

DEFAULT = "default"
WAYS = {
    DEFAULT: {},
    "cluster 2": {"cluster": 2},
    "dependent": {"dependent": True},
}
OLD_WAYS = {"": {}, ", dependent": {"dependent": True}}
OLD_CONFIG = {"one_launch": True, "dependent": False, "cluster": 2, "prefetch_kib": 0}
BATCHES = 3


def renamed(label: str, csrc: Path, to: Path) -> Path:
    """A copy of an older ``csrc`` in its own namespace: two extensions in one process share no symbol and no type."""
    if not csrc.is_dir():
        raise SystemExit(f"error: {csrc}: no such folder; git archive COMMIT kernels/glqprof_kernels/glq/csrc makes it")
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(csrc, to)
    for path in to.iterdir():
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"\bnamespace glq\b", f"namespace glq_{label}", re.sub(r"\bglq::", f"glq_{label}::", text))
        path.write_text(re.sub(r'\(m, ("\w+")\)', r"(m, \1, pybind11::module_local())", text), encoding="utf-8")
    return to


def old_module(csrc: Path):
    """The extension of a renamed older version."""
    key = building.hash_of(extension.SOURCES, sorted(csrc.iterdir()))
    return building.build("GLQ", csrc, extension.SOURCES, key, torch.cuda.get_device_capability())


def counted_from_small(layer: fused.FusedLayer) -> fused.FusedLayer:
    """The layer with a small third stage's codes counted from the first small word, as before version 11."""

    def older(m: fused.FusedMatrix) -> fused.FusedMatrix:
        if not m.small:
            return m
        codes = fused.unpack_codes(m.codes[fused.SMALL_STAGE], m.rows, m.blocks) - layer.table.small_word
        return replace(m, codes=[*m.codes[: fused.SMALL_STAGE], fused.pack_codes(codes)])

    return replace(layer, up=older(layer.up), down=older(layer.down))


class OldRun(fused.FusedRun):
    """``FusedRun`` of an older version's extension."""

    def __init__(
        self, module, csrc: Path, layers, max_tokens: int, top_k: int, *, fast: bool = False, **config
    ) -> None:
        self.config = module.FusedConfig()
        self.config.fast = fast
        for name, value in {**OLD_CONFIG, **config}.items():
            if hasattr(self.config, name):
                setattr(self.config, name, value)
        if "shared_word" not in (csrc / "fused_platform.cuh").read_text(encoding="utf-8"):  # before version 11
            layers = [counted_from_small(layer) for layer in layers]
        self.handles = [fused.cuda_layer(layer, module) for layer in layers]
        size = max(handle.workspace_bytes(max_tokens, top_k) for handle in self.handles)
        self.workspace = torch.zeros(size, dtype=torch.uint8, device="cuda")
        if "kMissing" in (csrc / "fused_platform.cuh").read_text(encoding="utf-8"):  # version 9 has counters and words
            counters = "kCounterBytes" in (csrc / "fused_call.h").read_text(encoding="utf-8")
            self.workspace[4 * fused.MAX_SLOTS if counters else 0 :] = 0xFF


def copy_rate() -> float:
    """TB/s, read and written, of copying 2 GiB: machines of one name differ."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    rates = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        rates.append(2 * source.numel() / start.elapsed_time(end) / 1e9)
    return statistics.median(rates)


def checks(ways: dict[str, dict], replays: int) -> list[str]:
    """What is wrong: bits of every way against v3b (fast: error against float64), graph replay, two streams."""
    device_fused.configs = lambda: [
        ((("fast" if fast else "fused") if label == DEFAULT else label), fast, way)
        for fast in (False, True)
        for label, way in ways.items()
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
    parser.add_argument("--old", action="append", default=[], metavar="LABEL=CSRC", help="an older version")
    parser.add_argument("--build", type=Path, help="only build the older version in this folder")
    options = parser.parse_args()
    if options.build:
        old_module(options.build)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()

    def step(label: str) -> None:
        print(f"[{time.perf_counter() - begin:5.1f} s] {label}", flush=True)

    step(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: building")
    given = dict(one.split("=", 1) for one in options.old)
    sources = {
        label: renamed(label, Path(csrc), building.cache_root() / "older" / label) for label, csrc in given.items()
    }
    building_ = [
        subprocess.Popen([sys.executable, __file__, "--out", str(options.out), "--build", str(csrc)])
        for csrc in sources.values()
    ]
    extension.load()
    if any(process.wait() for process in building_):
        return 1
    old = {label: (old_module(csrc), csrc) for label, csrc in sources.items()}
    rate = copy_rate()
    torch.cuda.empty_cache()
    step(f"a copy runs at {rate:.2f} TB/s")
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
    makers = {
        label: (lambda fast, way=way: fused.FusedRun(layers, 8, shape.top_k, fast=fast, **way))
        for label, way in ways.items()
    }
    for name, (module, csrc) in old.items():
        for suffix, way in OLD_WAYS.items():
            makers[name + suffix] = lambda fast, module=module, csrc=csrc, way=way: OldRun(
                module, csrc, layers, 8, shape.top_k, fast=fast, **way
            )
    for fast in (False, True):
        for label, make in makers.items():
            runner = make(fast)
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
    results: dict = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_tb_per_s": rate,
        "wrong": wrong,
    }
    results["times"] = {}
    out = group.out(workload, batches[0])
    chosen = {n: [i for i, one in enumerate(layers) if len(one.up.codes) == n][:6] for n in (2, 3)}
    for fast in (False, True):
        for label in (DEFAULT, "dependent", *old):
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
    print(f"\n{'way':24} {'fused ms':>9} {'min':>7} {'fast ms':>9} {'min':>7}")
    for label in makers:
        cells = []
        for fast in (False, True):
            one = times[fast, label]
            results["times"][f"{'fast' if fast else 'fused'}, {label}"] = one
            cells.append(f"{statistics.median(one):9.4f} {min(one):7.4f}")
        print(f"{label:24} {' '.join(cells)}")
    print(f"{len(wrong)} checks wrong" if wrong else "all checks passed")
    (options.out / "compare_fused.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
