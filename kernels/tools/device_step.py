"""The step kernels on a GPU: times in CUDA graphs of chained calls, each with its own weights.

    PYTHONPATH=.:kernels python3 kernels/tools/device_step.py --out FOLDER [--quick]

Writes ``step_device.json``; prints a short table last. A chain is captured once and replayed; its time is the median
over replays, over the number of its calls. Weights of a chain pass 3 x L2, so that they come from memory. GB/s count
weights (and for attend the cache) once; ``share`` is of a copy's GB/s, read and written, measured in the same run.
tests/gpu/test_step.py checks what the kernels compute; here are only four tokens, the same bytes in all ways.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from step_chains import SHARES, WAYS, Chain, Way, buffers, chains, way

from glqprof.bench.cuda import CudaDevice
from glqprof_kernels.step import extension

MULTIPROCESSORS = torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 1


def captured(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of the calls, after one eager pass."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def time_us(graph: torch.cuda.CUDAGraph, budget_s: float = 0.25) -> float:
    """Median microseconds of one replay."""
    graph.replay()
    torch.cuda.synchronize()
    times: list[float] = []
    until = time.perf_counter() + budget_s
    while len(times) < 7 or (time.perf_counter() < until and len(times) < 60):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return statistics.median(times)


def check_tokens(token: Chain, buffer: dict[str, Any]) -> list[str]:
    """Four tokens, each from the one before: eager, replayed with programmatic launches and without, the same bytes."""
    found = {}
    for label, how in (("eager", None), ("graph", Way()), ("graph without PDL", Way(dependent=False))):
        run = captured(lambda h=how: token.run(h)).replay if how else lambda: token.run(Way())
        buffer["token"].fill_(5)
        torch.cuda.synchronize()
        tokens = []
        for _ in range(4):
            run()
            tokens.append(buffer["token"].clone())
        found[label] = torch.stack(tokens), buffer["residual"].clone(), buffer["half"].clone()
    want = found.pop("eager")
    return [
        f"token: {label} differs from eager"
        for label, got in found.items()
        if not all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(want, got, strict=True))
    ]


SWEEP: dict[str, dict[str, int]] = {
    "as the loop": {},
    "out smaller": {"out": 1},
    "out whole": {"out": 2},
    "in smaller": {"in": 1},
    "qkv larger": {"qkv": 0},
    "version 2": {"out": 1, "qkv": 0, "o": 1},
}
"""Shares of shared memory, by product, that differ from ``SHARES``."""


def sweep(all_chains: list[Chain]) -> list[dict[str, Any]]:
    """How much shared memory the blocks of a product take."""
    rows = []
    for label, shares in SWEEP.items():
        row: dict[str, Any] = {"shares": label, "columns": [], "us": []}
        for chain in (c for c in all_chains if c.swept):
            how = Way(shares=shares)
            us = time_us(captured(lambda c=chain, h=how: c.run(h)), 0.1)
            row["columns"].append(chain.swept)
            row["us"].append(us / chain.calls)
        rows.append(row)
    return rows


TIMELINES = {"M": 2, "M ssm": 2, "E": 2, "*": 2, "3 norms, up": 1}
"""Chains (by their column, or their name) whose products are looked at, and the products of a layer."""


def timelines(all_chains: list[Chain]) -> list[dict[str, Any]]:
    """Medians over the products of a chain, by the blocks' own clocks, in microseconds.

    ``lead``: from a product's first start to its first release; ``gap``: from the last sum of the product before to
    that release; ``work``: from there to its last sum; ``late``: from the first to the last start of its blocks;
    ``doubled``: blocks that share a multiprocessor with another of the same product.
    """
    rows = []
    for chain in all_chains:
        products = TIMELINES.get(chain.swept or chain.name, 0)
        if not products:
            continue
        # Made before the capture, so that no fill comes between two kernels; the eager pass takes as many as the graph.
        count = chain.calls * products
        notes = torch.zeros(2 * count, MULTIPROCESSORS, 4, dtype=torch.int64, device="cuda")
        how = Way(notes=iter(notes.unbind(0)))
        graph = captured(lambda c=chain, h=how: c.run(h))
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        calls = list(notes[count:].cpu())
        for which in range(products):
            found: dict[str, list[float]] = {name: [] for name in ("lead", "gap", "work", "late", "doubled")}
            for index in range(products + which, len(calls), products):
                started, released, summed, place = calls[index].unbind(1)
                release = int(released.min())
                found["lead"].append((release - int(started.min())) / 1000)
                found["gap"].append((release - int(calls[index - 1][:, 2].max())) / 1000)
                found["work"].append((int(summed.max()) - release) / 1000)
                found["late"].append((int(started.max()) - int(started.min())) / 1000)
                found["doubled"].append(float(len(place) - len(place.unique())))
            medians = {name: statistics.median(values) for name, values in found.items()}
            rows.append({"chain": chain.name, "product": which + 1, **medians})
    return rows


def measure(all_chains: list[Chain], copy: float) -> list[dict[str, Any]]:
    """Every chain in every way: microseconds of a call, GB/s, share of the copy."""
    rows = []
    for chain in all_chains:
        for name in WAYS:
            how = way(name)
            us = time_us(captured(lambda c=chain, h=how: c.run(h)))
            gb_s = chain.bytes_read / us / 1000
            rows.append(
                {
                    "chain": chain.name,
                    "way": name,
                    "calls": chain.calls,
                    "us_per_call": us / chain.calls,
                    "gb_s": gb_s,
                    "share_of_copy": gb_s / copy,
                }
            )
    return rows


def show(record: dict[str, Any]) -> None:
    """At most 80 columns."""
    print(f"\ncopy of 1 GiB: {record['copy_gb_s']:.0f} GB/s   ({record['gpu']})")
    print(f"{'us a call (share of copy)':28} {'cuda':>14} {'no PDL':>14} {'torch':>14}")
    for name in dict.fromkeys(row["chain"] for row in record["times"]):
        cells = []
        for row in (r for r in record["times"] if r["chain"] == name):
            share = f" ({row['share_of_copy']:3.0%})" if row["gb_s"] else "       "
            cells.append(f"{row['us_per_call']:7.2f}{share:>7}")
        print(f"{name:28} " + " ".join(cells))
    for row in record["sweep"]:
        if row is record["sweep"][0]:
            print(f"\n{'us a call':16}" + "".join(f"{name:>7}" for name in row["columns"]))
        print(f"{row['shares']:16}" + "".join(f"{us:7.2f}" if us < 1000 else f"{us:7.0f}" for us in row["us"]))
    if record["timelines"]:
        names = ("lead", "gap", "work", "late", "doubled")
        print(f"\n{'µs, by clocks of the blocks':30}" + "".join(f"{name:>9}" for name in names))
        for row in record["timelines"]:
            print(f"{row['chain'] + ' ' + str(row['product']):30}" + "".join(f"{row[name]:9.2f}" for name in names))
    print("checks: " + ("all right" if not record["wrong"] else "; ".join(record["wrong"][:8])))


def main() -> int:
    """Build, check, measure, report; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="fewer layers, no sweep")
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    start = time.perf_counter()
    extension.load()
    built = time.perf_counter()
    torch.manual_seed(0)
    record: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "batch": options.batch,
        "sources": extension.source_hash(),
        "wrong": [],
        "shares": SHARES,
        "times": [],
        "sweep": [],
        "timelines": [],
        "copy_gb_s": 0.0,
    }
    try:
        record["copy_gb_s"] = CudaDevice().copy_gb_s() or 0.0
        with torch.inference_mode():
            shared = buffers(options.batch)
            made = chains(options.batch, options.quick, shared)
            record["wrong"] += check_tokens(made[-2], shared)
            record["times"] = measure(made, record["copy_gb_s"])
            if not options.quick:
                record["sweep"] = sweep(made)
                record["timelines"] = timelines(made)
    except Exception:
        record["wrong"].append(traceback.format_exc())
    record["build_s"], record["run_s"] = round(built - start, 1), round(time.perf_counter() - built, 1)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "step_device.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    show(record)
    print(f"built in {record['build_s']} s, ran {record['run_s']} s")
    return 1 if record["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
