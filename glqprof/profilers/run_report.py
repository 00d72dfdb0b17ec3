"""What a captured program told about itself through `glqprof.annotate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from glqprof.traces.schema.manifest import Traced, Untraced, UntracedRun

MAX_STEPS_KEPT = 4096
"""Step times beyond this are left out of the manifest: nobody reads them, and the mean is there."""


class _Facts(msgspec.Struct):
    token_sha: str | None = None
    tokens: int | None = None
    batch: int | None = None
    workload: str | None = None
    variant: str | None = None


class _File(msgspec.Struct):
    marked: bool
    steps: list[tuple[int, int]]
    facts: _Facts
    versions: dict[str, str] = {}


@dataclass(frozen=True)
class RunReport:
    """One run: its steps in nanoseconds of the program's clock, and what it said was decoded.

    ``marked``: the program uses `annotate.profiled`. ``tokens``: over all steps, None without steps.
    """

    marked: bool = False
    steps_ns: list[tuple[int, int]] = field(default_factory=list)
    token_sha: str | None = None
    said_tokens: int | None = None
    batch: int = 1
    workload: str = ""
    variant: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def tokens(self) -> int | None:
        """Tokens decoded in the steps: as the program said, else its batch a step."""
        return (self.said_tokens or len(self.steps_ns) * self.batch) if self.steps_ns else None

    @property
    def ms_per_token(self) -> float | None:
        """From the first step's start to the last one's end, as `breakdown` takes its window, over the tokens."""
        if not self.steps_ns or not self.tokens:
            return None
        span = max(end for _, end in self.steps_ns) - min(start for start, _ in self.steps_ns)
        return span / 1e6 / self.tokens

    @property
    def token_ms(self) -> list[float]:
        """Milliseconds of each step, rounded to the microsecond."""
        return [round((end - start) / 1e6, 3) for start, end in self.steps_ns[:MAX_STEPS_KEPT]]


def read_reports(folder: Path) -> RunReport:
    """The report of the process with the most steps: of several, one runs the loop and the others follow it."""
    best: _File | None = None
    for path in sorted(folder.glob("*.json")):
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File)
        except (OSError, msgspec.DecodeError):  # a process that was killed while it wrote
            continue
        if best is None or len(file.steps) > len(best.steps):
            best = file
    if best is None:
        return RunReport()
    facts = best.facts
    return RunReport(
        best.marked,
        best.steps,
        facts.token_sha,
        facts.tokens,
        facts.batch or 1,
        facts.workload or "",
        facts.variant or "",
        best.versions,
    )


def untraced_of(reports: list[RunReport]) -> Untraced | None:
    """The manifest's entry for untraced runs; None when the program marks no step."""
    runs = [
        UntracedRun(ms_per_token=round(r.ms_per_token, 6), tokens=r.tokens, token_ms=r.token_ms)
        for r in reports
        if r.ms_per_token
    ]
    if not runs:
        return None
    mean = sum(run.ms_per_token for run in runs) / len(runs)
    statistic = "mean" if len(runs) == 1 else f"mean of {len(runs)} runs"
    return Untraced(tok_s=round(1000 / mean, 6), ms_per_token=round(mean, 6), statistic=statistic, runs=runs)


def traced_of(report: RunReport) -> Traced | None:
    """The manifest's entry for the run under the profiler; None when the program marks no step."""
    ms = report.ms_per_token
    return Traced(ms_per_token=round(ms, 6), tokens=report.tokens, token_ms=report.token_ms) if ms else None
