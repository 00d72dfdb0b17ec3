"""The rows of a release note and the numbered files that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from glqprof.analysis.answers import NO, YES
from glqprof.analysis.breakdown import Breakdown
from glqprof.analysis.release_facts import Facts, bench_facts, capture_facts, decode_facts
from glqprof.traces.schema.manifest import Untraced
from glqprof.traces.schema.release import NamedBench, NamedDecode, RowSpec, shown_name

TOKENS = "numbers of tokens"
ShaOf = dict[str, int]
"""What two hashes must share to be comparable, by its plural: prompts, numbers of tokens, warm-ups, seeds."""


@dataclass(frozen=True)
class Evidence:
    """What was read for one row of the specification."""

    spec: RowSpec
    capture: Breakdown | None = None
    decode: NamedDecode | None = None
    bench: NamedBench | None = None


@dataclass(frozen=True)
class Source:
    """A file that figures come from. ``kind``: capture, decode or bench; ``says``: what it is, ``warnings``: what makes
    its figures doubtful, both as it tells itself."""

    number: int
    kind: str
    name: str
    says: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReleaseRow:
    """One row. ``tok_s`` is untraced, ``rate_source`` the source it is from; ``factor`` over the first row's.

    ``capture``: the breakdown of the row's capture, whose untraced run is the row's. ``sha``: hash of the decoded
    tokens; ``sha_of``: what must agree for a comparison, where it says. ``traced_other_tokens``: the capture's hash
    over as many tokens is another one.
    """

    label: str
    notes: str
    is_reference: bool
    tok_s: float | None = None
    statistic: str = ""
    factor: float | None = None
    rate_source: int | None = None
    capture: Breakdown | None = None
    capture_source: int | None = None
    sha: str | None = None
    sha_of: ShaOf = field(default_factory=dict)
    sha_source: int | None = None
    traced_other_tokens: bool = False

    @property
    def gpu_busy_share(self) -> float | None:
        """Share of the traced wall time with work on the GPU, over all GPUs."""
        if self.capture is None or not len(self.capture.wall):
            return None
        wall = self.capture.wall
        return float(wall.loc[wall["kind"] == "gpu", "ns"].sum() / wall["ns"].sum())

    @property
    def busy_ms_per_token(self) -> float | None:
        """Traced milliseconds a token with work on the GPU, mean over the GPUs."""
        share = self.gpu_busy_share
        if share is None or self.capture is None:
            return None
        wall_ms = self.capture.per_token(self.capture.window.wall_ns / 1e6)
        return None if wall_ms is None else share * wall_ms

    def per_token(self, count: str) -> float | None:
        """``kernels`` that ran, ``launches`` (calls of the host: a CUDA graph is one), ``syncs`` or ``blocking_copies``
        a token, as the capture counts them."""
        b = self.capture
        if b is None:
            return None
        if count == "kernels":
            return b.per_token(sum(d.kernel_count for d in b.devices))
        if b.host is None:
            return None
        totals = {"launches": b.host.launch, "syncs": b.host.sync, "blocking_copies": b.host.blocking_copies}
        return b.per_token(totals[count].calls)


class Sources:
    """Numbers files in the order in which they are met, and collects what they say."""

    def __init__(self) -> None:
        self.listed: list[Source] = []
        self.facts: list[Facts] = []

    def _number(self, kind: str, name: str, says: str, warnings: Sequence[str]) -> int:
        for source in self.listed:
            if (source.kind, source.name) == (kind, name):
                return source.number
        self.listed.append(Source(len(self.listed) + 1, kind, name, says, tuple(warnings)))
        return len(self.listed)

    def capture(self, name: str, owner: str, b: Breakdown) -> int:
        """Number a capture of the row ``owner``."""
        m = b.manifest
        parts = [f"{m.tool} {m.tool_version}" if m else f"{b.trace.info.tool} {b.trace.info.tool_version}"]
        parts += [f"{len(b.window.steps)} steps traced"] if len(b.window.steps) else []
        parts += [f"recorded {m.captured_at}"] if m and m.captured_at else []
        parts += [m.source] if m and m.source else []
        doubtful = [q for q in ("gpu_time", "gpu_idle", "host_blame", "complete") if b.answers[q].answer != YES]
        answers = [f"{q}: {b.answers[q].answer}, {b.answers[q]}" for q in doubtful]
        warnings = [*answers, *b.trace.warnings, *(m.warnings if m else [])]
        number = self._number("capture", name, "; ".join(p.strip() for p in parts), warnings)
        self.facts.append(capture_facts(owner, number, b))
        return number

    def decode(self, decode: NamedDecode, owner: str) -> int:
        """Number a decode result."""
        run = decode.run
        parts = [f"untraced run of {run.variant or run.workload or 'a decode'}"]
        parts += [f"prompt of {run.prompt:,} tokens"] if run.prompt else []
        parts += [f"{run.tokens:,} tokens decoded"] if run.tokens else []
        number = self._number("decode", decode.name, ", ".join(parts), run.warnings)
        self.facts.append(decode_facts(owner, number, run))
        return number

    def bench(self, bench: NamedBench, owner: str) -> int:
        """Number a bench result."""
        r = bench.result
        says = f"{r.group} at {r.geometry}, {r.layers} layers, inputs {r.cache.state}, baseline {r.baseline}"
        number = self._number("bench", bench.name, says, [str(reason) for reason in r.warnings])
        self.facts.append(bench_facts(owner, number, r))
        return number


def release_row(e: Evidence, is_reference: bool, sources: Sources) -> ReleaseRow:
    """A row from what was read for it; its files are numbered in ``sources``."""
    spec, capture, untraced = e.spec, e.capture, None
    path = ReleaseRow(spec.label, spec.notes, is_reference)
    if capture is not None:
        number = sources.capture(shown_name(spec.capture or ""), spec.label, capture)
        m = capture.manifest
        sha = m.token_sha if m else None
        path = replace(
            path, capture_source=number, sha=sha, sha_of=_sha_of(tokens=m.tokens if m else None), sha_source=number
        )
        untraced = capture.untraced
        path = replace(path, rate_source=number if untraced else None)
    if e.decode is not None:
        run, number = e.decode.run, sources.decode(e.decode, spec.label)
        untraced = Untraced(run.tok_s, run.ms_per_token, f"mean of {run.tokens:,} tokens" if run.tokens else "mean")
        path = replace(path, rate_source=number)
        if run.token_sha:
            other = path.sha is not None and path.sha != run.token_sha and path.sha_of.get(TOKENS) == run.tokens
            path = replace(path, traced_other_tokens=other)
            path = replace(
                path, sha=run.token_sha, sha_of=_sha_of(run.prompt, run.tokens, run.warmup, run.seed), sha_source=number
            )
    if e.bench is not None:
        sources.bench(e.bench, spec.label)
    if untraced is not None:
        path = replace(path, tok_s=untraced.tok_s, statistic=untraced.statistic)
        if capture is not None and capture.untraced != untraced:
            traced = capture.per_token(capture.window.wall_ns / 1e6)
            known = traced is not None and capture.answers["wall_time"].answer != NO
            inflation = traced / untraced.ms_per_token if known and traced is not None else None
            capture = replace(capture, untraced=untraced, inflation=inflation)
    return replace(path, capture=capture)


def _sha_of(
    prompt: int | None = None, tokens: int | None = None, warmup: int | None = None, seed: int | None = None
) -> ShaOf:
    said = {"prompts": prompt, TOKENS: tokens, "warm-ups": warmup, "seeds": seed}
    return {name: value for name, value in said.items() if value is not None}
