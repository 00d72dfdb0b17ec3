"""What kind of call an API call is, by the name a user would look up."""

from __future__ import annotations

import re

import numpy as np

from glqprof.analysis.work import COPY, GpuWork
from glqprof.traces.schema.trace import Trace

Array = np.ndarray
SYNC, LAUNCH, MEMORY, OTHER = range(4)
STATE_OF_CALL = ("host-sync", "host-launch", "host-memory", "host-api")

_LAUNCH = re.compile(r"^(cu(da)?Launch|cu(da)?GraphLaunch|hip(Module|Ext|ExtModule|Graph)?Launch)")
_NOT_LAUNCH = re.compile(r"LaunchHostFunc")
_COPY = re.compile(r"^(cu(da)?|hip)Memcpy")
_ALLOCATION = re.compile(
    r"^(cu(da)?|hip)(Malloc|Free|HostAlloc|HostFree|HostMalloc|MemAlloc|MemFree|MemHostAlloc|MemCreate|MemRelease|MemMap"
    r"|MemUnmap|MemAddress|MemPool|HostRegister|HostUnregister|MemHostRegister|MemHostUnregister)"
)


def is_sync(name: str) -> bool:
    """A call named ``*Synchronize``: the host waits for the GPU. CUPTI's syncType is not used: its numbers changed."""
    return name.endswith("Synchronize")


def is_launch(name: str) -> bool:
    """A kernel or graph launch; a LIKE 'cudaLaunch%' would miss graphs and driver launches."""
    return bool(_LAUNCH.match(name)) and not _NOT_LAUNCH.search(name)


def is_copy(name: str) -> bool:
    """A copy call, blocking or not."""
    return bool(_COPY.match(name))


def is_allocation(name: str) -> bool:
    """Allocation, free, registration or virtual-memory mapping."""
    return bool(_ALLOCATION.match(name))


class ApiCalls:
    """Per API row: ``kind`` (SYNC, LAUNCH, MEMORY, OTHER), ``named_sync`` and ``blocking_copy`` masks.

    A blocking copy is a copy call without ``Async`` in its name, or an asynchronous one of pageable memory, which the
    driver stages while the caller waits. It counts as SYNC.
    """

    def __init__(self, trace: Trace, work: GpuWork) -> None:
        names = trace.api["name"].cat
        codes = names.codes.to_numpy()
        categories = [str(c) for c in names.categories]
        self.named_sync = _by_name(codes, [is_sync(c) for c in categories])
        self.launch = _by_name(codes, [is_launch(c) for c in categories])
        copy_call = _by_name(codes, [is_copy(c) for c in categories])
        self.blocking_copy = _by_name(codes, [is_copy(c) and "Async" not in c for c in categories])
        self.blocking_copy[_pageable_calls(trace, work)] = True
        self.blocking_copy &= copy_call
        memory = _by_name(codes, [is_copy(c) or is_allocation(c) for c in categories])
        self.kind = np.full(len(codes), OTHER, np.int8)
        self.kind[memory] = MEMORY
        self.kind[self.launch] = LAUNCH
        self.kind[self.named_sync | self.blocking_copy] = SYNC


def _by_name(codes: Array, flags: list[bool]) -> Array:
    return np.array(flags, bool)[codes] if flags else np.zeros(len(codes), bool)


def _pageable_calls(trace: Trace, work: GpuWork) -> Array:
    pageable = np.zeros(len(trace.copies), bool)
    for side in ("src_kind", "dst_kind"):
        column = trace.copies[side].cat
        wanted = np.array([str(c).lower() == "pageable" for c in column.categories], bool)
        if len(wanted):
            pageable |= wanted[column.codes.to_numpy()]
    copies = np.flatnonzero((work.kind == COPY) & (work.api_row >= 0))
    return work.api_row[copies[pageable[work.row[copies]]]]
