"""An analysed ncu report as a document: what binds each kernel and why, then the numbers by theme."""

from __future__ import annotations

from glqprof.analysis.ncu_analysis import KernelAnalysis, NcuAnalysis
from glqprof.analysis.ncu_compare import shown_dim
from glqprof.analysis.ncu_diagnosis import LABELS, Evidence
from glqprof.analysis.ncu_stalls import MEANING
from glqprof.reports.document import Cell, Column, Document, Table, Text
from glqprof.reports.kernel_names import short_kernel_name

VIEWS = ("summary", "memory", "occupancy", "stalls", "rules")
ID = Column("ID", "id")
KERNEL = Column("kernel", "name", text=True, flexible=True)
NOT_NSYS = "durations are ncu's: each launch replayed alone, with ncu's cache control; not those of a timeline"
RULES_OF_A_LAUNCH = 3


def ncu_document(a: NcuAnalysis, view: str = "summary", top: int = 12) -> Document:
    """The document of one view; ``top`` limits the launches that are listed."""
    document = Document(f"{a.name}: why is this kernel slow")
    if view == "summary":
        document.parts = [headline(a), *_weights(a, top), overview_table(a, top), *_reasons(a, top)]
        document.parts += [memory_table(a, top), occupancy_table(a, top), waits_table(a, top), *_rules(a, top)]
    else:
        document.parts = [
            {"memory": memory_table, "occupancy": occupancy_table, "stalls": stall_table, "rules": rule_table}[view](
                a, top
            )
        ]
    if a.notes:
        document.parts.append(Text([f"note: {n}" for n in a.notes], "warning"))
    return document


def headline(a: NcuAnalysis) -> Text:
    """What was profiled, and whose durations these are."""
    gpus = f" on {', '.join(a.gpus)}" if a.gpus else ""
    count = f"{len(a.kernels)} launch{'es' if len(a.kernels) != 1 else ''}"
    return Text([f"{a.name}{gpus}: {count} ({_source(a.source)})", NOT_NSYS], "headline")


def _source(source: str) -> str:
    return {"raw": "CSV, raw page", "details": "CSV, details page"}.get(source, source)


def kernel_title(k: KernelAnalysis) -> str:
    """ID, short name, grid and duration."""
    n = k.numbers
    parts = [f"{n.id}: {short_kernel_name(n.name)}"]
    if n.grid is not None:
        parts.append(f"grid {shown_dim(n.grid)}, block {shown_dim(n.block) or '?'}")
    elif n.workload != "kernel":
        parts.append(n.workload)
    if n.duration_us is not None:
        parts.append(f"{n.duration_us:,.1f} µs")
    return ", ".join(parts)


def overview_table(a: NcuAnalysis, top: int) -> Table:
    """One row a launch."""
    columns = [
        ID,
        KERNEL,
        Column("grid", "grid", text=True),
        Column("µs", "duration_us"),
        Column("DRAM %", "dram_pct", digits=1),
        Column("occ. %", "occupancy_pct", digits=1),
        Column("what binds", "diagnosis", text=True),
    ]
    rows: list[list[Cell]] = [
        [
            k.numbers.id,
            short_kernel_name(k.numbers.name),
            shown_dim(k.numbers.grid),
            k.numbers.duration_us,
            k.numbers.memory.dram_pct,
            k.numbers.occupancy.achieved_pct,
            k.diagnosis.label,
        ]
        for k in a.kernels[:top]
    ]
    return Table("Kernels", columns, list(rows), note=_left(a, top))


def _left(a: NcuAnalysis, top: int) -> str:
    left = len(a.kernels) - top
    return f"{left} launches not shown (--top N)" if left > 0 else ""


def _weights(a: NcuAnalysis, top: int) -> list[Table | Text]:
    if all(k.weight is None for k in a.kernels):
        return []
    columns = [
        ID,
        KERNEL,
        Column("grid", "grid", text=True),
        Column("calls", "timeline_launches"),
        Column("ms", "timeline_ms"),
        Column("ms/token", "timeline_ms_per_token", digits=3),
        Column("share", "timeline_share", percent=True),
        Column("at most ms", "at_most_ms"),
    ]
    rows: list[list[Cell]] = []
    for k in a.kernels[:top]:
        w = k.weight
        weight: list[Cell] = [None] * 5
        if w is not None:
            weight = [w.launches, w.sum_ms, w.ms_per_token, w.share, w.at_most_ms]
        rows.append([k.numbers.id, short_kernel_name(k.numbers.name), shown_dim(k.numbers.grid), *weight])
    note = "calls, ms, share (of its GPU work): the timeline's; at most: the ms above the kernel's ceiling, a bound"
    return [Table("What a fix is worth, by the timeline", columns, list(rows), note=note)]


def _reasons(a: NcuAnalysis, top: int) -> list[Table | Text]:
    """The evidence of each kernel; launches that say the same stand together under the first."""
    groups: dict[tuple[object, ...], list[KernelAnalysis]] = {}
    for k in a.kernels[:top]:
        key = (k.numbers.name, k.numbers.grid, k.numbers.block, tuple(f.code for f in k.diagnosis.findings))
        groups.setdefault(key, []).append(k)
    parts: list[Table | Text] = []
    for first, *others in groups.values():
        also = f" (also {', '.join(str(k.numbers.id) for k in others)})" if others else ""
        parts += [evidence_table(first, also), suggestions(first)]
    return parts


def evidence_table(k: KernelAnalysis, also: str = "") -> Table:
    """Why: each finding with its numbers."""
    columns = [
        Column("finding", "finding", text=True),
        Column("evidence", "evidence", text=True),
        Column("value", "value", text=True),
        Column("held against", "note", text=True, flexible=True, wrap=True),
    ]
    rows: list[list[Cell]] = []
    for finding in k.diagnosis.findings:
        for i, e in enumerate(finding.evidence):
            rows.append([LABELS[finding.code] if i == 0 else "", e.what, shown_value(e), e.note])
    return Table(kernel_title(k) + also, columns, list(rows))


def suggestions(k: KernelAnalysis) -> Text:
    """What each finding says, and the one thing to try."""
    return Text([f"{f.title} Try: {f.suggestion}." for f in k.diagnosis.findings])


def shown_value(e: Evidence) -> str:
    """Three significant digits and the unit."""
    size = abs(e.value)
    number = (
        f"{e.value:,.0f}" if size >= 100 or float(e.value).is_integer() else f"{e.value:.{1 if size >= 10 else 2}f}"
    )
    return f"{number} {e.unit}".strip()


def memory_table(a: NcuAnalysis, top: int) -> Table:
    """Throughput against peak, hit rates, how well accesses are shaped."""
    columns = [
        ID,
        Column("DRAM%", "dram_pct", digits=1),
        Column("GB/s", "dram_gb_s", digits=0),
        Column("L2%", "l2_pct", digits=1),
        Column("L1%", "l1_pct", digits=1),
        Column("sh%", "shared_pct", digits=1),
        Column("L1hit", "l1_hit_pct", digits=1),
        Column("L2hit", "l2_hit_pct", digits=1),
        Column("sec/ld", "sectors_per_load", digits=1),
        Column("B/sec", "bytes_per_sector", digits=1),
        Column("ways", "shared_ways", digits=2),
    ]
    rows: list[list[Cell]] = []
    for k in a.kernels[:top]:
        m = k.numbers.memory
        rate = None if m.dram_bytes_s is None else m.dram_bytes_s / 1e9
        throughput: list[Cell] = [k.numbers.id, m.dram_pct, rate, m.l2_pct, m.l1_pct, m.shared_pct]
        shape: list[Cell] = [m.l1_hit_pct, m.l2_hit_pct, m.sectors_per_request, m.bytes_per_sector, m.shared_ways]
        rows.append([*throughput, *shape])
    note = (
        "% of peak (L1: of active cycles; sh: shared-memory pipe, shuffles included); sec/ld: 32 B sectors per load of "
        "a warp; B/sec: bytes of them used; ways: passes per shared access, 1 is free of bank conflicts"
    )
    return Table("Memory", columns, list(rows), note=note)


def occupancy_table(a: NcuAnalysis, top: int) -> Table:
    """Warps on the SMs and what keeps them down."""
    columns = [
        ID,
        Column("occ.%", "occupancy_pct", digits=1),
        Column("max%", "theoretical_pct", digits=0),
        Column("limited by", "limiter", text=True, flexible=True),
        Column("fit", "blocks_that_fit"),
        Column("waves", "waves"),
        Column("tail%", "tail_pct", digits=1),
        Column("SM%", "sm_active_pct", digits=1),
        Column("regs", "registers"),
        Column("smem KB", "shared_kb", digits=1),
        Column("spills", "spill_requests", digits=0),
    ]
    rows: list[list[Cell]] = []
    for k in a.kernels[:top]:
        o = k.numbers.occupancy
        resident: list[Cell] = [k.numbers.id, o.achieved_pct, o.theoretical_pct, o.limiter, o.fitting_blocks, o.waves]
        used: list[Cell] = [o.tail_pct, o.sm_active_pct, o.registers, shared_kb(k), k.numbers.memory.spill_requests]
        rows.append([*resident, *used])
    note = "fit: blocks on an SM at once; tail: slots empty in the last wave; SM: its cycles with any warp, of all"
    return Table("Occupancy", columns, list(rows), note=note)


def shared_kb(k: KernelAnalysis) -> float | None:
    """Shared memory of a block, static and dynamic, in KB (1000 bytes)."""
    parts = [k.numbers.occupancy.static_smem_bytes, k.numbers.occupancy.dynamic_smem_bytes]
    return None if None in parts else sum(p for p in parts if p is not None) / 1e3


def waits_table(a: NcuAnalysis, top: int) -> Table:
    """The three longest waits of each launch."""
    columns = [
        ID,
        Column("cycles/issue", "cycles_per_issue", digits=1),
        Column("issue %", "issue_pct", digits=1),
        Column("warps", "warps_per_scheduler", digits=1),
        Column("longest waits: cycles per issue", "waits", text=True, flexible=True, wrap=True),
    ]
    rows: list[list[Cell]] = []
    for k in a.kernels[:top]:
        longest = [s for s in k.numbers.stalls if s.reason != "selected"][:3]
        waits = ", ".join(f"{_reason(s.reason)} {_cycles(s.cycles_per_issue)}({s.share:.0%})" for s in longest)
        c = k.numbers.compute
        rows.append([k.numbers.id, k.numbers.cycles_per_issue, c.issue_pct, c.warps, waits or None])
    note = "issue %: active scheduler cycles that issued; warps: per scheduler; all reasons: --view stalls"
    return Table("Waits", columns, list(rows), note=note)


def _reason(reason: str) -> str:
    return reason.replace("_", " ")


def _cycles(cycles: float | None) -> str:
    return "" if cycles is None else f"{cycles:.1f} "


def stall_table(a: NcuAnalysis, top: int) -> Table:
    """Every wait that occurred."""
    columns = [
        ID,
        Column("reason", "reason", text=True),
        Column("cycles/issue", "cycles_per_issue"),
        Column("share", "share", percent=True),
        Column("a warp", "meaning", text=True, flexible=True),
    ]
    rows: list[list[Cell]] = [
        [k.numbers.id, _reason(s.reason), s.cycles_per_issue, s.share, MEANING.get(s.reason, "")]
        for k in a.kernels[:top]
        for s in k.numbers.stalls
        if s.share > 0
    ]
    note = _left(a, top) if rows else "no stalls in this report: collect section WarpStateStats and give the raw page"
    return Table("Warp cycles per issued instruction", columns, list(rows), note=note, bar="share")


def _rules(a: NcuAnalysis, top: int) -> list[Table | Text]:
    return [rule_table(a, top, RULES_OF_A_LAUNCH)] if any(k.rules for k in a.kernels) else []


def rule_table(a: NcuAnalysis, top: int, most: int | None = None) -> Table:
    """ncu's own rule results, named as such; the largest estimates first."""
    columns = [
        ID,
        Column("ncu's rule", "rule", text=True),
        Column("kind", "kind", text=True),
        Column("est. %", "estimated_speedup_pct", digits=1),
        Column("scope", "scope", text=True),
        Column("what ncu says", "text", text=True, flexible=True, wrap=most is None),
    ]
    rows: list[list[Cell]] = []
    for k in a.kernels[:top]:
        ordered = sorted(k.rules, key=lambda r: -(r.speedup_pct or 0))[:most]
        rows += [[k.numbers.id, r.rule, r.kind, r.speedup_pct, r.scope or None, r.text] for r in ordered]
    note = "Nsight Compute's estimates, not glqprof's: each alone, of the kernel (global) or of one part (local)"
    return Table("ncu's own rules", columns, list(rows), note=note if rows else "no rule results in this report")


def all_columns(a: NcuAnalysis) -> Table:
    """One row a launch with every number: the CSV of the summary."""
    tables = [overview_table(a, len(a.kernels)), *_weights(a, len(a.kernels)), memory_table(a, len(a.kernels))]
    tables += [occupancy_table(a, len(a.kernels)), waits_table(a, len(a.kernels))]
    columns: list[Column] = []
    rows: list[list[Cell]] = [[] for _ in a.kernels]
    seen: set[str] = set()
    for table in tables:
        assert isinstance(table, Table)
        for position, column in enumerate(table.columns):
            if column.key in seen:
                continue
            seen.add(column.key)
            columns.append(column)
            for row, source in zip(rows, table.rows, strict=True):
                row.append(source[position])
    name = [c.key for c in columns].index("name")
    for row, k in zip(rows, a.kernels, strict=True):
        row[name] = k.numbers.name
    return Table("launches", columns, list(rows))
