"""Launches matched between reports, names matched with a timeline, and what a timeline says a kernel is worth."""

from __future__ import annotations

import gzip
import sqlite3

import pytest
from ncu.reports import RAW, launch, report

import glqprof
from glqprof.analysis.ncu_analysis import analyse
from glqprof.analysis.ncu_compare import compare_reports, shown_dim
from glqprof.analysis.ncu_names import function_name, kernel_key
from glqprof.analysis.ncu_weights import kernel_times, weigh
from glqprof.traces.ncu_reports import load_ncu_report
from support.paths import RECORDED

TIMELINE = RECORDED / "h200-cascade2-30b-glq-v0.2.13"


def pairs(base, cand):
    found = compare_reports(analyse(report(*base)), analyse(report(*cand)))
    matched = [(m.base.numbers.id, m.cand.numbers.id, m.by) for m in found.matches]
    return matched, [k.numbers.id for k in found.vanished], [k.numbers.id for k in found.appeared]


def test_matched_by_name_and_grid_in_order():
    a, b = launch(name="k<1>(int)", grid=(9, 1, 1)), launch(name="k<1>(int)", grid=(200, 1, 1))
    assert pairs([a, b, a], [a, a, b]) == (
        [(0, 0, "name and grid"), (1, 2, "name and grid"), (2, 1, "name and grid")], [], [],
    )  # fmt: skip


def test_a_changed_grid_is_matched_by_name_and_changed_arguments_by_function():
    base = [launch(name="void k<2>(int)"), launch(name="void r(int)", grid=(7, 1, 1)), launch(name="old()")]
    cand = [launch(name="void k<4>(int)"), launch(name="void r(int)", grid=(8, 1, 1)), launch(name="new()")]
    assert pairs(base, cand) == ([(0, 0, "function name"), (1, 1, "name")], [2], [2])


def test_only_what_changed_is_listed():
    base = launch(**{"gpu__time_duration.sum": 30_000, "launch__registers_per_thread": 32})
    cand = launch(**{"gpu__time_duration.sum": 15_000, "launch__registers_per_thread": 40}, grid=(2112, 1, 1))
    found = compare_reports(analyse(report(base)), analyse(report(cand)))
    changes = {c.key: (c.base, c.cand, c.ratio) for c in found.matches[0].changes}
    assert changes == {
        "duration_us": (30.0, 15.0, 0.5), "grid": ("1056", "2112", None), "registers": (32, 40, 1.25),
    }  # fmt: skip
    assert (found.base_us, found.cand_us) == (30.0, 15.0)
    same = compare_reports(analyse(load_ncu_report(RAW)), analyse(load_ncu_report(RAW)))
    assert len(same.matches) == 8
    assert not any(m.changes for m in same.matches)


@pytest.mark.parametrize(
    ("nsys", "ncu"),
    [
        ("void k<(int)3>(float *, int)", "void k<3>(float *, int)"),
        ("void a::<unnamed>::k<(bool)1, (int)-2>(T1)", "void a::(anonymous namespace)::k<true, -2>(T1)"),
        ("k(const float *)", "k(float const*)"),
        ("void k<std::array<char *, (unsigned long)2>>(int)", "void k<std::array<char*, 2>>(int)"),
    ],
)
def test_one_key_for_the_names_of_both_tools(nsys, ncu):
    assert kernel_key(nsys) == kernel_key(ncu)
    assert kernel_key("void k<3>(int)") != kernel_key("void k<2>(int)")


def test_function_names():
    assert function_name("void at::native::vectorized<4, F>(int, F)") == "vectorized"
    assert function_name("copy_blocked[v1,cw51c](Array<long long, 1>, long long)").startswith("copy_blocked[")


@pytest.mark.parametrize(
    ("size", "shown"), [((84, 4, 1), "84×4"), ((11, 1, 1), "11"), ((1, 1, 2), "1×1×2"), (None, None)]
)
def test_sizes_without_trailing_ones(size, shown):
    assert shown_dim(size) == shown


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Launches and summed nanoseconds by name and grid, straight from the export's tables."""
    path = tmp_path_factory.mktemp("nsys") / "trace.sqlite"
    path.write_bytes(gzip.decompress((TIMELINE / "trace.sqlite.gz").read_bytes()))
    database = sqlite3.connect(path)
    start, end = database.execute(
        "SELECT min(start), max(end) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId "
        "WHERE coalesce(e.text, s.value) LIKE 'decode_token%'"
    ).fetchone()
    rows = database.execute(
        "SELECT s.value, gridX, gridY, gridZ, count(*), sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.demangledName WHERE k.start >= ? AND k.start < ? GROUP BY 1, 2, 3, 4",
        (start, end),
    ).fetchall()
    database.close()
    return {(name, (x, y, z)): (count, ns) for name, x, y, z, count, ns in rows}


def test_weights_are_the_timelines_launches_of_that_name_and_grid(counted):
    times = kernel_times(glqprof.breakdown(glqprof.load(TIMELINE, launch_config=True)))
    kernels = analyse(load_ncu_report(RAW)).kernels
    for kernel, wanted in ((kernels[0], "scratch_kernel<(int)3>"), (kernels[5], "glq_reduce_splits_kernel")):
        weight = weigh(kernel.numbers, times)
        count, ns = next(v for (name, grid), v in counted.items() if wanted in name and grid == kernel.numbers.grid)
        assert (weight.launches, weight.matched) == (count, "name and grid")
        assert weight.sum_ms == pytest.approx(ns / 1e6)
        assert weight.ms_per_token == pytest.approx(ns / 1e6 / 8)  # 8 tokens: captures/README
        assert 0 < weight.share < 1
        assert weight.at_most_ms == pytest.approx(ns / 1e6 * (1 - kernel.numbers.busiest_pct / 100))


def test_a_grid_that_the_timeline_lacks_is_matched_by_name_and_a_foreign_kernel_not_at_all(counted):
    times = kernel_times(glqprof.breakdown(glqprof.load(TIMELINE, launch_config=True)))
    kernels = analyse(
        report(launch(name="glq_reduce_splits_kernel(float *, const float *, int, int)", grid=(77, 1, 1)))
    )
    weight = weigh(kernels.kernels[0].numbers, times)
    assert weight.matched == "name"
    assert weight.launches == sum(n for (name, _), (n, _) in counted.items() if "glq_reduce_splits" in name)
    assert weigh(analyse(report(launch(name="other_kernel(int)"))).kernels[0].numbers, times) is None
    bare = weigh(analyse(report(launch(name="glq_matvec_splitk_scratch_kernel", grid=None))).kernels[0].numbers, times)
    assert bare.matched == "function name"
    assert bare.launches == sum(n for (name, _), (n, _) in counted.items() if "glq_matvec_splitk_scratch" in name)
