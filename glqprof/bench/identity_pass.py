"""The untimed comparison of every variant over random and adversarial batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from glqprof.bench.calls import OTHER_POISON, POISON, poison
from glqprof.bench.identity import Difference, difference, differs, errors, holds, total
from glqprof.bench.plan import Plan
from glqprof.bench.reasons import NONDETERMINISTIC, UNWRITTEN, WRONG_BITS, WRONG_VALUES
from glqprof.bench.subject import Judged, Subject, one_line
from glqprof.traces.schema.bench import Differing


@dataclass
class IdentityFound:
    """What one variant's outputs were against the baseline's bytes and against float64, batch by batch."""

    against_baseline: list[tuple[str, Difference]] = field(default_factory=list)
    max_abs_err: float | None = None
    rel_err: float | None = None

    @property
    def identical(self) -> bool | None:
        """Whether every batch had the baseline's bytes; None if none could be compared."""
        if not self.against_baseline:
            return None
        return all(found.count == 0 for _, found in self.against_baseline)

    @property
    def differing(self) -> Differing | None:
        """The sum of the comparisons; None if there was none."""
        return total(self.against_baseline) if self.against_baseline else None

    def add_error(self, max_abs: float, relative: float) -> None:
        """Keep the worst error over the random batches."""
        self.max_abs_err = max(max_abs, self.max_abs_err or 0.0)
        self.rel_err = max(relative, self.rel_err or 0.0)


def identity_batches(plan: Plan, workload: Any, rows: int, first_seed: int) -> list[tuple[str, Any, bool]]:
    """Return (label, batch, whether random): the seeded random batches, then the group's adversarial ones."""
    random = [
        (f"random {index}", plan.group.batch(workload, rows, first_seed + index), True)
        for index in range(plan.random_batches)
    ]
    return random + [(label, batch, False) for label, batch in plan.group.adversarial(workload, rows)]


class IdentityPass:
    """Runs variants on one weight set; each computes a batch once per poison and is remembered for the others."""

    def __init__(self, plan: Plan, workload: Any, batches: Sequence[tuple[str, Any, bool]], baseline: Subject) -> None:
        """``batches`` are those of ``identity_batches``."""
        self._plan = plan
        self._workload = workload
        self._batches = batches
        self._baseline = baseline
        self._outputs: dict[tuple[str, int], Any] = {}
        self._references: dict[int, Any] = {}

    def check(self, judged: Judged) -> IdentityFound:
        """Compare one variant; what breaks its contract goes to ``judged.findings``."""
        found = IdentityFound()
        for index, (label, _, random) in enumerate(self._batches):
            try:
                self._check_batch(judged, found, index, label, random)
            except Exception as error:  # foreign code
                judged.fail(f"batch {label!r}: {one_line(error)}")
                break
        return found

    def _check_batch(self, judged: Judged, found: IdentityFound, index: int, label: str, random: bool) -> None:
        findings = judged.findings
        out = self._output(judged.subject, index)
        repeat = self._run(judged.subject, index, OTHER_POISON)
        unwritten = holds(out, POISON) & holds(repeat, OTHER_POISON)
        count = int(unwritten.sum())
        if count:
            findings.add(UNWRITTEN, f"batch {label!r}: {count} of {out.numel()} elements still hold the poison")
        if judged.bits and bool((differs(out, repeat) & ~unwritten).any()):
            findings.add(NONDETERMINISTIC, f"batch {label!r}: two calls on it returned different bytes")
        if not self._baseline.error:
            found.against_baseline.append((label, difference(out, self._output(self._baseline, index))))
        if judged.bits:
            gap = difference(out, self._output(judged.anchor, index))
            if gap.count:
                detail = f"batch {label!r}: {gap.count} of {gap.elements} elements differ from {judged.anchor.name}"
                findings.add(WRONG_BITS, f"{detail}, by up to {gap.max_rel:.2g} of the largest")
        if random:
            max_abs, relative = errors(out, self._reference(index))
            found.add_error(max_abs, relative)
            if not relative <= judged.reference_bound:
                detail = f"batch {label!r}: {relative:.3g} from float64, allowed {judged.reference_bound:g}"
                findings.add(WRONG_VALUES, detail)

    def _run(self, subject: Subject, index: int, value: int) -> Any:
        if subject.error:
            raise RuntimeError(f"{subject.name}: {subject.error}")
        batch = self._batches[index][1]
        out = self._plan.group.out(self._workload, batch)
        poison(out, value)
        subject.run(0, batch, out)
        return out

    def _output(self, subject: Subject, index: int) -> Any:
        key = (subject.name, index)
        if key not in self._outputs:
            self._outputs[key] = self._run(subject, index, POISON)
        return self._outputs[key]

    def _reference(self, index: int) -> Any:
        if index not in self._references:
            self._references[index] = self._plan.group.reference(self._workload, self._batches[index][1])
        return self._references[index]
