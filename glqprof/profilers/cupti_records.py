"""CUPTI's activity records as rows of an nsys export.

Only the standard library is used: this runs inside the captured program's interpreter.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from typing import Any

from glqprof.profilers.nsys_schema import PUSH_POP, global_pid, global_tid

Row = dict[str, Any]
RUNTIME, DRIVER = 0, 1
THREAD_OBJECT = 2
"""CUPTI_ACTIVITY_OBJECT_THREAD."""


class Rows:
    """Collects rows by table.

    ``kinds``: CUPTI's enumeration of records. ``name_of(kind, cbid)`` names an API call, ``overhead_name(kind)`` what
    CUPTI itself spent time on.
    """

    def __init__(
        self, pid: int, kinds: Any, name_of: Callable[[int, int], str], overhead_name: Callable[[int], str]
    ) -> None:
        self.tables: dict[str, list[Row]] = {}
        self._pid = pid
        self._name_of, self._overhead_name = name_of, overhead_name
        self._names: dict[tuple[int, int], str] = {}
        self._take: dict[int, Callable[[Any], None]] = {
            int(kinds.CONCURRENT_KERNEL): self._kernel,
            int(kinds.MEMCPY): self._copy,
            int(kinds.MEMCPY2): self._copy,
            int(kinds.MEMSET): self._memset,
            int(kinds.SYNCHRONIZATION): self._sync,
            int(kinds.RUNTIME): lambda r: self._call(r, RUNTIME),
            int(kinds.DRIVER): lambda r: self._call(r, DRIVER),
            int(kinds.OVERHEAD): self._overhead,
            int(kinds.DEVICE): self._device,
        }

    def add(self, records: Iterable[Any]) -> None:
        """Take the records of one buffer; their memory is CUPTI's and does not outlive the call."""
        for record in records:
            take = self._take.get(int(record.kind))
            if take is not None:
                take(record)

    def _append(self, table: str, **row: Any) -> None:
        self.tables.setdefault(table, []).append(row)

    def _activity(self, record: Any) -> Row:
        return {
            "start": record.start,
            "end": record.end,
            "deviceId": getattr(record, "device_id", 0),
            "contextId": record.context_id,
            "streamId": record.stream_id,
            "correlationId": record.correlation_id,
            "globalPid": global_pid(self._pid),
        }

    def _kernel(self, r: Any) -> None:
        name = str(r.name)
        self._append(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            **self._activity(r),
            demangledName=demangled(name),
            shortName=name,
            launchType=r.launch_type,
            registersPerThread=r.registers_per_thread,
            gridX=r.grid_x,
            gridY=r.grid_y,
            gridZ=r.grid_z,
            blockX=r.block_x,
            blockY=r.block_y,
            blockZ=r.block_z,
            staticSharedMemory=r.static_shared_memory,
            dynamicSharedMemory=r.dynamic_shared_memory,
            graphNodeId=r.graph_node_id or None,
        )

    def _copy(self, r: Any) -> None:
        self._append(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            **self._activity(r),
            bytes=r.bytes,
            copyKind=r.copy_kind,
            srcKind=r.src_kind,
            dstKind=r.dst_kind,
            graphNodeId=r.graph_node_id or None,
        )

    def _memset(self, r: Any) -> None:
        self._append(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            **self._activity(r),
            value=r.value,
            bytes=r.bytes,
            graphNodeId=r.graph_node_id or None,
        )

    def _sync(self, r: Any) -> None:
        row = self._activity(r) | {"syncType": r.type, "eventId": r.cuda_event_id}
        self._append("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **row)

    def _call(self, r: Any, event_class: int) -> None:
        key = (event_class, r.cbid)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self._name_of(int(r.kind), r.cbid)
        self._append(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=r.start,
            end=r.end,
            eventClass=event_class,
            globalTid=global_tid(r.process_id, r.thread_id),
            correlationId=r.correlation_id,
            nameId=name,
            returnValue=r.return_value,
        )

    def _overhead(self, r: Any) -> None:
        self._append(
            "CUPTI_ACTIVITY_KIND_OVERHEAD",
            start=r.start,
            end=r.end,
            globalTid=global_tid(self._pid, _thread_of(r)),
            nameId=self._overhead_name(int(r.overhead_kind)),
        )

    def _device(self, r: Any) -> None:
        known = {row["id"] for row in self.tables.get("TARGET_INFO_GPU", [])}
        if r.id in known:
            return
        self._append(
            "TARGET_INFO_GPU",
            vmId=0,
            id=r.id,
            name=str(r.name),
            l2CacheSize=r.l2cache_size,
            totalMemory=r.global_memory_size,
            smCount=r.num_multiprocessors,
            computeMajor=r.compute_capability_major,
            computeMinor=r.compute_capability_minor,
        )

    def range(self, start: int, end: int | None, name: str, tid: int) -> None:
        """One annotated range of a thread; ``end`` None: it was still open."""
        thread = global_tid(self._pid, tid)
        self._append("NVTX_EVENTS", start=start, end=end, eventType=PUSH_POP, text=name, globalTid=thread)

    def graph_node(self, at: int, node: int, original: int | None, tid: int) -> None:
        """A node of a CUDA graph was made, or cloned from ``original`` when the graph was instantiated."""
        self._append(
            "CUDA_GRAPH_NODE_EVENTS",
            start=at,
            end=at,
            eventClass=77,
            globalTid=global_tid(self._pid, tid),
            nameId="cuGraphNode",
            graphNodeId=node,
            originalGraphNodeId=original,
        )

    def diagnostic(self, text: str, severity: int = 2) -> None:
        """A sentence of the tracer; severity 1 to 3: info, warning, error."""
        self._append("DIAGNOSTIC_EVENT", timestamp=0, severity=severity, text=text)


def _thread_of(record: Any) -> int:
    """The thread that an overhead held up; 0 where it was none or is not told."""
    if int(record.object_kind) != THREAD_OBJECT:
        return 0
    return int(getattr(getattr(record.object_id, "pt", None), "thread_id", 0))


def without_nested_calls(tables: dict[str, list[Row]]) -> None:
    """Drop driver calls made inside a runtime call, as nsys does, and let their GPU work point to that runtime call.

    CUPTI reports both layers of one launch; a thread is then in two calls at once, of which one is the other's body.
    """
    calls = tables.get("CUPTI_ACTIVITY_KIND_RUNTIME", [])
    outer: dict[int, list[tuple[int, int, int]]] = {}
    for call in calls:
        if call["eventClass"] == RUNTIME:
            outer.setdefault(call["globalTid"], []).append((call["start"], call["end"], call["correlationId"]))
    starts = {}
    for thread, spans in outer.items():
        spans.sort()
        starts[thread] = [start for start, _, _ in spans]
    moved: dict[int, int] = {}
    kept: list[Row] = []
    for call in calls:
        thread = call["globalTid"]
        if call["eventClass"] == DRIVER and thread in outer:
            at = bisect.bisect_right(starts[thread], call["start"]) - 1
            if at >= 0 and outer[thread][at][1] >= call["end"]:
                moved[call["correlationId"]] = outer[thread][at][2]
                continue
        kept.append(call)
    if not calls:
        return
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = kept
    present = {call["correlationId"] for call in kept}
    for table in ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION"):
        for row in tables.get(f"CUPTI_ACTIVITY_KIND_{table}", []):
            if row["correlationId"] not in present:
                row["correlationId"] = moved.get(row["correlationId"], row["correlationId"])


def demangled(name: str) -> str:
    """The C++ name, by the C++ library that CUDA programs have loaded anyway; the name itself where that fails."""
    known = _DEMANGLED.get(name)
    if known is None:
        known = _DEMANGLED[name] = _demangle(name) if name.startswith("_Z") else name
    return known


_DEMANGLED: dict[str, str] = {}


def _demangle(name: str) -> str:
    import ctypes

    try:
        library, libc = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None)
    except OSError:
        return name
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int(0)
    found = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not found or status.value != 0:
        return name
    text = ctypes.string_at(found).decode("utf-8", "replace")
    libc.free(ctypes.c_void_p(found))
    return text
