"""`glqprof capture` with stand-in tools: what is left, and what each failure says and exits with."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest
from profilers.stand_ins import glqprof, manifest_of

from glqprof.traces.captures import load
from glqprof.traces.ncu_reports import load_ncu_report

PYTHON = sys.executable


def log_of_tools():
    return [ast.literal_eval(line) for line in Path(os.environ["STAND_IN_LOG"]).read_text().splitlines()]


def assert_one_line(ran, status):
    assert ran.status == status, ran.err
    errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ran.err
    assert "Traceback" not in ran.err
    return errors[0]


def test_nsys_leaves_a_capture_that_breakdown_reads(tools, program):
    ran = glqprof("capture", "nsys", "-o", "mine", "--", PYTHON, program, "--tokens", 3)
    assert ran.status == 0, ran.err
    assert sorted(p.name for p in Path("mine").iterdir()) == ["capture.json", "trace.sqlite.gz"]
    manifest = manifest_of(Path("mine"))
    assert manifest["tool"] == "nsys"
    assert manifest["tool_version"] == "2025.3.2.0"
    assert (manifest["batch"], manifest["tokens"]) == (2, 8)
    assert (manifest["workload"], manifest["variant"]) == ("sleep", "x")
    assert manifest["scrubbed"] is True
    assert manifest["token_sha"]
    untraced = manifest["untraced"]
    assert untraced["runs"][0]["tokens"] == 8  # the step outside the marked part is not counted
    assert 1.0 <= untraced["ms_per_token"] < 50
    assert untraced["tok_s"] == pytest.approx(1000 / untraced["ms_per_token"], rel=1e-4)
    assert manifest["inflation"] == pytest.approx(
        manifest["traced"]["ms_per_token"] / untraced["ms_per_token"], rel=1e-3
    )
    assert load("mine").trace.kernels.shape[0] == 63
    assert "inflation" in ran.out
    assert "closed report" in ran.out
    assert "arguments ['--tokens', '3']" in ran.err  # the program's output is no result of ours


def test_the_flags_that_nsys_is_given(tools, program):
    glqprof("capture", "nsys", "--with=--trace=osrt", "--follow-forks", "--graph-trace", "graph", "--", PYTHON, program)
    options, command = log_of_tools()[0]
    assert options[:4] == ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=graph"]
    assert "--capture-range=cudaProfilerApi" in options  # the untraced run said that it marks a part
    assert "--capture-range-end=stop" in options
    assert options.index("--trace=osrt") > options.index("--trace-fork-before-exec=true")
    assert command == [PYTHON, str(program)]
    glqprof("capture", "nsys", "--range", "all", "-o", "all", "--", PYTHON, program)
    assert not any("capture-range" in option for option in log_of_tools()[1][0])
    assert Path("capture-nsys-decode-it").is_dir()  # the default folder is named after the program


def test_spaces_and_quotes_reach_the_program_as_they_are(tools, program):
    arguments = ["two words", 'a "quote"', "it's", "$HOME", "*", "", "ünï", "--", "-x"]
    ran = glqprof("capture", "nsys", "--no-untraced", "-o", "c", "--", PYTHON, program, *arguments)
    assert ran.status == 0, ran.err
    assert f"arguments {arguments!r}" in ran.err
    assert log_of_tools()[0][1] == [PYTHON, str(program), *arguments]
    assert "untraced" not in manifest_of(Path("c"))


def test_repeats_are_untraced_runs(tools, program):
    ran = glqprof("capture", "nsys", "--repeat", 3, "-o", "c", "--", PYTHON, program)
    assert ran.status == 0, ran.err
    assert len(manifest_of(Path("c"))["untraced"]["runs"]) == 3
    assert len(log_of_tools()) == 1
    assert_one_line(glqprof("capture", "nsys", "--repeat", 3, "--no-untraced", "--", PYTHON, program), 2)


def test_a_program_without_marks_is_captured_with_a_warning(tools):
    ran = glqprof("capture", "nsys", "-o", "c", "--", PYTHON, "-c", "pass")
    assert ran.status == 0, ran.err
    assert "marks no step" in ran.err
    assert "inflation" not in manifest_of(Path("c"))


def test_ncu_leaves_both_pages(tools, program):
    ran = glqprof(
        "capture", "ncu", "-o", "c", "-k", "gemv|norm", "--skip", 2, "--count", 2, "--section", "SpeedOfLight",
        "--", PYTHON, program,
    )  # fmt: skip
    assert ran.status == 0, ran.err
    options, _ = log_of_tools()[0]
    assert options[:4] == ["--clock-control", "none", "--print-units", "base"]
    text = " ".join(options)
    assert "--section SpeedOfLight -k regex:gemv|norm --launch-skip 2 --launch-count 2 --profile-from-start off" in text
    assert "--set" not in options
    manifest = manifest_of(Path("c"))
    assert manifest["files"] == ["raw.csv.gz", "details.csv.gz"]
    report = load_ncu_report(Path("c"))
    assert [launch.name for launch in report.launches] == ["gemv<float, 4>(float *)", "norm(float *)"]
    assert_one_line(glqprof("breakdown", "c"), 2)


def test_keeping_the_environment_keeps_the_closed_report_and_says_so(tools, program):
    ran = glqprof("capture", "nsys", "--keep-environment", "-o", "c", "--", PYTHON, program)
    assert ran.status == 0, ran.err
    assert (Path("c") / "trace.nsys-rep").exists()
    assert manifest_of(Path("c"))["scrubbed"] is False
    assert "not scrubbed" in ran.out
    assert glqprof("scrub", "c").status == 0
    assert manifest_of(Path("c"))["scrubbed"] is True
    assert sorted(p.name for p in Path("c").iterdir()) == ["capture.json", "trace.sqlite.gz"]


@pytest.mark.parametrize(
    ("tool", "mode", "words"),
    [
        ("nsys", "old", "too old: tracing CUDA graphs by node came with 2022.1"),
        ("ncu", "old", "ncu 2019.5.0 is too old"),
        ("nsys", "broken", "nsys --version fails"),
        ("nsys", "none", "wrote no report"),
        ("ncu", "none", "wrote no report"),
        ("nsys", "disk", "the disk is full"),
        ("ncu", "disk", "the disk is full"),
        ("nsys", "importer", "a library is missing (libdw.so.1)"),
        ("ncu", "permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("ncu", "zero", "profiled no kernel"),
    ],
)
def test_what_goes_wrong_is_one_line_and_no_capture(tools, program, monkeypatch, tool, mode, words):
    monkeypatch.setenv("STAND_IN", mode)
    ran = glqprof("capture", tool, "-o", "c", "--no-untraced", "--", PYTHON, program)
    assert words in assert_one_line(ran, 2)
    assert not (Path("c") / "capture.json").exists()
    if Path("c").exists():
        assert words in (Path("c") / "UNFINISHED").read_text()
        assert "unfinished capture" in assert_one_line(glqprof("breakdown", "c"), 2)


def test_an_export_without_kernels_is_refused_with_the_reason(tools, program, monkeypatch):
    import sqlite3

    with sqlite3.connect(os.environ["STAND_IN_EXPORT"]) as db:
        for table in ("KERNEL", "MEMCPY", "MEMSET"):
            db.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{table}")
    db.close()
    ran = glqprof("capture", "nsys", "-o", "c", "--", PYTHON, program)
    assert "CUDA calls but no activity" in assert_one_line(ran, 2)
    assert "raw/ holds what the tool wrote: not scrubbed" in (Path("c") / "UNFINISHED").read_text()


@pytest.mark.parametrize(("tool", "mode"), [("nsys", ""), ("nsys", "silent"), ("ncu", "")])
def test_the_programs_status_is_passed_on(tools, monkeypatch, tool, mode):
    monkeypatch.setenv("STAND_IN", mode)
    for untraced in ("--untraced", "--no-untraced"):
        folder = f"c{untraced}"
        ran = glqprof("capture", tool, untraced, "-o", folder, "--", PYTHON, "-c", "raise SystemExit(37)")
        assert "status 37" in assert_one_line(ran, 37)
        assert (Path(folder) / "UNFINISHED").exists()


def test_a_program_killed_by_a_signal_counts_as_a_shell_counts(tools):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert_one_line(glqprof("capture", "nsys", "-o", "c", "--", PYTHON, "-c", code), 139)


def test_a_program_that_is_not_there(tools):
    assert "cannot be started" in assert_one_line(glqprof("capture", "nsys", "-o", "c", "--", "no-such-program"), 2)


def test_a_folder_that_holds_something_is_left_alone(tools, program):
    Path("c").mkdir()
    (Path("c") / "mine.txt").write_text("mine")
    assert "exists already" in assert_one_line(glqprof("capture", "nsys", "-o", "c", "--", PYTHON, program), 2)
    assert (Path("c") / "mine.txt").read_text() == "mine"


def test_an_unfinished_folder_is_used_again(tools, program):
    assert glqprof("capture", "nsys", "-o", "c", "--", PYTHON, "-c", "raise SystemExit(1)").status == 1
    assert glqprof("capture", "nsys", "-o", "c", "--", PYTHON, program).status == 0
    assert sorted(p.name for p in Path("c").iterdir()) == ["capture.json", "trace.sqlite.gz"]


def test_a_name_that_looks_private_leaves_no_capture(tools, program):
    import sqlite3

    with sqlite3.connect(os.environ["STAND_IN_EXPORT"]) as db:
        db.execute("UPDATE NVTX_EVENTS SET text = 'load /home/ada/model' WHERE rowid = 1")
    db.close()
    error = assert_one_line(glqprof("capture", "nsys", "-o", "c", "--", PYTHON, program), 2)
    assert "a path in NVTX_EVENTS.text" in error
    assert not list(Path("c").glob("*.gz"))


def test_missing_arguments_are_one_line(tools):
    assert_one_line(glqprof("capture", "nsys"), 2)
    assert_one_line(glqprof("capture", "nsys", "--range", "some", "--", "x"), 2)
    assert_one_line(glqprof("capture", "gdb", "--", "x"), 2)
    assert_one_line(glqprof("capture", "torch", "--", "bash", "-c", "x"), 2)
    assert_one_line(glqprof("capture", "torch", "--", PYTHON, "-c", "x"), 2)


def test_help_gives_the_reasons(tools):
    assert "the whole environment (tokens!)" in " ".join(
        glqprof("capture", "nsys", "--help").out.replace("│", " ").split()
    )
