"""What a capture can answer: yes, partly or no, why, and what would make it yes. Said before any number."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from glqprof.analysis.prepared import Prepared
from glqprof.analysis.work import GRAPH, KERNEL
from glqprof.errors import InputError
from glqprof.traces.schema.manifest import Untraced
from glqprof.traces.schema.trace import Trace

YES, PARTLY, NO = "yes", "partly", "no"
NODE_TRACE = "capture with --cuda-graph-trace=node"
# Losing this share of records or joins does not change an answer.
NEGLIGIBLE = 0.01
# How many later activities of its own stream a record must run past before its end is disbelieved.
RUNAWAY_SPAN = 16
_DROPPED = re.compile(
    r"(?<!\b0 )(?:\bevents? (?:were |was |have been )?(?:dropped|lost)|\bdropped (?!0\b)\d*)", re.IGNORECASE
)
# cudaErrorNotReady answers a query, the peer-access ones repeat a setting: programs expect them.
_HARMLESS = {600, 704, 705}
# The context is lost: nothing that the GPU did afterwards can be right.
_FATAL = {700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999}


@dataclass(frozen=True)
class Answer:
    """``answer`` is yes, partly or no; ``why`` the reason; ``fix`` what would make it yes ("" for yes)."""

    answer: str
    why: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.why}; {self.fix}" if self.fix else self.why


def refuse_unusable(trace: Trace) -> None:
    """Raise InputError for a capture without any GPU work, saying why there is none as far as its records tell."""
    timed = ((trace.graphs["start_ns"] != 0) | (trace.graphs["end_ns"] != 0)).any()
    if len(trace.kernels) or len(trace.copies) or len(trace.memsets) or timed:
        return
    if len(trace.graphs):
        raise InputError(
            trace.info.name,
            f"holds {len(trace.graphs)} graph launches, none of them timed, and no other work; {NODE_TRACE}",
        )
    text = " ".join(trace.diagnostics["text"].astype(str)).lower()
    if "permission" in text or "nvgpuctrperm" in text or "insufficient privilege" in text:
        why = "the profiler lacked permission; run as root or allow it (NVreg_RestrictProfilingToAdminUsers=0)"
    elif "driver version" in text or "not supported" in text:
        why = "the profiler does not support this driver; use an nsys at least as new as the driver"
    elif len(trace.api) == 0:
        why = (
            "no CUDA call was recorded either: trace=cuda was off, or the work ran in a process that nsys did not "
            "follow (start workers by spawn; vLLM: VLLM_WORKER_MULTIPROC_METHOD=spawn)"
        )
    else:
        why = (
            f"{len(trace.api):,} CUDA calls but no activity: driver too new or too old for this profiler, missing "
            "permission, or the profiler stopped before its buffers were flushed; capture again"
        )
    raise InputError(trace.info.name, f"holds no GPU work: {why}")


def answer_all(prepared: Prepared, untraced: Untraced | None) -> dict[str, Answer]:
    """All answers by question: gpu_time, gpu_idle, host_blame, layers, wall_time, complete."""
    trace = prepared.trace
    if trace.info.vendor != "nvidia":
        why = "AMD trace: only its kernels and copies are read"
        no = Answer(NO, why, "capture on an NVIDIA GPU")
        return {"gpu_time": Answer(YES, why)} | dict.fromkeys(
            ("gpu_idle", "host_blame", "layers", "wall_time", "complete"), no
        )
    dropped = _dropped(trace)
    hidden = _hidden_graph_launches(prepared)
    untimed = int(((trace.graphs["start_ns"] == 0) & (trace.graphs["end_ns"] == 0)).sum())
    opaque = int((prepared.work.kind == GRAPH).sum())
    joined = _share(prepared.work.api_row[prepared.starts_inside] >= 0)
    runaway = runaway_work(prepared)
    return {
        "gpu_time": _gpu_time(prepared, dropped, hidden, untimed, opaque),
        "gpu_idle": _gpu_idle(dropped, hidden, untimed, opaque, len(runaway)),
        "host_blame": _host_blame(trace, joined),
        "layers": _layers(prepared, opaque),
        "wall_time": _wall_time(prepared, untraced),
        "complete": _complete(prepared, dropped, joined),
    }


def _gpu_time(prepared: Prepared, dropped: str, hidden: int, untimed: int, opaque: int) -> Answer:
    if dropped:
        return Answer(PARTLY, f"records were lost ({dropped})", "capture a shorter window")
    if hidden or untimed:
        return Answer(PARTLY, f"{hidden + untimed} graph launches have no timed record", NODE_TRACE)
    if opaque:
        ran = _share((prepared.work.kind == GRAPH)[prepared.starts_inside])
        return Answer(PARTLY, f"{opaque} graph launches are opaque ({ran:.0%} of activities): row graph", NODE_TRACE)
    kernels = int((prepared.work.kind == KERNEL).sum())
    return Answer(YES, f"{kernels:,} kernels recorded, none reported lost")


def _gpu_idle(dropped: str, hidden: int, untimed: int, opaque: int, runaway: int) -> Answer:
    if dropped:
        return Answer(NO, f"records were lost ({dropped}): idle time may be work", "capture a shorter window")
    if hidden or untimed:
        return Answer(NO, f"{hidden + untimed} graph launches ran untimed: idle time may be work", NODE_TRACE)
    if opaque:
        return Answer(
            PARTLY, f"{opaque} graph launches are timed as a whole; idle time inside them shows as busy", NODE_TRACE
        )
    if runaway:
        why = f"{runaway} record spans {RUNAWAY_SPAN} or more later ones of its own stream: its end cannot be right"
        return Answer(PARTLY, why, "capture again, or with another tool")
    return Answer(YES, "every activity is timed")


def _host_blame(trace: Trace, joined: float) -> Answer:
    if len(trace.api) == 0:
        return Answer(NO, "no API call was recorded", "trace CUDA API calls (nsys --trace=cuda)")
    text = f"{joined:.1%} of GPU work has its API call"
    if joined >= 1 - NEGLIGIBLE:
        return Answer(YES, text)
    fix = "capture launches and work in one window (capture range by cudaProfilerApi)"
    return Answer(PARTLY if joined > 0 else NO, text, fix)


def _layers(prepared: Prepared, opaque: int) -> Answer:
    fix = "mark layers with glqprof's naming, NVTX ranges layer_NN_KIND"
    if not len(prepared.trace.ranges):
        return Answer(NO, "no NVTX range was recorded", "trace NVTX (nsys --trace=cuda,nvtx) and " + fix)
    inside = prepared.attribution.layer[prepared.starts_inside]
    share = _share(inside >= 0)
    if share == 0:
        return Answer(NO, f"{len(prepared.trace.ranges):,} NVTX ranges, but no work was launched in a layer_*", fix)
    text = f"{share:.1%} of GPU work was launched inside a layer_* range"
    if opaque:
        return Answer(PARTLY, f"{text}, and {opaque} graph launches are opaque", NODE_TRACE)
    from_graph = prepared.work.kind == KERNEL
    graph_ids = prepared.trace.kernels["graph_node_id"].to_numpy()
    lost = graph_ids[prepared.work.row[from_graph]] >= 0
    lost &= prepared.attribution.layer[from_graph] < 0
    if lost.any():
        return Answer(
            PARTLY, f"{text}; {int(lost.sum()):,} graph kernels lead to no range", "capture the graph's creation too"
        )
    return Answer(YES, text)


def _wall_time(prepared: Prepared, untraced: Untraced | None) -> Answer:
    if untraced is not None:
        return Answer(
            YES, f"untraced run in the manifest: {untraced.ms_per_token:.2f} ms a token ({untraced.statistic})"
        )
    fix = "add an untraced run (glqprof capture makes one)"
    if not len(prepared.window.steps):
        return Answer(PARTLY, "traced span only, no decode_token ranges, and tracing inflates", fix)
    return Answer(PARTLY, "traced only, and tracing inflates host time", fix)


def _complete(prepared: Prepared, dropped: str, joined: float) -> Answer:
    trace = prepared.trace
    codes = trace.api["return_value"].to_numpy()
    failed = codes[(codes != 0) & ~np.isin(codes, list(_HARMLESS))]
    fatal = failed[np.isin(failed, list(_FATAL))]
    if len(fatal):
        return Answer(NO, f"the program failed: {len(fatal)} calls returned CUDA error {int(fatal[0])}", "fix it first")
    if dropped:
        return Answer(NO, f"records were lost ({dropped})", "capture a shorter window")
    if len(trace.api) and joined < 1 - NEGLIGIBLE:
        why = f"the window was cut: {1 - joined:.0%} of GPU work has no API call"
        return Answer(PARTLY, why, "start and stop the capture where the GPU is idle")
    if len(failed):
        values = ", ".join(str(v) for v in np.unique(failed)[:4])
        return Answer(PARTLY, f"{len(failed)} calls returned an error ({values})", "check that they are meant")
    open_ranges = int(trace.ranges["is_open"].sum())
    if open_ranges:
        return Answer(PARTLY, f"{open_ranges} ranges never closed", "stop the capture after they end")
    return Answer(YES, "no lost record, no API error, no cut range")


def runaway_work(prepared: Prepared) -> np.ndarray:
    """Indices of activities that start in the window and run past the start of many later ones of their own stream.

    A stream runs its work in order; neighbours overlap by microseconds (programmatic launches), not by many. Seen in a
    CUPTI record of a graph's copy: 26 ms for 16 KB, over every later replay.
    """
    work = prepared.work
    found = []
    for device in prepared.devices:
        rows = prepared.device_slice(device)
        start, end, stream = work.start[rows], work.end[rows], work.stream[rows]
        streams = [None] if len(stream) and (stream == stream[0]).all() else np.unique(stream).tolist()
        for number in streams:
            mine = np.arange(len(start)) if number is None else np.flatnonzero(stream == number)
            s, e = start[mine], end[mine]
            found.append(mine[:-RUNAWAY_SPAN][e[:-RUNAWAY_SPAN] > s[RUNAWAY_SPAN:]] + rows.start)
    indices = np.concatenate(found) if found else np.zeros(0, np.int64)
    return indices[prepared.starts_inside[indices]]


def _dropped(trace: Trace) -> str:
    for text in trace.diagnostics["text"].astype(str):
        if _DROPPED.search(text):
            return text[:80]
    return ""


def _hidden_graph_launches(prepared: Prepared) -> int:
    """Graph launches in the window that left no activity at all: their work ran unseen."""
    api, window = prepared.trace.api, prepared.window
    names = api["name"].cat
    is_graph = np.array(["GraphLaunch" in str(c) for c in names.categories], bool)
    if not is_graph.any():
        return 0
    start = api["start_ns"].to_numpy()
    launched = is_graph[names.codes.to_numpy()] & (start >= window.start_ns) & (start < window.end_ns)
    launched &= api["return_value"].to_numpy() == 0
    seen = np.zeros(len(api), bool)
    seen[prepared.work.api_row[prepared.work.api_row >= 0]] = True
    return int((launched & ~seen).sum())


def _share(mask: np.ndarray) -> float:
    return float(mask.mean()) if len(mask) else 0.0
