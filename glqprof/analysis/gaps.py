"""The largest idle gaps of a GPU: what ran before and after, and what the host did between."""

from __future__ import annotations

import numpy as np
import pandas as pd

from glqprof.analysis.account import LAUNCH_LATENCY, Account
from glqprof.analysis.prepared import Prepared

COLUMNS = ["device", "start_ms", "idle_us", "before", "after", "host", "host_call", "range"]


def largest_gaps(prepared: Prepared, account: Account, count: int = 10) -> pd.DataFrame:
    """The ``count`` longest idle spans of one device, longest first.

    Columns: device, start_ms (from the window's start), idle_us, before, after (names of the work around it, "" at the
    window's edge), host (the state that held most of it), host_call (the API call of the submitting thread that took
    most of it, "" for none), range (NVTX path of the next launch).
    """
    gaps = account.gaps
    length = gaps.end - gaps.start
    longest = np.argsort(-length, kind="stable")[:count]
    offset = prepared.device_slice(account.device).start
    rows = []
    for i in longest.tolist():
        before, after = int(gaps.before[i]), int(gaps.after[i])
        blamed = after if after >= 0 else before
        api_row = int(prepared.work.api_row[offset + blamed]) if blamed >= 0 else -1
        state, call = _host_between(prepared, api_row, int(gaps.start[i]), int(gaps.end[i]), is_last=after < 0)
        place = int(prepared.attribution.range_index[offset + after]) if after >= 0 else -1
        rows.append(
            (
                account.device,
                (int(gaps.start[i]) - prepared.window.start_ns) / 1e6,
                int(length[i]) / 1e3,
                prepared.name_of(offset + before) if before >= 0 else "",
                prepared.name_of(offset + after) if after >= 0 else "",
                state,
                call,
                prepared.forest.path(place),
            )
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def _host_between(prepared: Prepared, api_row: int, start: int, end: int, *, is_last: bool) -> tuple[str, str]:
    if api_row < 0:
        return "host-unknown", ""
    api = prepared.trace.api
    process, thread = int(api["process"].iloc[api_row]), int(api["thread"].iloc[api_row])
    returned = end if is_last else min(max(int(api["end_ns"].iloc[api_row]), start), end)
    timeline = prepared.timeline_of(process, thread)
    spent = timeline.spent(np.array([start]), np.array([returned]))
    spent[LAUNCH_LATENCY] = end - returned
    state = max(spent, key=lambda s: spent[s])
    starts, ends = api["start_ns"].to_numpy(), api["end_ns"].to_numpy()
    overlap = np.minimum(ends, returned) - np.maximum(starts, start)
    mine = (api["process"].to_numpy() == process) & (api["thread"].to_numpy() == thread) & (overlap > 0)
    rows = np.flatnonzero(mine)
    call = str(api["name"].iloc[int(rows[np.argmax(overlap[rows])])]) if len(rows) else ""
    return state, call
