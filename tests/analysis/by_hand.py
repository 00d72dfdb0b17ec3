"""The account's definition, followed instant by instant: slow, obvious, and independent of the implementation.

Nothing here is shared with the package: states, precedence and ties are written again from the design's words.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True)
class Activity:
    device: int
    start: int
    end: int
    stream: int
    process: int
    correlation: int
    kind: str = "kernel"  # kernel, copy or memset
    pageable: bool = False


@dataclass(frozen=True)
class Call:
    process: int
    thread: int
    start: int
    end: int
    name: str
    correlation: int


@dataclass(frozen=True)
class Overhead:
    process: int
    thread: int
    start: int
    end: int


@dataclass
class Recording:
    activities: list[Activity]
    calls: list[Call]
    overheads: list[Overhead] = field(default_factory=list)
    os_calls: list[Overhead] = field(default_factory=list)


def submitting_call(recording: Recording, activity: Activity) -> Call | None:
    """The call of the same process with the same correlation id; the outer one where there are two."""
    found = [c for c in recording.calls if (c.process, c.correlation) == (activity.process, activity.correlation)]
    return found[0] if found and activity.correlation >= 0 else None


def state_of_call(recording: Recording, call: Call) -> str:
    copies = [a for a in recording.activities if a.kind == "copy" and submitting_call(recording, a) is call]
    if call.name.endswith("Synchronize"):
        return "host-sync"
    if call.name == "cudaMemcpy" or (call.name == "cudaMemcpyAsync" and any(a.pageable for a in copies)):
        return "host-sync"
    if call.name in ("cudaLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch"):
        return "host-launch"
    if call.name in ("cudaMalloc", "cudaFree", "cudaMemcpyAsync"):
        return "host-memory"
    return "host-api"


def thread_state(recording: Recording, process: int, thread: int, instant: int) -> str:
    """What the thread is in: the innermost (last started) CUDA call or overhead row, else an OS call, else code."""
    open_spans = []
    for call in recording.calls:
        if (call.process, call.thread) == (process, thread) and call.start <= instant < call.end:
            open_spans.append((call.start, -call.end, state_of_call(recording, call)))
    for row in recording.overheads:
        if (row.process, row.thread) == (process, thread) and row.start <= instant < row.end:
            open_spans.append((row.start, -row.end, "profiler"))
    if open_spans:
        return max(open_spans)[2]
    for row in recording.os_calls:
        if (row.process, row.thread) == (process, thread) and row.start <= instant < row.end:
            return "host-wait"
    return "host-code"


def account(recording: Recording, device: int, start: int, end: int) -> tuple[dict[str, Fraction], dict[str, int]]:
    """(busy time by bucket, idle time by state) of one device over [start, end), one nanosecond at a time."""
    mine = sorted(
        (a for a in recording.activities if a.device == device),
        key=lambda a: (a.start, a.stream, a.correlation, a.process),
    )
    busy: dict[str, Fraction] = defaultdict(Fraction)
    idle: dict[str, int] = defaultdict(int)
    for instant in range(start, end):
        running = [a for a in mine if a.start <= instant < a.end]
        if running:
            for a in running:
                busy["copy" if a.kind == "copy" else "memset" if a.kind == "memset" else "other"] += Fraction(
                    1, len(running)
                )
            continue
        following = [a for a in mine if a.start > instant]
        if following:
            blamed = following[0]
        elif mine:
            # After the last activity: the one that ended last (of those, the one that started last) was the last.
            blamed = max(enumerate(mine), key=lambda pair: (pair[1].end, pair[0]))[1]
        else:
            idle["host-unknown"] += 1
            continue
        call = submitting_call(recording, blamed)
        if call is None:
            idle["host-unknown"] += 1
        elif following and instant >= call.end:
            idle["launch-latency"] += 1
        else:
            idle[thread_state(recording, call.process, call.thread, instant)] += 1
    return dict(busy), dict(idle)
