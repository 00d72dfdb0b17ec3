"""An ncu report beside a timeline of the same program: its launches by what a fix is worth there."""

from __future__ import annotations

from dataclasses import replace

from glqprof.analysis.breakdown import Breakdown
from glqprof.analysis.ncu_analysis import NcuAnalysis
from glqprof.analysis.ncu_weights import covered_share, kernel_times, weigh
from glqprof.errors import InputError


def weighted(analysis: NcuAnalysis, b: Breakdown) -> NcuAnalysis:
    """Give each launch its kernel's share of the breakdown's window, and order them by what is at most to gain there.

    Raises InputError when the timeline holds none of the kernels.
    """
    times = kernel_times(b)
    kernels = [replace(k, weight=weigh(k.numbers, times)) for k in analysis.kernels]
    if all(k.weight is None for k in kernels):
        raise InputError(b.name, f"holds none of the kernels of {analysis.name}; give a timeline of the same program")
    kernels.sort(key=lambda k: -(k.weight.at_most_ms or 0.0) if k.weight else 1.0)
    covered = covered_share((k.numbers.name, k.numbers.grid, k.weight) for k in kernels)
    missing = [str(k.numbers.id) for k in kernels if k.weight is None]
    notes = [
        f"weights come from {times.name}: the profiled kernels are {covered:.1%} of its GPU work's summed time",
        *([f"not in the timeline: launch {', '.join(missing)}"] if missing else []),
    ]
    return replace(analysis, kernels=tuple(kernels), notes=(*analysis.notes, *notes))
