"""Unusable reports: one line, status 2, what is wrong and what to do."""

from __future__ import annotations

import re

import pytest
from ncu.reports import DATA, DETAILS, RAW, rows_of, write_rows

from support.cli import glqprof

NOTHING = """==PROF== Connected to process 12 (/usr/bin/python3.12)
==PROF== Disconnected from process 12
==WARNING== No kernels were profiled.
Available Kernels:
1. glq_reduce_splits_kernel
2. void glq_matvec_splitk_kernel<3>
"""


def european(text: str) -> str:
    return text.translate(str.maketrans(",.", ".,")) if re.fullmatch(r"-?[\d,]*\.?\d+", text) else text


def failure(path, *options) -> str:
    ran = glqprof("ncu", path, *options)
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    return ran.err


def test_a_european_locale_is_refused_with_the_way_out(tmp_path):
    header, units, *rows = rows_of(RAW)
    raw = write_rows(tmp_path / "raw.csv", [header, units, *([*r[:11], *map(european, r[11:])] for r in rows)])
    head, *lines = rows_of(DETAILS)
    details = write_rows(tmp_path / "details.csv", [head, *([*r[:14], european(r[14]), *r[15:]] for r in lines)])
    for path in (raw, details):
        message = failure(path)
        assert "European locale" in message
        assert "give the .ncu-rep itself" in message
        assert "--print-units base" in message


def test_n_a_everywhere(tmp_path):
    header, units, *rows = rows_of(RAW)
    empty = write_rows(tmp_path / "x.csv", [header, units, *([*r[:11], *["n/a"] * (len(r) - 11)] for r in rows)])
    assert "n/a everywhere" in failure(empty)


def test_a_filter_that_matched_nothing_says_what_was_there(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(NOTHING)
    message = failure(path)
    assert "the program launched glq_reduce_splits_kernel, void glq_matvec_splitk_kernel<3>" in message
    message = failure(RAW, "--kernel", "flash_attention")
    assert "it holds glq_matvec_splitk_scratch_kernel<3>, glq_reduce_splits_kernel," in message


@pytest.mark.parametrize("page", [RAW, DETAILS])
@pytest.mark.parametrize("share", [0.3, 0.61, 0.999])
def test_a_cut_page_is_refused(tmp_path, page, share):
    text = page.read_text(encoding="utf-8")
    path = tmp_path / "cut.csv"
    path.write_text(text[: int(len(text) * share)])
    assert "is cut" in failure(path)


def test_a_page_cut_between_rows_is_seen_by_ncus_own_lines(tmp_path):
    lines = RAW.read_text(encoding="utf-8").splitlines(keepends=True)
    log = "".join(f'==PROF== Profiling "k" - {n}: 0%....50%....100% - 40 passes\n' for n in range(8))
    path = tmp_path / "cut.csv"
    path.write_text(log + "".join(lines[:-3]))
    assert "ncu profiled 8 launches, 3 of them are not in the table (first: 5)" in failure(path)


def test_zero_kernels_and_other_damage(tmp_path):
    header, units, *rows = rows_of(RAW)
    cases = {
        "holds a header and no launch": [header],
        "holds no launch below its units": [header, units],
        "has no row of units": [header, *rows],
        "holds launch 0 twice": [header, units, *rows, *rows],
        "whose ID is 'x'": [header, units, ["x", *rows[0][1:]]],
    }
    for message, content in cases.items():
        assert message in failure(write_rows(tmp_path / "x.csv", content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello\n", "is no Nsight Compute CSV"),
        (b'"Time (%)","Total Time (ns)","Name"\n1,2,k\n', "is no Nsight Compute CSV"),
        (b"SQLite format 3\x00" + b"x" * 99, "is a SQLite export of nsys"),
        (b'{"traceEvents": []}', "is JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"PK\x03\x04xxxx", "zip archive"),
        (b"\x1f\x8b\x08\x00\x00", "damaged gzip"),
        (b"==ERROR== ERR_NVGPUCTRPERM - no permission\n", "no permission to read the GPU's counters"),
        (b"==ERROR== The application returned an error code (1).\n", "ncu failed (The application returned"),
        (b'==PROF== Profiling "k" - 0: 0%....100% - 9 passes\n', "is ncu's log without its table"),
    ],
)
def test_what_is_no_report(tmp_path, content, message):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    assert message in failure(path)


def test_a_report_of_nsys_a_folder_and_nothing_at_all(tmp_path):
    nsys = tmp_path / "x.nsys-rep"
    nsys.write_bytes(b"\x00\x01binary")
    assert "is a report of nsys" in failure(nsys)
    assert "has no capture.json" in failure(DATA)
    assert "no such file" in failure(tmp_path / "absent.csv")


def test_options_that_make_no_sense(tmp_path):
    assert "is no regular expression" in failure(RAW, "--kernel", "(")
    assert "is no figure type" in failure(RAW, "--figure", tmp_path / "x.bmp")
    assert "leave the others out" in failure(RAW, RAW, "--view", "stalls")
    assert "give one with --capture" in failure(RAW, "--window", "all")


def test_figures_that_cannot_be_drawn_leave_no_file(tmp_path):
    details = DATA / "copy_blocked_details.csv"
    assert "not drawn: no launch has the operation counts" in failure(details, "--figure", tmp_path / "x.png")
    assert "not drawn: no launch has stalls" in failure(details, "--stalls", tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


def test_a_timeline_of_another_program():
    from support.paths import RECORDED

    assert "holds none of the kernels" in failure(RAW, "--capture", RECORDED / "h200-toy-cuda-graph-node")
