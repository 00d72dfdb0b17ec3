"""Which kernels one call launched and how often the host waited: read from torch.profiler's Chrome trace, and judged.

The trace format is torch's public export, which has outlived every change of the profiler's Python objects.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glqprof.bench.device import Observed
from glqprof.bench.reasons import FALLBACK, LAUNCH_COUNT, OUTSIDE_CAPTURE, SIDE_STREAM, SYNC_COUNT, Findings

CALL_RANGE = "glqprof: call"
"""The annotation around the call under the profiler."""
AFTER_RANGE = "glqprof: after"
"""The annotation around the copy that is enqueued on the caller's stream after the call."""

_RUNTIME = {"cuda_runtime", "cuda_driver"}
# Copies that block by definition; ``cudaMemcpyAsync`` blocks only where a wait follows, which has a row of its own.
_BLOCKING = re.compile(r"Synchronize|^cudaMemcpy(2D|3D|ToSymbol|FromSymbol)?$|^cuMemcpy(DtoH|HtoD|DtoD)(_v2)?$")


def read_call(events: Iterable[Mapping[str, Any]], graph: bool = False) -> Observed:
    """Read what happened inside ``CALL_RANGE`` from the ``traceEvents`` of a Chrome trace.

    Kernels belong to the call whose launch lies in the range, whatever thread made it. A kernel is on an unjoined
    stream when it runs elsewhere than the copy of ``AFTER_RANGE`` and either starts before the work that was enqueued
    ahead of the call has ended or ends after that copy has started: then the caller's stream does not order it. A
    graph's branches have streams of their own and are joined by construction, so that ``graph`` skips this. Raises
    ValueError if the range is missing.
    """
    rows = [event for event in events if "ts" in event]
    call = _span(rows, CALL_RANGE)
    runtime = [event for event in rows if event.get("cat") in _RUNTIME and call[0] <= event["ts"] < call[1]]
    launched = {_correlation(event) for event in runtime}
    kernels = sorted(
        (event for event in rows if event.get("cat") == "kernel" and _correlation(event) in launched),
        key=lambda event: float(event["ts"]),
    )
    return Observed(
        kernels=tuple(str(event["name"]) for event in kernels),
        syncs=sum(1 for event in runtime if _BLOCKING.search(str(event["name"]))),
        side_stream=() if graph else _unjoined(rows, kernels, call[0]),
    )


def _span(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float]:
    for event in rows:
        if event.get("cat") == "user_annotation" and event["name"] == name:
            return float(event["ts"]), float(event["ts"]) + float(event["dur"])
    raise ValueError(f"the profiler recorded no range {name!r}")


def _correlation(event: Mapping[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _stream(event: Mapping[str, Any]) -> Any:
    return event.get("args", {}).get("stream")


def _unjoined(
    rows: Sequence[Mapping[str, Any]], kernels: Sequence[Mapping[str, Any]], call_start: float
) -> tuple[str, ...]:
    after = _span(rows, AFTER_RANGE)
    gpu = [event for event in rows if event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]
    launches = {_correlation(event): float(event["ts"]) for event in rows if event.get("cat") in _RUNTIME}
    marker = next((event for event in gpu if after[0] <= launches.get(_correlation(event), -1.0) < after[1]), None)
    if marker is None:
        raise ValueError("the profiler recorded no copy after the call")
    before = [
        float(event["ts"]) + float(event["dur"])
        for event in gpu
        if _stream(event) == _stream(marker) and launches.get(_correlation(event), call_start) < call_start
    ]
    ahead_end = max(before, default=float("-inf"))
    return tuple(
        str(event["name"])
        for event in kernels
        if _stream(event) != _stream(marker)
        and (float(event["ts"]) < ahead_end or float(event["ts"]) + float(event["dur"]) > float(marker["ts"]))
    )


def judge(
    observed: Observed,
    expected: Mapping[str, int],
    waits: int,
    findings: Findings,
    graph: bool = False,
) -> None:
    """Add a finding for every difference between what was observed and what the variant declares.

    ``expected`` maps a regular expression to a number of launches, a negative one meaning any (a kernel counts for the
    first that matches); ``waits`` is the number of host waits. For a graph replay, missing launches mean that work
    stayed outside.
    """
    patterns = {pattern: re.compile(pattern) for pattern in expected}
    counts: Counter[str] = Counter()
    strangers: Counter[str] = Counter()
    for name in observed.kernels:
        match = next((pattern for pattern, regex in patterns.items() if regex.search(name)), None)
        if match is None:
            strangers[name] += 1
        else:
            counts[match] += 1
    for name, count in strangers.items():
        findings.add(FALLBACK, f"{_short(name)} ran {count}×, and no declared kernel matches it")
    for pattern, count in expected.items():
        if count < 0 or counts[pattern] == count:
            continue
        detail = f"{pattern} ran {counts[pattern]}×, declared {count}×"
        if graph and counts[pattern] < count:
            findings.add(OUTSIDE_CAPTURE, f"in a graph replay {detail}")
        else:
            findings.add(LAUNCH_COUNT, f"in a graph replay {detail}" if graph else detail)
    if not graph and observed.syncs != waits:
        findings.add(SYNC_COUNT, f"the host waited {observed.syncs}×, declared {waits}×")
    for name in dict.fromkeys(observed.side_stream):
        findings.add(SIDE_STREAM, f"{_short(name)} is not ordered with the caller's stream")


def _short(name: str) -> str:
    return name if len(name) <= 80 else name[:77] + "..."
