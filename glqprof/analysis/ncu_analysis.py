"""Everything said of one ncu report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glqprof.analysis.ncu_diagnosis import Diagnosis, diagnose
from glqprof.analysis.ncu_frame import finding_frame, launch_frame
from glqprof.analysis.ncu_numbers import KernelNumbers, kernel_numbers
from glqprof.analysis.ncu_roofline import RooflinePoint, roofline_point
from glqprof.analysis.shown import Shown
from glqprof.traces.schema.ncu import Launch, NcuReport, RuleResult

if TYPE_CHECKING:  # weights come from a timeline, which loads pandas; a report alone does without
    import pandas as pd

    from glqprof.analysis.ncu_weights import KernelWeight


@dataclass(frozen=True)
class KernelAnalysis:
    """One launch: its numbers, what binds it, ncu's own rule results, its place under the roofline.

    ``weight``: its kernel's share of a decode, where a timeline was given and holds the kernel.
    """

    numbers: KernelNumbers
    diagnosis: Diagnosis
    rules: tuple[RuleResult, ...]
    roofline: RooflinePoint | None
    weight: KernelWeight | None = None


@dataclass(frozen=True, repr=False)
class NcuAnalysis(Shown):
    """One report; ``kernels`` in the order of their ids, or by what a fix is worth once they are weighted."""

    name: str
    source: str
    kernels: tuple[KernelAnalysis, ...]
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> list[str]:
        """Names of the GPUs, where the report has them."""
        return sorted({k.numbers.gpu for k in self.kernels if k.numbers.gpu})

    @property
    def launches(self) -> pd.DataFrame:
        """See `launch_frame`."""
        return launch_frame(self.kernels)

    @property
    def findings(self) -> pd.DataFrame:
        """See `finding_frame`."""
        return finding_frame(self.kernels)

    def __repr__(self) -> str:
        return f"<NcuAnalysis of {self.name}: {len(self.kernels)} launches>"


def analyse(report: NcuReport) -> NcuAnalysis:
    """Analyse every launch of a report."""
    return NcuAnalysis(
        report.name, report.source, tuple(_kernel(x, report.source) for x in report.launches), report.notes
    )


def _kernel(launch: Launch, source: str) -> KernelAnalysis:
    numbers = kernel_numbers(launch)
    return KernelAnalysis(numbers, diagnose(numbers, source), launch.rules, roofline_point(launch, numbers))
