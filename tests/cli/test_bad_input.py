"""Unusable input and arguments: one line on stderr that names the file, what is wrong and what to do; status 2."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli import Ran, glqprof, glqprof_process
from support.nsys_builder import NsysExport, two_token_decode
from support.paths import PUBLIC


def files_under(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_refused(ran: Ran, *words: object) -> None:
    """Status 2, nothing on stdout, one line `error: WHERE: what; what to do` that holds the words."""
    assert ran.status == 2, ran
    assert ran.out == ""
    (line,) = ran.err.splitlines()
    assert line.startswith("error: ")
    assert "Traceback" not in line
    for word in words:
        assert str(word) in line, line


@pytest.fixture
def decode(tmp_path) -> Path:
    return two_token_decode().write(tmp_path / "decode.sqlite")


@pytest.fixture(autouse=True)
def nothing_new(tmp_path):
    """No command of this module may leave a file: what stands in the folder is what the test put there."""
    yield
    left = [p.name for p in tmp_path.rglob("*") if p.name.startswith((".", "glqprof-"))]
    assert left == []


# --- what is no capture


def not_a_database(folder: Path) -> Path:
    path = folder / "run.sqlite"
    path.write_bytes(b"SQLite format 2\x00 but not really" * 100)
    return path


def other_database(folder: Path) -> Path:
    path = folder / "places.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE places (name TEXT)")
        db.execute("INSERT INTO places VALUES ('here')")
    db.close()
    return path


def cut_database(folder: Path) -> Path:
    path = two_token_decode().write(folder / "run.sqlite")
    path.write_bytes(path.read_bytes()[:9_000])
    return path


def header_alone(folder: Path) -> Path:
    path = folder / "run.sqlite"
    path.write_bytes(b"SQLite format 3\x00")
    return path


def cut_gzip(folder: Path) -> Path:
    path = two_token_decode().write(folder / "run.sqlite.gz")
    path.write_bytes(path.read_bytes()[:2_000])
    return path


def gzip_with_a_wrong_sum(folder: Path) -> Path:
    path = two_token_decode().write(folder / "run.sqlite.gz")
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 0xFF
    path.write_bytes(raw)
    return path


def gzip_of_a_cut_database(folder: Path) -> Path:
    path = folder / "run.sqlite.gz"
    path.write_bytes(gzip.compress(cut_database(folder).read_bytes()))
    return path


def empty_file(folder: Path) -> Path:
    path = folder / "run.sqlite"
    path.touch()
    return path


def gzip_of_nothing(folder: Path) -> Path:
    path = folder / "run.sqlite.gz"
    path.write_bytes(gzip.compress(b""))
    return path


def lfs_pointer(folder: Path) -> Path:
    path = folder / "run.sqlite"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n", encoding="ascii")
    return path


def ncu_report(folder: Path) -> Path:
    path = folder / "kernel.ncu-rep"
    path.write_bytes(b"NVR\x00\x01\x02" + bytes(500))
    return path


def raw_stream(folder: Path) -> Path:
    path = folder / "run.qdstrm"
    path.write_bytes(bytes(range(256)))
    return path


def text(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("kernel,ms\nfoo,1\n", encoding="ascii")
    return path


def cut_chrome_trace(folder: Path) -> Path:
    raw = gzip.decompress((PUBLIC / "tracelens_vllm_decode_fullgraph.json.gz").read_bytes())
    path = folder / "trace.json"
    path.write_bytes(raw[: len(raw) // 2])
    return path


def cut_chrome_trace_gzipped(folder: Path) -> Path:
    path = folder / "trace.json.gz"
    path.write_bytes((PUBLIC / "tracelens_vllm_decode_fullgraph.json.gz").read_bytes()[:5_000])
    return path


def json_that_is_no_trace(folder: Path) -> Path:
    path = folder / "package.json"
    path.write_text('{"name": "x", "version": 1}', encoding="ascii")
    return path


def missing(folder: Path) -> Path:
    return folder / "nowhere.sqlite"


def below_a_file(folder: Path) -> Path:
    return lfs_pointer(folder) / "run.sqlite"


def no_such_schema(folder: Path) -> Path:
    path = two_token_decode().write(folder / "run.sqlite")
    with sqlite3.connect(path) as db:
        db.execute('ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN "start" TO "begin"')
    db.close()
    return path


def text_for_a_number(folder: Path) -> Path:
    path = two_token_decode().write(folder / "run.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 'one' WHERE correlationId = 1")
    db.close()
    return path


def chrome_with(**wrong: object) -> Callable[[Path], Path]:
    def chrome_trace(folder: Path) -> Path:
        kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1, "args": {}}
        path = folder / "trace.json"
        path.write_text(json.dumps({"traceEvents": [kernel | wrong]}), encoding="ascii")
        return path

    return chrome_trace


def gpu_with_text_for_a_number(folder: Path) -> Path:
    path = two_token_decode().write(folder / "run.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE TARGET_INFO_GPU SET smCount = 'many'")
    db.close()
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (not_a_database, ["nsys export --type sqlite"]),
        (other_database, ["not an nsys export"]),
        (cut_database, ["cut short", "copy or export it again"]),
        (header_alone, ["cut short", "copy it again"]),
        (cut_gzip, ["damaged gzip", "copy it again"]),
        (gzip_with_a_wrong_sum, ["damaged gzip", "copy it again"]),
        (gzip_of_a_cut_database, ["cut short"]),
        (empty_file, ["is empty", "capture again"]),
        (gzip_of_nothing, ["is empty", "capture again"]),
        (lfs_pointer, ["Git LFS pointer", "git lfs pull"]),
        (ncu_report, ["Nsight Compute report", "give an nsys or torch.profiler capture"]),
        (raw_stream, ["unprocessed nsys stream", "give the .nsys-rep"]),
        (text, ["nsys export --type sqlite"]),
        (cut_chrome_trace, ["cut short", "export it again"]),
        (cut_chrome_trace_gzipped, ["damaged gzip", "copy it again"]),
        (json_that_is_no_trace, ["no traceEvents"]),
        (missing, ["no such file", "check the path"]),
        (below_a_file, ["cannot be read"]),
        (no_such_schema, ["CUPTI_ACTIVITY_KIND_KERNEL", "without column start", "update glqprof"]),
        (text_for_a_number, ["correlationId", "export it again"]),
        (gpu_with_text_for_a_number, ["many", "copy it again"]),
        (chrome_with(ts="soon"), ["soon", "copy it again"]),
        (chrome_with(ts=1e30), ["copy it again"]),
        (chrome_with(name=["k"]), ["copy it again"]),
        (chrome_with(args={"correlation": 2**64}), ["copy it again"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_no_capture(tmp_path, make, words) -> None:
    path = make(tmp_path)
    before = files_under(tmp_path)
    assert_refused(glqprof("breakdown", path), f"error: {path}: ", *words)
    assert files_under(tmp_path) == before
    # The same on either side of a comparison.
    assert_refused(glqprof("compare", path, path, "--format", "json"), f"error: {path}: ")


def test_an_unreadable_file(tmp_path, decode) -> None:
    decode.chmod(0)
    if os.access(decode, os.R_OK):
        pytest.skip("this user (root) may read everything: permissions forbid nothing")
    assert_refused(glqprof("breakdown", decode), decode, "cannot be read", "check its permissions")


# --- captures without GPU work, and why


def launches() -> NsysExport:
    return NsysExport().api(100, 200, "cudaLaunchKernel", correlation=1).api(300, 400, "cudaDeviceSynchronize")


@pytest.mark.parametrize(
    ("export", "words"),
    [
        (NsysExport(), ["no CUDA call was recorded", "spawn"]),
        (NsysExport().nvtx(0, 100, "decode_token_0"), ["no CUDA call was recorded", "spawn"]),
        (launches(), ["2 CUDA calls but no activity", "capture again"]),
        (
            launches().diagnostic("CUPTI: insufficient privileges (ERR_NVGPUCTRPERM)", 3),
            ["permission", "NVreg_RestrictProfilingToAdminUsers=0"],
        ),
        (
            launches().diagnostic("The installed driver version 999.1 is not supported by this CUPTI", 3),
            ["driver", "use an nsys at least as new"],
        ),
    ],
    ids=["empty", "ranges alone", "calls alone", "permission", "driver"],
)
def test_a_capture_without_gpu_work_says_why(tmp_path, export, words) -> None:
    path = export.write(tmp_path / "quiet.sqlite")
    assert_refused(glqprof("breakdown", path), f"error: {path}: holds no GPU work", *words)


def test_a_folder_without_gpu_work_is_named_by_its_path(tmp_path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    launches().write(folder / "trace.sqlite")
    (folder / "capture.json").write_text(json.dumps(MANIFEST), encoding="utf-8")
    assert_refused(glqprof("breakdown", folder), f"error: {folder}: holds no GPU work")


@pytest.mark.parametrize("steps", [False, True], ids=["no steps", "steps"])
def test_untimed_graphs_alone_are_no_gpu_work(tmp_path, steps) -> None:
    export = NsysExport().api(1, 2, "cudaGraphLaunch", correlation=1).graph(0, 0, correlation=1)
    if steps:
        export.nvtx(0, 10, "decode_token_0")
    path = export.write(tmp_path / "graphs.sqlite")
    assert_refused(glqprof("breakdown", path), f"error: {path}: holds 1 graph launches", "--cuda-graph-trace=node")


# --- arguments that find nothing in the capture


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ("nvtx:prefill*", ["matches no range", "decode_token_* (2)", "layer_*_E (2)"]),
        ("nvtx:", ["matches no range"]),
        ("decode_token_0", ["nvtx:GLOB", "START:END"]),
        ("1-2", ["nvtx:GLOB", "START:END"]),
        ("2:1", ["ends before it starts"]),
        ("1:1", ["ends before it starts"]),
        ("100:200", ["lies outside the capture", "seconds"]),
        ("x:y", ["nvtx:GLOB", "START:END"]),
        ("", ["nvtx:GLOB", "START:END"]),
    ],
)
def test_windows_that_match_nothing_or_are_malformed(decode, window, words) -> None:
    assert_refused(glqprof("breakdown", decode, "--window", window), f"error: {decode}: --window {window}", *words)


def test_a_window_on_a_capture_without_ranges(tmp_path) -> None:
    path = NsysExport().kernel(0, 10).write(tmp_path / "bare.sqlite")
    ran = glqprof("breakdown", path, "--window", "nvtx:decode*")
    assert_refused(ran, path, "holds no NVTX range at all", "use all or START:END")


@pytest.mark.parametrize("window", ["0:99999999999999999999", "-5:1", ":", "0:"])
def test_a_window_beyond_the_capture_is_cut_to_it(decode, window) -> None:
    """Idle time is not claimed for what was not recorded."""
    found = glqprof("breakdown", decode, "--window", window, "--format", "json").json
    assert (found["window"]["start_ns"], found["window"]["end_ns"]) == (1_000, 21_000)
    assert any("cut to the capture" in w for w in found["warnings"]) == (window not in (":", "0:"))


@pytest.mark.parametrize(
    ("option", "value", "there"), [("--device", 5, "0"), ("--process", 7, "1000"), ("--stream", 99, "7")]
)
def test_options_that_name_what_is_not_there_list_what_is(decode, option, value, there) -> None:
    ran = glqprof("breakdown", decode, option, value)
    assert_refused(ran, f"error: {decode}: {option} {value} ", f"it holds {there}")


def test_compare_names_the_side_that_lacks_it(tmp_path, decode) -> None:
    other = NsysExport().kernel(0, 10, device=3).write(tmp_path / "other.sqlite")
    assert_refused(glqprof("compare", decode, other, "--device", 0), f"error: {other}: --device 0", "it holds 3")


def test_compare_refuses_a_side_that_cannot_tell_idle_from_busy(tmp_path, decode) -> None:
    lost = two_token_decode().diagnostic("CUPTI events dropped: 12").write(tmp_path / "lost.sqlite")
    assert_refused(glqprof("compare", decode, lost), "lost", "records were lost", "capture a shorter window")


def test_a_step_to_draw_that_is_not_there(tmp_path, decode) -> None:
    ran = glqprof("breakdown", decode, "--timeline", tmp_path / "t.png", "--step", "decode_token_9")
    assert_refused(ran, "--step decode_token_9", "decode_token_0, decode_token_1")
    assert not (tmp_path / "t.png").exists()


def test_a_timeline_without_steps(tmp_path) -> None:
    path = NsysExport().kernel(0, 10).write(tmp_path / "bare.sqlite")
    assert_refused(glqprof("breakdown", path, "--timeline", tmp_path / "t.png"), "bare", "--window nvtx:GLOB")
    assert not (tmp_path / "t.png").exists()


def test_csv_of_what_is_not_answered(tmp_path, decode) -> None:
    ran = glqprof("breakdown", PUBLIC / "tracelens_vllm_decode_fullgraph.json.gz", "--format", "csv", "--view", "gaps")
    assert_refused(ran, "tracelens_vllm", "no table for CSV")


# --- arguments that the parser refuses


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["breakdown"], ["glqprof breakdown", "Missing argument"]),
        (["compare", "one"], ["glqprof compare", "Missing argument"]),
        (["breakdown", "x", "--nope"], ["No such option", "--nope"]),
        (["breakdown", "x", "--format", "yaml"], ["--format", "yaml", "json"]),
        (["breakdown", "x", "--device", "zero"], ["--device"]),
        (["breakdown", "x", "--top", "0"], ["--top"]),
        (["breakdown", "x", "--view", "all"], ["--view", "account"]),
        (["brakedown", "x"], ["brakedown"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_are_one_line_too(arguments, words) -> None:
    assert_refused(glqprof(*arguments), *words, "--help")


# --- buckets


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            '[[rule]]\nbucket = "a"\nkernel = "x"\n\n[[rule]]\nbucket = "b"\nkernel = "(unclosed"\n',
            ["line 5", "regular"],
        ),
        ('[[rule]]\nbucket = "a"\n', ["line 1", "'kernel'"]),
        ('# mine\n\n[[rule]]\nkernel = "x"\n', ["line 3", "'bucket'"]),
        ('[[rule]]\nbucket = "a"\nkernel = 5\n', ["line 1", "kernel"]),
        ('[[rule]]\nbucket = "a"\nkernel = "x"\nnvxt = "y"\n', ["line 1", "nvxt"]),
        ('[[rule]]\nbucket = "a\nkernel = "x"\n', ["line 2", "TOML"]),
        ('rules = "none"\n', ["line 1", "rules"]),
        ("", ["[[rule]]"]),
    ],
    ids=["bad regex", "no kernel", "no bucket", "number", "unknown key", "bad TOML", "no rule tables", "empty"],
)
def test_a_broken_buckets_file_names_the_line(tmp_path, decode, content, words) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(content, encoding="utf-8")
    assert_refused(glqprof("breakdown", decode, "--buckets", rules), f"error: {rules}: ", *words)


def test_buckets_files_that_cannot_be_read(tmp_path, decode) -> None:
    assert_refused(glqprof("breakdown", decode, "--buckets", tmp_path / "none.toml"), "none.toml", "no such file")
    assert_refused(glqprof("breakdown", decode, "--buckets", tmp_path), tmp_path, "cannot be read")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert_refused(glqprof("breakdown", decode, "--buckets", tmp_path / "binary.toml"), "is not UTF-8")


# --- capture folders


MANIFEST = {"schema": "glqprof.capture/1", "name": "c", "tool": "nsys", "tool_version": "0", "files": ["trace.sqlite"]}


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (None, ["has no capture.json", "capture it again"]),
        ("{", ["capture.json", "is not JSON"]),
        ("[]", ["capture.json"]),
        ("{}", ["capture.json", "schema None", "glqprof.capture/1"]),
        (json.dumps(MANIFEST | {"schema": "glqprof.capture/2"}), ["glqprof.capture/2", "update glqprof"]),
        (json.dumps(MANIFEST | {"tokens": "8"}), ["tokens", "mend it"]),
        (json.dumps({k: v for k, v in MANIFEST.items() if k != "files"}), ["files", "mend it"]),
        (json.dumps(MANIFEST | {"files": []}), ["names no file"]),
        (json.dumps(MANIFEST | {"files": ["gone.sqlite"]}), ["gone.sqlite", "no such file"]),
        (json.dumps(MANIFEST | {"files": ["."]}), ["cannot be read"]),
    ],
    ids=["none", "cut", "list", "empty", "other schema", "wrong type", "no files", "zero files", "file gone", "folder"],
)
def test_capture_folders_that_are_none(tmp_path, manifest, words) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    two_token_decode().write(folder / "trace.sqlite")
    if manifest is not None:
        (folder / "capture.json").write_text(manifest, encoding="utf-8")
    assert_refused(glqprof("breakdown", folder), folder, *words)


def test_a_manifest_that_is_a_folder(tmp_path) -> None:
    (tmp_path / "run" / "capture.json").mkdir(parents=True)
    assert_refused(glqprof("breakdown", tmp_path / "run"), "capture.json", "cannot be read")


# --- output


@pytest.mark.parametrize(
    ("command", "option"), [("breakdown", "--figure"), ("breakdown", "--timeline"), ("compare", "--figure")]
)
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere/out.png", ["folder does not exist"]),
        ("out.bmp", ["no figure type", ".png, .svg, .pdf"]),
        ("out", ["no figure type"]),
        ("folder.png", ["is a folder"]),
        ("decode.sqlite/out.png", ["folder does not exist"]),
    ],
)
def test_figures_that_cannot_be_written(tmp_path, decode, command, option, target, words) -> None:
    (tmp_path / "folder.png").mkdir()
    before = files_under(tmp_path)
    captures = [decode] * (2 if command == "compare" else 1)
    assert_refused(glqprof(command, *captures, option, tmp_path / target), f"error: {tmp_path / target}: ", *words)
    assert files_under(tmp_path) == before


def test_a_figure_into_a_folder_without_permission(tmp_path, decode) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("this user (root) may write everywhere: permissions forbid nothing")
    assert_refused(glqprof("breakdown", decode, "--figure", closed / "out.png"), "out.png", "permission denied")


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_demo_refuses_a_folder_that_cannot_be_made_before_it_prints(tmp_path, place) -> None:
    (tmp_path / "file").write_text("mine", encoding="ascii")
    assert_refused(glqprof("demo", "-o", tmp_path / place), f"error: {tmp_path / place}: ", "choose another folder")
    assert (tmp_path / "file").read_text(encoding="ascii") == "mine"


# --- a file that somebody writes


WRITER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
exec(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""
SPILL = (
    "db.execute('PRAGMA cache_size=1'); db.execute('BEGIN');"
    "[db.execute('INSERT INTO StringIds VALUES (?, ?)', (9_000 + i, 'x' * 500)) for i in range(2_000)]"
)
LOG = "db.execute('PRAGMA journal_mode=WAL'); db.execute('DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL')"


@pytest.mark.parametrize(
    ("statements", "dies", "words"),
    [
        ("db.execute('BEGIN EXCLUSIVE')", False, ["locked", "wait until the export has finished"]),
        (SPILL, False, ["locked", "wait until the export has finished"]),
        (SPILL, True, ["left amid a write", "export it again"]),
        (LOG, False, ["writes that are not in it yet", "close the program"]),
        (LOG, True, ["writes that are not in it yet", "wal_checkpoint"]),
    ],
    ids=["exclusive lock", "half a transaction", "died in a transaction", "write-ahead log", "died with a log"],
)
def test_a_database_that_a_writer_holds_or_left(tmp_path, decode, statements, dies, words) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(decode), statements],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "ready\n"
        if dies:
            writer.kill()
            writer.wait()
        assert_refused(glqprof("breakdown", decode), f"error: {decode}: ", *words)
    finally:
        writer.kill()
        writer.communicate()


def test_a_finished_transaction_leaves_a_readable_file(decode) -> None:
    """Only what counts is refused: a kept journal whose header is zeroed, an empty log."""
    with sqlite3.connect(decode) as db:
        db.execute("PRAGMA journal_mode=PERSIST")
        db.execute("DELETE FROM DIAGNOSTIC_EVENT")
    db.close()
    assert decode.with_name("decode.sqlite-journal").stat().st_size > 0
    assert glqprof("breakdown", decode, "--format", "json").status == 0
    decode.with_name("decode.sqlite-wal").touch()
    assert glqprof("breakdown", decode, "--format", "json").status == 0


# --- the process


def test_a_program_ends_with_status_2_and_one_line(tmp_path) -> None:
    assert_refused(glqprof_process("breakdown", tmp_path / "none.sqlite"), "none.sqlite", "check the path")


def test_debug_shows_the_traceback_and_keeps_the_status(tmp_path) -> None:
    ran = glqprof_process("--debug", "breakdown", tmp_path / "none.sqlite")
    assert ran.status == 2
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].startswith(f"error: {tmp_path / 'none.sqlite'}: ")
    usage = glqprof("--debug", "breakdown")
    assert usage.status == 2
    assert "Traceback" in usage.err


def test_no_arguments_print_the_help() -> None:
    ran = glqprof()
    assert (ran.status, ran.err) == (0, "")
    for verb in ("breakdown", "compare", "demo"):
        assert verb in ran.out


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_a_reader_that_stops_early_is_no_failure(decode, form) -> None:
    head = shutil.which("true")
    assert head is not None
    command = [sys.executable, "-m", "glqprof", "breakdown", str(decode), "--format", form]
    with subprocess.Popen([head], stdin=subprocess.PIPE) as reader:
        reader.wait()  # has gone before the first byte is written
        done = subprocess.run(command, stdout=reader.stdin, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
