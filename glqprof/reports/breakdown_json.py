"""A breakdown as the JSON contract ``glqprof.breakdown/1`` (schema in data/schemas/breakdown-1.schema.json)."""

from __future__ import annotations

from typing import Any

from glqprof.analysis.breakdown import Breakdown, DeviceTime
from glqprof.analysis.host import CallTotals

SCHEMA = "glqprof.breakdown/1"


def breakdown_json(b: Breakdown, top: int) -> dict[str, Any]:
    """The contract's object; ``top`` limits the kernels listed per device. Unanswered questions hold null or []."""
    info = b.trace.info
    names = [d.name for d in b.devices]
    return {
        "schema": SCHEMA,
        "capture": {"name": b.name, "tool": info.tool, "tool_version": info.tool_version, "gpu": names},
        "window": {
            "selector": b.window.selector,
            "start_ns": b.window.start_ns,
            "end_ns": b.window.end_ns,
            "wall_ns": b.window.wall_ns,
            "wall_ms": b.window.wall_ns / 1e6,
            "steps": len(b.window.steps),
            "tokens": b.tokens,
        },
        "devices": [_device(b, d, top) for d in b.devices],
        "host": _host(b),
        "answers": {q: {"answer": a.answer, "why": str(a)} for q, a in b.answers.items()},
        "untraced": {"tok_s": b.untraced.tok_s, "ms_per_token": b.untraced.ms_per_token} if b.untraced else None,
        "inflation": b.inflation,
        "verdict": b.verdict,
        "verdict_reason": b.verdict_reason,
        "unattributed_share": b.unattributed_share,
        "warnings": b.warnings,
    }


def _device(b: Breakdown, device: DeviceTime, top: int) -> dict[str, Any]:
    account = device.account
    wall = b.wall[b.wall["device"] == device.device]
    return {
        "device": device.device,
        "gpu_busy_ms": account.gpu_busy_ns / 1e6 if account else None,
        "gpu_idle_ms": account.gpu_idle_ns / 1e6 if account else None,
        "wall": [
            {
                "row": str(r.row),
                "kind": str(r.kind),
                "ns": int(r.ns),
                "ms": r.ms,
                "share": r.share,
                "ms_per_token": r.ms_per_token if b.tokens else None,
            }
            for r in wall.itertuples()
        ],
        "kernels": {
            "count": device.kernel_count,
            "sum_ms": device.kernel_sum_ns / 1e6,
            "per_token": b.per_token(device.kernel_count),
        },
        "buckets": [
            {
                "bucket": str(r.bucket),
                "sum_ms": r.sum_ns / 1e6,
                "share": float(r.share),
                "launches": int(r.launches),
                "launches_per_token": b.per_token(int(r.launches)),
            }
            for r in device.buckets.itertuples()
        ],
        "top": [
            {
                "name": str(r.name),
                "bucket": str(r.bucket),
                "launches": int(r.launches),
                "sum_ms": r.sum_ns / 1e6,
                "mean_us": r.mean_ns / 1e3,
                "min_us": r.min_ns / 1e3,
                "max_us": r.max_ns / 1e3,
            }
            for r in device.kernels.head(top).itertuples()
        ],
    }


def _host(b: Breakdown) -> dict[str, Any] | None:
    if b.host is None:
        return None
    wall = max(b.window.wall_ns, 1)

    def totals(t: CallTotals, *, idle: bool) -> dict[str, Any]:
        result: dict[str, Any] = {"calls": t.calls, "ms": t.ns / 1e6, "share": t.ns / wall}
        if idle:
            result["idle_ms"] = None if t.idle_ns is None else t.idle_ns / 1e6
        return result

    return {
        "sync": totals(b.host.sync, idle=True),
        "blocking_copies": totals(b.host.blocking_copies, idle=True),
        "launch": totals(b.host.launch, idle=False),
        "apis": [{"name": str(r.name), "calls": int(r.calls), "ms": r.ns / 1e6} for r in b.host.apis.itertuples()],
    }
