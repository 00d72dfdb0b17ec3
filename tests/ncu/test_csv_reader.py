"""Both CSV pages: every value of the real files against their text, and what surrounds a table in a terminal."""

from __future__ import annotations

import csv
import gzip

import pytest
from ncu.reports import DETAILS, RAW, T4, raw_text, rows_of, write_rows

from glqprof.errors import InputError
from glqprof.traces.ncu_reports import is_same_session, join_pages, load_ncu_report
from glqprof.traces.readers.ncu_numbers import parse_number
from glqprof.traces.schema.ncu import base_unit

IDENTITY = 11


def test_every_cell_of_the_raw_page_is_a_number_a_word_or_missing():
    header, units, *rows = rows_of(RAW)
    report = load_ncu_report(RAW)
    assert [x.id for x in report.launches] == [int(r[0]) for r in rows] == list(range(8))
    scale = {"us": 1e3, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12, "Mhz": 1e6, "Ghz": 1e9}
    checked = missing = 0
    for launch, row in zip(report.launches, rows, strict=True):
        for name, unit, text in list(zip(header, units, row, strict=True))[IDENTITY:]:
            if text in ("", "nan", "n/a", "no data"):
                assert name not in launch.metrics
                assert name not in launch.texts
                missing += 1
                continue
            try:
                printed = float(text.replace(",", ""))
            except ValueError:
                assert launch.texts[name] == text
                continue
            top, _, bottom = unit.partition("/")
            factor = scale.get(top, 1) / scale.get(bottom, 1) * {"ns": 1e9, "us": 1e6}.get(bottom, 1)
            if bottom == "us":
                factor = 1e6
            assert launch.metrics[name] == pytest.approx(printed * factor, rel=1e-12), (name, unit)
            checked += 1
    assert checked > 8 * 2200
    assert missing >= 8  # derived_tempMetric4 is nan in every launch


def test_identity_of_a_launch_keeps_commas_and_brackets_of_names():
    first, t4 = load_ncu_report(RAW).launches[0], load_ncu_report(T4).launches[0]
    assert first.name.startswith("void glq_matvec_splitk_scratch_kernel<3>(float *, const __half *, const short *, ")
    assert (first.grid, first.block, first.device, first.compute_capability) == ((84, 4, 1), (32, 8, 1), 0, "9.0")
    assert t4.name.endswith(
        "(Array<long long, 1, C, mutable, aligned>, Array<long long, 1, C, mutable, aligned>, long long)"
    )
    assert (t4.grid, t4.block, t4.compute_capability) == ((1024, 1, 1), (256, 1, 1), "7.5")


def test_the_details_page_gives_metric_names_and_base_units():
    metrics = load_ncu_report(T4).launches[0].metrics
    assert metrics["gpu__time_duration.sum"] == 21_058_944  # "21,058,944" ns
    assert metrics["dram__bytes.sum.per_second"] == 196_456_177_859.63  # the Memory Throughput in byte/s
    assert metrics["gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"] == 61.84  # the one in %
    assert metrics["smsp__average_warp_latency_per_inst_issued.ratio"] == 933.13
    assert metrics["launch__occupancy_limit_warps"] == 4
    assert "PM Sampling: Dropped Samples" in metrics  # no metric name is known: label and section


def test_rules_are_ncus_own_with_their_estimates():
    header, *rows = rows_of(DETAILS)
    expected = [r for r in rows if r[0] == "0" and len(r) > 15 and r[header.index("Rule Name")]]
    found = load_ncu_report(DETAILS).launches[0].rules
    assert [r.rule for r in found] == [r[header.index("Rule Name")] for r in expected]
    stall = next(r for r in found if r.rule == "CPIStall")
    assert (stall.kind, stall.speedup_pct, stall.scope) == ("OPT", 61.5, "global")
    assert stall.text.startswith("On average, each warp of this workload spends 10.1 cycles being stalled waiting for")
    assert next(r for r in found if r.rule == "SOLFPRoofline").speedup_pct is None


PREAMBLE = """==PROF== Connected to process 1249 (/usr/bin/python3.12)
ID of "request", Kernel Name unknown
loss = 1,234.5 "quoted, not a row"
""" + "".join(f'==PROF== Profiling "k<{n}>(int, "x")" - {n} (1/8): 0%....50%....100% - 40 passes\n' for n in range(8))


@pytest.mark.parametrize("page", [RAW, DETAILS])
def test_what_a_terminal_leaves_around_the_table_is_not_part_of_it(tmp_path, page):
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    noisy = tmp_path / page.name
    middle = 'token 5: "hello, world"\n==WARNING== Found outstanding GPU clock reset\n\n'
    noisy.write_text(PREAMBLE + "".join(lines[:4]) + middle + "".join(lines[4:]) + "==PROF== Disconnected\n")
    assert load_ncu_report(noisy).launches == load_ncu_report(page).launches


def test_a_row_may_break_lines_inside_quotes(tmp_path):
    header, *rows = rows_of(T4)
    at = header.index("Rule Description")
    ruled = next(r for r in rows if len(r) > at and r[at])
    ruled[at] = 'first line,\n"second" line\n==PROF== is part of it'
    made = load_ncu_report(write_rows(tmp_path / "x.csv", [header, *rows]))
    assert made.launches[0].rules[0].text == 'first line, "second" line ==PROF== is part of it'


def test_gzip_and_utf16_are_read_as_they_are(tmp_path):
    text = RAW.read_text(encoding="utf-8")
    packed, wide = tmp_path / "x.csv.gz", tmp_path / "x.csv"
    packed.write_bytes(gzip.compress(text.encode()))
    wide.write_bytes(text.encode("utf-16"))
    plain = load_ncu_report(RAW)
    assert load_ncu_report(packed).launches == load_ncu_report(wide).launches == plain.launches


def test_a_single_n_a_is_missing_and_never_zero(tmp_path):
    header, units, *rows = rows_of(RAW)
    rows[0][header.index("dram__bytes_read.sum")] = "n/a"
    first, second = load_ncu_report(write_rows(tmp_path / "x.csv", [header, units, *rows])).launches[:2]
    assert "dram__bytes_read.sum" not in first.metrics
    assert second.metrics["dram__bytes_read.sum"] == pytest.approx(
        float(rows[1][header.index("dram__bytes_read.sum")]) * 1e6
    )


def test_without_grid_columns_the_grid_comes_from_the_metrics(tmp_path):
    header, units, *rows = rows_of(RAW)
    dropped = {header.index("Grid Size"), header.index("Block Size")}
    cut = [[cell for i, cell in enumerate(r) if i not in dropped] for r in (header, units, *rows)]
    first = load_ncu_report(write_rows(tmp_path / "old.csv", cut)).launches[0]
    assert (first.grid, first.block) == ((84, 4, 1), (32, 8, 1))


@pytest.mark.parametrize(
    ("unit", "base", "factor"),
    [
        ("us", "ns", 1e3), ("usecond", "ns", 1e3), ("nsecond", "ns", 1), ("msecond", "ns", 1e6), ("second", "ns", 1e9),
        ("Gbyte/s", "byte/s", 1e9), ("Gbyte/second", "byte/s", 1e9), ("Kbyte/block", "byte/block", 1e3),
        ("Ghz", "hz", 1e9), ("hz", "hz", 1), ("cycle/nsecond", "hz", 1e9), ("cycle/usecond", "hz", 1e6),
        ("sector/ns", "sector/s", 1e9), ("sector/us", "sector/s", 1e6), ("%/Kbyte", "%/byte", 1e-3),
        ("%", "%", 1), ("inst/cycle", "inst/cycle", 1), ("", "", 1), ("register/thread", "register/thread", 1),
    ],
)  # fmt: skip
def test_units(unit, base, factor):
    assert base_unit(unit) == (base, pytest.approx(factor))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.50", 1234.5), ("0", 0.0), ("-3.5", -3.5), ("27,595,520", 27595520.0), ("4.5e+06", 4.5e6),
        ("n/a", None), ("", None), ("nan", None), ("inf", None), ("no data", None), ("PolicySpread", "PolicySpread"),
        ("1.234", 1.234), ("12.8.1", "12.8.1"), ("NVIDIA H200", "NVIDIA H200"),
    ],
)  # fmt: skip
def test_numbers(text, value):
    assert parse_number(text, "x") == value


@pytest.mark.parametrize("text", ["27.595.520", "1.234,5", "28,00", "38,502172", "27 595 520", "27’595’520.5", "-0,5"])
def test_numbers_of_a_european_locale_are_refused_with_the_way_out(text):
    with pytest.raises(InputError, match=r"European locale.*117\.344.*\.ncu-rep.*--print-units base"):
        parse_number(text, "x.csv")


def test_two_pages_of_one_session_are_one_report():
    raw, details = load_ncu_report(RAW), load_ncu_report(DETAILS)
    assert is_same_session(raw, details)
    assert not is_same_session(raw, raw)
    assert not is_same_session(raw, load_ncu_report(T4))
    joined = join_pages(details, raw)
    assert joined.launches[3].rules == details.launches[3].rules
    text, _ = raw_text("gpu__time_duration.sum", 3)  # six digits, where the details page prints 6.30
    assert joined.launches[3].metrics["gpu__time_duration.sum"] == pytest.approx(float(text) * 1e3)
    assert "two pages of one session" in joined.notes[0]


def test_frame_is_indexed_by_id_with_nan_for_missing():
    frame = load_ncu_report(RAW).frame("gpu__time_duration.sum", "derived_tempMetric4")
    assert list(frame.index) == list(range(8))
    assert frame["derived_tempMetric4"].isna().all()
    header, _, *rows = list(csv.reader(RAW.open(newline="")))
    expected = [float(r[header.index("gpu__time_duration.sum")]) * 1e3 for r in rows]
    assert frame["gpu__time_duration.sum"].tolist() == pytest.approx(expected)
