"""The sentences of a release note that hold figures."""

from __future__ import annotations

from glqprof.analysis.compare import Comparison
from glqprof.analysis.release import Gap, ReleaseNotes
from glqprof.analysis.release_facts import by_value
from glqprof.analysis.release_kernels import Bits, bits_of
from glqprof.analysis.release_rows import ReleaseRow
from glqprof.reports.release_document import COUNTS, cite, number, rate_of
from glqprof.traces.schema.release import NO_GPU

PROPERTIES = (
    "GPU",
    "workload",
    "layers",
    "batch",
    "prompt",
    "driver",
    "CUDA",
    "torch",
    "transformers",
    "profiler",
    "commit",
)


def headline(notes: ReleaseNotes) -> str:
    """First row to last, untraced."""
    first, last = notes.rows[0], notes.rows[-1]
    gpus = " and ".join("the CPU" if gpu == NO_GPU else gpu for gpu in by_value(notes.facts, "GPU"))
    where = f" on {gpus}" if gpus else ""
    if first.tok_s is None or last.tok_s is None or last.factor is None:
        return f"From {first.label} to {last.label}{where}: not measured untraced on both sides."
    if first is last:
        return f"{last.label}: {rate_of(last)} untraced{where}."
    change = f"{last.factor - 1:+.0%}".replace("%", " %") if abs(last.factor - 1) < 1 else f"{last.factor:.2f}×"
    rates = f"{first.tok_s:,.2f} → {last.tok_s:,.2f} tok/s ({change}), untraced"
    return f"From {first.label} to {last.label}: {rates}{where} {cite(first.rate_source, last.rate_source)}."


def change_figures(before: ReleaseRow, after: ReleaseRow, c: Comparison, mixed: bool = False) -> str:
    """What a change did to the counts of a token, and to the untraced rate; no verdict where sources are ``mixed``."""
    counted = {count: (before.per_token(count), after.per_token(count)) for count in COUNTS}
    named = dict(COUNTS)
    if counted["kernels"] == counted["launches"]:  # no graph: one number says both
        del counted["launches"]
        named["kernels"] = "kernel launches"
    parts = [
        f"{_count(old)} → {_count(new)} {named[count]}"
        for count, (old, new) in counted.items()
        if old is not None and new is not None
    ]
    sums = []
    for side in (before.capture, after.capture):
        assert side is not None
        sums.append(side.per_token(sum(d.kernel_sum_ns for d in side.devices) / 1e6) or 0.0)
    parts.append(f"{sums[0]:.2f} → {sums[1]:.2f} ms of summed kernel time")
    text = f"A token, traced, from {before.label} to {after.label}: {', '.join(parts)} {_captures(before, after)}."
    if before.tok_s and after.tok_s:
        rates = cite(before.rate_source, after.rate_source)
        verdict = "no verdict, not like for like" if mixed else f"{c.verdict} ({c.reason})"
        text += f" Untraced: {before.tok_s:,.2f} → {after.tok_s:,.2f} tok/s {rates}: {verdict}."
    return text


def now_sentence(notes: ReleaseNotes) -> str:
    """What the shares are of, and how far tracing bent them."""
    assert notes.now is not None
    assert notes.now.capture is not None
    b = notes.now.capture
    tokens = f", {b.tokens} tokens" if b.tokens else ""
    gpus = f", {len(b.devices)} GPUs" if len(b.devices) > 1 else ""
    wall = f"{b.window.wall_ns / 1e6:,.1f} ms of traced wall time{tokens}{gpus}"
    text = f"Shares of {wall} {cite(notes.now.capture_source)}. "
    text += "Every nanosecond is in one line; lines are rounded so that they add up."
    if b.inflation and b.inflation > 1.1:
        text += f" Tracing made the run {b.inflation:.2f} times as long: host lines are right in kind, not in size."
    if b.verdict:
        text += f" Verdict of the traced window: {b.verdict}."
    return text


def share_text(tenths: int, ns: int) -> str:
    """A share as printed; what is there and rounds to nothing says so."""
    return f"{tenths / 10:.1f} %" if tenths or not ns else "under 0.1 %"


def gap_sentences(gap: Gap) -> list[str]:
    """Rates, floor, and what sets the pace."""
    last, reference = gap.last, gap.reference
    lines = []
    if gap.ratio is not None:
        share = f"{gap.ratio:.0%}".replace("%", " %")
        lines.append(
            f"{last.label} decodes {rate_of(last)}, {reference.label} {rate_of(reference)}: {share} of it, untraced. "
            f"Verdict: {gap.verdict} ({gap.reason})."
        )
    else:
        lines.append(f"{last.label}: {rate_of(last)}; {reference.label}: {rate_of(reference)}. The gap is not known.")
    if gap.floor:
        f = gap.floor
        text = f"Floor of {reference.label}: {f.ms_per_token:.2f} ms a token"
        text += f", at most {f.tok_s:,.0f} tok/s" if f.whole_token else ""
        text += f"; {f.of}{' ' + cite(*f.sources) if f.sources else ''}."
        if f.whole_token and reference.tok_s:
            text += f" {reference.label} reaches {100 * reference.tok_s / f.tok_s:.1f} % of that rate."
        lines.append(text)
    busy = [
        f"{row.label} {row.gpu_busy_share:.1%} ({row.capture.verdict}) {cite(row.capture_source)}".replace("% ", " % ")
        for row in (last, reference)
        if row.gpu_busy_share is not None and row.capture is not None
    ]
    if len(busy) == 2:
        lines.append(f"Share of the traced time with the GPU busy: {', '.join(busy)}.")
    return lines


def statistics(notes: ReleaseNotes) -> str:
    """What the rates are of their runs: a median of tokens is not a mean of them."""
    of: dict[str, list[str]] = {}
    for p in notes.paths:
        if p.tok_s is not None:
            of.setdefault(p.statistic, []).append(p.label)
    if len(of) == 1:
        return f"What each rate is of its run: {next(iter(of))}."
    each = "; ".join(f"{kind} ({', '.join(labels)})" for kind, labels in of.items())
    return f"The rates are not all of one kind: {each}." if of else ""


def bits_sentences(notes: ReleaseNotes) -> list[str]:
    """One line a variant: the same bytes, or how many elements differ and how far; and what it had claimed."""
    return [_bits(b) for b in bits_of(notes.kernels)]


def _bits(b: Bits) -> str:
    rows = ", ".join(str(r) for r in b.rows) + (" row" if b.rows == (1,) else " rows")
    claim = f"contract: {b.contract}" if b.contract else "no contract"
    if b.identical is None:
        return f"{b.variant} against {b.baseline} at {rows}: could not be compared ({claim}) {cite(b.source)}."
    if b.identical:
        same = f"the same bytes as {b.baseline} at {rows}, {b.elements:,} elements"
        return f"{b.variant}: {same} ({claim}) {cite(b.source)}."
    held = "; not held" if b.contract.startswith("same bits as") else ""
    if not b.differing:
        unknown = f"not the bytes of {b.baseline}; how many differ is not recorded"
        return f"{b.variant}: {unknown} ({claim}{held}) {cite(b.source)}."
    each = ", ".join(f"{100 * share:.1f} % at {n}" for n, share, _ in b.differing)
    far = max(rel for _, _, rel in b.differing)
    return (
        f"{b.variant}: not the bytes of {b.baseline}. Elements that differ, by rows: {each}; the largest difference is "
        f"{100 * far:.2f} % of the largest output ({claim}{held}) {cite(b.source)}."
    )


def sha_sentences(notes: ReleaseNotes) -> list[str]:
    """Whether each row decoded the tokens of the first row that says which it decoded."""
    known = [p for p in notes.paths if p.sha is not None]
    lines = []
    for p in notes.paths:
        if p.sha is None:
            lines.append(f"{p.label}: not recorded.")
        elif p is known[0]:
            lines.append(f"{p.label}: {p.sha[:16]} {cite(p.sha_source)}{_traced(p)}.")
        else:
            lines.append(f"{p.label}: {_sha(known[0], p)} {cite(p.sha_source)}{_traced(p)}.")
    return lines


def _traced(row: ReleaseRow) -> str:
    return f"; its capture decoded other tokens {cite(row.capture_source)}" if row.traced_other_tokens else ""


def _sha(first: ReleaseRow, other: ReleaseRow) -> str:
    for what in [name for name in first.sha_of if name in other.sha_of]:
        a, b = first.sha_of[what], other.sha_of[what]
        if a != b:
            return f"not comparable with {first.label}: different {what} ({a:,} and {b:,})"
    if first.sha == other.sha:
        return f"equal to {first.label}'s"
    return f"differs from {first.label}'s ({(other.sha or '')[:16]})"


def compatibility(notes: ReleaseNotes) -> list[str]:
    """What the sources say they ran on; where they differ, which says what."""
    lines = []
    for name in PROPERTIES:
        values = by_value(notes.facts, name)
        if not values:
            if name not in ("layers", "prompt", "commit", "batch"):
                lines.append(f"{name}: not recorded")
            continue
        parts = [f"{value} {cite(*sorted({f.source for f in who}))}" for value, who in values.items()]
        lines.append(f"{name}: {'; '.join(parts)}")
    return lines


def _count(value: float) -> str:
    shown = number(value)
    return f"{shown:,}"


def _captures(*rows: ReleaseRow) -> str:
    return cite(*(r.capture_source for r in rows))
