"""A variant made ready to run on every weight set, and what its contract is checked against."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glqprof.bench.reasons import FAILED, Findings
from glqprof.bench.registry import Group, Run, SameBits, Tolerance, Variant


class Subject:
    """One variant and its ``Run`` for each weight set; ``error`` says why it could not be built ("" if it could)."""

    def __init__(self, variant: Variant, workloads: Sequence[Any], synchronize: Callable[[], None]) -> None:
        """Build the variant once for each weight set; ``synchronize`` waits for the whole device."""
        self.variant = variant
        self._synchronize = synchronize
        self.runs: list[Run] = []
        self.error = ""
        try:
            for workload in workloads:
                self.runs.append(variant.build(workload))
        except Exception as error:  # a variant is foreign code: whatever it raises is a finding about it
            self.error = f"build: {one_line(error)}"

    @property
    def name(self) -> str:
        """The variant's name."""
        return self.variant.name

    def run(self, index: int, batch: Any, out: Any) -> None:
        """Compute call number ``index`` of a block, untimed: on weight set ``index`` mod the number of sets.

        Waits for the whole device, so that work left on another stream cannot spoil memory that others get next.
        """
        self.runs[index % len(self.runs)](batch, out)
        self._synchronize()


class Judged:
    """What was found about one variant at one number of rows."""

    def __init__(self, subject: Subject, anchor: Subject, group: Group) -> None:
        """``anchor`` computes what the outputs must be: the contract's variant, or the baseline within a tolerance."""
        self.subject = subject
        self.anchor = anchor
        self.findings = Findings()
        self.dead = False
        contract = subject.variant.contract
        self.bits = isinstance(contract, SameBits)
        self.reference_bound = contract.rel_err if isinstance(contract, Tolerance) else group.rel_err
        self.anchor_bound = self.reference_bound + group.rel_err
        if subject.error:
            self.fail(subject.error)

    def fail(self, detail: str) -> None:
        """Give this variant up: it raised an error."""
        self.findings.add(FAILED, detail)
        self.dead = True


def anchor_of(variant: Variant, baseline: str) -> str:
    """Return the name of the variant whose outputs judge those of ``variant``."""
    return variant.contract.as_variant if isinstance(variant.contract, SameBits) else baseline


def one_line(error: BaseException) -> str:
    """Return an exception as one line: its class, the first line of its message, and where it was raised."""
    text = str(error).strip()
    said = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{said} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else said
