"""docs/formats.md says what each kind of capture can answer; here each is made and asked."""

from __future__ import annotations

import json
import re
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import glqprof
from support.nsys_builder import SHAPES, NsysExport, two_token_decode
from support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "formats.md"
QUESTIONS = ("gpu_time", "gpu_idle", "host_blame", "layers", "wall_time", "complete")


def matrix() -> dict[str, dict[str, str]]:
    """The page's table: capture -> question -> answer."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| capture |"))
    assert tuple(c.strip() for c in lines[head].split("|")[2:-1]) == QUESTIONS
    rows = {}
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        name, *answers = (c.strip() for c in line.split("|")[1:-1])
        rows[name] = dict(zip(QUESTIONS, answers, strict=True))
    return rows


def graph_decode(*, known: bool = True) -> NsysExport:
    """A step that replays a graph traced by node; ``known``: its creation lies in the capture."""
    export = NsysExport().nvtx(5_000, 9_000, "decode_token_0")
    if known:
        export.nvtx(0, 1_000, "layer_00_E").node_event(500, 1).node_event(1_500, 11, original=1)
    export.api(6_000, 6_100, "cudaGraphLaunch_v10000", correlation=1)
    return export.kernel(6_200, 6_300, correlation=1, node=11)


def whole_graph(start: int, end: int) -> NsysExport:
    """The two tokens, with a graph traced as a whole in the second."""
    export = two_token_decode().api(16_000, 16_100, "cudaGraphLaunch_v10000", correlation=90)
    return export.graph(start, end, correlation=90)


def without(export: NsysExport, *tables: str) -> NsysExport:
    for table in tables:
        del export.rows[table]
    return export


def cut_window() -> NsysExport:
    """The first launch lies before the capture began: its kernel has no call."""
    export = two_token_decode()
    calls = export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
    del calls[0]
    return export


def in_a_folder(folder: Path) -> Path:
    two_token_decode().write(folder / "trace.sqlite")
    manifest = {
        "schema": "glqprof.capture/1",
        "name": "c",
        "tool": "nsys",
        "tool_version": "0",
        "files": ["trace.sqlite"],
        "untraced": {"tok_s": 100_000.0, "ms_per_token": 0.01},
    }
    (folder / "capture.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def chrome(folder: Path, *, amd: bool) -> Path:
    """One step with one launch as torch.profiler writes it."""
    prefix = "hip" if amd else "cuda"
    host = {"ph": "X", "pid": 10, "tid": 10}
    events = [
        host | {"cat": "user_annotation", "name": "decode_token_0", "ts": 100, "dur": 100},
        host | {"cat": "user_annotation", "name": "layer_00_E", "ts": 105, "dur": 50},
        host
        | {"cat": "cuda_runtime", "name": f"{prefix}LaunchKernel", "ts": 110, "dur": 5, "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 120, "dur": 10}
        | {"args": {"correlation": 1, "device": 0, "stream": 7}},
    ]
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return path


def report(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    prepared = two_token_decode().write(folder / "prepared.sqlite")
    nsys = folder / "nsys"
    copy = f"shutil.copy({str(prepared)!r}, sys.argv[sys.argv.index('--output') + 1])"
    nsys.write_text(f"#!{sys.executable}\nimport shutil, sys\n{copy}\n", encoding="utf-8")
    nsys.chmod(nsys.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))
    assert shutil.which("nsys") == str(nsys)
    path = folder / "run.nsys-rep"
    path.write_bytes(b"\x00 a report")
    return path


EXPORTS: dict[str, Callable[[], NsysExport]] = {
    **{f"nsys {schema}": (lambda schema=schema: two_token_decode(schema)) for schema in SHAPES},
    "nsys, CUDA graphs traced by node": graph_decode,
    "nsys, CUDA graphs traced by node, made before the capture": lambda: graph_decode(known=False),
    "nsys, CUDA graphs traced whole": lambda: whole_graph(16_200, 16_500),
    "nsys, CUDA graphs traced whole, not timed": lambda: whole_graph(0, 0),
    "nsys, without NVTX": lambda: without(two_token_decode(), "NVTX_EVENTS"),
    "nsys, without API calls": lambda: without(two_token_decode(), "CUPTI_ACTIVITY_KIND_RUNTIME"),
    "nsys, window cut": cut_window,
    "nsys, records dropped": lambda: two_token_decode().diagnostic("CUPTI events dropped: 12"),
    "nsys, program failed": lambda: two_token_decode().api(20_100, 20_200, "cudaDeviceSynchronize", returned=700),
}
OTHERS = ("nsys-rep", "nsys, in a folder with an untraced run", "torch, NVIDIA", "torch, AMD")


def test_the_page_lists_what_is_made_here() -> None:
    assert set(matrix()) == {*EXPORTS, *OTHERS}


@pytest.mark.parametrize("kind", [*EXPORTS, *OTHERS])
def test_a_row_of_the_page_is_what_the_capture_answers(tmp_path, monkeypatch, kind) -> None:
    if kind in EXPORTS:
        path = EXPORTS[kind]().write(tmp_path / "run.sqlite")
    elif kind == "nsys-rep":
        path = report(tmp_path, monkeypatch)
    elif kind.startswith("torch"):
        path = chrome(tmp_path, amd=kind.endswith("AMD"))
    else:
        path = in_a_folder(tmp_path)
    b = glqprof.breakdown(glqprof.load(path))
    assert {q: a.answer for q, a in b.answers.items()} == matrix()[kind]
    for answer in b.answers.values():
        assert answer.why
        assert (answer.answer == "yes") == (answer.fix == "") or answer.why.startswith("AMD")


def test_the_page_names_the_oldest_and_the_newest_schema() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"schemas (\S+) \(nsys 2021\.5\) to (\S+) \(2026\.2\)", text)
    assert found is not None
    assert found.groups() == (SHAPES[0], SHAPES[-1])
