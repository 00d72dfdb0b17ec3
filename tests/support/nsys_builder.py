"""Small nsys SQLite exports in the shapes that the exporter has had, from schema 2.7.0 (2021.5) to 3.25.0 (2026.2).

Written from what is known of the format (docs/formats.md), not from the reader: a table appears only when it has a
row, columns and tables come and go with the schema version, and a value whose column a version lacks is not written.
Times are nanoseconds. Every method adds one record; `write` makes the file.
"""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PID, TID = 1000, 1001
VM = 1 << 48  # the upper bits of a serialised global id: the machine
# One schema of every kind that differs from its neighbours in a table or a column that a reader needs.
SHAPES = ("2.7.0", "2.8.1", "3.1.2", "3.4.0", "3.11.0", "3.11.1", "3.20.3", "3.24.0", "3.25.0")
NEWEST = SHAPES[-1]

PUSH_POP, START_END, MARK, CATEGORY, DOMAIN = 59, 60, 34, 33, 75
H2D, D2H, D2D, P2P = 1, 2, 8, 10
# Numbers of the memory kinds: CUPTI's own before there were ENUM tables, the table's after.
CUPTI_MEMORY = {"Pageable": 1, "Pinned": 2, "Device": 3, "Array": 4, "Managed": 5}
ENUM_MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2, "Array": 3, "Managed": 4}
COPY_LABELS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
}

ALWAYS = (0,)
# table -> columns: name, SQL type, first version. "?" columns are nullable and left NULL unless given.
ACTIVITY = [
    ("start", "INTEGER NOT NULL", ALWAYS),
    ("end", "INTEGER NOT NULL", ALWAYS),
    ("deviceId", "INTEGER NOT NULL", ALWAYS),
    ("contextId", "INTEGER NOT NULL", ALWAYS),
    ("greenContextId", "INTEGER", (3, 11, 1)),
    ("streamId", "INTEGER NOT NULL", ALWAYS),
    ("correlationId", "INTEGER", ALWAYS),
    ("globalPid", "INTEGER", (2, 8)),
]
CALL = [
    ("start", "INTEGER NOT NULL", ALWAYS),
    ("end", "INTEGER NOT NULL", ALWAYS),
    ("eventClass", "INTEGER NOT NULL", ALWAYS),
    ("globalTid", "INTEGER", ALWAYS),
    ("correlationId", "INTEGER", ALWAYS),
    ("nameId", "INTEGER NOT NULL", ALWAYS),
    ("returnValue", "INTEGER NOT NULL", ALWAYS),
]
ENUM = [("id", "INTEGER NOT NULL PRIMARY KEY", ALWAYS), ("name", "TEXT", ALWAYS), ("label", "TEXT", ALWAYS)]
PAIR = [("name", "TEXT NOT NULL", ALWAYS), ("value", "TEXT", ALWAYS)]
TABLES: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    "StringIds": [("id", "INTEGER NOT NULL PRIMARY KEY", ALWAYS), ("value", "TEXT NOT NULL", ALWAYS)],
    "META_DATA_EXPORT": PAIR,
    "EXPORT_META_DATA": PAIR,
    "TARGET_INFO_SYSTEM_ENV": PAIR,
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        *ACTIVITY,
        ("demangledName", "INTEGER NOT NULL", ALWAYS),
        ("shortName", "INTEGER NOT NULL", ALWAYS),
        ("mangledName", "INTEGER", (3, 0)),
        ("launchType", "INTEGER", (3, 0)),
        ("registersPerThread", "INTEGER NOT NULL", ALWAYS),
        *((f"{what}{axis}", "INTEGER NOT NULL", ALWAYS) for what in ("grid", "block") for axis in "XYZ"),
        ("staticSharedMemory", "INTEGER NOT NULL", ALWAYS),
        ("dynamicSharedMemory", "INTEGER NOT NULL", ALWAYS),
        ("graphNodeId", "INTEGER", (2, 8)),
        ("graphId", "INTEGER", (3, 24)),
        *((f"cluster{axis}", "INTEGER", (3, 24)) for axis in "XYZ"),
    ],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [*CALL, ("callchainId", "INTEGER", (2, 8))],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [
        *ACTIVITY,
        ("bytes", "INTEGER NOT NULL", ALWAYS),
        ("copyKind", "INTEGER NOT NULL", ALWAYS),
        ("srcKind", "INTEGER", ALWAYS),
        ("dstKind", "INTEGER", ALWAYS),
        ("graphNodeId", "INTEGER", (2, 8)),
    ],
    "CUPTI_ACTIVITY_KIND_MEMSET": [
        *ACTIVITY,
        ("value", "INTEGER NOT NULL", ALWAYS),
        ("bytes", "INTEGER NOT NULL", ALWAYS),
        ("graphNodeId", "INTEGER", (2, 8)),
    ],
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
        *ACTIVITY,
        ("syncType", "INTEGER NOT NULL", ALWAYS),
        ("eventId", "INTEGER NOT NULL", ALWAYS),
    ],
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [
        *ACTIVITY,
        ("graphId", "INTEGER NOT NULL", ALWAYS),
        ("graphExecId", "INTEGER NOT NULL", ALWAYS),
    ],
    "CUPTI_ACTIVITY_KIND_OVERHEAD": [*CALL[:-2], ("nameId", "INTEGER", ALWAYS), ("overheadType", "INTEGER", ALWAYS)],
    "PROFILER_OVERHEAD": [c for c in CALL if c[0] not in ("eventClass", "correlationId")],
    "OSRT_API": CALL,
    "CUDA_GRAPH_NODE_EVENTS": [
        *(c for c in CALL if c[0] not in ("correlationId", "returnValue")),
        ("graphNodeId", "INTEGER NOT NULL", ALWAYS),
        ("originalGraphNodeId", "INTEGER", (3, 11)),
    ],
    "NVTX_EVENTS": [
        ("start", "INTEGER NOT NULL", ALWAYS),
        ("end", "INTEGER", ALWAYS),
        ("eventType", "INTEGER NOT NULL", ALWAYS),
        ("rangeId", "INTEGER", ALWAYS),
        ("text", "TEXT", ALWAYS),
        ("globalTid", "INTEGER", ALWAYS),
        ("endGlobalTid", "INTEGER", ALWAYS),
        ("textId", "INTEGER", (2, 8)),
        ("domainId", "INTEGER", (2, 8)),
    ],
    "TARGET_INFO_GPU": [
        ("vmId", "INTEGER NOT NULL", ALWAYS),
        ("id", "INTEGER NOT NULL", ALWAYS),
        ("name", "TEXT", ALWAYS),
        ("l2CacheSize", "INTEGER", ALWAYS),
        ("totalMemory", "INTEGER", ALWAYS),
        ("smCount", "INTEGER", ALWAYS),
        ("computeMajor", "INTEGER", (3, 0)),
        ("computeMinor", "INTEGER", (3, 0)),
    ],
    "TARGET_INFO_CUDA_DEVICE": [
        ("gpuId", "INTEGER", ALWAYS),
        ("cudaId", "INTEGER NOT NULL", ALWAYS),
        ("pid", "INTEGER NOT NULL", ALWAYS),
    ],
    "DIAGNOSTIC_EVENT": [
        ("timestamp", "INTEGER NOT NULL", ALWAYS),
        ("severity", "INTEGER NOT NULL", ALWAYS),
        ("text", "TEXT NOT NULL", ALWAYS),
        ("globalPid", "INTEGER", ALWAYS),
    ],
    "ENUM_CUDA_MEM_KIND": ENUM,
    "ENUM_CUDA_MEMCPY_OPER": ENUM,
}
FIRST_VERSION = {  # of whole tables
    "META_DATA_EXPORT": (3, 4, 0),
    "ENUM_CUDA_MEM_KIND": (3, 0),
    "ENUM_CUDA_MEMCPY_OPER": (3, 0),
    "DIAGNOSTIC_EVENT": (3, 11),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": (3, 24),
    "CUDA_GRAPH_NODE_EVENTS": (2, 8),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (2, 8),
}


def global_pid(pid: int) -> int:
    """A process as nsys serialises it: thread bits 0."""
    return VM | pid << 24


def global_tid(pid: int, tid: int) -> int:
    """A thread as nsys serialises it."""
    return global_pid(pid) | tid


class NsysExport:
    """One export under construction.

    ``memory_kinds``: the numbers of the memory kinds, which the export's ENUM table states (versions differ).
    """

    def __init__(self, schema: str = NEWEST, *, memory_kinds: dict[str, int] | None = None) -> None:
        self.schema = schema
        self.version = tuple(int(part) for part in schema.split("."))
        self.memory_kinds = memory_kinds or (ENUM_MEMORY if self.version >= (3, 0) else CUPTI_MEMORY)
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.strings: dict[str | bytes, int] = {}
        meta = "META_DATA_EXPORT" if self.version >= FIRST_VERSION["META_DATA_EXPORT"] else "EXPORT_META_DATA"
        for name, value in (("EXPORT_PRODUCT_VERSION", f"made for {schema}"), ("EXPORT_SCHEMA_VERSION", schema)):
            self._add(meta, name=name, value=value)
        for table, labels in (
            ("ENUM_CUDA_MEM_KIND", {n: label for label, n in self.memory_kinds.items()}),
            ("ENUM_CUDA_MEMCPY_OPER", COPY_LABELS),
        ):
            for number, label in labels.items():
                self._add(table, id=number, name=label.upper(), label=label)

    def _add(self, table: str, **values: Any) -> None:
        if self.version >= FIRST_VERSION.get(table, ALWAYS):
            self.rows.setdefault(table, []).append(values)

    def string(self, text: str | bytes) -> int:
        """The id of a string in StringIds."""
        return self.strings.setdefault(text, len(self.strings) + 1)

    # --- the GPU's work

    def kernel(
        self,
        start: int,
        end: int,
        name: str = "kernel",
        *,
        correlation: int | None = None,
        pid: int | None = PID,
        device: int = 0,
        context: int = 1,
        stream: int = 7,
        node: int | None = None,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (32, 1, 1),
        registers: int = 16,
        shared: tuple[int, int] = (0, 0),
    ) -> NsysExport:
        """One kernel; ``name`` is the demangled name, ``node`` its node of a graph traced by node."""
        self._activity(
            "KERNEL", start, end, correlation, pid, device, context, stream,
            demangledName=self.string(name), shortName=self.string(name.split("<")[0].split("(")[0]),
            registersPerThread=registers, gridX=grid[0], gridY=grid[1], gridZ=grid[2],
            blockX=block[0], blockY=block[1], blockZ=block[2],
            staticSharedMemory=shared[0], dynamicSharedMemory=shared[1],
            graphNodeId=node, launchType=1, clusterX=0, clusterY=0, clusterZ=0,
        )  # fmt: skip
        return self

    def copy(
        self,
        start: int,
        end: int,
        *,
        size: int = 4096,
        kind: int = D2H,
        source: str | None = "Device",
        target: str | None = "Pinned",
        correlation: int | None = None,
        pid: int | None = PID,
        device: int = 0,
        context: int = 1,
        stream: int = 7,
    ) -> NsysExport:
        """One copy; ``source`` and ``target`` are labels of memory kinds (None: not recorded)."""
        kinds = {None: None} | self.memory_kinds
        self._activity(
            "MEMCPY", start, end, correlation, pid, device, context, stream,
            bytes=size, copyKind=kind, srcKind=kinds[source], dstKind=kinds[target],
        )  # fmt: skip
        return self

    def memset(
        self, start: int, end: int, *, size: int = 64, correlation: int | None = None, pid: int | None = PID,
        device: int = 0, context: int = 1, stream: int = 7,
    ) -> NsysExport:  # fmt: skip
        """One memset."""
        self._activity("MEMSET", start, end, correlation, pid, device, context, stream, value=0, bytes=size)
        return self

    def graph(
        self, start: int, end: int, *, correlation: int | None = None, pid: int | None = PID, device: int = 0,
        context: int = 1, stream: int = 7,
    ) -> NsysExport:  # fmt: skip
        """One launch of a graph traced as a whole; start and end both 0: its timing was not collected."""
        self._activity("GRAPH_TRACE", start, end, correlation, pid, device, context, stream, graphId=1, graphExecId=2)
        return self

    def sync(
        self, start: int, end: int, *, correlation: int, pid: int | None = PID, context: int = 1, kind: int = 3
    ) -> NsysExport:
        """One synchronisation record. Its device is 0 whichever GPU was waited for, as nsys writes it."""
        self._activity("SYNCHRONIZATION", start, end, correlation, pid, 0, context, 7, syncType=kind, eventId=0)
        return self

    def _activity(
        self, kind: str, start: int, end: int, correlation: int | None, pid: int | None, device: int, context: int,
        stream: int, **more: Any,
    ) -> None:  # fmt: skip
        self._add(
            f"CUPTI_ACTIVITY_KIND_{kind}", start=start, end=end, deviceId=device, contextId=context, streamId=stream,
            correlationId=correlation, globalPid=None if pid is None else global_pid(pid), **more,
        )  # fmt: skip

    # --- the host's calls

    def api(
        self, start: int, end: int, name: str, *, correlation: int | None = None, pid: int = PID, tid: int = TID,
        returned: int = 0, driver: bool = False,
    ) -> NsysExport:  # fmt: skip
        """One runtime (``driver``: driver) call; ``name`` with the suffixes that CUPTI gives it."""
        self._call(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start, end, name, pid, tid, eventClass=int(driver),
            correlationId=correlation, returnValue=returned,
        )  # fmt: skip
        return self

    def overhead(self, start: int, end: int, name: str, *, pid: int = PID, tid: int = TID) -> NsysExport:
        """The profiler's own cost, in the table of the schema's time."""
        new = self.version >= FIRST_VERSION["CUPTI_ACTIVITY_KIND_OVERHEAD"]
        table = "CUPTI_ACTIVITY_KIND_OVERHEAD" if new else "PROFILER_OVERHEAD"
        self._call(table, start, end, name, pid, tid, eventClass=0, overheadType=1, returnValue=0)
        return self

    def os_call(self, start: int, end: int, name: str, *, pid: int = PID, tid: int = TID) -> NsysExport:
        """One OS-runtime call."""
        self._call("OSRT_API", start, end, name, pid, tid, eventClass=27, correlationId=0, returnValue=0)
        return self

    def node_event(
        self, at: int, node: int, *, original: int | None = None, pid: int = PID, tid: int = TID
    ) -> NsysExport:
        """Creation of a graph's node; ``original``: the node that it is a clone of (from instantiation)."""
        self._call(
            "CUDA_GRAPH_NODE_EVENTS", at, at, "cuGraphAddNode", pid, tid, eventClass=77, graphNodeId=node,
            originalGraphNodeId=original,
        )  # fmt: skip
        return self

    def _call(self, table: str, start: int, end: int, name: str, pid: int, tid: int, **more: Any) -> None:
        self._add(table, start=start, end=end, globalTid=global_tid(pid, tid), nameId=self.string(name), **more)

    # --- annotations

    def nvtx(
        self, start: int, end: int | None, name: str, *, kind: int = PUSH_POP, registered: bool = False,
        pid: int = PID, tid: int = TID, end_tid: int | None = None, domain: int = 0,
    ) -> NsysExport:  # fmt: skip
        """One event; ``registered``: its name stands in StringIds where the schema can say so; end None: still open;
        ``end_tid``: the thread that a start/end range ended on."""
        registered = registered and self.version >= (2, 8)
        self._add(
            "NVTX_EVENTS", start=start, end=end, eventType=kind, text=None if registered else name,
            textId=self.string(name) if registered else None, globalTid=global_tid(pid, tid), domainId=domain,
            endGlobalTid=None if end_tid is None else global_tid(pid, end_tid),
        )  # fmt: skip
        return self

    # --- the machine and the profiler

    def gpu(
        self, number: int, name: str | None = "NVIDIA Test GPU", *, sms: int = 100, l2: int = 1 << 20,
        memory: int = 1 << 30, capability: tuple[int, int] = (9, 0),
    ) -> NsysExport:  # fmt: skip
        """One GPU of the machine."""
        self._add(
            "TARGET_INFO_GPU", vmId=VM, id=number, name=name, l2CacheSize=l2, totalMemory=memory, smCount=sms,
            computeMajor=capability[0], computeMinor=capability[1],
        )  # fmt: skip
        return self

    def visible(self, gpu: int, *, cuda: int, pid: int = PID) -> NsysExport:
        """A process sees the machine's GPU ``gpu`` under CUDA's number ``cuda``."""
        self._add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=cuda, pid=pid)
        return self

    def diagnostic(self, text: str, severity: int = 2) -> NsysExport:
        """One message of the profiler."""
        self._add("DIAGNOSTIC_EVENT", timestamp=0, severity=severity, text=text)
        return self

    def environment(self, name: str, value: bytes) -> NsysExport:
        """One environment variable, whose bytes need not be UTF-8."""
        self._add("TARGET_INFO_SYSTEM_ENV", name=name, value=value)
        return self

    # --- the file

    def write(self, path: Path) -> Path:
        """Write the SQLite file, compressed when the name ends in .gz; returns its path."""
        plain = path if path.suffix != ".gz" else path.with_name(path.name + ".unpacked")
        plain.unlink(missing_ok=True)
        with sqlite3.connect(plain) as db:
            for table, rows in [*self.rows.items(), ("StringIds", self._string_rows())]:
                if rows:
                    self._write_table(db, table, rows)
        db.close()
        if path != plain:
            with plain.open("rb") as source, gzip.open(path, "wb") as target:
                shutil.copyfileobj(source, target)
            plain.unlink()
        return path

    def _string_rows(self) -> list[dict[str, Any]]:
        return [{"id": number, "value": text} for text, number in self.strings.items()]

    def _write_table(self, db: sqlite3.Connection, table: str, rows: list[dict[str, Any]]) -> None:
        columns = [(name, kind) for name, kind, since in TABLES[table] if self.version >= since]
        db.execute(f'CREATE TABLE "{table}" ({", ".join(f"{name} {kind}" for name, kind in _quoted(columns))})')
        # CAST of the bytes AS TEXT stores them as they are: old exports hold text that is not UTF-8.
        for row in rows:
            values = [row.get(name) for name, _ in columns]
            marks = ", ".join("CAST(? AS TEXT)" if isinstance(v, bytes) else "?" for v in values)
            db.execute(f'INSERT INTO "{table}" VALUES ({marks})', values)


def _quoted(columns: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(f'"{name}"', kind) for name, kind in columns]


def two_token_decode(schema: str = NEWEST, *, registered: bool = False) -> NsysExport:
    """Two decode tokens on one GPU; the facts in `TWO_TOKENS` were counted by hand from these rows."""
    return (
        NsysExport(schema)
        .gpu(0, "NVIDIA Test GPU", sms=100, l2=1 << 20, memory=1 << 30)
        .environment("GREETING", b"gr\xfc\xdfe")
        .diagnostic("Profiling has started.", severity=1)
        .nvtx(1_000, 11_000, "decode_token_0", registered=registered)
        .nvtx(11_000, 21_000, "decode_token_1", registered=registered)
        .nvtx(1_500, 9_000, "layer_00_E", registered=registered)
        .nvtx(11_500, 15_150, "layer_00_E", registered=registered)
        .api(2_000, 2_500, "cudaLaunchKernel_v7000", correlation=1)
        .kernel(3_000, 5_000, "void glq_moe_matvec<(int)4>(int)", correlation=1, grid=(8, 2, 1), block=(256, 1, 1))
        .api(5_200, 6_800, "cudaMemcpyAsync_v3020_ptsz", correlation=2)
        .copy(5_600, 6_600, size=4096, kind=D2H, source="Device", target="Pageable", correlation=2)
        .api(7_000, 7_200, "cudaMemsetAsync_v3020", correlation=3)
        .memset(7_500, 7_600, size=64, correlation=3)
        .api(7_300, 8_000, "cudaStreamSynchronize_v3020", correlation=4)
        .sync(7_310, 7_990, correlation=4)
        .api(12_000, 12_300, "cuLaunchKernelEx", correlation=5, driver=True)
        .kernel(12_500, 13_500, "nvjet_tst_64x8(int)", correlation=5)
        .api(13_000, 13_200, "cudaLaunchCooperativeKernel_v9000", correlation=6)
        .kernel(13_600, 14_600, "void glq_moe_matvec<(int)4>(int)", correlation=6)
        .api(15_000, 15_100, "cudaLaunchHostFunc_v10000", correlation=7)
        .api(15_200, 20_000, "cudaDeviceSynchronize_v3020", correlation=8)
        .sync(15_210, 19_990, correlation=8)
    )


# The closed account of [1,000, 21,000), by hand. GPU: two matvec kernels 2,000 + 1,000, one gemm 1,000, the copy 1,000,
# the memset 100. Idle before each activity, up to its call's end by the thread's state, then launch-latency:
#   1,000- 3,000 kernel 1: code to 2,000, launch to 2,500, latency to 3,000
#   5,000- 5,600 copy: code to 5,200, then inside the blocking copy: sync
#   6,600- 7,500 memset: sync to 6,800 (the copy call), code to 7,000, other API to 7,200, latency to 7,500
#   7,600-12,500 kernel 2: sync to 8,000, code to 12,000, launch to 12,300, latency to 12,500
#  13,500-13,600 kernel 3: its call returned at 13,200: latency
#  14,600-21,000 after the last: code to 15,000, host function (other API) to 15,100, code to 15,200, sync to 20,000,
#     then code
TWO_TOKENS = {
    "wall_ns": 20_000,
    "kernels": 3,
    "kernel_ns": 4_000,
    "sync": (2, 700 + 4_800),
    "blocking_copies": (1, 1_600),
    "launch": (3, 500 + 300 + 200),
    "rows": {
        ("matvec", "gpu"): 3_000,
        ("gemm", "gpu"): 1_000,
        ("copy", "gpu"): 1_000,
        ("memset", "gpu"): 100,
        ("launch-latency", "idle"): 500 + 300 + 200 + 100,
        ("host-sync", "idle"): 400 + 200 + 400 + 4_800,
        ("host-launch", "idle"): 500 + 300,
        ("host-api", "idle"): 200 + 100,
        ("host-code", "idle"): 1_000 + 200 + 200 + 4_000 + 400 + 100 + 1_000,
    },
}
