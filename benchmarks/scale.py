"""Repeat a recorded capture until it is large, and measure what `glqprof breakdown --format json` needs at each size.

Usage: python benchmarks/scale.py [--capture CAPTURE.sqlite[.gz]] [--kernels 2700000] [--keep DIR]
Prints a Markdown table: size, wall seconds (best of the runs, the file cached) and peak resident memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ROOT / "captures" / "h200-cascade2-30b-glq-v0.2.13" / "trace.sqlite.gz"
SHIFTED = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ("start", "end"),
    "NVTX_EVENTS": ("start", "end"),
    "PROFILER_OVERHEAD": ("start", "end"),
}


def repeat_capture(source: Path, target: Path, kernels: int) -> tuple[int, int]:
    """Write `source` repeated, times and correlation ids shifted, to `target`, until it holds about `kernels` kernels.

    Returns (kernels, API calls) written. The default capture brings 2.18 API calls a kernel: 5.9 M for 2.7 M kernels.
    """
    opener = gzip.open if source.suffix == ".gz" else open
    with opener(source, "rb") as src, target.open("wb") as dst:
        shutil.copyfileobj(src, dst)
    db = sqlite3.connect(target)
    db.execute("PRAGMA journal_mode=OFF")
    db.execute("PRAGMA synchronous=OFF")
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    columns = {t: [r[1] for r in db.execute(f'PRAGMA table_info("{t}")')] for t in SHIFTED if t in tables}
    lo = min(db.execute(f'SELECT min(start) FROM "{t}" WHERE start >= 0').fetchone()[0] or 1 << 62 for t in columns)
    hi = max(db.execute(f'SELECT max(coalesce(end, start)) FROM "{t}"').fetchone()[0] or 0 for t in columns)
    period = hi - lo + 1_000_000
    runtime = "CUPTI_ACTIVITY_KIND_RUNTIME"
    ids = db.execute(f"SELECT max(correlationId) - min(correlationId) + 1 FROM {runtime}").fetchone()[0]
    per_copy = db.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
    copies = max(1, round(kernels / per_copy))
    for table in columns:
        db.execute(f'CREATE TEMP TABLE seed_{table} AS SELECT * FROM "{table}"')
    for copy in range(1, copies):
        for table, names in columns.items():
            insert_shifted(db, table, names, copy * period, copy * ids)
    db.commit()
    written = tuple(
        db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("CUPTI_ACTIVITY_KIND_KERNEL", runtime)
    )
    db.close()
    return written  # type: ignore[return-value]


def insert_shifted(db: sqlite3.Connection, table: str, names: list[str], shift_ns: int, shift_ids: int) -> None:
    """Append one shifted copy of the recorded rows of `table`."""
    add = {"start": shift_ns, "end": shift_ns, "correlationId": shift_ids}
    # Names of NVTX events keep their start: domain rows (negative start) must not be repeated.
    where = " WHERE start >= 0" if table == "NVTX_EVENTS" else ""
    select = ", ".join(f'"{c}" + {add[c]}' if c in add else f'"{c}"' for c in names)
    db.execute(f'INSERT INTO "{table}" SELECT {select} FROM seed_{table}{where}')


def measure(path: Path, runs: int) -> tuple[float, float, dict[str, object]]:
    """Run `glqprof breakdown --format json` on `path`; returns (best wall seconds, peak MiB, the parsed output)."""
    path.read_bytes()  # into the page cache, as the goal is stated for a cached file
    best, peak, result = float("inf"), 0.0, {}
    for _ in range(runs):
        begin = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-m", "glqprof", "breakdown", str(path), "--format", "json"],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        out = child.stdout.read()  # type: ignore[union-attr]
        _, status, usage = os.wait4(child.pid, 0)
        best = min(best, time.perf_counter() - begin)
        if status != 0:
            raise SystemExit(f"breakdown of {path.name} failed with status {os.waitstatus_to_exitcode(status)}")
        peak = max(peak, usage.ru_maxrss / 1024)
        result = json.loads(out)
    return best, peak, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capture", type=Path, default=DEFAULT)
    parser.add_argument("--kernels", type=int, default=2_700_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="keep the generated files in this folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
        print("| size | kernels | API calls | file MB | wall s | peak MiB |\n|---|--:|--:|--:|--:|--:|")
        for label, share in (("1/100", 0.01), ("1/10", 0.1), ("1/1", 1.0)):
            path = folder / f"scale-{label.replace('/', '-')}.sqlite"
            n_kernels, n_api = repeat_capture(args.capture, path, int(args.kernels * share))
            seconds, peak, result = measure(path, args.runs)
            counted = sum(d["kernels"]["count"] for d in result["devices"])  # type: ignore[index,attr-defined]
            if counted != n_kernels:
                raise SystemExit(f"{path.name} holds {n_kernels} kernels, breakdown counted {counted}")
            size = path.stat().st_size / 1e6
            print(f"| {label} | {n_kernels:,} | {n_api:,} | {size:,.0f} | {seconds:.2f} | {peak:,.0f} |", flush=True)
            if not args.keep:
                path.unlink()


if __name__ == "__main__":
    main()
