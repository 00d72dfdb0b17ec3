"""The NVFP4 kernels on a GPU: same bytes, cold times against floors and bf16, streams; targets for sanitizer and ncu.

    PYTHONPATH=.:kernels python3 kernels/tools/device_nvfp4.py --out FOLDER [check time streams] [--quick]
    compute-sanitizer --tool memcheck python3 kernels/tools/device_nvfp4.py --out FOLDER sanitize
    compute-sanitizer --tool racecheck python3 kernels/tools/device_nvfp4.py --out FOLDER sanitize
    ncu --clock-control none --set full -k regex:nvfp4_gate_up\\|nvfp4_down -o FOLDER/nvfp4 \\
        python3 kernels/tools/device_nvfp4.py --out FOLDER ncu
    python3 kernels/tools/device_nvfp4.py --out FOLDER few

Phases: check, time, streams, few, sweep, sanitize, ncu; without any: check, time, streams. ``few``: ideas for few rows
side by side, every one's bytes checked first. Each phase writes
``nvfp4_PHASE.json`` as results come, stops at its time limit and says what it did not reach. A short table comes last.
Numbers are a quick look; claims come from ``glqprof bench nvfp4-moe``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from nvfp4_device import (
    ALONE,
    TOGETHER,
    Calls,
    Clock,
    Layer,
    captured,
    copy_gb_per_s,
    interleaved,
    make_inputs,
    make_layer,
    poisoned,
    replay_us,
    same,
    summary,
)
from nvfp4_few_rows import few

from glqprof_kernels import geometry
from glqprof_kernels.nvfp4 import baselines, extension, factory, ops, reference, routing, tiles

GEOMETRIES = ("glm-5.3-flash", "qwen3.6-35b-a3b", "cascade2-30b")
PHASES = ("check", "time", "streams", "few", "sweep", "sanitize", "ncu")
LIMITS_S = {"check": 80, "time": 120, "streams": 25, "few": 50, "sweep": 60, "sanitize": 600, "ncu": 60}
REL_ERR = 1e-2


# --- check ---


def check(clock: Clock, quick: bool) -> list[str]:
    """All variants the same bytes over 64 plans a geometry and clamp; near float64; the plan as routing.py has it."""
    found = clock.results
    found |= {"compared": 0, "wrong": [], "rel_err": {}, "not_reached": [], "plans_equal": 0}
    row_counts = [*range(1, 17), 300]
    cases = [(name, limit) for name in GEOMETRIES for limit in ((0.0, 10.0) if name != "cascade2-30b" else (0.0,))]
    for name, limit in cases:
        shape = geometry.load(name)
        layer = make_layer(shape, 24, seed=5, limit=limit)
        top = 300
        runs = {variant: ops.MoeRun([layer.packed], top, shape.top_k, variant) for variant in ops.VARIANTS}
        whole_items = ops.MoeRun([layer.packed], top, shape.top_k, "base-regs", item_rows=16)
        for number in range(16 if quick else 64):
            if not clock.left():
                found["not_reached"].append(f"{name}, clamp {limit}, from plan {number}")
                break
            rows = row_counts[number % len(row_counts)]
            x, ids, weights, host_ids = make_inputs(layer, rows, seed=number, skewed=number % 2 == 1)
            if limit and number % 3 == 0:
                x *= 16  # gates and ups beyond the clamp
            want = poisoned(x)
            runs["base-regs"].layer(0, x, ids, weights, want)
            for variant, run in runs.items():
                out = poisoned(x)
                run.layer(0, x, ids, weights, out)
                found["compared"] += 1
                if not same(out, want):
                    share = (out.view(torch.int16) != want.view(torch.int16)).float().mean().item()
                    case = f"{name}, clamp {limit}, plan {number}, {rows} rows"
                    found["wrong"].append(f"{case}: {variant}: {share:.2%} differ")
            if number % 16 in (0, 5):
                exact = reference.moe(layer.weights, x, ids, weights)
                error = ((want.double() - exact).norm() / exact.norm()).item()
                found["rel_err"][f"{name}, clamp {limit}, {rows} rows, plan {number}"] = error
                if not error < REL_ERR:
                    found["wrong"].append(f"{name}, clamp {limit}, plan {number}: {error:.2e} off float64")
                out = poisoned(x)
                whole_items.layer(0, x, ids, weights, out)
                plan = whole_items.plan(0, rows, shape.top_k)
                definition = routing.make_plan(host_ids.numpy(), layer.experts)
                if any(plan[k] != getattr(definition, k).tolist() for k in ("rows", "expert", "start", "count")):
                    found["wrong"].append(f"{name}, plan {number}: not the plan of routing.py")
                else:
                    found["plans_equal"] += 1
        clock.write()
    return found["wrong"][:10]


# --- time ---


def measure(clock: Clock, quick: bool) -> list[str]:
    """Cold times: geometries × rows × variants; each kernel alone, both together, the whole layer; bf16 beside them."""
    found = clock.results
    found |= {"copy_gb_per_s": copy_gb_per_s(), "rows": {}, "not_reached": []}
    for name in GEOMETRIES:
        if not clock.left():
            found["not_reached"].append(name)
            continue
        shape = geometry.load(name)
        layer = make_layer(shape, shape.experts, seed=9)
        layer.dense = baselines.dense(layer.weights)
        layer.weights = None
        torch.cuda.synchronize()
        for rows in (1, 2, 4, 8, 16):
            if not clock.left():
                found["not_reached"].append(f"{name}, {rows} rows")
                continue
            calls = Calls(layer, rows)
            graphs: dict[str, torch.cuda.CUDAGraph] = {}
            for variant in ops.VARIANTS:
                made = calls.graphs(variant, TOGETHER if rows == 1 else {"experts": TOGETHER["experts"]})
                if rows == 1:  # alone: no kernel starts while another runs
                    made |= calls.graphs(variant, ALONE, dependent=False)
                graphs |= {f"{variant}/{part}": graph for part, graph in made.items()}
            graphs["base-ring again/experts"] = calls.graphs("base-ring", {"experts": TOGETHER["experts"]})["experts"]
            graphs["bf16/layer"] = calls.dense_graph()
            taken = interleaved(graphs, 6 if quick else 14)
            per = {"gate_up": calls.bytes[0], "down": calls.bytes[1]}
            table = {}
            for key, times in taken.items():
                variant, part = key.split("/")
                entry = summary(times, calls.number)
                moved = per.get(part, sum(calls.bytes)) * (1 / 0.28125 if variant == "bf16" else 1)
                entry["gb_per_s"] = moved / entry["us"] / 1e3
                entry["floor_us"] = moved / found["copy_gb_per_s"] / 1e3
                table[key] = entry
            run = ops.MoeRun([layer.packed], rows, shape.top_k, "base-deep")
            found["rows"][f"{name} x{rows}"] = {
                "calls": calls.number,
                "weight_bytes": sum(calls.bytes),
                "base_deep_choice": run.choice(0, rows, shape.top_k),
                "times": table,
            }
            clock.write()
            show_times(f"{name} x{rows}", found)
            del calls, graphs
        del layer
        torch.cuda.empty_cache()
    return []


def show_times(label: str, found: dict[str, Any]) -> None:
    """One line a schedule: gate-up and down together, µs (share of the copy bandwidth) of regs, ring, deep."""
    table = found["rows"][label]["times"]
    copy = found["copy_gb_per_s"]
    print(f"{label}: {found['rows'][label]['weight_bytes'] / 1e6:.1f} MB, copy {copy:.0f} GB/s")
    for schedule in ops.SCHEDULES:
        cells = [table[f"{schedule}-{pipeline}/experts"] for pipeline in ops.PIPELINES]
        ratio = cells[0]["us"] / cells[1]["us"]
        shown = "  ".join(f"{c['us']:7.2f} ({c['gb_per_s'] / copy:4.0%})" for c in cells)
        print(f"  {schedule:6} regs, ring, deep: {shown}   regs/ring {ratio:.2f}")
    extra = [key for key in table if key.endswith("/layer") or key in ("base-ring/gate_up", "base-ring/down")]
    print("  " + ", ".join(f"{key} {table[key]['us']:.2f}" for key in (*extra, "base-ring again/experts")), flush=True)


# --- streams, sweep, targets ---


def streams(clock: Clock, quick: bool) -> list[str]:
    """Four streams at once: each one's outputs equal to alone and serial; time against the same work on one stream."""
    found = clock.results
    found |= {"wrong": [], "times": {}}
    for name in GEOMETRIES:
        shape = geometry.load(name)
        layer = make_layer(shape, 64, seed=3)
        for variant in ("base-regs", "base-ring", "half-deep", "quarter-ring"):
            if not clock.left():
                found.setdefault("not_reached", []).append(f"{name}: {variant}")
                continue
            runs = [ops.MoeRun([layer.packed], 4, shape.top_k, variant) for _ in range(4)]
            inputs = [make_inputs(layer, 2, seed=s) for s in range(4)]
            wants = [poisoned(one[0]) for one in inputs]
            outs = [poisoned(one[0]) for one in inputs]
            for run, one, want in zip(runs, inputs, wants, strict=True):
                run.layer(0, *one[:3], want)
                torch.cuda.synchronize()  # alone
            serial = [poisoned(one[0]) for one in inputs]
            for one, out in zip(inputs, serial, strict=True):
                runs[0].layer(0, *one[:3], out)  # one after the other in one workspace
            torch.cuda.synchronize()
            if not all(same(a, b) for a, b in zip(serial, wants, strict=True)):
                found["wrong"].append(f"{name}: {variant}: serial calls differ")
            graphs = []
            for run, one, out in zip(runs, inputs, outs, strict=True):

                def eight(run=run, one=one, out=out) -> None:
                    for _ in range(8):
                        run.layer(0, *one[:3], out)

                graphs.append(captured(eight))
            lanes = [torch.cuda.Stream() for _ in range(4)]

            def together(lanes=lanes, graphs=graphs) -> None:
                current = torch.cuda.current_stream()
                for lane, graph in zip(lanes, graphs, strict=True):
                    lane.wait_stream(current)
                    with torch.cuda.stream(lane):
                        graph.replay()
                for lane in lanes:
                    current.wait_stream(lane)

            def one_by_one(graphs=graphs) -> None:
                for graph in graphs:
                    graph.replay()

            differing = 0
            for _ in range(10 if quick else 40):
                for out in outs:
                    out.view(torch.uint8).fill_(0xA5)
                together()
                torch.cuda.synchronize()
                differing += not all(same(a, b) for a, b in zip(outs, wants, strict=True))
            if differing:
                found["wrong"].append(f"{name}: {variant}: {differing} rounds on four streams differ")
            times = {"four": replay_us(together, 20), "one": replay_us(one_by_one, 20)}
            four, one = (statistics.median(times[key]) for key in ("four", "one"))
            found["times"][f"{name}: {variant}"] = {"four_us": four, "one_us": one, "speedup": one / four}
            print(f"  {name}: {variant}: four streams {four:.0f} us, one {one:.0f} us, {one / four:.2f} x", flush=True)
            clock.write()
    return found["wrong"]


SWEEP: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{s}-deep d{d} w{w}": (f"{s}-deep", {"depth": d, "warps": w, "shared_kib": 227})
       for s in ("base", "half") for d in (3, 4, 5, 6, 8) for w in (4, 8)},
    **{f"{s}-deep {k} KiB": (f"{s}-deep", {"shared_kib": k}) for s in ("base", "half") for k in (64, 80, 96, 110)},
    "base-ring": ("base-ring", {}),
    "base-ring no-pdl": ("base-ring", {"dependent": False}),
    "base-ring item rows 16": ("base-ring", {"item_rows": 16}),
    "base-ring 264 blocks": ("base-ring", {"blocks": 264, "warps": 4}),
    "base-deep": ("base-deep", {}),
    "base-deep no-pdl": ("base-deep", {"dependent": False}),
    "half-ring": ("half-ring", {}),
    "half-deep": ("half-deep", {}),
    "half-deep no-pdl": ("half-deep", {"dependent": False}),
    "half-ring 264 blocks": ("half-ring", {"blocks": 264}),
}  # fmt: skip


def sweep(clock: Clock, quick: bool) -> list[str]:
    """Depths, warps and launches of the rings at one row."""
    found = clock.results
    found |= {"copy_gb_per_s": copy_gb_per_s(), "times": {}}
    for name in GEOMETRIES[:1] if quick else GEOMETRIES:
        if not clock.left():
            break
        shape = geometry.load(name)
        calls = Calls(make_layer(shape, shape.experts, seed=9), 1)
        graphs = {}
        for label, (variant, config) in SWEEP.items():
            try:
                parts = calls.graphs(variant, {"experts": TOGETHER["experts"], "gate_up": ops.GATE_UP}, **config)
                graphs |= {f"{label}/{part}": graph for part, graph in parts.items()}
            except (ValueError, RuntimeError) as error:
                print(f"  {label}: {error}")
        taken = interleaved(graphs, 8)
        table = {label: summary(times, calls.number) for label, times in taken.items()}
        found["times"][name] = table
        clock.write()
        both = sorted((entry["us"], label) for label, entry in table.items() if label.endswith("experts"))
        print(f"  {name}: " + "; ".join(f"{label.split('/')[0]} {us:.2f}" for us, label in both[:8]), flush=True)
        del calls, graphs
        torch.cuda.empty_cache()
    return []


def sanitize(clock: Clock, quick: bool) -> list[str]:
    """Small calls of every variant, for compute-sanitizer."""
    wrong = []
    for activation, hidden, inter in (("swiglu", 160, 96), ("relu2", 96, 160)):
        made = factory.layer(hidden, inter, 6, activation, 10.0 if activation == "swiglu" else 0.0, 1, "cuda")
        shape = geometry.Geometry("small", hidden, inter, 6, 3, 1, activation, made.limit)
        layer = Layer(shape, 6, made, tiles.pack_layer(made))
        for rows in (1, 5, 20):
            x, ids, weights, _ = make_inputs(layer, rows, seed=rows)
            ids[0, 0] = -1
            exact = reference.moe(made, x, ids, weights)
            for variant in ops.VARIANTS:
                out = poisoned(x)
                ops.MoeRun([layer.packed], 20, 3, variant).layer(0, x, ids, weights, out, mask_invalid=True)
                torch.cuda.synchronize()
                error = ((out.double() - exact).norm() / exact.norm()).item()
                if not error < 2e-2:
                    wrong.append(f"{activation}, {rows} rows, {variant}: {error:.1e} off float64")
    clock.results["wrong"] = wrong
    return wrong


def ncu(clock: Clock, quick: bool) -> list[str]:
    """GLM, one row: one call each of base-regs, base-ring, base-deep and quarter-ring, launched without overlap."""
    layer = make_layer(geometry.load(GEOMETRIES[0]), 16, seed=2)
    x, ids, weights, _ = make_inputs(layer, 1, seed=1, first=0)
    for variant in ("base-regs", "base-ring", "base-deep", "quarter-ring"):
        ops.MoeRun([layer.packed], 1, 8, variant, dependent=False).layer(0, x, ids, weights, poisoned(x))
        torch.cuda.synchronize()
    return []


WORK: dict[str, Callable[[Clock, bool], list[str]]] = {
    "check": check,
    "time": measure,
    "streams": streams,
    "few": few,
    "sweep": sweep,
    "sanitize": sanitize,
    "ncu": ncu,
}


def main() -> int:
    """Run the phases; exit 1 when a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("phases", nargs="*", help=f"of {', '.join(PHASES)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="fewer plans and replays")
    options = parser.parse_args()
    unknown = sorted(set(options.phases) - set(PHASES))
    if unknown:
        parser.error(f"no phase {', '.join(unknown)}; there are {', '.join(PHASES)}")
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    extension.load()
    gpu = torch.cuda.get_device_name()
    print(f"[{time.monotonic() - begin:5.1f} s] {gpu}, torch {torch.__version__}: built", flush=True)
    failed: dict[str, list[str]] = {}
    timed: dict[str, Any] = {}
    for phase in options.phases or PHASES[:3]:
        results: dict[str, Any] = {"gpu": gpu, "torch": torch.__version__}
        clock = Clock(options.out / f"nvfp4_{phase}.json", LIMITS_S[phase], results)
        try:
            wrong = WORK[phase](clock, options.quick)
        except Exception:  # one phase that fails must not cost the others' results
            traceback.print_exc()
            wrong = ["it ended with an error"]
        results["failed"] = wrong
        clock.write()
        if wrong:
            failed[phase] = wrong
        if phase == "time":
            timed = results
        brief = {k: results[k] for k in ("compared", "plans_equal", "not_reached") if k in results}
        print(f"[{time.monotonic() - begin:5.1f} s] {phase}: {wrong or 'passed'} {brief or ''}", flush=True)
    if timed.get("rows"):
        copy = timed["copy_gb_per_s"]
        print(f"\nthe two expert kernels, us (share of the copy's {copy:.0f} GB/s), best variant; bf16, whole layer")
        for label, entry in timed["rows"].items():
            table = entry["times"]
            best = min((k for k in table if k.endswith("/experts")), key=lambda k: table[k]["us"])
            share = table[best]["gb_per_s"] / copy
            print(f"{label:22} {table[best]['us']:8.2f} ({share:4.0%}) {best:22} {table['bf16/layer']['us']:9.2f}")
    print(failed or "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
