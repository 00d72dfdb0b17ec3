"""A breakdown as a document: what it can answer, the headline, the closed account, the conventional views."""

from __future__ import annotations

from glqprof.analysis.answers import NO
from glqprof.analysis.breakdown import Breakdown, DeviceTime
from glqprof.reports.document import Cell, Column, Document, Table, Text
from glqprof.reports.kernel_names import short_kernel_name

VIEWS = ("summary", "account", "buckets", "kernels", "layers", "tokens", "gaps", "latency", "savings", "apis")
IDLE_MEANING = {
    "launch-latency": "submitted, on its way",
    "host-sync": "host waits for GPU",
    "host-launch": "inside launch calls",
    "host-memory": "allocs, frees, copies",
    "host-api": "other CUDA calls",
    "profiler": "the tool's own cost",
    "host-wait": "waits in the OS",
    "host-code": "Python, the framework",
    "host-unknown": "no API call recorded",
}


def breakdown_document(b: Breakdown, view: str = "summary", top: int = 12) -> Document:
    """The document of one view; ``top`` limits the kernels, layers, APIs and gaps that are listed."""
    document = Document(f"{b.name}: where the time went")
    if view == "summary":
        document.parts = [
            answers_table(b),
            headline(b),
            *(account_table(b, d) for d in b.devices if d.account),
            *(bucket_table(b, d) for d in b.devices),
            *(kernel_table(b, d, top) for d in b.devices),
            *([host_table(b)] if b.host else []),
            *_spread(b),
        ]
    else:
        document.parts = list(_view(b, view, top))
    if b.warnings:
        document.parts.append(Text([f"note: {w}" for w in b.warnings], "warning"))
    return document


def _view(b: Breakdown, view: str, top: int) -> list[Table | Text]:
    if view == "account":
        return [account_table(b, d) for d in b.devices if d.account] or [_refused(b, "gpu_idle")]
    if view == "buckets":
        return [bucket_table(b, d) for d in b.devices]
    if view == "kernels":
        return [kernel_table(b, d, top) for d in b.devices]
    if view == "layers":
        return [layer_table(b)] if b.answers["layers"].answer != NO else [_refused(b, "layers")]
    if view == "tokens":
        return [token_table(b), *_spread(b)]
    if view == "gaps":
        return [gap_table(b, top)] if b.answers["gpu_idle"].answer != NO else [_refused(b, "gpu_idle")]
    if view == "latency":
        return [latency_table(b)] if b.answers["host_blame"].answer != NO else [_refused(b, "host_blame")]
    if view == "savings":
        return [savings_table(b)] if b.answers["gpu_idle"].answer != NO else [_refused(b, "gpu_idle")]
    return [api_table(b, top)] if b.host else [_refused(b, "host_blame")]


def _refused(b: Breakdown, question: str) -> Text:
    return Text([f"not answered: {b.answers[question]}"], "warning")


def headline(b: Breakdown) -> Text:
    """What was captured, ms a token (untraced where it is known), the verdict."""
    gpus = ", ".join(f"{d.name or 'GPU'} ({d.device})" for d in b.devices)
    steps = f", {len(b.window.steps)} steps, {b.tokens} tokens" if b.tokens else ""
    lines = [f"{b.name} on {gpus}: {b.window.wall_ns / 1e6:,.1f} ms window ({b.window.selector}){steps}"]
    traced = b.per_token(b.window.wall_ns / 1e6)
    if b.untraced:
        lines.append(
            f"{b.untraced.ms_per_token:.2f} ms a token untraced, {b.untraced.tok_s:.2f} tok/s ({b.untraced.statistic})"
            + (f"; traced {traced:.2f} ms: inflation {b.inflation:.2f}x" if traced and b.inflation else "")
        )
    elif traced:
        lines.append(f"{traced:.2f} ms a token traced (mean); no untraced run in the capture")
    if b.verdict:
        accounts = [d.account for d in b.devices if d.account]
        busy = sum(a.gpu_busy_ns for a in accounts) / max(sum(a.wall_ns for a in accounts), 1)
        lines.append(f"verdict: {b.verdict} (GPU busy {busy:.1%} of the window; {b.verdict_reason})")
    lines.append(f"GPU time that no bucket rule matched: {b.unattributed_share:.1%}")
    return Text(lines, "headline")


def answers_table(b: Breakdown) -> Table:
    """question, answer, why."""
    columns = [
        Column("question", "question", text=True),
        Column("answer", "answer", text=True),
        Column("why", "why", text=True, flexible=True, wrap=True),
    ]
    rows: list[list[Cell]] = [[q, a.answer, str(a)] for q, a in b.answers.items()]
    return Table("What this capture can answer", columns, list(rows))


def account_table(b: Breakdown, device: DeviceTime) -> Table:
    """The closed account of one GPU."""
    mine = b.wall[b.wall["device"] == device.device]
    columns = [
        Column("where", "row", text=True),
        Column("kind", "kind", text=True),
        Column("ms", "ms"),
        *([Column("ms/token", "ms_per_token")] if b.tokens else []),
        Column("share", "share", percent=True),
        Column("meaning", "meaning", text=True, flexible=True),
    ]
    rows: list[list[Cell]] = []
    for row in mine.itertuples():
        per_token = [row.ms_per_token] if b.tokens else []
        rows.append([row.row, row.kind, row.ms, *per_token, row.share, IDLE_MEANING.get(str(row.row), "")])
    wall = device.account.wall_ns / 1e6 if device.account else 0.0
    total = ["wall", "", wall, *([b.per_token(wall)] if b.tokens else []), 1.0, ""]
    return Table(f"GPU {device.device}: every millisecond of the window, once", columns, list(rows), total, bar="share")


def bucket_table(b: Breakdown, device: DeviceTime) -> Table:
    """Summed GPU time per bucket."""
    columns = [
        Column("bucket", "bucket", text=True),
        Column("sum ms", "sum_ms"),
        Column("share", "share", percent=True),
        Column("launches", "launches"),
        *([Column("a token", "launches_per_token", digits=1)] if b.tokens else []),
    ]
    rows: list[list[Cell]] = [
        [
            str(r.bucket),
            r.sum_ns / 1e6,
            float(r.share),
            int(r.launches),
            *([b.per_token(int(r.launches))] if b.tokens else []),
        ]
        for r in device.buckets.itertuples()
    ]
    note = (
        f"{device.kernel_count:,} kernels, {device.kernel_sum_ns / 1e6:,.2f} ms summed; copies and memsets besides. "
        "Sums count what starts in the window and can exceed wall time."
    )
    return Table(f"GPU {device.device}: summed GPU time by bucket", columns, list(rows), note=note)


def kernel_table(b: Breakdown, device: DeviceTime, top: int) -> Table:
    """The longest kernels."""
    columns = [
        Column("kernel", "name", text=True, flexible=True),
        Column("bucket", "bucket", text=True),
        Column("launches", "launches"),
        Column("sum ms", "sum_ms"),
        Column("mean µs", "mean_us"),
        Column("max µs", "max_us"),
    ]
    rows: list[list[Cell]] = [
        [
            short_kernel_name(str(r.name)),
            str(r.bucket),
            int(r.launches),
            r.sum_ns / 1e6,
            r.mean_ns / 1e3,
            r.max_ns / 1e3,
        ]
        for r in device.kernels.head(top).itertuples()
    ]
    left = len(device.kernels) - len(rows)
    note = f"{left} more kinds; --top N shows more" if left > 0 else ""
    return Table(f"GPU {device.device}: longest kernels", columns, list(rows), note=note)


def host_table(b: Breakdown) -> Table:
    """Conventional counts of the host's calls."""
    assert b.host is not None
    wall = max(b.window.wall_ns, 1)
    columns = [
        Column("calls that start in the window", "kind", text=True, flexible=True),
        Column("calls", "calls"),
        *([Column("a token", "calls_per_token", digits=1)] if b.tokens else []),
        Column("ms", "ms"),
        Column("share", "share", percent=True),
        Column("GPU idle ms", "idle_ms"),
    ]
    named = (
        ("*Synchronize", b.host.sync),
        ("blocking copies", b.host.blocking_copies),
        ("launches", b.host.launch),
    )
    rows: list[list[Cell]] = [
        [
            kind,
            t.calls,
            *([b.per_token(t.calls)] if b.tokens else []),
            t.ns / 1e6,
            t.ns / wall,
            None if t.idle_ns is None else t.idle_ns / 1e6,
        ]
        for kind, t in named
    ]
    return Table("Host calls", columns, list(rows))


def _spread(b: Breakdown) -> list[Text]:
    spread = b.step_spread
    if spread is None:
        return []
    line = (
        f"wall time a step, traced: median {spread.median_ns / 1e6:.2f}, p90 {spread.p90_ns / 1e6:.2f}, "
        f"p99 {spread.p99_ns / 1e6:.2f} ms over {spread.steps} steps"
    )
    extra = ", ".join(f"{r.row} +{r.ns / 1e6:.2f}" for r in spread.slowest_extra.head(3).itertuples())
    slowest = f"slowest: {spread.slowest}, {spread.slowest_ns / 1e6:.2f} ms"
    return [Text([line, f"{slowest}; more than the median step on {extra} ms" if extra else slowest])]


def token_table(b: Breakdown) -> Table:
    """Wall time of every step."""
    columns = [
        Column("step", "step", text=True, flexible=True),
        Column("wall ms", "wall_ms"),
        Column("GPU ms", "gpu_ms"),
        Column("GPU work", "launches"),
        Column("outlier", "is_outlier", text=True),
    ]
    rows: list[list[Cell]] = [
        [str(r.step), r.wall_ns / 1e6, r.gpu_ns / 1e6, int(r.launches), "yes" if r.is_outlier else ""]
        for r in b.steps.itertuples()
    ]
    note = "" if rows else "no decode_token ranges in the window"
    return Table(
        "Steps (outlier: above the third quartile by 1.5 interquartile ranges)", columns, list(rows), note=note
    )


def layer_table(b: Breakdown) -> Table:
    """Wall time of a layer's ranges per call; GPU time and launches a token (of the window where there are none)."""
    per = "token" if b.tokens else "window"
    divisor = b.tokens or 1
    columns = [
        Column("layer", "layer", text=True, flexible=True),
        Column("calls", "calls"),
        Column("wall ms/call", "wall_ms_per_call", digits=3),
        Column(f"GPU ms/{per}", f"gpu_ms_per_{per}", digits=3),
        Column(f"launches/{per}", f"launches_per_{per}", digits=1),
    ]
    rows: list[list[Cell]] = [
        [
            str(r.layer),
            int(r.calls),
            r.wall_ns / 1e6 / r.calls if r.calls else None,
            r.gpu_ns / 1e6 / divisor,
            r.launches / divisor,
        ]
        for r in b.layers.itertuples()
    ]
    captured = (b.layers["calls"] == 0).any()
    note = "calls 0: a layer of a CUDA graph that was captured before the window" if captured else ""
    title = "Layers (host wall of the range, GPU time of what was launched or captured in it)"
    return Table(title, columns, list(rows), note=note)


def gap_table(b: Breakdown, top: int) -> Table:
    """The largest idle gaps."""
    columns = [
        Column("at ms", "start_ms"),
        Column("idle µs", "idle_us", digits=1),
        Column("host", "host", text=True),
        Column("host call", "host_call", text=True),
        Column("before", "before", text=True, flexible=True),
        Column("after", "after", text=True, flexible=True),
    ]
    rows: list[list[Cell]] = [
        [
            r.start_ms,
            r.idle_us,
            str(r.host),
            str(r.host_call),
            short_kernel_name(r.before) or "(start)",
            short_kernel_name(r.after) or "(end)",
        ]
        for r in b.gaps(top).itertuples()
    ]
    return Table("Largest idle gaps (host: what held most of it)", columns, list(rows))


def latency_table(b: Breakdown) -> Table:
    """Launch call end to kernel start."""
    columns = [
        Column("GPU", "device"),
        Column("kernels", "kernels"),
        Column("median µs", "median_us"),
        Column("p90 µs", "p90_us"),
        Column("p99 µs", "p99_us"),
        Column("max µs", "max_us"),
        Column("before return", "started_before_return_pct", digits=1),
    ]
    rows: list[list[Cell]] = [list(r) for r in b.latency.itertuples(index=False, name=None)]
    note = "before return: % of kernels that ran before their launch call had returned (latency below 0)"
    return Table("From the launch call's end to the kernel's start", columns, list(rows), note=note)


def savings_table(b: Breakdown) -> Table:
    """What could be saved at most."""
    columns = [
        Column("change", "change", text=True, flexible=True),
        Column("at most ms", "at_most_ms"),
        Column("share", "share", percent=True),
        *([Column("ms/token", "ms_per_token")] if b.tokens else []),
    ]
    rows: list[list[Cell]] = [
        [str(r.change), r.at_most_ms, r.share, *([r.ms_per_token] if b.tokens else [])] for r in b.savings.itertuples()
    ]
    return Table("At most to gain (traced ms)", columns, list(rows), note="Bounds, not predictions: they overlap.")


def api_table(b: Breakdown, top: int) -> Table:
    """API calls by summed time."""
    assert b.host is not None
    columns = [
        Column("API call", "name", text=True, flexible=True),
        Column("calls", "calls"),
        Column("ms", "ms"),
        Column("mean µs", "mean_us"),
    ]
    rows: list[list[Cell]] = [
        [str(r.name), int(r.calls), r.ns / 1e6, r.ns / 1e3 / r.calls] for r in b.host.apis.head(top).itertuples()
    ]
    return Table("API calls that start in the window", columns, list(rows))
