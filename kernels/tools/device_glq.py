"""First look at the GLQ kernels on a GPU: build, check bits, record hashes, time and count each variant.

    PYTHONPATH=.:kernels python3 kernels/tools/device_glq.py --out FOLDER [--layers 23] [--no-bf16] [--no-tests]

Prints a table and writes ``glq_device.json`` and ``gpu_hashes.json`` into FOLDER. The numbers are a quick look (one
process, fresh random batches, medians); claims come from ``glqprof bench``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from glqprof.bench.registry import Registry
from glqprof_kernels.glq import extension, fixtures, ops, variants

ROOT = Path(__file__).resolve().parents[2]
CALLS = 30
GRAPH_CALLS = 50


def timed_eager(run, batches, out) -> dict[str, float]:
    """Median GPU-event and wall milliseconds of one call, each on a batch not used before."""
    events, walls = [], []
    for index, batch in enumerate(batches):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        start.record()
        run(batch, out)
        end.record()
        torch.cuda.synchronize()
        if index >= 3:  # the first calls fill allocator and module caches
            walls.append((time.perf_counter() - begin) * 1e3)
            events.append(start.elapsed_time(end))
    return {"event_ms": statistics.median(events), "wall_ms": statistics.median(walls)}


def timed_graph(run, batch, out) -> float | None:
    """Median milliseconds of a replay (warm in no cache: one call reads far more than L2), or None."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(batch, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(batch, out)
    times = []
    for _ in range(GRAPH_CALLS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def counted(run, batch, out) -> dict[str, object]:
    """Launches by kernel, host waits and summed kernel time of one call, from torch.profiler."""
    run(batch, out)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        run(batch, out)
        torch.cuda.synchronize()
    kernels: Counter[str] = Counter()
    kernel_us: defaultdict[str, float] = defaultdict(float)
    waits = 0
    for event in prof.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            if not event.name.startswith(("Memcpy", "Memset")):
                kernels[event.name] += 1
                kernel_us[event.name] += event.device_time if hasattr(event, "device_time") else event.cuda_time
        elif event.name == "cudaStreamSynchronize":
            waits += 1
    return {
        "launches": sum(kernels.values()),
        "waits": waits,
        "kernel_ms": sum(kernel_us.values()) / 1e3,
        "kernels": {name: [count, round(kernel_us[name] / 1e3, 3)] for name, count in kernels.most_common()},
    }


def declared_mismatch(variant, workload, batch, found) -> list[str]:
    """Differences between the declared and the counted launches and waits."""
    declared = variant.kernels(workload, batch)
    seen: Counter[str] = Counter()
    wrong = []
    for name, (count, _) in found["kernels"].items():
        pattern = next((p for p in declared if re.search(p, name)), None)
        if pattern is None:
            wrong.append(f"undeclared {name} {count}×")
        else:
            seen[pattern] += count
    wrong += [f"{p}: {seen[p]} instead of {n}" for p, n in declared.items() if n >= 0 and seen[p] != n]
    waits = variant.syncs(workload, batch) + variant.blocking_copies(workload, batch)
    # torch.cuda.synchronize() in ``counted`` is cudaDeviceSynchronize and not among the waits.
    return wrong if found["waits"] == waits else [*wrong, f"waits: {found['waits']} instead of {waits}"]


def recorded_mismatches() -> list[str]:
    """Recorded cases and variants whose bytes differ between the GPU and the exact CPU implementation."""
    path = ROOT / "tests" / "kernels" / "data" / "glq_inputs.npz"
    wrong = []
    for host, gpu in zip(fixtures.load(path, "cpu"), fixtures.load(path, "cuda"), strict=True):
        for variant in ops.EXACT:
            want, got = (
                fixtures.digest(ops.moe(c.layer, c.x, c.ids, c.weights, variant=variant, warn_overflow=False))
                for c in (host, gpu)
            )
            if want != got:
                wrong.append(f"{host.name}: {variant}")
    return wrong


def measured(group, workload, variant, run, rows: int, baseline: dict[int, torch.Tensor]) -> dict[str, object]:
    """Bits against the first variant measured, launches, waits and times of one variant."""
    batches = [group.batch(workload, rows, 100 + index) for index in range(CALLS + 3)]
    out = group.out(workload, batches[0])
    out.view(torch.uint8).fill_(0xA5)
    run(batches[0], out)
    torch.cuda.synchronize()
    first = baseline.setdefault(rows, out.clone())
    found: dict[str, object] = {
        "rows": rows,
        "differing_share": (out.view(torch.int16) != first.view(torch.int16)).float().mean().item(),
        "max_rel_gap": (out.double() - first.double()).abs().max().item() / first.double().abs().max().item(),
    }
    found |= counted(run, batches[0], out)
    found["mismatch"] = declared_mismatch(variant, workload, batches[0], found)
    found |= timed_eager(run, batches, out)
    found["graph_ms"] = timed_graph(run, batches[0], out) if variant.capturable else None
    found["bytes"] = variant.bytes_moved(workload, batches[0])
    return found


def main() -> int:
    """Run everything; exit 1 when a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=23)
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--commit", default="")
    parser.add_argument("--no-bf16", action="store_true")
    parser.add_argument("--no-tests", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"}
    failed = []
    begin = time.perf_counter()

    def step(label: str) -> None:
        print(f"[{time.perf_counter() - begin:5.0f} s] {label}", flush=True)

    step(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}: building")
    extension.load()
    step("bit checks: recorded inputs, GPU against the exact CPU implementation")
    wrong = recorded_mismatches()
    print(f"  {len(wrong)} differ{''.join(chr(10) + '  ' + name for name in wrong[:20])}")
    if wrong:
        failed.append("bits of the recorded inputs")
    if not options.no_tests and importlib.util.find_spec("pytest") is None:
        failed.append("no pytest here: tests/gpu did not run")
    elif not options.no_tests:
        step("bit checks: tests/gpu/test_glq_*.py")
        tests = sorted(str(path) for path in (ROOT / "tests" / "gpu").glob("test_glq_*.py"))
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *tests]
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            failed.append("bit checks")
    step("recording hashes")
    recorder = [sys.executable, str(ROOT / "kernels" / "tools" / "record_hashes.py")]
    recorder += [str(options.out / "gpu_hashes.json"), "--commit", options.commit]
    if subprocess.run(recorder, cwd=ROOT, env=environment, check=False).returncode:
        failed.append("recording")

    step(f"weights of {options.layers} layers")
    registry = Registry()
    variants.register(registry)
    group = registry.groups[variants.GROUP]
    workload = group.workload("cascade2-30b", options.layers, 0, "cuda", {})
    torch.cuda.synchronize()
    step(f"{torch.cuda.memory_allocated() / 1e9:.1f} GB made")
    results: dict[str, dict[str, object]] = {}
    baseline: dict[int, torch.Tensor] = {}
    for variant in registry.of_group(variants.GROUP):
        if variant.dtype == "bfloat16" and options.no_bf16:
            continue
        step(f"building {variant.name}")
        try:
            run = variant.build(workload)
            for rows in options.rows:
                step(f"{variant.name}, {rows} rows")
                results[f"{variant.name} x{rows}"] = measured(group, workload, variant, run, rows, baseline)
        except Exception:  # one variant that fails must not cost the others' results
            traceback.print_exc()
            failed.append(variant.name)
    failed += [f"{name}: declared wrongly" for name, r in results.items() if r["mismatch"]]
    columns = ("wall ms", "event ms", "graph ms", "kernel ms", "launches", "waits")
    print(f"\n{'variant':18} " + " ".join(f"{column:>9}" for column in columns) + "  differs")
    for name, r in results.items():
        graph = "-" if r["graph_ms"] is None else f"{r['graph_ms']:.3f}"
        print(
            f"{name:18} {r['wall_ms']:9.3f} {r['event_ms']:9.3f} {graph:>9} {r['kernel_ms']:9.3f} {r['launches']:9} "
            f"{r['waits']:9}  {r['differing_share']:.2%} by up to {r['max_rel_gap']:.1e}"
        )
    for name, r in results.items():
        print(f"\n{name}: kernels (launches, ms)")
        for kernel, (count, ms) in list(r["kernels"].items())[:14]:
            print(f"  {count:6} {ms:8.3f}  {kernel[:110]}")
        for line in r["mismatch"]:
            print(f"  DECLARED WRONG: {line}")
    (options.out / "glq_device.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    step("done" if not failed else f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
