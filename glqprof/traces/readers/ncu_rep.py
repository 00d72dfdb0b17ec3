"""Read an ``.ncu-rep`` through NVIDIA's package ncu-report (extra ``[ncu]``)."""

from __future__ import annotations

import importlib
import math
import re
import struct
from importlib.metadata import version
from pathlib import Path
from typing import Any

from glqprof.errors import InputError
from glqprof.traces.schema.ncu import Dim3, Launch, NcuReport, RuleResult, base_unit

MAGIC = b"NVR\x00"
RULE_KINDS = {0: "", 1: "INF", 2: "OPT", 3: "WRN", 4: "ERR"}
SPEEDUP_SCOPES = {1: "local", 2: "global"}
WORKLOADS = {0: "kernel", 1: "range", 2: "command list", 3: "graph", 4: "subgrid schedule"}
LISTS = ("breakdown:", "group:")  # the names of other metrics, for ncu's own tables
_SECTION = re.compile(r"@section:[^:@]*:([^@]*)@")
_URL = re.compile(r"@url:([^:@]*):([^@]*)@")
_PAYLOAD_SIZE = 5


def read_ncu_rep(path: Path, *, shown_as: Path | None = None) -> NcuReport:
    """Read every launch of a report. Raises InputError when it is cut, empty, or ncu-report is not installed.

    The package returns 0 for metrics that hold no value and drops the launches behind a cut without a word: values are
    asked whether they exist, and the file's blocks are counted against its size first.
    """
    shown = shown_as or path
    _refuse_cut(path, shown)
    try:
        package: Any = importlib.import_module("ncu_report")
    except ImportError:
        raise InputError(
            shown,
            "needs the package ncu-report to be read; pip install 'glqprof[ncu]', or give its CSV "
            "(`ncu --import FILE.ncu-rep --csv --page raw`)",
        ) from None
    try:
        report = package.load_report(str(path))
        ranges = [report.range_by_idx(i) for i in range(report.num_ranges())]
        actions = [r.action_by_idx(i) for r in ranges for i in range(r.num_actions())]
    except (RuntimeError, AttributeError, ValueError) as error:
        raise InputError(
            shown, f"cannot be read by ncu-report {version('ncu-report')} ({error}); update it or copy the file again"
        ) from None
    if not actions:
        raise InputError(shown, "holds no kernel: the filter matched nothing, or it is cut; widen -k or --launch-skip")
    units: dict[str, str] = {}
    launches = tuple(_launch(number, action, units) for number, action in enumerate(actions))
    bare = [launch.id for launch in launches if not launch.metrics]  # even without counters a launch has its shape
    if bare:
        raise InputError(shown, f"is damaged: launch {bare[0]} holds no metric at all; copy the file again")
    return NcuReport(shown.name, "ncu-rep", launches, units)


def _launch(number: int, action: Any, units: dict[str, str]) -> Launch:
    metrics: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        if metric is None or not metric.has_value() or name.startswith(LISTS):
            continue
        value = metric.value()
        if isinstance(value, str):
            if value:
                texts[name] = value
        elif isinstance(value, int | float) and math.isfinite(value):
            unit, factor = base_unit(metric.unit())
            metrics[name] = value * factor
            units[name] = unit
    major, minor = (metrics.get(f"device__attribute_compute_capability_{part}") for part in ("major", "minor"))
    return Launch(
        id=number,
        name=action.name(action.NameBase_DEMANGLED) or action.name(),
        grid=_dim3(metrics, "grid"),
        block=_dim3(metrics, "block"),
        device=_integer(metrics, "launch__device_id"),
        compute_capability="" if major is None or minor is None else f"{int(major)}.{int(minor)}",
        context=_integer(metrics, "launch__context_id"),
        stream=str(_integer(metrics, "launch__stream_id") or ""),
        workload=WORKLOADS.get(action.workload_type(), "kernel"),
        metrics=metrics,
        texts=texts,
        rules=tuple(_rule(rule) for rule in action.rule_results_as_dicts() if rule.get("rule_message")),
    )


def _rule(rule: dict[str, Any]) -> RuleResult:
    message = rule["rule_message"]
    text = _URL.sub(r"\1 (\2)", _SECTION.sub(r"\1", message["message"]))
    estimate = rule.get("speedup_estimation") or {}
    return RuleResult(
        rule=rule["rule_identifier"],
        section=rule.get("section_identifier", ""),
        kind=RULE_KINDS.get(message["type"], ""),
        text=" ".join(text.split()),
        speedup_pct=estimate.get("speedup"),
        scope=SPEEDUP_SCOPES.get(estimate.get("type", 0), ""),
    )


def _dim3(metrics: dict[str, float], kind: str) -> Dim3 | None:
    sizes = [metrics.get(f"launch__{kind}_dim_{axis}") for axis in "xyz"]
    if None in sizes:
        return None
    x, y, z = (int(s) for s in sizes if s is not None)
    return x, y, z


def _integer(metrics: dict[str, float], name: str) -> int | None:
    return int(metrics[name]) if name in metrics else None


def _refuse_cut(path: Path, shown: Path) -> None:
    """Walk the file's blocks (ncu's extras/FileFormat): each is a size, a header and the payload that it announces."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise InputError(shown, "is no Nsight Compute report (it does not begin with NVR); give an .ncu-rep or CSV")
        file.seek(_length(file.read(4)), 1)
        while file.tell() < size:
            length = _length(file.read(4))
            header = file.read(length)
            file.seek(_payload_bytes(header) + length - len(header), 1)
        if file.tell() != size:
            raise InputError(
                shown, f"is cut or damaged: a block of it ends {file.tell() - size:,} bytes behind it; copy it again"
            )


def _length(four: bytes) -> int:
    return struct.unpack("<I", four)[0] if len(four) == 4 else 1 << 31  # a cut size points behind the file


def _payload_bytes(header: bytes) -> int:
    """Field 5 of the block header, a protobuf message; a header that is no message points behind the file."""
    at = 0
    try:
        while at < len(header):
            key, at = _varint(header, at)
            if key & 7 == 0:
                value, at = _varint(header, at)
                if key >> 3 == _PAYLOAD_SIZE:
                    return value
            elif key & 7 == 2:
                length, at = _varint(header, at)
                at += length
            else:
                at += {1: 8, 5: 4}[key & 7]
    except (IndexError, KeyError):
        return 1 << 31
    return 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
