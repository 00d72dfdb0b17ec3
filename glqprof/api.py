"""Functions of the package for notebooks and scripts beside `load`, `breakdown` and `compare`; see docs/api.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glqprof.analysis.breakdown import Breakdown, breakdown
from glqprof.errors import InputError

if TYPE_CHECKING:
    from glqprof.analysis.compare import Comparison
    from glqprof.analysis.ncu_analysis import NcuAnalysis
    from glqprof.analysis.release import ReleaseNotes
    from glqprof.reports.notebook import Picture


def ncu(report: str | Path, *, capture: Breakdown | None = None) -> NcuAnalysis:
    """Read and diagnose an Nsight Compute report: ``.ncu-rep``, a CSV page, or a folder of `glqprof capture ncu`.

    ``capture``: a breakdown of the same program, loaded with launch configuration (the default of `load`); the launches
    are then weighted by its kernels and ordered by what a fix is worth at most. Raises InputError for an unusable
    report, or a capture that holds none of its kernels.
    """
    from glqprof.analysis.ncu_analysis import analyse
    from glqprof.analysis.ncu_weighted import weighted
    from glqprof.traces.ncu_reports import load_ncu_report

    analysis = analyse(load_ncu_report(report))
    return analysis if capture is None else weighted(analysis, capture)


def account_picture(*breakdowns: Breakdown) -> Picture:
    """The closed accounts of one or several captures as stacked bars. Raises InputError where none has an account."""
    from glqprof.reports.figures import draw_account
    from glqprof.reports.notebook import Picture

    return Picture(draw_account(breakdowns))


def timeline_picture(b: Breakdown, step: str | None = None) -> Picture:
    """GPU streams over the host threads that fed them, for one step (its range's name; default the median one).

    Raises InputError when the capture has no steps, or none of that name.
    """
    from glqprof.reports.figures import draw_timeline
    from glqprof.reports.notebook import Picture

    return Picture(draw_timeline(b, step))


def write_report(path: str | Path, *captures: Breakdown | Sequence[Breakdown]) -> None:
    """Write the HTML report of ``glqprof report``; of several captures each is compared with the first.

    A capture may be a sequence of repeats. Raises InputError when ``path`` cannot be written, or no capture is given.
    """
    from glqprof.analysis.compare import compare
    from glqprof.reports.output import check_output_path, write_text
    from glqprof.reports.report_page import report_html

    sides = [[side] if isinstance(side, Breakdown) else list(side) for side in captures]
    if not sides or not all(sides):
        raise InputError(path, "needs at least one breakdown to report")
    check_output_path(Path(path))
    comparisons: list[Comparison | tuple[str, str]] = []
    for side in sides[1:]:
        try:
            comparisons += compare(sides[0], side)
        except InputError as error:
            comparisons.append((f"{side[0].name} against {sides[0][0].name}", str(error)))
    write_text(Path(path), report_html([side[0] for side in sides], comparisons))


def write_perfetto(path: str | Path, b: Breakdown) -> None:
    """Write the Chrome trace of ``glqprof export --to perfetto``; gzipped where ``path`` ends in ``.gz``."""
    from glqprof.reports.output import check_output_path
    from glqprof.reports.perfetto import export_perfetto

    check_output_path(Path(path))
    export_perfetto(b, Path(path))


def release_notes(spec: str | Path, *, allow_mixed: bool = False) -> ReleaseNotes:
    """The figures of ``glqprof release-notes`` from a specification (docs/release-notes.md).

    Raises InputError for a wrong specification, a source that cannot be used, or sources of different GPUs, workloads,
    batch sizes or prompts, unless ``allow_mixed`` is set.
    """
    from glqprof.analysis.release import release_notes as put_together
    from glqprof.analysis.release_rows import Evidence
    from glqprof.traces.bench_results import read_bench_result
    from glqprof.traces.captures import load
    from glqprof.traces.decode_results import read_decode
    from glqprof.traces.release_spec import read_release_spec
    from glqprof.traces.schema.buckets import load_bucket_rules
    from glqprof.traces.schema.release import NamedBench, NamedDecode, shown_name

    spec = Path(spec)
    content = read_release_spec(spec)
    root = spec.parent / content.root
    rules = load_bucket_rules(root / content.buckets if content.buckets else None)

    def bench(name: str) -> NamedBench:
        return NamedBench(shown_name(name), read_bench_result(root / name))

    # What is small and quick to refuse comes first; a capture takes seconds.
    benches = [(k, bench(k.bench)) for k in content.kernels]
    floor = content.gap.floor if content.gap else None
    floor_bench = bench(floor.bench) if floor and floor.bench else None
    decodes = {
        r.label: NamedDecode(shown_name(r.decode), read_decode(root / r.decode)) for r in content.rows if r.decode
    }
    row_benches = {r.label: bench(r.bench) for r in content.rows if r.bench}
    evidence = []
    for row in content.rows:
        capture = None
        if row.capture:
            capture = breakdown(load(root / row.capture, launch_config=False), buckets=rules)
        evidence.append(Evidence(row, capture, decodes.get(row.label), row_benches.get(row.label)))
    return put_together(content, evidence, benches, floor_bench, subject=spec, allow_mixed=allow_mixed)
