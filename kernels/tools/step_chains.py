"""Chains of the step kernels' calls for ``device_step.py``: every kernel alone, a layer's, a whole token's.

The sizes are Cascade-2-30B's. Every call of a chain has its own weights, which together pass 3 x L2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from glqprof_kernels import ssm, step
from glqprof_kernels.ssm import factory
from glqprof_kernels.step import Sizes, Tuning, Workspace

SSM = factory.Sizes(heads=64, head_dim=64, state=128, groups=8)
BF16 = torch.bfloat16
HIDDEN, VOCAB = 2688, 131072
IN_PROJ, SSM_INTER = 10304, 4096
SHARED = 3712
EXPERTS, TOP_K, SCALING = 128, 6, 2.5
HEADS, KV_HEADS, DIM, CAPACITY, POSITION = 32, 2, 128, 1200, 1150
PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
EPS = 1e-5
WAYS = ("cuda", "cuda, no PDL", "torch")
SHARES = {"in": 0, "out": 0, "out after in": 1, "qkv": 1, "o": 0, "up": 0, "down": 1}
"""Shares of shared memory by product, as the decode loop gives them: 0 the larger, 1 the smaller, 2 all."""


def weight(rows: int, inputs: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Random, so that outputs are near 1."""
    return torch.randn(rows, inputs, dtype=dtype, device="cuda").mul_(inputs**-0.5)


@dataclass
class Way:
    """How a chain's calls run."""

    implementation: str = "cuda"
    dependent: bool = True
    shares: dict[str, int] = field(default_factory=dict)
    """Of a layer's products by name, in the place of ``SHARES``."""
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


def linear(x: torch.Tensor, w: Any, out: Any, how: Way, activation: str = "none", name: str = "") -> Any:
    """The kernel; or torch's own product, whose result stands for ``out``. ``name``: the share; "": in turns."""
    if how.implementation == "torch" and isinstance(w, torch.Tensor):
        y = functional.linear(x, w)
        return torch.square(functional.relu(y)) if activation == "relu2" else y
    return step.linear(x, w, out, activation=activation, tuning=tuned(how, name), **how.options)


def tuned(how: Way, name: str = "") -> Tuning:
    """A product's share, and clocks of its own where the way takes notes."""
    share = how.shares.get(name, SHARES[name]) if name else -1
    return Tuning(share=share, clocks=None if how.notes is None else next(how.notes))


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """On the GPU."""
    return torch.empty(*shape, dtype=dtype, device="cuda")


class Layer:
    """One layer's weights and calls, without the routed experts, and without the SSM step unless asked."""

    def __init__(self, kind: str, batch: int, shared: dict[str, Any]) -> None:
        self.kind, self.batch, self.s = kind, batch, shared
        self.norm = torch.rand(HIDDEN, device="cuda").to(BF16)
        if kind == "M":
            self.weights = [weight(IN_PROJ, HIDDEN), weight(HIDDEN, SSM_INTER)]
            self.ssm = factory.layer(SSM, 1, "cuda")
            self.states = factory.states(self.ssm, batch, 2)
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

    def run(self, how: Way, first: bool = False, with_ssm: bool = False) -> None:
        """residual += the layer before; norm; the layer's products, the last of which is left in ``down``."""
        s = self.s
        step.add_rms_norm(
            s["residual"], None if first else s["down"], self.norm, EPS, s["normed"], out_fp16=s["half"], **how.options
        )
        if self.kind == "M":
            y = linear(s["normed"], self.weights[0], s["projected"], how, name="in")
            y = self.scan(y, how) if with_ssm else y[:, :SSM_INTER]
            z = linear(y, self.weights[1], s["down"], how, name="out" if with_ssm else "out after in")
        elif self.kind == "E":
            route(self, s, how)
            y = linear(s["normed"], self.weights[1], s["up"], how, "relu2", "up")
            z = linear(y, self.weights[2], s["down"], how, name="down")
        else:
            y = linear(s["normed"], self.weights[0], s["qkv"], how, name="qkv")
            z = linear(attend(self.caches, y, s, how), self.weights[1], s["down"], how, name="o")
        if how.implementation == "torch":
            s["down"].copy_(z)

    def scan(self, projected: torch.Tensor, how: Way) -> torch.Tensor:
        """The SSM step; its state may be read early, as every replay starts when the one before has ended."""
        variant = "torch" if how.implementation == "torch" else "fused"
        early = how.dependent and variant == "fused"
        options = {"variant": variant, "dependent": how.dependent, "early_state": early}
        return ssm.step(self.ssm, projected, *self.states, self.s["scanned"], **options)


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
        "scanned": empty(batch, SSM_INTER),
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

    def pairs(which: list[Layer], **options: Any) -> Callable[[Way], None]:
        def run(how: Way) -> None:
            for layer in which:
                layer.run(how, **options)

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
            step.head_argmax(s["normed"], head, s["token"], workspace=s["workspace"], tuning=tuned(how), **how.options)

    def normed_up(how: Way) -> None:
        """What a short kernel between two products costs: by nothing where their weights come meanwhile."""
        for layer in moe:
            for _ in range(3):
                step.add_rms_norm(s["residual"], s["down"], layer.norm, EPS, s["normed"], **how.options)
            linear(s["normed"], layer.weights[1], s["up"], how, "relu2")

    def embeds(how: Way) -> None:
        for _ in range(50):
            step.embed(table, s["token"], s["residual"], **how.options)

    def token(how: Way, with_ssm: bool = False) -> None:
        step.embed(table, s["token"], s["residual"], **how.options)
        for layer in layers:
            layer.run(how, first=layer is layers[0], with_ssm=with_ssm)
        step.add_rms_norm(s["residual"], s["down"], layers[0].norm, EPS, s["normed"], **how.options)
        heads(how)

    def read(which: list[Layer]) -> int:
        return sum(layer.bytes_read for layer in which)

    def of(which: list[Layer], index: int) -> int:
        return sum(layer.weights[index].numel() * 2 for layer in which)

    all_bytes = read(layers) + 2 * VOCAB * HIDDEN
    cache_bytes = 64 * 4 * batch * KV_HEADS * (POSITION + 1) * DIM
    return [
        Chain("in_proj 10304x2688", count, of(mamba, 0), all_linear(mamba, 0, "normed", HIDDEN, "projected")),
        Chain("out_proj 2688x4096", count, of(mamba, 1), all_linear(mamba, 1, "projected", SSM_INTER, "down")),
        Chain("up 3712x2688 relu2", count, of(moe, 1), all_linear(moe, 1, "normed", HIDDEN, "up", "relu2")),
        Chain("down 2688x3712", count, of(moe, 2), all_linear(moe, 2, "up", SHARED, "down")),
        Chain("qkv 4608x2688", 6, of(attention, 0), all_linear(attention, 0, "normed", HIDDEN, "qkv")),
        Chain("head 131072x2688", 1, 2 * VOCAB * HIDDEN, heads),
        Chain("add_rms_norm 2688", 52, 0, norms),
        Chain("embed 2688", 50, 0, embeds),
        Chain("route 128x2688 fp32", 64, 64 * 4 * EXPERTS * HIDDEN, routes),
        Chain(f"attend 32/2x128 at {POSITION}", 64, cache_bytes, attends),
        Chain("M: norm, in, out", count, read(mamba), pairs(mamba), "M"),
        Chain("M: norm, in, ssm, out", count, read(mamba), pairs(mamba, with_ssm=True), "M ssm"),
        Chain("E: norm, route, up, down", count, read(moe), pairs(moe), "E"),
        Chain("3 norms, up", count, of(moe, 1), normed_up),
        Chain("*: norm, qkv, attend, o", 6, read(attention), pairs(attention), "*"),
        Chain("token without ssm, experts", 1, all_bytes, token, "token"),
        Chain("token without experts", 1, all_bytes, lambda how: token(how, True), "all"),
    ]


class _Router:
    """A router alone."""

    def __init__(self) -> None:
        self.weights = [weight(EXPERTS, HIDDEN, torch.float32)]
        self.bias = torch.zeros(EXPERTS, device="cuda")
