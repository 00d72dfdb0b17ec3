"""Read what ``ncu --csv`` printed: the raw page (one row a launch) or the details page (one row a metric or rule).

Around the table a terminal session leaves its own lines: ``==PROF==``, ``==WARNING==`` and the program's output, before
the header and between the rows. ncu quotes every cell, so a line that starts neither a row nor continues a quoted cell
is not part of the table.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from glqprof.errors import InputError
from glqprof.traces.readers.ncu_labels import metric_name
from glqprof.traces.readers.ncu_numbers import parse_number
from glqprof.traces.schema.ncu import Dim3, Launch, NcuReport, RuleResult, base_unit

IDENTITY = frozenset({
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC",
})  # fmt: skip
_PROFILING = re.compile(r"^==PROF== Profiling .* - (\d+)(?: \(\d+/\d+\))?(?::|$)")
_AVAILABLE = re.compile(r"^\s*\d+\.\s+(\S.*)$")
_EXPORT = "`ncu --import FILE.ncu-rep --csv --page raw`"


@dataclass
class NcuPage:
    """The table of a file: its header, its rows, and the lines that are not part of it."""

    header: list[str]
    rows: list[list[str]]
    other: list[str]
    shown_as: Path


@dataclass
class _Building:
    """A launch while its rows are read."""

    identity: dict[str, str]
    metrics: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    rules: list[RuleResult] = field(default_factory=list)
    absent: int = 0


def read_ncu_csv(text: str, shown_as: Path) -> NcuReport:
    """Read either CSV page. Raises InputError for what is no ncu CSV, holds no launch, is cut, or has a bad locale."""
    page = split_page(text, shown_as)
    source = "details" if "Metric Name" in page.header else "raw"
    units: dict[str, str] = {}
    built = _details(page, units) if source == "details" else _raw(page, units)
    _refuse_cut(page, set(built))
    if any(b.absent for b in built.values()) and not any(_measured(b) for b in built.values()):
        raise InputError(
            shown_as,
            "holds no measured value, n/a everywhere; profile again as root or with access to the GPU's counters "
            "allowed, and with metrics that this GPU has (`ncu --query-metrics`)",
        )
    launches = tuple(_launch(number, built[number], shown_as) for number in sorted(built))
    return NcuReport(shown_as.name, source, launches, units)


def split_page(text: str, shown_as: Path) -> NcuPage:
    """The table of a page, its rows as texts, apart from the file's other lines; raises InputError without one."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        header = next(csv.reader([line])) if "Kernel Name" in line and line.lstrip('"').startswith("ID") else []
        if header[:1] == ["ID"] and "Kernel Name" in header:
            marks = '"' if line.startswith('"') else '"0123456789,'
            other = [item.rstrip() for item in lines[:number]]
            body = "".join(_table_lines(lines[number + 1 :], marks, other, shown_as))
            try:
                rows = list(csv.reader(io.StringIO(body), strict=True))
            except csv.Error as error:
                raise InputError(shown_as, f"is damaged or cut ({error}); copy or export it again") from None
            return NcuPage(header, [r for r in rows if r and r[0] != "ID"], other, shown_as)
    raise InputError(shown_as, _why_no_table(lines))


def _table_lines(lines: list[str], marks: str, other: list[str], shown_as: Path) -> Iterator[str]:
    quoted = False
    for line in lines:
        if not quoted and line[:1] not in marks:
            other.append(line.rstrip())
            continue
        yield line
        quoted ^= line.count('"') % 2 == 1
    if quoted:
        raise InputError(shown_as, "is cut inside a row; copy or export it again")


def _why_no_table(lines: list[str]) -> str:
    if any("No kernels were profiled" in line for line in lines):
        available = _available(lines)
        seen = f"; the program launched {', '.join(available)}" if available else ""
        return f"no kernel was profiled: the filter matched nothing{seen}; widen -k or --launch-skip, profile again"
    if any("ERR_NVGPUCTRPERM" in line for line in lines):
        return "ncu had no permission to read the GPU's counters (ERR_NVGPUCTRPERM); profile as root or allow it"
    errors = [line.strip() for line in lines if line.startswith("==ERROR==")]
    if errors:
        return f"ncu failed ({errors[0].removeprefix('==ERROR==').strip()}); profile again"
    if any(line.startswith("==PROF==") for line in lines):
        return f"is ncu's log without its table (cut, or printed without --csv); export the report with {_EXPORT}"
    return f"is no Nsight Compute CSV (no header with ID and Kernel Name); make one with {_EXPORT}"


def _available(lines: list[str], most: int = 8) -> list[str]:
    """The kernels that ncu lists when its filter matched none."""
    start = next((i for i, line in enumerate(lines) if "Available Kernels" in line), None)
    if start is None:
        return []
    names = [m[1].strip() for line in lines[start + 1 :] if (m := _AVAILABLE.match(line))]
    return names[:most] + ([f"{len(names) - most} more"] if len(names) > most else [])


def _raw(page: NcuPage, units: dict[str, str]) -> dict[int, _Building]:
    if not page.rows:
        raise InputError(page.shown_as, "holds a header and no launch: nothing was profiled, or it is cut")
    if page.rows[0][0].strip():
        raise InputError(page.shown_as, f"has no row of units below its header; export it again with {_EXPORT}")
    if len(page.rows) == 1:
        raise InputError(page.shown_as, "holds no launch below its units: nothing was profiled, or it is cut")
    width = len(page.header)
    for row in page.rows:
        if len(row) != width:
            name = f"launch {row[0]}" if row[0].strip() else "the row of units"
            raise InputError(
                page.shown_as, f"is cut: {name} has {len(row)} of {width} columns; copy or export it again"
            )
    columns = []
    for position, name in enumerate(page.header):
        if name not in IDENTITY:
            unit, factor = base_unit(page.rows[0][position])
            units[name] = unit
            columns.append((position, name, factor))
    built: dict[int, _Building] = {}
    for row in page.rows[1:]:
        number = _launch_id(row[0], page.shown_as)
        if number in built:
            raise InputError(page.shown_as, f"holds launch {number} twice: two reports in one file; split them")
        launch = built[number] = _Building({n: row[i] for i, n in enumerate(page.header) if n in IDENTITY})
        for position, name, factor in columns:
            _store(launch, name, parse_number(row[position], page.shown_as), factor)
    return built


def _details(page: NcuPage, units: dict[str, str]) -> dict[int, _Building]:
    if not page.rows:
        raise InputError(page.shown_as, "holds a header and no launch: nothing was profiled, or it is cut")
    at = {name: i for i, name in enumerate(page.header)}
    needed = at["Metric Value"] + 1
    lengths = {len(row) for row in page.rows[:-1]} or {len(page.rows[-1])}  # a metric's row is shorter than a rule's
    built: dict[int, _Building] = {}
    for row in page.rows:
        whole = len(row) >= needed and len(row) in lengths and (row[at["Metric Name"]] or len(row) == len(page.header))
        if not whole:
            raise InputError(
                page.shown_as, f"is cut: a row of launch {row[0]} has {len(row)} columns; copy or export it again"
            )
        number = _launch_id(row[0], page.shown_as)
        launch = built.get(number)
        if launch is None:
            launch = built[number] = _Building({n: row[i] for n, i in at.items() if n in IDENTITY})
        elif launch.identity["Kernel Name"] != row[at["Kernel Name"]]:
            raise InputError(page.shown_as, f"holds launch {number} twice: two reports in one file; split them")
        cell = {name: row[i] if i < len(row) else "" for name, i in at.items()}
        if cell.get("Rule Name"):
            launch.rules.append(_rule(cell, page.shown_as))
        if cell["Metric Name"]:
            unit, factor = base_unit(cell["Metric Unit"])
            name = metric_name(cell["Metric Name"], cell.get("Section Name", ""), unit)
            units[name] = unit
            _store(launch, name, parse_number(cell["Metric Value"], page.shown_as), factor)
    return built


def _rule(cell: dict[str, str], shown_as: Path) -> RuleResult:
    speedup = parse_number(cell.get("Estimated Speedup", ""), shown_as)
    return RuleResult(
        rule=cell["Rule Name"],
        section=cell.get("Section Name", ""),
        kind=cell.get("Rule Type", ""),
        text=" ".join(cell.get("Rule Description", "").split()),
        speedup_pct=speedup if isinstance(speedup, float) else None,
        scope=cell.get("Estimated Speedup Type", ""),
    )


def _store(launch: _Building, name: str, value: float | str | None, factor: float) -> None:
    if value is None:
        launch.absent += 1
    elif isinstance(value, str):
        launch.texts[name] = value
    else:
        launch.metrics[name] = value * factor


def _measured(launch: _Building) -> bool:
    """Whether any hardware counter was read: attributes of the launch and the device are known without."""
    attributes = ("launch__", "device__", "profiler__", "numa__", "nvlink__", "c2clink__")
    return any(not name.startswith(attributes) for name in launch.metrics)


def _refuse_cut(page: NcuPage, present: set[int]) -> None:
    """Compare with the launches that ncu said it profiled, where its lines stand in the file."""
    profiled = {int(m[1]) for line in page.other if (m := _PROFILING.match(line))}
    lost = sorted(profiled - present)
    if lost:
        raise InputError(
            page.shown_as,
            f"is cut: ncu profiled {len(profiled)} launches, {len(lost)} of them are not in the table (first: "
            f"{lost[0]}); copy or export it again",
        )


def _launch_id(text: str, shown_as: Path) -> int:
    try:
        return int(text.replace(",", ""))
    except ValueError:
        raise InputError(shown_as, f"holds a row whose ID is {text[:40]!r}; export it again with {_EXPORT}") from None


def _launch(number: int, built: _Building, shown_as: Path) -> Launch:
    identity = built.identity
    return Launch(
        id=number,
        name=identity["Kernel Name"],
        grid=_dim3(identity.get("Grid Size", ""), built, "grid"),
        block=_dim3(identity.get("Block Size", ""), built, "block"),
        device=_integer(identity.get("Device", "")),
        compute_capability=identity.get("CC", ""),
        context=_integer(identity.get("Context", "")),
        stream=identity.get("Stream", ""),
        process=_integer(identity.get("Process ID", "")),
        metrics=built.metrics,
        texts=built.texts,
        rules=tuple(built.rules),
    )


def _dim3(text: str, built: _Building, kind: str) -> Dim3 | None:
    found = [int(n) for n in re.findall(r"\d+", text)]
    if len(found) == 3:
        return found[0], found[1], found[2]
    sizes = [built.metrics.get(f"launch__{kind}_dim_{axis}") for axis in "xyz"]
    if None in sizes:
        return None
    x, y, z = (int(s) for s in sizes if s is not None)
    return x, y, z


def _integer(text: str) -> int | None:
    return int(text) if text.isdigit() else None
