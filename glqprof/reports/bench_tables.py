"""Tables of a bench result as text cells: the same rows for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glqprof.traces.schema.bench import BenchResult, KernelList, Timing, VariantResult


@dataclass(frozen=True)
class TextTable:
    """A titled table of strings; the first ``left`` columns are aligned left, the others right."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


def time_unit(result: BenchResult) -> tuple[str, float]:
    """Return the unit in which all times of a result are readable, and the microseconds in one of it."""
    medians = [t.median_us for v in result.variants for t in (v.timings.eager, v.timings.graph) if t is not None]
    return ("ms", 1000.0) if medians and max(medians) >= 1000 else ("µs", 1.0)


def timing_tables(result: BenchResult) -> list[TextTable]:
    """Return one table per timing that anything has: median, spread, ratio with its interval, verdict."""
    unit, scale = time_unit(result)
    meaning = {"eager": "as called, host included", "graph": "CUDA graph replay"}
    tables = []
    for kind, words in meaning.items():
        rows = []
        for variant in result.variants:
            timing: Timing | None = getattr(variant.timings, kind)
            if timing is not None:
                rows.append(_timing_row(result, variant, timing, scale))
            elif kind == "graph" and variant.timings.graph_note:
                rows.append([variant.name, str(variant.rows), "–", "", "", variant.timings.graph_note])
        if any(getattr(variant.timings, kind) is not None for variant in result.variants):
            headers = ["variant", "rows", unit, "p10–p90", f"÷ {result.baseline} [95 %]", "verdict"]
            cache = "cache not controlled" if result.cache.state == "uncontrolled" else result.cache.state
            tables.append(_lean(TextTable(f"{kind}: {words}, {cache}", headers, rows), result))
    return tables


def _timing_row(result: BenchResult, variant: VariantResult, timing: Timing, scale: float) -> list[str]:
    ratio = "–"
    if timing.ratio is not None:
        ratio = f"{timing.ratio:.3f}"
        if timing.ratio_ci is not None:
            ratio += f" [{timing.ratio_ci[0]:.3f}–{timing.ratio_ci[1]:.3f}]"
    verdict = timing.verdict or timing.reason
    if variant.name == result.baseline:
        verdict = "A against A"
    elif not variant.ok:
        verdict = "invalid"
    spread = f"{number(timing.p10_us / scale)}–{number(timing.p90_us / scale)}"
    return [variant.name, str(variant.rows), number(timing.median_us / scale), spread, ratio, verdict]


def check_table(result: BenchResult) -> TextTable:
    """Return what was checked: bits against the baseline, float64, launches, waits, rate and floor."""
    rows = []
    for variant in result.variants:
        rows.append(
            [
                variant.name,
                str(variant.rows),
                "yes" if variant.ok else "NO",
                bits(variant),
                f"{variant.differing.max_rel:.1e}" if variant.differing and variant.differing.count else "",
                _or_dash(variant.rel_err, "{:.1e}"),
                _or_dash(variant.launches, "{}"),
                _or_dash(variant.syncs, "{}"),
                "–" if variant.gb_s is None else number(variant.gb_s),
                _or_dash(variant.floor_ratio, "{:.1f}"),
            ]
        )
    headers = ["variant", "rows", "ok", "bits", "by ≤", "err f64", "launch", "waits", "GB/s", "×floor"]
    title = f"checks: bits and largest difference against {result.baseline}; error against float64"
    return _lean(TextTable(title, headers, rows), result)


def _lean(table: TextTable, result: BenchResult) -> TextTable:
    """Drop the columns that say nothing: the rows when there is one number of them, rates without a ceiling."""
    idle = set() if len(result.rows) > 1 else {"rows"}
    if result.device.copy_gb_s is None:
        idle |= {"GB/s", "×floor"}
    keep = [index for index, header in enumerate(table.headers) if header not in idle]
    return TextTable(
        table.title,
        [table.headers[index] for index in keep],
        [[row[index] for index in keep] for row in table.rows],
        table.left,
    )


def bits(variant: VariantResult) -> str:
    """Return ``same``, or the share of elements that differ from the baseline."""
    if variant.identical is None or variant.differing is None:
        return "–"
    if variant.identical:
        return "same"
    share = 100 * variant.differing.share
    return f"{share:.1f} % differ" if share >= 0.05 else f"{variant.differing.count} differ"


def facts(result: BenchResult) -> list[str]:
    """Return the lines below the tables: machine, method, noise floor, clocks."""
    device = result.device
    machine = [device.name]
    if device.capability:
        machine.append(f"sm_{device.capability.replace('.', '')}")
    for label, version in (("driver", device.driver), ("CUDA", device.cuda), ("torch", device.torch)):
        if version:
            machine.append(f"{label} {version}")
    lines = [", ".join(machine)]
    lines.append(f"{result.group} at {result.geometry}, {result.layers} layers, seed {result.seed}{_options(result)}")
    cache = result.cache
    if cache.state == "cold":
        lines.append(
            f"cold: {cache.sets} weight sets, {cache.bytes / 1e6:.0f} MB between two uses of a weight "
            f"(L2 {device.l2_bytes / 1e6:.0f} MB)"
        )
    elif cache.state == "warm":
        lines.append("WARM: weights and inputs may stay in cache (--warm)")
    else:
        lines.append("cache not controlled on this device: fresh inputs, the same weights")
    if device.copy_gb_s is not None:
        lines.append(f"ceiling: {device.copy_gb_s:.0f} GB/s device copy (read + written), measured in this run")
    floor = "not measured" if result.noise_floor_pct is None else f"{result.noise_floor_pct:.2f} %"
    lines.append(f"noise floor (A against A): {floor}")
    clocks = result.clocks
    if clocks.sm_mhz is None or clocks.mem_mhz is None:
        lines.append(f"clocks: {clocks.source}")
    else:
        sm, mem = ("–".join(map(str, dict.fromkeys(pair))) for pair in (clocks.sm_mhz, clocks.mem_mhz))
        throttled = f"{clocks.throttled_blocks} throttled blocks"
        lines.append(f"clocks: SM {sm} MHz, memory {mem} MHz, {throttled} ({clocks.source})")
    return lines


def _options(result: BenchResult) -> str:
    return "".join(f", {key} {value}" for key, value in result.options.items())


def findings(result: BenchResult) -> list[tuple[str, str]]:
    """Return (who, what) of every reason and warning."""
    several = len(result.rows) > 1
    lines = []
    for variant in result.variants:
        who = f"{variant.name}, {variant.rows} rows" if several else variant.name
        lines += [(who, str(reason)) for reason in variant.reasons]
    return lines + [("warning", str(warning)) for warning in result.warnings]


def kernel_tables(listing: KernelList) -> list[TextTable]:
    """Return one table per group: variant, contract, type, whether it runs on the GPU and the CPU of this machine."""
    return [
        TextTable(
            f"{group.name}: {group.summary} (baseline {group.baseline}; geometries {', '.join(group.geometries)})",
            ["variant", "contract", "dtype", "cuda here", "cpu here"],
            [[v.name, v.contract, v.dtype, *("yes" if run.can else run.why for run in v.runs)] for v in group.variants],
            left=5,
        )
        for group in listing.groups
    ]


def kernel_summaries(listing: KernelList) -> list[tuple[str, str]]:
    """Return (variant, what it is) of every variant."""
    return [(variant.name, variant.summary) for group in listing.groups for variant in group.variants]


def number(value: float) -> str:
    """Return a number with three significant digits, or all of its integer digits."""
    for digits, limit in ((0, 99.95), (1, 9.995), (2, 0.9995)):  # where rounding reaches the next power of ten
        if value >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3g}"


def _or_dash(value: float | int | None, form: str) -> str:
    return "–" if value is None else form.format(value)
