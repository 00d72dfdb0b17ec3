"""Files that the tests of ncu reports read, and their text read without glqprof."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from glqprof.traces.schema.ncu import Launch, NcuReport

DATA = Path(__file__).resolve().parents[1] / "data" / "ncu"
RAW = DATA / "h200-glq-v0.2.13-raw.csv"
DETAILS = DATA / "h200-glq-v0.2.13-details.csv"
T4 = DATA / "copy_blocked_details.csv"
GB200 = DATA / "jaxtb_cuda_graph_pdl_gb200.ncu-rep.gz"


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def write_rows(path: Path, rows: list[list[str]], before: str = "") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(before)
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return path


def raw_text(metric: str, launch: int) -> tuple[str, str]:
    """The cell and its unit as they stand in the raw page."""
    header, units, *launches = rows_of(RAW)
    at = header.index(metric)
    return launches[launch][at], units[at]


def decimals(text: str) -> int:
    return len(text.partition(".")[2])


def launch(**changes: object) -> Launch:
    """A launch that is busy nowhere and waits for nothing in particular, with any metric or field changed."""
    metrics = {
        "gpu__time_duration.sum": 100_000.0,
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 10.0,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 12.0,
        "lts__throughput.avg.pct_of_peak_sustained_elapsed": 12.0,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 15.0,
        "launch__sm_count": 132.0,
        "launch__occupancy_limit_warps": 8.0,
        "launch__occupancy_limit_registers": 8.0,
        "launch__occupancy_limit_shared_mem": 32.0,
        "launch__occupancy_limit_blocks": 32.0,
        "sm__maximum_warps_per_active_cycle_pct": 100.0,
        "smsp__issue_active.avg.pct_of_peak_sustained_active": 30.0,
        "lts__t_sector_hit_rate.pct": 20.0,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 4000.0,
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 1000.0,
        "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": 1.0,
        "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": 1.0,
        "smsp__average_warps_issue_stalled_drain_per_issue_active.ratio": 1.0,
        "smsp__average_warps_issue_stalled_misc_per_issue_active.ratio": 1.0,
    }
    known = {"id", "name", "grid", "block", "workload", "rules", "texts"}
    made = Launch(0, "k(float *)", (132 * 8, 1, 1), (256, 1, 1))
    made = replace(made, **{k: v for k, v in changes.items() if k in known})  # type: ignore[arg-type]
    for name, value in changes.items():
        if name in known:
            continue
        if value is None:
            metrics.pop(name, None)
        else:
            metrics[name] = float(value)  # type: ignore[arg-type]
    return replace(made, metrics=metrics)


def report(*launches: Launch, name: str = "made") -> NcuReport:
    return NcuReport(name, "raw", tuple(replace(x, id=i) for i, x in enumerate(launches)), {})
