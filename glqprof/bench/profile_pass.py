"""Counting launches and host waits of one call, or of one graph replay, and holding them against the declaration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from glqprof.bench.calls import CallSet
from glqprof.bench.device import Call, Device, Observed
from glqprof.bench.launches import judge
from glqprof.bench.reasons import UNPROFILED, Findings
from glqprof.bench.subject import Judged, one_line


def count_launches(
    device: Device, judged: Judged, calls: CallSet, replay: Call | None, warnings: Findings
) -> tuple[int | None, int | None]:
    """Return (launches, host waits) of call 0, or of ``replay`` of every call; (None, None) if nothing counts them.

    What differs from the variant's declaration goes to ``judged.findings``.
    """
    variant = judged.subject.variant
    calls.refill(0)  # what the batches were made with, and what their host-side predictions are about
    indices = range(len(calls.outs)) if replay is not None else range(1)
    expected: Counter[str] = Counter()
    waits = 0
    for index in indices:
        workload, batch = calls.workloads[index], calls.batches[index]
        declared: Mapping[str, int] = variant.kernels(workload, batch)
        for pattern, count in declared.items():  # not update(): a declared 0 must stay in the list
            expected[pattern] += count  # negative ("any") stays negative over all calls
        waits += variant.syncs(workload, batch) + variant.blocking_copies(workload, batch)
    call = replay if replay is not None else lambda: judged.subject.runs[0](calls.batches[0], calls.outs[0])
    try:
        observed = _observe(device, judged, call, replay is not None)
    except (RuntimeError, ValueError, OSError) as error:
        warnings.add(UNPROFILED, f"{variant.name}: {one_line(error)}")
        return None, None
    if observed is None:
        warnings.add(UNPROFILED, f"{variant.name}: it keeps no launch log for --device {device.kind}")
        return None, None
    judge(observed, expected, waits, judged.findings, graph=replay is not None)
    return len(observed.kernels), observed.syncs


def _observe(device: Device, judged: Judged, call: Call, graph: bool) -> Observed | None:
    log = judged.subject.variant.launch_log
    if device.kind != "cpu" or log is None:
        return device.observe(call, graph)
    log.clear()
    call()
    return Observed(tuple(log.kernels), log.syncs + log.blocking_copies)
