"""The phase ``few`` of device_nvfp4.py: few rows, ideas side by side: bytes first, then cold times beside a copy."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from nvfp4_device import ALONE, TOGETHER, Calls, Clock, captured, interleaved, make_inputs, make_layer, poisoned, same
from nvfp4_device import summary as summary_of

from glqprof_kernels import geometry
from glqprof_kernels.nvfp4 import ops, reference

Config = dict[str, Any]
REL_ERR = 1e-2
ROW_COUNTS = (1, 2, 3, 4, 5, 8, 9, 16, 33)
COPY_BYTES = 1 << 30

PLAIN: dict[str, tuple[str, Config]] = {name: (name, {}) for name in ops.VARIANTS}
IDEAS: dict[str, tuple[str, Config]] = {
    "quarter-ring d3": ("quarter-ring", {"depth": 3}),
    "quarter-ring d5": ("quarter-ring", {"depth": 5}),
    "quarter-ring d6": ("quarter-ring", {"depth": 6}),
    "quarter-ring 2 KiB ahead": ("quarter-ring", {"ahead_kib": 2}),
    "quarter-ring 4 KiB ahead": ("quarter-ring", {"ahead_kib": 4}),
    "quarter-ring 8 KiB ahead": ("quarter-ring", {"ahead_kib": 8}),
    "quarter-ring d5, 4 KiB ahead": ("quarter-ring", {"depth": 5, "ahead_kib": 4}),
    "quarter-ring d3, 4 KiB ahead": ("quarter-ring", {"depth": 3, "ahead_kib": 4}),
    "quarter-ring 12 warps": ("quarter-ring", {"warps": 12}),
    "quarter-ring 8 warps": ("quarter-ring", {"warps": 8}),
    "quarter-ring 264 blocks of 8": ("quarter-ring", {"blocks": 264, "warps": 8}),
    "quarter-ring no overlap": ("quarter-ring", {"dependent": False}),
    "quarter-deep no overlap": ("quarter-deep", {"dependent": False}),
    "half-ring 264 blocks": ("half-ring", {"blocks": 264}),
    "half-ring 4 KiB ahead": ("half-ring", {"ahead_kib": 4}),
    "base-ring 264 blocks of 4": ("base-ring", {"blocks": 264, "warps": 4}),
}
MANY: dict[str, tuple[str, Config]] = {
    "half-ring items of 16": ("half-ring", {"item_rows": 16}),
    "half-ring 264 blocks": ("half-ring", {"blocks": 264}),
    "half-ring 264 blocks, items of 16": ("half-ring", {"blocks": 264, "item_rows": 16}),
    "quarter-ring d3": ("quarter-ring", {"depth": 3}),
    "quarter-ring d6": ("quarter-ring", {"depth": 6}),
    "quarter-ring 264 blocks of 8": ("quarter-ring", {"blocks": 264, "warps": 8}),
}
"""What may have made half-ring slower at 16 rows: half the warps a multiprocessor, or items of 4 rows."""
CASES = (
    ("glm-5.3-flash", 1, PLAIN | IDEAS),
    ("glm-5.3-flash", 2, PLAIN | IDEAS),
    ("glm-5.3-flash", 4, PLAIN | MANY),
    ("glm-5.3-flash", 16, PLAIN | MANY),
    ("qwen3.6-35b-a3b", 1, PLAIN | IDEAS),
    ("cascade2-30b", 1, PLAIN | IDEAS),
)


def few(clock: Clock, quick: bool) -> list[str]:
    """Bytes of all variants and ideas, then their times."""
    wrong = check(clock)
    measure(clock, quick)
    return wrong


def check(clock: Clock) -> list[str]:
    """Every variant and idea the bytes of base-regs, itself near float64."""
    found = clock.results
    found |= {"compared": 0, "wrong": [], "rel_err": {}}
    ways = PLAIN | IDEAS | MANY
    for name in ("glm-5.3-flash", "qwen3.6-35b-a3b", "cascade2-30b"):
        shape = geometry.load(name)
        layer = make_layer(shape, 24, seed=5)
        runs = {label: ops.MoeRun([layer.packed], 33, shape.top_k, v, **c) for label, (v, c) in ways.items()}
        for rows in ROW_COUNTS:
            x, ids, weights, _ = make_inputs(layer, rows, seed=rows, skewed=rows % 2 == 1)
            want = poisoned(x)
            runs["base-regs"].layer(0, x, ids, weights, want)
            exact = reference.moe(layer.weights, x, ids, weights)
            error = ((want.double() - exact).norm() / exact.norm()).item()
            found["rel_err"][f"{name}, {rows} rows"] = error
            if not error < REL_ERR:
                found["wrong"].append(f"{name}, {rows} rows: {error:.2e} off float64")
            for label, run in runs.items():
                try:
                    out = poisoned(x)
                    run.layer(0, x, ids, weights, out)
                except (ValueError, RuntimeError) as problem:
                    found["wrong"].append(f"{name}, {rows} rows: {label}: {problem}")
                    continue
                found["compared"] += 1
                if not same(out, want):
                    share = (out.view(torch.int16) != want.view(torch.int16)).float().mean().item()
                    found["wrong"].append(f"{name}, {rows} rows: {label}: {share:.2%} differ")
        del layer, runs
    clock.write()
    print(f"  {found['compared']} comparisons, {len(found['wrong'])} wrong", flush=True)
    for line in found["wrong"][:6]:
        print(f"  {line}", flush=True)
    return found["wrong"]


def measure(clock: Clock, quick: bool) -> None:
    """Gate-up and down together of every way, at one row also each alone; the copy is one of what is interleaved."""
    found = clock.results
    found |= {"rows": {}, "not_reached": []}
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copy = captured(lambda: target.copy_(source))
    name, layer = "", None
    for case, rows, ways in CASES:
        if not clock.left():
            found["not_reached"].append(f"{case} x{rows}")
            continue
        shape = geometry.load(case)
        if case != name:
            layer = None
            torch.cuda.empty_cache()
            name, layer = case, make_layer(shape, shape.experts, seed=9)
            layer.weights = None
        calls = Calls(layer, rows)
        graphs = {"copy": copy}
        for label, (variant, config) in ways.items():
            graphs[f"{label}/experts"] = calls.graphs(variant, {"experts": TOGETHER["experts"]}, **config)["experts"]
            if rows == 1 and config.get("dependent", True) and not config.get("ahead_kib"):
                alone = calls.graphs(variant, ALONE, **(config | {"dependent": False}))
                graphs |= {f"{label}/{part}": graph for part, graph in alone.items()}
        taken = interleaved(graphs, 8 if quick else 24)
        gb_per_s = 2 * COPY_BYTES / statistics.median(taken.pop("copy")) / 1e3
        moved = {"experts": sum(calls.bytes), "gate_up": calls.bytes[0], "down": calls.bytes[1]}
        table: dict[str, dict[str, float]] = {}
        for key, times in taken.items():
            entry = summary_of(times, calls.number)
            entry["of_copy"] = moved[key.split("/")[1]] / entry["us"] / 1e3 / gb_per_s
            table[key] = entry
        found["rows"][f"{case} x{rows}"] = {"copy_gb_per_s": gb_per_s, "weight_bytes": sum(calls.bytes), "times": table}
        clock.write()
        show(f"{case} x{rows}", found)
        del calls, graphs, taken


def show(label: str, found: dict[str, Any]) -> None:
    """A line a way, the fastest first: both kernels, and each alone where it was measured."""
    entry = found["rows"][label]
    table = entry["times"]
    print(f"{label}: {entry['weight_bytes'] / 1e6:.1f} MB, copy {entry['copy_gb_per_s']:.0f} GB/s; us (of the copy)")
    both = sorted((table[key]["us"], key.split("/")[0]) for key in table if key.endswith("/experts"))
    for us, way in both:
        alone = [table[f"{way}/{part}"]["us"] for part in ALONE if f"{way}/{part}" in table]
        parts = f"   alone {alone[0]:6.2f} + {alone[1]:6.2f}" if alone else ""
        print(f"  {way:34}{us:8.2f} ({table[f'{way}/experts']['of_copy']:4.0%}){parts}", flush=True)
