"""A release's figures: every one from a named source, none where no source holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from glqprof.analysis.compare import UNCLEAR, Comparison, Pair, compare, verdict_of
from glqprof.analysis.release_facts import Facts, differences, unsaid
from glqprof.analysis.release_kernels import KernelLine, kernel_line, variant_at
from glqprof.analysis.release_rows import Evidence, ReleaseRow, Source, Sources, release_row
from glqprof.analysis.release_shares import Share, nested_shares
from glqprof.errors import InputError
from glqprof.traces.schema.bench import BenchResult
from glqprof.traces.schema.release import (
    FloorSpec,
    KernelsSpec,
    NamedBench,
    ReleaseSpec,
)


@dataclass(frozen=True)
class Floor:
    """The least milliseconds a token of the reference; ``of`` says what it is of, ``sources`` the files behind it."""

    ms_per_token: float
    tok_s: float
    of: str
    whole_token: bool
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Gap:
    """The last row against the reference. ``ratio``: of their tokens a second; ``comparison`` where both have captures
    that compare."""

    last: ReleaseRow
    reference: ReleaseRow
    ratio: float | None
    verdict: str
    reason: str
    floor: Floor | None
    comparison: Comparison | None


@dataclass
class ReleaseNotes:
    """Everything that is printed.

    ``paths``: rows, then references. ``now``: the last row with a capture, ``shares`` its nested account. ``host``: the
    first row with a capture against the last. ``changes``: a comparison for each change of the specification that has
    one. ``missing``: sentences on figures that no source holds; ``mixed``: what is not like for like; ``unsaid``: what
    could not be compared.
    """

    spec: ReleaseSpec
    paths: list[ReleaseRow]
    sources: list[Source]
    facts: list[Facts]
    mixed: list[str]
    unsaid: list[str]
    now: ReleaseRow | None = None
    shares: list[Share] = field(default_factory=list)
    host: tuple[ReleaseRow, ReleaseRow, Comparison] | None = None
    changes: list[tuple[ReleaseRow, ReleaseRow, Comparison] | None] = field(default_factory=list)
    kernels: list[KernelLine] = field(default_factory=list)
    gap: Gap | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def rows(self) -> list[ReleaseRow]:
        """Without the references."""
        return [p for p in self.paths if not p.is_reference]


def release_notes(
    spec: ReleaseSpec,
    evidence: Sequence[Evidence],
    benches: Sequence[tuple[KernelsSpec, NamedBench]] = (),
    floor_bench: NamedBench | None = None,
    *,
    subject: object = "release notes",
    allow_mixed: bool = False,
) -> ReleaseNotes:
    """Put the figures together.

    ``evidence``: one for each of ``spec.rows``. ``subject`` names the specification in errors. Raises InputError when
    the sources differ in GPU, workload, batch or prompt and ``allow_mixed`` is not set, or a bench lacks a variant.
    """
    sources = Sources()
    paths = [release_row(e, i >= len(spec.row), sources) for i, e in enumerate(evidence)]
    first = paths[0].tok_s
    paths = [replace(p, factor=p.tok_s / first if p.tok_s and first else None) for p in paths]
    kernels = _kernel_lines(evidence, benches, sources)
    if floor_bench:
        sources.bench(floor_bench, "floor")
    mixed = differences(sources.facts)
    if mixed and not allow_mixed:
        raise InputError(subject, f"{'; '.join(mixed)}; keep rows like for like, or give --allow-mixed to print them")
    notes = ReleaseNotes(spec, paths, sources.listed, sources.facts, mixed, unsaid(sources.facts), kernels=kernels)
    captured = [p for p in notes.rows if p.capture is not None]
    if captured:
        notes.now = captured[-1]
        assert notes.now.capture is not None
        notes.shares = nested_shares(notes.now.capture)
        if len(captured) > 1:
            notes.host = _pair(captured[0], captured[-1], notes.missing)
    named = {p.label: p for p in paths}
    for change in spec.change:
        pair = change.before is not None and change.after is not None
        notes.changes.append(
            _pair(named[change.before or ""], named[change.after or ""], notes.missing) if pair else None
        )
    if spec.gap:
        floor = _floor(spec.gap.floor, floor_bench, sources) if spec.gap.floor else None
        notes.gap = _gap(notes.rows[-1], named[spec.gap.reference], floor, bool(mixed))
    notes.missing[:] = list(dict.fromkeys(_missing(notes) + notes.missing))
    return notes


def _kernel_lines(
    evidence: Sequence[Evidence], benches: Sequence[tuple[KernelsSpec, NamedBench]], sources: Sources
) -> list[KernelLine]:
    lines = []
    for e in evidence:
        if e.bench is not None:
            assert e.spec.variant is not None
            number = sources.bench(e.bench, e.spec.label)
            lines.append(kernel_line(e.bench, e.spec.variant, e.spec.bench_rows, number))
    for spec, bench in benches:
        number = sources.bench(bench, bench.name)
        variants = spec.variants or list(dict.fromkeys(v.name for v in bench.result.variants))
        lines += [kernel_line(bench, variant, rows, number) for rows in spec.bench_rows for variant in variants]
    return list(dict.fromkeys(lines))


def _pair(
    before: ReleaseRow, after: ReleaseRow, missing: list[str]
) -> tuple[ReleaseRow, ReleaseRow, Comparison] | None:
    lacking = [p.label for p in (before, after) if p.capture is None]
    if lacking:
        missing.append(f"Counts of {before.label} against {after.label}: no capture of {' and '.join(lacking)}.")
        return None
    assert before.capture is not None
    assert after.capture is not None
    try:
        (comparison,) = compare(before.capture, after.capture)
    except InputError as error:
        missing.append(f"Counts of {before.label} against {after.label}: {error}.")
        return None
    if comparison.unit != "token":
        missing.append(f"Counts of {before.label} against {after.label}: a capture marks no decode_token ranges.")
        return None
    return before, after, comparison


def _floor(spec: FloorSpec, bench: NamedBench | None, sources: Sources) -> Floor:
    if spec.ms_per_token is not None:
        return Floor(spec.ms_per_token, 1e3 / spec.ms_per_token, spec.source, True, ())
    assert bench is not None
    number = (sources.bench(bench, "floor"),)
    result: BenchResult = bench.result
    if spec.bytes_per_token is not None:
        rate = result.device.copy_gb_s
        if not rate:
            raise InputError(bench.name, "holds no copy rate (device.copy_gb_s); give the floor as ms_per_token")
        ms = spec.bytes_per_token / rate / 1e6
        of = f"{spec.bytes_per_token / 1e9:,.2f} GB ({spec.source}) at {rate:,.0f} GB/s, the copy rate of this GPU"
        return Floor(ms, 1e3 / ms, of, True, number)
    variant = variant_at(bench, spec.variant or "", spec.bench_rows)
    if variant.floor_us is None:
        raise InputError(bench.name, f"holds no floor_us of {variant.name}; give the floor as ms_per_token")
    ms = variant.floor_us / 1e3 / variant.rows  # a call is a step of this many tokens
    at = f" at {variant.rows} rows" if variant.rows > 1 else ""
    of = f"{variant.name} of {result.group} alone{at}, the rest of the token left out"
    return Floor(ms, 1e3 / ms, of, False, number)


def _gap(last: ReleaseRow, reference: ReleaseRow, floor: Floor | None, mixed: bool) -> Gap:
    ratio = last.tok_s / reference.tok_s if last.tok_s and reference.tok_s else None
    pair = Pair(reference.tok_s, last.tok_s) if last.tok_s and reference.tok_s else None
    found = _pair(reference, last, [])
    comparison = found[2] if found else None
    verdict, reason = (comparison.verdict, comparison.reason) if comparison else verdict_of(pair, None)
    if mixed:
        verdict, reason = UNCLEAR, "not like for like"
    return Gap(last, reference, ratio, verdict, reason, floor, comparison)


def _missing(notes: ReleaseNotes) -> list[str]:
    found = []
    for p in notes.paths:
        if p.tok_s is None:
            found.append(f"tok/s of {p.label}: its sources hold no untraced run of a whole decode.")
            if p is notes.paths[0] and len(notes.paths) > 1:
                found.append(f"Factors over {p.label}: it has no rate.")
        if p.capture is None:
            found.append(f"Counts and GPU time of {p.label}: no capture.")
        elif not len(p.capture.wall):
            found.append(f"Where the time of {p.label} goes: {p.capture.answers['gpu_idle']}.")
        elif not p.capture.tokens:
            found.append(f"Counts a token of {p.label}: its capture marks no decode_token ranges.")
    if notes.now is not None and notes.now is not notes.rows[-1]:
        found.append(f"Where the time of {notes.rows[-1].label} goes: no capture; shown is {notes.now.label}.")
    if notes.spec.gap and notes.spec.gap.floor is None:
        found.append(f"A floor of {notes.spec.gap.reference}: the specification gives none.")
    if not notes.kernels:
        found.append("Whether bits are the same: no bench file.")
    ungraphed: dict[str, list[str]] = {}
    for line in notes.kernels:
        if not line.failed and line.variant.timings.graph is None:
            why = line.variant.timings.graph_note or "not timed"
            ungraphed.setdefault(f"{why} [{line.source}]", []).append(line.variant.name)
    for why, names in ungraphed.items():
        found.append(f"Kernels alone in a CUDA graph, {', '.join(dict.fromkeys(names))}: {why}.")
    silent = [p.label for p in notes.paths if p.sha is None]
    if silent:
        found.append(f"token_sha of {', '.join(silent)}: not recorded.")
    return found
