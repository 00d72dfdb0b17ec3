"""A bench result as a document: the timings, what was checked, what was found, and the facts that a reader needs."""

from __future__ import annotations

from collections.abc import Sequence

from glqprof.reports.document import Cell, Column, Document, Table, Text
from glqprof.traces.schema.bench import BenchResult, Timing, VariantResult

KINDS = {"eager": "as called, host included", "graph": "CUDA graph replay"}


def bench_document(result: BenchResult) -> Document:
    """Return the tables and texts of a bench, readable at 80 columns and in a pull request."""
    document = Document(f"{result.group} at {result.geometry}: {'all checks passed' if result.ok else 'checks FAILED'}")
    document.parts.append(Text([document.title], "headline"))
    document.parts += [table for kind in KINDS if (table := timing_table(result, kind)) is not None]
    document.parts.append(check_table(result))
    found = findings(result)
    if found:
        document.parts.append(Text(found, "warning"))
    document.parts.append(Text(facts(result)))
    return document


def time_unit(result: BenchResult) -> tuple[str, float]:
    """Return the unit in which all times of a result are readable, and the microseconds in one of it."""
    medians = [t.median_us for v in result.variants for t in (v.timings.eager, v.timings.graph) if t is not None]
    return ("ms", 1000.0) if medians and max(medians) >= 1000 else ("µs", 1.0)


def timing_table(result: BenchResult, kind: str) -> Table | None:
    """Return the table of one timing: median, spread, ratio with its interval, verdict; None if nothing has it."""
    if all(getattr(variant.timings, kind) is None for variant in result.variants):
        return None
    unit, scale = time_unit(result)
    columns = [
        Column("variant", "variant", text=True),
        Column("rows", "rows"),
        Column(unit, "median"),
        Column("p10–p90", "spread"),
        Column(f"÷ {result.baseline}", "ratio", digits=3),
        Column("95 %", "ratio_ci"),
        Column("verdict", "verdict", text=True, flexible=True, wrap=True),
    ]
    rows: list[Sequence[Cell]] = []
    for variant in result.variants:
        timing: Timing | None = getattr(variant.timings, kind)
        if timing is not None:
            rows.append(_timing_row(result, variant, timing, scale))
        elif kind == "graph":
            rows.append([variant.name, variant.rows, None, None, None, None, variant.timings.graph_note or None])
    cache = "cache not controlled" if result.cache.state == "uncontrolled" else result.cache.state
    return _lean(Table(f"{kind}: {KINDS[kind]}, {cache}", columns, rows), result)


def _timing_row(result: BenchResult, variant: VariantResult, timing: Timing, scale: float) -> Sequence[Cell]:
    verdict = timing.verdict or timing.reason
    if variant.name == result.baseline:
        verdict = "A against A"
    elif not variant.ok:
        verdict = "invalid"  # a time that must not be believed is not called faster
    interval = timing.ratio_ci and f"{timing.ratio_ci[0]:.3f}–{timing.ratio_ci[1]:.3f}"
    spread = f"{number(timing.p10_us / scale)}–{number(timing.p90_us / scale)}"
    return [variant.name, variant.rows, number(timing.median_us / scale), spread, timing.ratio, interval, verdict]


def check_table(result: BenchResult) -> Table:
    """Return what was checked: bits against the baseline, float64, launches, waits, rate and floor."""
    columns = [
        Column("variant", "variant", text=True),
        Column("rows", "rows"),
        Column("ok", "ok"),
        Column("bits", "bits"),
        Column("by ≤", "max_rel"),
        Column("err f64", "rel_err"),
        Column("launch", "launches"),
        Column("waits", "syncs"),
        Column("GB/s", "gb_s"),
        Column("×floor", "floor_ratio", digits=1),
    ]
    rows: list[Sequence[Cell]] = [
        [
            v.name,
            v.rows,
            v.ok,
            bits(v),
            f"{v.differing.max_rel:.1e}" if v.differing and v.differing.count else None,
            None if v.rel_err is None else f"{v.rel_err:.1e}",
            v.launches,
            v.syncs,
            None if v.gb_s is None else number(v.gb_s),
            v.floor_ratio,
        ]
        for v in result.variants
    ]
    note = f"bits and largest difference (of the largest output) against {result.baseline}; err against float64"
    return _lean(Table("checks", columns, rows, note=note), result)


def _lean(table: Table, result: BenchResult) -> Table:
    """Drop the columns that say nothing: the rows when there is one number of them, rates without a ceiling."""
    idle = set() if len(result.rows) > 1 else {"rows"}
    if result.device.copy_gb_s is None:
        idle |= {"gb_s", "floor_ratio"}
    keep = [index for index, column in enumerate(table.columns) if column.key not in idle]
    columns = [table.columns[index] for index in keep]
    return Table(table.title, columns, [[row[index] for index in keep] for row in table.rows], note=table.note)


def bits(variant: VariantResult) -> str | None:
    """Return ``same``, or the share of elements that differ from the baseline; None if it could not be compared."""
    if variant.identical is None or variant.differing is None:
        return None
    if variant.identical:
        return "same"
    share = 100 * variant.differing.share
    return f"{share:.1f} % differ" if share >= 0.05 else f"{variant.differing.count} differ"


def findings(result: BenchResult) -> list[str]:
    """Return one line for every reason and warning."""
    several = len(result.rows) > 1
    lines = []
    for variant in result.variants:
        who = f"{variant.name}, rows {variant.rows}" if several else variant.name
        lines += [f"{who}: {reason}" for reason in variant.reasons]
    return lines + [f"warning: {warning}" for warning in result.warnings]


def facts(result: BenchResult) -> list[str]:
    """Return the lines below the tables: machine, method, noise floor, clocks."""
    device = result.device
    machine = [device.name]
    if device.capability:
        machine.append(f"sm_{device.capability.replace('.', '')}")
    for label, version in (("driver", device.driver), ("CUDA", device.cuda), ("torch", device.torch)):
        if version:
            machine.append(f"{label} {version}")
    options = "".join(f", {key} {value}" for key, value in result.options.items())
    floor = "not measured" if result.noise_floor_pct is None else f"{result.noise_floor_pct:.2f} %"
    lines = [
        ", ".join(machine),
        f"{result.group} at {result.geometry}, {result.layers} layers a call, seed {result.seed}{options}",
        _cache_line(result),
        f"noise floor (A against A): {floor}",
        _clock_line(result),
    ]
    if device.copy_gb_s is not None:
        lines.append(f"ceiling: {device.copy_gb_s:.0f} GB/s device copy (read + written), measured in this run")
    return lines


def _cache_line(result: BenchResult) -> str:
    cache = result.cache
    if cache.state == "cold":
        between, l2 = cache.bytes / 1e6, result.device.l2_bytes / 1e6
        return f"cold: {cache.sets} weight sets, {between:.0f} MB between two uses of a weight (L2 {l2:.0f} MB)"
    if cache.state == "warm":
        return "WARM: weights and inputs may stay in cache (--warm)"
    return "cache not controlled on this device: fresh inputs, the same weights"


def _clock_line(result: BenchResult) -> str:
    clocks = result.clocks
    if clocks.sm_mhz is None or clocks.mem_mhz is None:
        return f"clocks: {clocks.source}"
    sm, mem = ("–".join(map(str, dict.fromkeys(pair))) for pair in (clocks.sm_mhz, clocks.mem_mhz))
    return f"clocks: SM {sm} MHz, memory {mem} MHz, {clocks.throttled_blocks} throttled blocks ({clocks.source})"


def number(value: float) -> str:
    """Return a number with three significant digits, or all of its integer digits."""
    for digits, limit in ((0, 99.95), (1, 9.995), (2, 0.9995)):  # where rounding reaches the next power of ten
        if value >= limit:
            return f"{value:.{digits}f}"
    return f"{value:#.3g}"  # "#" keeps trailing zeros


CSV_KEYS = (
    *("group", "geometry", "layers", "rows", "variant", "ok", "contract"),
    *("identical", "differing_count", "differing_share", "max_abs_err", "rel_err"),
    *("timing", "median_us", "p10_us", "p90_us", "ratio", "ratio_lo", "ratio_hi", "verdict", "reason"),
    *("noise_floor_pct", "bytes", "gb_s", "floor_us", "launches", "syncs", "reasons"),
)


def bench_csv_table(result: BenchResult) -> Table:
    """Return one row per variant, number of rows and timing; a variant that was never timed has one row."""
    rows: list[Sequence[Cell]] = []
    for v in result.variants:
        found = v.differing
        head: list[Cell] = [result.group, result.geometry, result.layers, v.rows, v.name, v.ok, v.contract, v.identical]
        head += [found.count, found.share] if found else [None, None]
        head += [v.max_abs_err, v.rel_err]
        tail: list[Cell] = [v.bytes, v.gb_s, v.floor_us, v.launches, v.syncs, " ".join(r.code for r in v.reasons)]
        timings = [(kind, getattr(v.timings, kind)) for kind in KINDS if getattr(v.timings, kind) is not None]
        for kind, t in timings:
            low, high = t.ratio_ci or (None, None)
            times = [kind, t.median_us, t.p10_us, t.p90_us, t.ratio, low, high, t.verdict, t.reason, t.noise_floor_pct]
            rows.append([*head, *times, *tail])
        if not timings:
            rows.append([*head, *[None] * 10, *tail])
    return Table("bench", [Column(key, key) for key in CSV_KEYS], rows)
