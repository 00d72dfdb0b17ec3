"""The HTML report: one file that needs no network, from the same results and sentences as the other formats.

Everything that a program or a user named (kernels, ranges, manifests, buckets) is hostile here: Jinja escapes it, the
data for the timeline cannot close its script element, and the page's policy runs no script but its own, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from glqprof import __version__
from glqprof.analysis.answers import NO
from glqprof.analysis.breakdown import Breakdown, DeviceTime
from glqprof.analysis.compare import Comparison
from glqprof.reports import breakdown_document, compare_document
from glqprof.reports.document import Cell, Column, Table, printable
from glqprof.reports.kernel_names import short_kernel_name
from glqprof.reports.report_colours import Palette
from glqprof.reports.report_timeline import timelines
from glqprof.reports.sentences import breakdown_sentence, compare_sentence
from glqprof.traces.schema.manifest import Manifest, encode_manifest

ASSETS = Path(__file__).parent / "html"
SCRIPTS = ("theme.js", "tables.js", "timeline.js")
MAX_KERNELS = 1000
MAX_NAME = 80
ANY_NUMBER = 1 << 30


@dataclass
class Bar:
    """A stacked bar: ``label`` for those who do not see it, ``segments``: name, colour, left and width (of 1000)."""

    title: str
    label: str
    segments: list[tuple[str, int, float, float]]


@dataclass
class Kernel:
    """One row of the kernels table; ``full`` is the whole name where the short one leaves something out."""

    short: str
    full: str
    colour: int
    bucket: str
    cells: list[tuple[Column, Cell]]


@dataclass
class KernelTable:
    """All kernels of one GPU."""

    title: str
    columns: list[Column]
    rows: list[Kernel]
    note: str


@dataclass
class CaptureView:
    """One capture's part of the page."""

    number: int
    name: str
    b: Breakdown
    headline: list[str]
    sentence: str
    answers: Table
    accounts: list[tuple[Bar, Table, list[int]]]
    refused: str
    buckets: list[tuple[Table, list[int]]]
    kernels: list[KernelTable]
    more: list[Table]
    timelines: list[dict[str, Any]]
    provenance: list[tuple[str, str]]
    manifest: str
    warnings: list[str] = field(default_factory=list)


@dataclass
class ComparisonView:
    """One candidate against the base; ``refused`` says why where they cannot be compared."""

    number: int
    title: str
    headline: list[str] = field(default_factory=list)
    sentence: str = ""
    bars: list[Bar] = field(default_factory=list)
    legend: list[tuple[str, int]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: str = ""


def report_html(breakdowns: Sequence[Breakdown], comparisons: Sequence[Comparison | tuple[str, str]]) -> str:
    """The whole page. ``comparisons``: of each further capture with the first, or (its name, why there is none).

    Kernel names are shortened as in the other formats, with the whole name beside them; numbers are rounded alike.
    """
    palette = Palette()
    captures = [_capture(i, b, palette) for i, b in enumerate(breakdowns, 1)]
    names = [c.name for c in captures]
    for c in captures:
        if names.count(c.name) > 1:  # two files may well have one name: they must be told apart
            c.name = f"{c.name} ({c.number})"
    compared = [_comparison(i, c, palette) for i, c in enumerate(comparisons, 1)]
    data = _embedded({"timelines": [c.timelines for c in captures]})
    css = (
        f":root{{{palette.css(dark=False)}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{palette.css(dark=True)}}}}}"
        f":root[data-theme=dark]{{{palette.css(dark=True)}}}"
        + palette.classes()
        + (ASSETS / "report.css").read_text(encoding="utf-8")
    )
    script = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain"] = printable
    return environment.get_template("report.html.j2").render(
        title=" and ".join(c.name for c in captures[:3]) + (" and more" if len(captures) > 3 else ""),
        captures=captures,
        comparisons=compared,
        version=__version__,
        css=Markup(css),
        script=Markup(script),
        data=Markup(data),
        policy=_policy(css, script),
    )


def _policy(css: str, script: str) -> str:
    """No network at all, and nothing runs or styles but what stands here."""
    own = f"style-src {_hash(css)}; script-src {_hash(script)}"
    return f"default-src 'none'; img-src data:; {own}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embedded(value: Any) -> str:
    """JSON for a script element: no name in it can end the element or start a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _capture(number: int, b: Breakdown, palette: Palette) -> CaptureView:
    doc = breakdown_document
    closed = [d for d in b.devices if d.account is not None]
    idle_known = b.answers["gpu_idle"].answer != NO
    return CaptureView(
        number=number,
        name=printable(b.name),
        b=b,
        headline=doc.headline(b).lines,
        sentence=breakdown_sentence(b),
        answers=doc.answers_table(b),
        accounts=[_account(b, d, palette) for d in closed],
        refused="" if closed else f"not answered: {b.answers['gpu_idle']}",
        buckets=[_with_colours(doc.bucket_table(b, d), palette) for d in b.devices],
        kernels=[_kernels(d, palette) for d in b.devices],
        more=[
            *([doc.host_table(b)] if b.host else []),
            *([doc.token_table(b)] if len(b.window.steps) else []),
            *([doc.layer_table(b)] if b.answers["layers"].answer != NO else []),
            *([doc.gap_table(b, 20), doc.savings_table(b)] if idle_known else []),
            *([doc.latency_table(b)] if b.answers["host_blame"].answer != NO else []),
            *([doc.api_table(b, ANY_NUMBER)] if b.host else []),
        ],
        timelines=timelines(b, palette),
        provenance=_provenance(b),
        manifest=encode_manifest(b.manifest).decode() if b.manifest else "",
        warnings=list(b.warnings),
    )


def _with_colours(table: Table, palette: Palette) -> tuple[Table, list[int]]:
    return table, [palette.row(str(row[0])) for row in table.rows]


def _account(b: Breakdown, device: DeviceTime, palette: Palette) -> tuple[Bar, Table, list[int]]:
    table = breakdown_document.account_table(b, device)
    mine = b.wall[b.wall["device"] == device.device]
    wall = max(int(mine["ns"].sum()), 1)
    bar = _bar(table.title, zip(mine["row"], mine["ns"], strict=True), wall, wall, palette, f"{wall / 1e6:,.2f} ms")
    return bar, *_with_colours(table, palette)


def _bar(title: str, rows: Any, wall: float, longest: float, palette: Palette, total: str) -> Bar:
    left, segments, words = 0.0, [], []
    for row, amount in rows:
        width = 1000 * float(amount) / longest
        segments.append((f"{printable(str(row))} {amount / wall:.1%}", palette.row(str(row)), left, width))
        words.append(segments[-1][0])
        left += width
    return Bar(title, f"Stacked bar of {total}: {', '.join(words)}", segments)


def _kernels(device: DeviceTime, palette: Palette) -> KernelTable:
    columns = [
        Column("launches", "launches"),
        Column("sum ms", "sum_ms", digits=3),
        Column("share", "share", percent=True),
        Column("mean µs", "mean_us"),
        Column("min µs", "min_us"),
        Column("max µs", "max_us"),
    ]
    total = max(int(device.kernels["sum_ns"].sum()), 1)
    rows = []
    for r in device.kernels.head(MAX_KERNELS).itertuples():
        values = [int(r.launches), r.sum_ns / 1e6, r.sum_ns / total, r.mean_ns / 1e3, r.min_ns / 1e3, r.max_ns / 1e3]
        short, full = printable(short_kernel_name(str(r.name))), printable(str(r.name))
        if len(short) > MAX_NAME:
            short = short[: MAX_NAME - 1] + "…"
        whole = full if full != short else ""
        colour = palette.row(str(r.bucket))
        cells = list(zip(columns, values, strict=True))
        rows.append(Kernel(short, whole, colour, printable(str(r.bucket)), cells))
    left = len(device.kernels) - len(rows)
    note = "Sums count what starts in the window; share is of all GPU work's summed time." + (
        f" {left} more kinds are left out." if left > 0 else ""
    )
    return KernelTable(f"GPU {device.device}: every kernel, copy and memset", columns, rows, note)


def _comparison(number: int, c: Comparison | tuple[str, str], palette: Palette) -> ComparisonView:
    if isinstance(c, tuple):
        return ComparisonView(number, printable(c[0]), refused=c[1])
    doc = compare_document
    unit = "ms a token" if c.unit == "token" else "ms of the window"
    longest = max(c.wall.base, c.wall.cand) or 1.0
    bars = [
        _bar(f"{side.name}: {wall:.2f} {unit}", zip(c.rows["row"], c.rows[key], strict=True), wall or 1.0, longest,
             palette, f"{wall:.2f} {unit}")
        for side, key, wall in ((c.base, "base_ms", c.wall.base), (c.cand, "cand_ms", c.wall.cand))
    ]  # fmt: skip
    return ComparisonView(
        number,
        f"{printable(c.cand.name)} against {printable(c.base.name)}",
        headline=doc.headline(c).lines,
        sentence=compare_sentence(c),
        bars=bars,
        legend=[(printable(str(row)), palette.row(str(row))) for row in c.rows["row"]],
        tables=[doc.row_table(c), doc.totals_table(c), doc.kernel_table(c, ANY_NUMBER)],
        notes=list(c.notes),
    )


def _provenance(b: Breakdown) -> list[tuple[str, str]]:
    info, window = b.trace.info, b.window
    rows = [
        ("capture", b.name),
        ("recorded by", f"{info.tool} {info.tool_version}".strip()),
        ("format", f"schema {info.schema_version}" if info.schema_version else ""),
        ("window", f"{window.selector}: {window.wall_ns / 1e6:,.3f} ms, {len(window.steps)} steps"),
        ("GPU", ", ".join(f"{d.device}: {d.name or 'unnamed'}" for d in b.devices)),
        *(
            _of_manifest(b.manifest)
            if b.manifest
            else [("manifest", "none: a bare file, so nothing is known of the run")]
        ),
        ("report by", f"glqprof {__version__}"),
    ]
    return [(name, printable(text)) for name, text in rows if text]


def _of_manifest(m: Manifest) -> list[tuple[str, str]]:
    plain = msgspec.to_builtins(m)
    git = f"{m.git.commit}{' with changes' if m.git.dirty else ''}" if m.git else ""
    scrubbed = {True: "yes", False: "no", None: ""}[m.scrubbed]
    single = ("workload", "variant", "driver", "cuda", "torch", "transformers", "captured_at", "source", "token_sha")
    return [
        ("command", " ".join(m.command)),
        *((key.replace("_", " "), str(plain[key] or "")) for key in single),
        ("git", git),
        ("batch", str(m.batch)),
        ("tokens", "" if m.tokens is None else str(m.tokens)),
        ("scrubbed", scrubbed),
    ]
