"""Write the tables of an nsys SQLite export (schema 3.20), so that one reader serves nsys and the CUPTI tracer.

Only the standard library is used: this runs inside the captured program's interpreter.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SCHEMA_VERSION = "3.20.0"
PRODUCT = "glqprof CUPTI tracer"
VM = 1 << 48
PUSH_POP = 59

_ACTIVITY = "start end deviceId contextId streamId correlationId globalPid"
_GRID = "gridX gridY gridZ blockX blockY blockZ"
COLUMNS: dict[str, str] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY} demangledName shortName launchType registersPerThread {_GRID} "
    "staticSharedMemory dynamicSharedMemory graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY} bytes copyKind srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY} value bytes graphNodeId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_ACTIVITY} syncType eventId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end globalTid nameId",
    "CUDA_GRAPH_NODE_EVENTS": "start end eventClass globalTid nameId graphNodeId originalGraphNodeId",
    "NVTX_EVENTS": "start end eventType text globalTid",
    "TARGET_INFO_GPU": "vmId id name l2CacheSize totalMemory smCount computeMajor computeMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "DIAGNOSTIC_EVENT": "timestamp severity text",
}
_TEXT = frozenset({"text", "name"})
# Columns in which a name is given; its id in StringIds is written.
_NAMES = frozenset({"demangledName", "shortName", "nameId"})
# CUPTI's own numbers, which nsys' list of memory kinds differs from by one.
MEMORY_KINDS = ("Unknown", "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
COPY_KINDS = (
    "Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array",
    "Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer",
)  # fmt: skip


def global_pid(pid: int) -> int:
    """A process as nsys serialises it."""
    return VM | (pid & 0xFFFFFF) << 24


def global_tid(pid: int, tid: int) -> int:
    """A thread of a process as nsys serialises it."""
    return global_pid(pid) | (tid & 0xFFFFFF)


def write_export(path: Path, rows: Mapping[str, Iterable[Mapping[str, Any]]], tool_version: str) -> None:
    """Write ``rows`` (dicts by table) into a new SQLite file at ``path``; tables without a row are left out.

    Name columns take texts. Raises sqlite3.Error, also when the disk is full.
    """
    strings: dict[str, int] = {}
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("BEGIN")
        for table, names in COLUMNS.items():
            _write_table(db, table, names.split(), rows.get(table, ()), strings)
        _write_lists(db, strings, tool_version)
        db.execute("COMMIT")
    finally:
        db.close()


def _write_table(
    db: sqlite3.Connection, table: str, columns: list[str], rows: Iterable[Mapping[str, Any]], strings: dict[str, int]
) -> None:
    def cells(row: Mapping[str, Any]) -> list[Any]:
        return [
            strings.setdefault(row[c], len(strings) + 1) if c in _NAMES and c in row else row.get(c) for c in columns
        ]

    made = False
    insert = f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})'
    for row in rows:
        if not made:
            kinds = ", ".join(f'"{c}" {"TEXT" if c in _TEXT else "INTEGER"}' for c in columns)
            db.execute(f'CREATE TABLE "{table}" ({kinds})')
            made = True
        db.execute(insert, cells(row))


def _write_lists(db: sqlite3.Connection, strings: dict[str, int], tool_version: str) -> None:
    for table, labels in (("ENUM_CUDA_MEM_KIND", MEMORY_KINDS), ("ENUM_CUDA_MEMCPY_OPER", COPY_KINDS)):
        db.execute(f'CREATE TABLE "{table}" ("id" INTEGER NOT NULL PRIMARY KEY, "name" TEXT, "label" TEXT)')
        db.executemany(f'INSERT INTO "{table}" VALUES (?, ?, ?)', [(i, t.upper(), t) for i, t in enumerate(labels)])
    db.execute('CREATE TABLE "StringIds" ("id" INTEGER NOT NULL PRIMARY KEY, "value" TEXT NOT NULL)')
    db.executemany('INSERT INTO "StringIds" VALUES (?, ?)', [(number, text) for text, number in strings.items()])
    db.execute('CREATE TABLE "META_DATA_EXPORT" ("name" TEXT NOT NULL, "value" TEXT)')
    meta = {
        "EXPORT_PRODUCT_NAME": PRODUCT,
        "EXPORT_PRODUCT_VERSION": tool_version,
        "EXPORT_SCHEMA_VERSION": SCHEMA_VERSION,
    }
    db.executemany('INSERT INTO "META_DATA_EXPORT" VALUES (?, ?)', list(meta.items()))
