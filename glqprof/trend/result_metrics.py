"""What of each kind of result is followed over commits: metric, unit, direction.

Only the documented fields that are read stand in the types below; further fields are let through, so that a result of
a later minor version can still be added. Units are those of the metric's name. Times of a traced run's host side carry
the direction ``none``: tracing adds host time of its own, so a step in them is shown and never called a regression.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from glqprof.trend.sample import Direction


@dataclass(frozen=True)
class Measured:
    """One number of a result. ``gpu`` is "" where the file does not say; ``skipped`` says why there is no number."""

    workload: str
    variant: str
    metric: str
    value: float
    unit: str
    direction: Direction
    gpu: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    skipped: str = ""


class _Timing(msgspec.Struct):
    median_us: float
    ratio: float | None = None


class _Timings(msgspec.Struct):
    eager: _Timing | None = None
    graph: _Timing | None = None


class _Reason(msgspec.Struct):
    code: str


class _Variant(msgspec.Struct):
    name: str
    rows: int
    ok: bool
    timings: _Timings
    gb_s: float | None = None
    launches: int | None = None
    syncs: int | None = None
    reasons: list[_Reason] = []


class _Device(msgspec.Struct):
    kind: str
    name: str
    driver: str = ""
    cuda: str = ""
    torch: str = ""


class _Cache(msgspec.Struct):
    state: str = "cold"


class _Bench(msgspec.Struct):
    group: str
    geometry: str
    layers: int
    device: _Device
    baseline: str
    variants: list[_Variant]
    cache: _Cache = msgspec.field(default_factory=_Cache)
    options: dict[str, Any] = {}


def bench_metrics(raw: bytes) -> Iterator[Measured]:
    """Yield the times, the interleaved ratios to the baseline, the rate and the counts of each variant that is ok.

    A variant that failed its checks has no number worth following: it is skipped, and said so.
    """
    b = msgspec.json.decode(raw, type=_Bench)
    environment = _said(driver=b.device.driver, cuda=b.device.cuda, torch=b.device.torch)
    # Everything that makes two times incomparable is part of the workload's name.
    options = [f"{key}={value}" for key, value in sorted(b.options.items())]
    state = [] if b.cache.state == "cold" else [b.cache.state]
    for v in b.variants:
        workload = "/".join([b.group, b.geometry, f"layers={b.layers}", f"rows={v.rows}", *options, *state])
        numbers: list[tuple[str, float | None, str, Direction]] = []
        for kind, timing in (("eager", v.timings.eager), ("graph", v.timings.graph)):
            if timing is not None:
                numbers.append((f"{kind}_us", timing.median_us, "µs", "lower"))
                if v.name != b.baseline:
                    numbers.append((f"{kind}_ratio_to_{b.baseline}", timing.ratio, "ratio", "lower"))
        numbers += [
            ("gb_s", v.gb_s, "GB/s", "higher"),
            ("launches", v.launches, "calls", "lower"),
            ("syncs", v.syncs, "calls", "lower"),
        ]
        if not v.ok:
            why = ", ".join(dict.fromkeys(r.code for r in v.reasons)) or "not ok"
            note = f"{v.name} at {v.rows} row{'s' if v.rows != 1 else ''} left out: it failed its checks ({why})"
            yield Measured(workload, v.name, "", 0.0, "", "none", skipped=note)
            continue
        for metric, value, unit, direction in numbers:
            if value is not None:
                yield Measured(workload, v.name, metric, value, unit, direction, b.device.name, environment)


class _Capture(msgspec.Struct):
    name: str
    tool: str = ""
    tool_version: str = ""
    gpu: list[str] = []


class _Window(msgspec.Struct):
    wall_ms: float
    tokens: int | None = None


class _WallRow(msgspec.Struct):
    row: str
    kind: str
    ms: float


class _Kernels(msgspec.Struct):
    count: int
    sum_ms: float


class _BreakdownDevice(msgspec.Struct):
    wall: list[_WallRow] = []
    kernels: _Kernels | None = None


class _Calls(msgspec.Struct):
    calls: int


class _Host(msgspec.Struct):
    sync: _Calls
    blocking_copies: _Calls
    launch: _Calls


class _Untraced(msgspec.Struct):
    tok_s: float
    ms_per_token: float


class _Breakdown(msgspec.Struct):
    capture: _Capture
    window: _Window
    devices: list[_BreakdownDevice]
    host: _Host | None = None
    untraced: _Untraced | None = None


def breakdown_metrics(raw: bytes) -> Iterator[Measured]:
    """Yield untraced speed, calls, kernels, and the rows of the closed account (mean over GPUs), per token if known."""
    b = msgspec.json.decode(raw, type=_Breakdown)
    per, suffix = (b.window.tokens, "_per_token") if b.window.tokens else (1, "")
    gpus = sorted(set(b.capture.gpu))
    gpu = " + ".join(f"{n}x {g}" if (n := b.capture.gpu.count(g)) > 1 else g for g in gpus)
    environment = _said(tool=f"{b.capture.tool} {b.capture.tool_version}".strip())
    numbers: list[tuple[str, float, str, Direction]] = []
    if b.untraced is not None:
        numbers += [
            ("tok_s", b.untraced.tok_s, "tok/s", "higher"),
            ("ms_per_token", b.untraced.ms_per_token, "ms", "lower"),
        ]
    numbers.append((f"traced_ms{suffix}", b.window.wall_ms / per, "ms", "none"))
    if b.host is not None:
        numbers += [
            (f"launches{suffix}", b.host.launch.calls / per, "calls", "lower"),
            (f"syncs{suffix}", b.host.sync.calls / per, "calls", "lower"),
            (f"blocking_copies{suffix}", b.host.blocking_copies.calls / per, "calls", "lower"),
        ]
    kernels = [d.kernels for d in b.devices if d.kernels is not None and d.kernels.count]
    if kernels:
        numbers.append((f"kernel_sum_ms{suffix}", sum(k.sum_ms for k in kernels) / per, "ms", "lower"))
    rows: dict[tuple[str, str], float] = {}
    for device in b.devices:
        for row in device.wall:
            key = (row.row, row.kind)
            rows[key] = rows.get(key, 0.0) + row.ms / len(b.devices) / per
    for (name, kind), ms in rows.items():
        numbers.append((f"{kind}.{name}_ms{suffix}", ms, "ms", "lower" if kind == "gpu" else "none"))
    for metric, value, unit, direction in numbers:
        yield Measured(b.capture.name, "", metric, value, unit, direction, gpu, environment)


class _Pair(msgspec.Struct):
    base: float
    cand: float
    ratio: float | None = None


class _Totals(msgspec.Struct):
    syncs: _Pair | None = None
    launches: _Pair | None = None
    blocking_copies: _Pair | None = None
    kernel_sum_ms: _Pair | None = None


class _Candidate(msgspec.Struct):
    name: str
    totals: _Totals
    wall_ms_per_token: _Pair | None = None
    tok_s: _Pair | None = None
    token_sha_equal: bool | None = None


class _Compare(msgspec.Struct):
    base: str
    candidates: list[_Candidate]


def compare_metrics(raw: bytes) -> Iterator[Measured]:
    """Yield, for each candidate against the base, untraced speed and its ratio, and counts over the whole windows."""
    c = msgspec.json.decode(raw, type=_Compare)
    for cand in c.candidates:
        environment = {} if cand.token_sha_equal is None else {"same tokens": "yes" if cand.token_sha_equal else "no"}
        numbers: list[tuple[str, float | None, str, Direction]] = []
        if cand.tok_s is not None:
            numbers += [
                ("tok_s", cand.tok_s.cand, "tok/s", "higher"),
                ("tok_s_ratio_to_base", cand.tok_s.ratio, "ratio", "higher"),
            ]
        if cand.wall_ms_per_token is not None:
            numbers.append(("traced_ms_per_token", cand.wall_ms_per_token.cand, "ms", "none"))
        t = cand.totals
        for name, pair, unit in (
            ("launches", t.launches, "calls"),
            ("syncs", t.syncs, "calls"),
            ("blocking_copies", t.blocking_copies, "calls"),
            ("kernel_sum_ms", t.kernel_sum_ms, "ms"),
        ):
            if pair is not None:
                numbers.append((name, pair.cand, unit, "lower"))
        for metric, value, unit, direction in numbers:
            if value is not None:
                yield Measured(f"against {c.base}", cand.name, metric, value, unit, direction, "", environment)


class _Gpu(msgspec.Struct):
    name: str = ""


class _Decode(msgspec.Struct):
    tok_s: float
    ms_per_token: float
    workload: str = "decode"
    variant: str = ""
    path: str = ""
    gpu: str | list[str] | _Gpu = ""
    token_sha: str | None = None
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    layers: int | None = None
    prompt: int | None = None
    tokens: int | None = None


def decode_metrics(raw: bytes) -> Iterator[Measured]:
    """Yield tokens a second and milliseconds a token; a changed ``token_sha`` shows as a change of environment."""
    d = msgspec.json.decode(raw, type=_Decode)
    gpu = d.gpu.name if isinstance(d.gpu, _Gpu) else " + ".join(d.gpu) if isinstance(d.gpu, list) else d.gpu
    environment = _said(token_sha=d.token_sha or "", driver=d.driver, cuda=d.cuda, torch=d.torch)
    # Everything that makes two speeds incomparable is part of the workload's name.
    sizes = [f"{n}={v}" for n, v in (("layers", d.layers), ("prompt", d.prompt), ("tokens", d.tokens)) if v is not None]
    workload = "/".join([d.workload, *sizes])
    variant = d.path or d.variant  # fused:glqprof:graph is not fused
    yield Measured(workload, variant, "tok_s", d.tok_s, "tok/s", "higher", gpu, environment)
    yield Measured(workload, variant, "ms_per_token", d.ms_per_token, "ms", "lower", gpu, environment)


def _said(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
