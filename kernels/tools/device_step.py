"""The step kernels on a GPU: errors and bytes, then times in CUDA graphs of chained calls, each with its own weights.

    PYTHONPATH=.:kernels python3 kernels/tools/device_step.py --out FOLDER [--quick]

Writes ``step_device.json``; prints a short table last. A chain is captured once and replayed; its time is the median
over replays, over the number of its calls. Weights of a chain pass 3 x L2, so that they come from memory. GB/s count
weights (and for attend the cache) once; ``share`` is of a copy's GB/s, read and written, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from glqprof.bench.cuda import CudaDevice
from glqprof_kernels import step
from glqprof_kernels.step import Sizes, Tuning, Workspace, extension

BF16 = torch.bfloat16
HIDDEN, VOCAB = 2688, 131072
IN_PROJ, SSM_INTER = 10304, 4096
SHARED = 3712
EXPERTS, TOP_K, SCALING = 128, 6, 2.5
HEADS, KV_HEADS, DIM, CAPACITY, POSITION = 32, 2, 128, 1200, 1150
PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
EPS = 1e-5
MULTIPROCESSORS = torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 1
WAYS = ("cuda", "cuda, no PDL", "torch")


def weight(rows: int, inputs: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Random, so that outputs are near 1."""
    return torch.randn(rows, inputs, dtype=dtype, device="cuda").mul_(inputs**-0.5)


@dataclass
class Way:
    """How a chain's calls run."""

    implementation: str = "cuda"
    dependent: bool = True
    tuning: Tuning | None = None
    notes: Iterator[torch.Tensor] | None = None
    """Where the products note their clocks, in order."""

    @property
    def options(self) -> dict[str, Any]:
        """Of every function."""
        return {"implementation": self.implementation, "dependent": self.dependent}


def way(name: str) -> Way:
    """One of ``WAYS``."""
    return Way("torch" if name == "torch" else "cuda", name != "cuda, no PDL")


@dataclass
class Chain:
    """``calls`` dependent calls; ``run(way)`` makes them all."""

    name: str
    calls: int
    bytes_read: int
    run: Callable[[Way], None]
    swept: str = ""
    """The column of the sweep's table; "" leaves the chain out."""


def linear(x: torch.Tensor, w: Any, out: Any, how: Way, activation: str = "none") -> Any:
    """The kernel; or torch's own product, whose result stands for ``out``."""
    if how.implementation == "torch" and isinstance(w, torch.Tensor):
        y = functional.linear(x, w)
        return torch.square(functional.relu(y)) if activation == "relu2" else y
    return step.linear(x, w, out, activation=activation, tuning=noted(how), **how.options)


def noted(how: Way) -> Tuning | None:
    """The way's tuning, with clocks of its own where the way takes notes."""
    if how.notes is None:
        return how.tuning
    return replace(how.tuning or Tuning(), clocks=next(how.notes))


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """On the GPU."""
    return torch.empty(*shape, dtype=dtype, device="cuda")


class Layer:
    """One layer's weights and calls, without the SSM step and the routed experts."""

    def __init__(self, kind: str, batch: int, shared: dict[str, Any]) -> None:
        self.kind, self.batch, self.s = kind, batch, shared
        self.norm = torch.rand(HIDDEN, device="cuda").to(BF16)
        if kind == "M":
            self.weights = [weight(IN_PROJ, HIDDEN), weight(HIDDEN, SSM_INTER)]
        elif kind == "E":
            self.weights = [weight(EXPERTS, HIDDEN, torch.float32), weight(SHARED, HIDDEN), weight(HIDDEN, SHARED)]
            self.bias = torch.zeros(EXPERTS, device="cuda")
        else:
            self.weights = [weight((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), weight(HIDDEN, HEADS * DIM)]
            self.caches = [torch.randn(batch, KV_HEADS, CAPACITY, DIM, device="cuda").to(BF16) for _ in range(2)]

    @property
    def bytes_read(self) -> int:
        """Weights, and the cache up to the position, once."""
        total = sum(w.numel() * w.element_size() for w in self.weights)
        return total + (4 * self.batch * KV_HEADS * (POSITION + 1) * DIM if self.kind == "*" else 0)

    def run(self, how: Way, first: bool = False) -> None:
        """residual += the layer before; norm; the layer's products, the last of which is left in ``down``."""
        s = self.s
        step.add_rms_norm(
            s["residual"], None if first else s["down"], self.norm, EPS, s["normed"], out_fp16=s["half"], **how.options
        )
        if self.kind == "M":
            y = linear(s["normed"], self.weights[0], s["projected"], how)
            z = linear(y[:, :SSM_INTER], self.weights[1], s["down"], how)
        elif self.kind == "E":
            route(self, s, how)
            y = linear(s["normed"], self.weights[1], s["up"], how, "relu2")
            z = linear(y, self.weights[2], s["down"], how)
        else:
            y = linear(s["normed"], self.weights[0], s["qkv"], how)
            z = linear(attend(self.caches, y, s, how), self.weights[1], s["down"], how)
        if how.implementation == "torch":
            s["down"].copy_(z)


def route(layer: Layer, s: dict[str, Any], how: Way) -> None:
    """The layer's router."""
    step.route(
        s["normed"],
        layer.weights[0],
        layer.bias,
        TOP_K,
        SCALING,
        True,
        s["ids"],
        s["gates"],
        workspace=s["workspace"],
        **how.options,
    )


def attend(caches: list[torch.Tensor], qkv: torch.Tensor, s: dict[str, Any], how: Way) -> torch.Tensor:
    """The kernel; or torch's own attention over the positions so far, which a graph has fixed."""
    q, k, v = qkv.split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=1)
    if how.implementation == "cuda":
        return step.attend(
            q, k, v, *caches, s["position"], DIM**-0.5, s["attended"], workspace=s["workspace"], **how.options
        )
    batch = q.shape[0]
    for cache, new in zip(caches, (k, v), strict=True):
        cache[:, :, POSITION] = new.reshape(batch, KV_HEADS, DIM)
    seen = [cache[:, :, : POSITION + 1] for cache in caches]
    y = functional.scaled_dot_product_attention(q.reshape(batch, HEADS, 1, DIM), *seen, enable_gqa=True)
    return y.reshape(batch, HEADS * DIM)


def buffers(batch: int) -> dict[str, Any]:
    """What the calls of a token hand to each other."""
    return {
        "residual": torch.randn(batch, HIDDEN, device="cuda").to(BF16),
        "down": torch.zeros(batch, HIDDEN, dtype=BF16, device="cuda"),
        "normed": torch.randn(batch, HIDDEN, device="cuda").to(BF16),
        "half": empty(batch, HIDDEN, dtype=torch.float16),
        "projected": torch.randn(batch, IN_PROJ, device="cuda").to(BF16),
        "up": torch.randn(batch, SHARED, device="cuda").to(BF16),
        "qkv": torch.randn(batch, (HEADS + 2 * KV_HEADS) * DIM, device="cuda").to(BF16),
        "attended": torch.randn(batch, HEADS * DIM, device="cuda").to(BF16),
        "ids": torch.zeros(batch, TOP_K, dtype=torch.int64, device="cuda"),
        "gates": empty(batch, TOP_K, dtype=torch.float32),
        "position": torch.tensor([POSITION], device="cuda"),
        "token": torch.zeros(batch, dtype=torch.int64, device="cuda"),
        "workspace": Workspace(Sizes(batch, EXPERTS, HEADS, DIM, CAPACITY), "cuda"),
    }


def chains(batch: int, quick: bool, s: dict[str, Any]) -> list[Chain]:
    """Every kernel alone, the pairs of a layer, and a whole token without SSM steps and routed experts."""
    count = 12 if quick else 23
    layers = [Layer(kind, batch, s) for kind in PATTERN]
    mamba, moe, attention = ([layer for layer in layers if layer.kind == kind] for kind in "ME*")
    mamba, moe = mamba[:count], moe[:count]
    head, table = weight(VOCAB, HIDDEN), weight(VOCAB, HIDDEN)
    shape = (batch, KV_HEADS, CAPACITY, DIM)
    small_caches = [[torch.randn(shape, device="cuda").to(BF16) for _ in "kv"] for _ in range(64)]
    routers = moe + [_Router() for _ in range(64 - len(moe))]

    def all_linear(which: list[Layer], index: int, x: str, width: int, out: str, activation: str = "none"):
        outs = [s[out], torch.empty_like(s[out])]  # a call must not write what it reads

        def run(how: Way) -> None:
            given = s[x][:, :width]
            for i, layer in enumerate(which):
                y = linear(given, layer.weights[index], outs[i % 2], how, activation)
                given = y[:, :width] if y.shape[1] >= width else s[x][:, :width]

        return run

    def pairs(which: list[Layer]) -> Callable[[Way], None]:
        def run(how: Way) -> None:
            for layer in which:
                layer.run(how)

        return run

    def norms(how: Way) -> None:
        for layer in layers:
            step.add_rms_norm(
                s["residual"], s["normed"], layer.norm, EPS, s["normed"], out_fp16=s["half"], **how.options
            )

    def routes(how: Way) -> None:
        for router in routers:
            route(router, s, how)

    def attends(how: Way) -> None:
        for caches in small_caches:
            attend(caches, s["qkv"], s, how)

    def heads(how: Way) -> None:
        if how.implementation == "torch":
            torch.argmax(functional.linear(s["normed"], head), dim=-1, out=s["token"])
        else:
            step.head_argmax(s["normed"], head, s["token"], workspace=s["workspace"], tuning=noted(how), **how.options)

    def normed_up(how: Way) -> None:
        """What a short kernel between two products costs: by nothing where their weights come meanwhile."""
        for layer in moe:
            for _ in range(3):
                step.add_rms_norm(s["residual"], s["down"], layer.norm, EPS, s["normed"], **how.options)
            linear(s["normed"], layer.weights[1], s["up"], how, "relu2")

    def embeds(how: Way) -> None:
        for _ in range(50):
            step.embed(table, s["token"], s["residual"], **how.options)

    def token(how: Way) -> None:
        step.embed(table, s["token"], s["residual"], **how.options)
        for layer in layers:
            layer.run(how, first=layer is layers[0])
        step.add_rms_norm(s["residual"], s["down"], layers[0].norm, EPS, s["normed"], **how.options)
        heads(how)

    def read(which: list[Layer]) -> int:
        return sum(layer.bytes_read for layer in which)

    def of(which: list[Layer], index: int) -> int:
        return sum(layer.weights[index].numel() * 2 for layer in which)

    cache_bytes = 64 * 4 * batch * KV_HEADS * (POSITION + 1) * DIM
    return [
        Chain("in_proj 10304x2688", count, of(mamba, 0), all_linear(mamba, 0, "normed", HIDDEN, "projected"), "in"),
        Chain("out_proj 2688x4096", count, of(mamba, 1), all_linear(mamba, 1, "projected", SSM_INTER, "down"), "out"),
        Chain("up 3712x2688 relu2", count, of(moe, 1), all_linear(moe, 1, "normed", HIDDEN, "up", "relu2"), "up"),
        Chain("down 2688x3712", count, of(moe, 2), all_linear(moe, 2, "up", SHARED, "down"), "down"),
        Chain("qkv 4608x2688", 6, of(attention, 0), all_linear(attention, 0, "normed", HIDDEN, "qkv")),
        Chain("head 131072x2688", 1, 2 * VOCAB * HIDDEN, heads, "head"),
        Chain("add_rms_norm 2688", 52, 0, norms),
        Chain("embed 2688", 50, 0, embeds),
        Chain("route 128x2688 fp32", 64, 64 * 4 * EXPERTS * HIDDEN, routes),
        Chain(f"attend 32/2x128 at {POSITION}", 64, cache_bytes, attends),
        Chain("M: norm, in, out", count, read(mamba), pairs(mamba), "M"),
        Chain("E: norm, route, up, down", count, read(moe), pairs(moe), "E"),
        Chain("3 norms, up", count, of(moe, 1), normed_up),
        Chain("*: norm, qkv, attend, o", 6, read(attention), pairs(attention), "*"),
        Chain("token without ssm, experts", 1, read(layers) + 2 * VOCAB * HIDDEN, token, "token"),
    ]


class _Router:
    """A router alone."""

    def __init__(self) -> None:
        self.weights = [weight(EXPERTS, HIDDEN, torch.float32)]
        self.bias = torch.zeros(EXPERTS, device="cuda")


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


def relative(out: torch.Tensor, want: torch.Tensor) -> float:
    """‖out − want‖₂ ÷ ‖want‖₂."""
    return ((out.double() - want.double()).norm() / want.double().norm()).item()


def checks() -> list[str]:
    """Errors against float64, and that PDL, repetition and replay change no byte; what is wrong."""
    wrong: list[str] = []

    def expect(what: str, holds: bool) -> None:
        if not holds:
            wrong.append(what)

    shapes = [
        (1, IN_PROJ, HIDDEN),
        (1, HIDDEN, SSM_INTER),
        (8, SHARED, HIDDEN),
        (3, HIDDEN, SHARED),
        (2, 37, 88),
        (8, 5, 8),
    ]
    for batch, outputs, inputs in [*shapes, (1, 4096, 8192), (4, 999, 10240)]:
        x, w = torch.randn(batch, inputs, device="cuda").to(BF16), weight(outputs, inputs)
        torch.cuda.synchronize()
        want = x.double() @ w.double().T
        outs = [step.linear(x, w, dependent=d) for d in (True, False, True)]
        label = f"linear {outputs} x {inputs}, batch {batch}"
        error = relative(outs[0], want)
        expect(f"{label}: error {error:.1e}", error < 2**-8)
        expect(f"{label}: bytes differ", all(torch.equal(outs[0], o) for o in outs[1:]))
        for tuning in (Tuning(share=0), Tuning(share=1), Tuning(share=2), Tuning(ahead_kib=0), Tuning(blocks=50)):
            y = step.linear(x, w, tuning=tuning)
            expect(f"{label}: bytes differ with {tuning}", torch.equal(outs[0], y))
    for batch in (1, 8):
        x, w = torch.randn(batch, HIDDEN, device="cuda").to(BF16), weight(VOCAB, HIDDEN)
        torch.cuda.synchronize()
        logits = empty(batch, VOCAB)
        token = step.head_argmax(x, w, logits=logits)
        expect(f"head, batch {batch}: not the argmax", torch.equal(token, logits.float().argmax(-1)))
        expect(f"head, batch {batch}: error", relative(logits, x.double() @ w.double().T) < 2**-8)
        residual, a, b = (torch.randn(batch, HIDDEN, device="cuda").to(BF16) for _ in range(3))
        norm = torch.rand(HIDDEN, device="cuda").to(BF16)
        mine, theirs = residual.clone(), residual.clone()
        torch.cuda.synchronize()
        out = step.add_rms_norm(mine, a.half(), norm, EPS, second=b)
        plain = step.add_rms_norm(theirs, a.half(), norm, EPS, second=b, implementation="torch")
        expect(f"norm, batch {batch}: residual", torch.equal(mine, theirs))
        expect(f"norm, batch {batch}: error", relative(out, plain) < 2**-8)
        router, bias = weight(EXPERTS, HIDDEN, torch.float32), torch.rand(EXPERTS, device="cuda") * 0.1
        torch.cuda.synchronize()
        ids, gates = step.route(x, router, bias, TOP_K, SCALING, True)
        want_ids, want_gates = step.route(
            x.double().to(BF16), router, bias, TOP_K, SCALING, True, implementation="torch"
        )
        expect(f"route, batch {batch}: ids", torch.equal(ids, want_ids))
        expect(f"route, batch {batch}: weights", torch.allclose(gates, want_gates, rtol=1e-4))
        for position in (0, 1, 63, 64, POSITION, CAPACITY - 1):
            q, k, v = (torch.randn(batch, n * DIM, device="cuda").to(BF16) for n in (HEADS, KV_HEADS, KV_HEADS))
            caches = [torch.randn(batch, KV_HEADS, CAPACITY, DIM, device="cuda").to(BF16) for _ in range(2)]
            copies = [c.clone() for c in caches]
            at = torch.tensor([position], device="cuda")
            torch.cuda.synchronize()
            y = step.attend(q, k, v, *caches, at, DIM**-0.5)
            z = step.attend(q, k, v, *copies, at, DIM**-0.5, implementation="torch")
            expect(f"attend at {position}, batch {batch}: error {relative(y, z):.1e}", relative(y, z) < 2**-8)
            expect(f"attend at {position}, batch {batch}: cache", all(map(torch.equal, caches, copies)))
    return wrong


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


SWEEP = {
    "default": None,
    "ahead 0": Tuning(ahead_kib=0),
    "ahead 48": Tuning(ahead_kib=48),
    "ahead 192": Tuning(ahead_kib=192),
    "larger": Tuning(share=0),
    "smaller": Tuning(share=1),
    "smaller, ahead 0": Tuning(share=1, ahead_kib=0),
    "whole": Tuning(share=2),
    "whole, ahead 0": Tuning(share=2, ahead_kib=0),
}


def sweep(all_chains: list[Chain]) -> list[dict[str, Any]]:
    """How much shared memory a block takes, and how far ahead L2 is asked."""
    rows = []
    for label, tuning in SWEEP.items():
        row: dict[str, Any] = {"tuning": label, "columns": [], "us": []}
        for chain in (c for c in all_chains if c.swept):
            how = Way(tuning=tuning)
            us = time_us(captured(lambda c=chain, h=how: c.run(h)), 0.1)
            row["columns"].append(chain.swept)
            row["us"].append(us / chain.calls)
        rows.append(row)
    return rows


TIMELINES = {"in": 1, "up": 1, "M": 2, "E": 2, "*": 2, "3 norms, up": 1}
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
        print(f"{row['tuning']:16}" + "".join(f"{us:7.2f}" if us < 1000 else f"{us:7.0f}" for us in row["us"]))
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
        "times": [],
        "sweep": [],
        "timelines": [],
        "copy_gb_s": 0.0,
    }
    try:
        record["wrong"] = checks()
        record["copy_gb_s"] = CudaDevice().copy_gb_s() or 0.0
        with torch.inference_mode():
            shared = buffers(options.batch)
            made = chains(options.batch, options.quick, shared)
            record["wrong"] += check_tokens(made[-1], shared)
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
