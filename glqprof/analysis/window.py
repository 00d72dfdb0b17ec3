"""The span of time that is analysed, and the decode steps in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from glqprof.analysis.ranges import glob_matcher
from glqprof.analysis.work import GpuWork
from glqprof.errors import InputError
from glqprof.traces.schema.trace import Trace

Array = np.ndarray
STEP_GLOB = "decode_token*"
_SECONDS = re.compile(r"^(-?\d+(?:\.\d*)?)?:(-?\d+(?:\.\d*)?)?$")


@dataclass(frozen=True)
class Window:
    """[start_ns, end_ns) of the trace's clock, how it was chosen, and its steps.

    ``steps``: one row per decode step in the window (name, start_ns, end_ns), in order; a step is one range matching
    ``decode_token*`` (or the ``nvtx:`` selector). The same range on several processes or threads is one step.
    ``note``: what a reader must know about the choice, or "".
    """

    selector: str
    start_ns: int
    end_ns: int
    steps: pd.DataFrame
    step_matches: Callable[[str], bool]
    note: str = ""

    @property
    def wall_ns(self) -> int:
        """Length in nanoseconds."""
        return self.end_ns - self.start_ns


def resolve_window(trace: Trace, work: GpuWork, selector: str | None) -> Window:
    """Choose the window: ``nvtx:GLOB``, ``all``, ``START:END`` (seconds from the first event), or the default.

    The default runs from the first start to the last end of the ranges matching ``decode_token*``; where there is
    none, over all GPU work, with a note. START:END is cut to the capture, with a note. Raises InputError for a selector
    that is malformed or matches nothing.
    """
    steps = glob_matcher(STEP_GLOB)
    if selector is None:
        found = _matching(trace, steps)
        if len(found):
            return _over_ranges(STEP_GLOB, found, steps)
        return _over_gpu_work(work, steps)
    if selector == "all":
        start, end = trace.span_ns()
        return _with_steps(trace, Window("all", start, end, _no_steps(), steps))
    if selector.startswith("nvtx:"):
        pattern = selector.removeprefix("nvtx:")
        matches = glob_matcher(pattern)
        found = _matching(trace, matches)
        if not len(found):
            raise InputError(f"--window {selector}", f"matches no range; {_existing(trace)}")
        return _over_ranges(selector, found, matches)
    parsed = _SECONDS.match(selector)
    if not parsed:
        raise InputError(f"--window {selector}", "is none of nvtx:GLOB, all, START:END (seconds from the first event)")
    first, last = trace.span_ns()
    start = first + round(float(parsed[1] or 0) * 1e9)
    end = first + round(float(parsed[2]) * 1e9) if parsed[2] else last
    if end <= start:
        raise InputError(f"--window {selector}", "ends before it starts; give START:END in seconds")
    if start >= last or end <= first:
        span = (last - first) / 1e9
        raise InputError(f"--window {selector}", f"lies outside the capture, which holds 0:{span:.3f} seconds")
    # What lies outside the capture is not known to be idle: the window is cut to what was recorded.
    inside = max(start, first), min(end, last)
    note = (
        ""
        if inside == (start, end)
        else f"--window is cut to the capture, which holds 0:{(last - first) / 1e9:.9f} seconds"
    )
    return _with_steps(trace, Window(selector, *inside, _no_steps(), steps, note))


def _matching(trace: Trace, matches: Callable[[str], bool]) -> pd.DataFrame:
    names = trace.ranges["name"].cat
    flags = np.array([matches(str(c)) for c in names.categories], bool)
    return trace.ranges[flags[names.codes.to_numpy()]] if flags.any() else trace.ranges.iloc[:0]


def _existing(trace: Trace, limit: int = 8) -> str:
    names = trace.ranges["name"].value_counts()
    names = names[names > 0]
    if not len(names):
        return "the capture holds no NVTX range at all (was nvtx traced?); use all or START:END"
    kinds: dict[str, int] = {}
    for name, count in names.items():
        kind = re.sub(r"\d+", "*", str(name))  # decode_token_0 … decode_token_7 read best as one entry
        kinds[kind] = kinds.get(kind, 0) + int(count)
    shown = ", ".join(f"{kind} ({count})" for kind, count in list(kinds.items())[:limit])
    more = f" and {len(kinds) - limit} more kinds" if len(kinds) > limit else ""
    return f"there are {shown}{more}"


def _over_ranges(selector: str, found: pd.DataFrame, matches: Callable[[str], bool]) -> Window:
    open_steps = int(found["is_open"].sum())
    note = f"{open_steps} of the window's ranges never closed; they end with the capture" if open_steps else ""
    return Window(
        selector, int(found["start_ns"].min()), int(found["end_ns"].max()), _merge_steps(found), matches, note
    )


def _over_gpu_work(work: GpuWork, steps: Callable[[str], bool]) -> Window:
    if not len(work):
        raise InputError("window", "the capture holds no GPU work to span; see its answers")
    note = f"no range matches {STEP_GLOB}: the window spans all GPU work, and nothing is counted per token"
    return Window("gpu-work", int(work.start.min()), int(work.end.max()), _no_steps(), steps, note)


def _with_steps(trace: Trace, window: Window) -> Window:
    found = _matching(trace, window.step_matches)
    inside = (found["start_ns"] >= window.start_ns) & (found["start_ns"] < window.end_ns)
    steps = _merge_steps(found[inside])
    return Window(window.selector, window.start_ns, window.end_ns, steps, window.step_matches, window.note)


def _no_steps() -> pd.DataFrame:
    return pd.DataFrame({"name": [], "start_ns": np.zeros(0, np.int64), "end_ns": np.zeros(0, np.int64)})


def _merge_steps(found: pd.DataFrame) -> pd.DataFrame:
    """One row per step: ranges of one name that overlap in time (other processes or threads, or nested) are one.

    Each process is counted by itself and the one with the most steps is kept, so that tensor-parallel processes whose
    ranges of one token happen not to overlap do not double it.
    """
    best: list[tuple[str, int, int]] = []
    for _, of_process in found.groupby("process", sort=True):
        steps: list[list[int | str]] = []
        last_of_name: dict[str, int] = {}
        ordered = of_process.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")
        rows = zip(
            ordered["name"].astype(object), ordered["start_ns"].tolist(), ordered["end_ns"].tolist(), strict=True
        )
        for name, start, end in rows:
            at = last_of_name.get(name)
            if at is not None and start < steps[at][2]:
                steps[at][2] = max(int(steps[at][2]), end)
                continue
            last_of_name[name] = len(steps)
            steps.append([name, start, end])
        if len(steps) > len(best):
            best = [(str(n), int(s), int(e)) for n, s, e in steps]
    best.sort(key=lambda step: step[1])
    return pd.DataFrame(
        {
            "name": [s[0] for s in best],
            "start_ns": np.array([s[1] for s in best], np.int64),
            "end_ns": np.array([s[2] for s in best], np.int64),
        }
    )
