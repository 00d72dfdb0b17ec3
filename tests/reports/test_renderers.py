"""Terminal, Markdown and CSV: nothing cut that must not be, nothing escaped wrongly, values that parse back."""

from __future__ import annotations

import csv
import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console

import glqprof
from glqprof.cli.breakdown import View
from glqprof.reports.csv_table import to_csv
from glqprof.reports.document import Column, Document, Table, Text
from glqprof.reports.markdown import to_markdown
from glqprof.reports.terminal import draw
from support.cli import glqprof as run
from support.nsys_builder import two_token_decode
from support.paths import PUBLIC, RECORDED

GLQ12, GLQ13 = RECORDED / "h200-cascade2-30b-glq-v0.2.12", RECORDED / "h200-cascade2-30b-glq-v0.2.13"
GRAPH = RECORDED / "h200-toy-cuda-graph-graph"
TWO_GPUS = PUBLIC / "nsysai_h100_2gpu_1s__2026.2_s3.25.0.sqlite.gz"
LONG_CALLS = PUBLIC / "tracelens_qwen1.5_eager_h100.json.gz"
ESCAPE = "\x1b"


def drawn(document: Document, width: int, **more: object) -> str:
    out = io.StringIO()
    draw(document, Console(file=out, width=width, highlight=False, **more))
    return out.getvalue()


def table(*rows: tuple, **more: object) -> Table:
    columns = [Column("what", "what", text=True, flexible=True), Column("ms", "ms", digits=3), Column("n", "count")]
    return Table("A table", columns, list(rows), **more)


# --- the terminal


@pytest.fixture(scope="module")
def breakdowns() -> dict:
    return {p: glqprof.breakdown(glqprof.load(p, launch_config=False)) for p in (GLQ12, GRAPH, TWO_GPUS, LONG_CALLS)}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("path", [GLQ12, GRAPH, TWO_GPUS, LONG_CALLS], ids=lambda p: p.name.split("__")[0])
def test_every_view_fits_and_no_number_is_cut(breakdowns, path, view, width) -> None:
    from glqprof.reports.breakdown_document import breakdown_document

    document = breakdown_document(breakdowns[path], view.value)
    text = drawn(document, width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    for part in document.parts:
        if isinstance(part, Table):
            for row in part.rows:
                for column, value in zip(part.columns, row, strict=True):
                    if not column.text:
                        assert column.show(value) in text


@pytest.mark.parametrize("width", [80, 120])
def test_compare_fits(width) -> None:
    ran = run("compare", GLQ12, GLQ13)
    assert ran.status == 0
    from glqprof.reports.compare_document import compare_document

    sides = [glqprof.breakdown(glqprof.load(p, launch_config=False)) for p in (GLQ12, GLQ13)]
    text = drawn(compare_document(glqprof.compare(*sides)), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "…" not in re.sub(r"\w*…", "", text)  # an ellipsis cuts a name, never stands alone


def test_what_is_too_wide_is_taken_from_texts_never_from_numbers() -> None:
    columns = [
        Column("fixed", "a", text=True),
        Column("flexible", "b", text=True, flexible=True),
        Column("flexible too", "c", text=True, flexible=True),
        Column("ms", "ms", digits=4),
    ]
    made = Table("t", columns, [["x" * 50, "y" * 60, "z" * 70, 123_456_789.1234]])
    text = drawn(Document("d", [made]), 60)
    assert "123,456,789.1234" in text
    assert max(map(len, text.splitlines())) <= 60
    # Both flexible columns keep something to read.
    assert re.search(r"y{5,}…", text)
    assert re.search(r"z{5,}…", text)


def test_wide_characters_are_measured_by_their_cells() -> None:
    text = drawn(Document("d", [table(("解码" * 30, 1.5, 3))]), 40)
    assert max(cell_len(line) for line in text.splitlines()) <= 40
    assert "1.500" in text


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_no_colour_codes_outside_a_terminal(form) -> None:
    assert ESCAPE not in run("breakdown", GRAPH, "--format", form).out


def in_terminal(*arguments: object, **environment: str) -> str:
    """What a command writes to a terminal (a pseudo one)."""
    main, child = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"} | environment
    env.pop("FORCE_COLOR", None)
    if "NO_COLOR" not in environment:
        env.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "glqprof", *map(str, arguments)]
    with subprocess.Popen(command, stdout=child, stderr=child, stdin=child, env=env) as process:
        os.close(child)
        seen = b""
        while True:
            try:
                chunk = os.read(main, 65_536)
            except OSError:  # Linux: the other side is closed
                break
            if not chunk:
                break
            seen += chunk
        process.wait()
    os.close(main)
    return seen.decode()


def test_colour_in_a_terminal_unless_no_color(tmp_path) -> None:
    path = two_token_decode().write(tmp_path / "made.sqlite")
    colour = re.compile(ESCAPE + r"\[[0-9;]*(3[0-7]|9[0-7])m")  # a foreground colour; bold and dim may stay
    assert colour.search(in_terminal("breakdown", path))
    assert not colour.search(in_terminal("breakdown", path, NO_COLOR="1"))


def test_names_from_the_program_cannot_steer_the_terminal(tmp_path) -> None:
    bad = f"{ESCAPE}[31mred{ESCAPE}]0;title\x07 two\nlines"
    export = two_token_decode().nvtx(100, 900, bad)
    export.nvtx(2_100, 2_600, f"decode_token_{bad}")
    path = export.kernel(25_000, 26_000, f"kernel_{bad}").write(tmp_path / "made.sqlite")
    for form in ("table", "markdown"):
        for view in ("summary", "tokens", "gaps", "kernels"):
            out = run("breakdown", path, "--window", "all", "--view", view, "--format", form).out
            assert ESCAPE not in out
            assert "\x07" not in out
            assert not any(line.startswith("lines") for line in out.splitlines())


def test_an_absent_value_is_a_dash_and_a_small_one_has_no_sign() -> None:
    column = Column("ms", "ms", signed=True)
    assert column.show(None) == column.show(float("nan")) == "–"
    assert column.show(-0.001) == "0.00"
    assert column.show(1234.5) == "+1,234.50"
    assert Column("n", "n").show(0) == "0"
    assert Column("share", "share", percent=True).show(0.123) == "12.3 %"


# --- Markdown


def cells(line: str) -> list[str]:
    """The cells of a Markdown table row, unescaped as GitHub does: a backslash before a pipe is not a border."""
    parts = re.split(r"(?<!\\)\|", line)[1:-1]
    return [p.strip() for p in parts]


def test_markdown_escapes_what_would_be_markup() -> None:
    name = "void kernel<float*, (int)4>::[lambda](a_b | c) `x` <b>"
    text = to_markdown(Document("a_b *c*", [table((name, 1.0, 2)), Text(["<script> a|b [x](y)", "1 * 2"])]))
    assert text.startswith("# a\\_b \\*c\\*\n")
    row = next(line for line in text.splitlines() if "lambda" in line)
    assert len(cells(row)) == 3
    shown = re.sub(r"\\([\\|*_<`\[\]])", r"\1", cells(row)[0])
    assert shown == name
    assert "\\<script>" in text
    assert "\\[x\\](y)" in text
    assert "<script>" not in text.replace("\\<", "")


def test_markdown_keeps_kernel_names_as_code() -> None:
    text = to_markdown(Document("d", [table(("reduce_kernel<sum_functor>", 1.0, 2), ("plain", 1.0, 2))]))
    assert "| `reduce_kernel<sum_functor>` |" in text
    assert "| plain |" in text
    piped = to_markdown(Document("d", [table(("a|b<c>", 1.0, 2))]))
    assert "`a\\|b<c>`" in piped  # GitHub splits a table row before it looks for code


def test_markdown_tables_have_as_many_cells_as_columns() -> None:
    for path in (GLQ12, TWO_GPUS):
        lines = run("breakdown", path, "--format", "markdown").out.splitlines()
        for i, line in enumerate(lines):
            if line.startswith("|") and not lines[i - 1].startswith("|"):
                width = len(cells(line))
                block = [line]
                while lines[i + len(block)].startswith("|") if i + len(block) < len(lines) else False:
                    block.append(lines[i + len(block)])
                assert len(block) > 2
                assert {len(cells(row)) for row in block} == {width}


# --- CSV


@pytest.mark.parametrize("path", [GLQ12, TWO_GPUS], ids=["one GPU", "two GPUs"])
def test_csv_of_the_account_equals_the_json(breakdown_json, path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("breakdown", path, "--format", "csv").out)))
    found = breakdown_json(path)
    expected = [(d["device"], row) for d in found["devices"] for row in d["wall"]]
    assert len(rows) == len(expected)
    for line, (device, row) in zip(rows, expected, strict=True):
        assert (line["row"], line["kind"]) == (row["row"], row["kind"])
        assert float(line["ms"]) == row["ms"]  # in full precision
        assert float(line["share"]) == row["share"]
        assert len(found["devices"]) == 1 or int(line["device"]) == device


@pytest.mark.parametrize("view", [v for v in View if v is not View.summary])
def test_csv_of_every_view_parses_into_rows_of_one_length(view) -> None:
    lines = list(csv.reader(io.StringIO(run("breakdown", GLQ12, "--format", "csv", "--view", view.value).out)))
    assert len(lines) > 1
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(set(lines[0])) == len(lines[0])  # keys are distinct
    assert all(re.fullmatch(r"[a-z0-9_]+", key) for key in lines[0])


def test_csv_of_a_comparison_sums_to_the_wall_delta() -> None:
    rows = list(csv.DictReader(io.StringIO(run("compare", GLQ12, GLQ13, "--format", "csv").out)))
    found = run("compare", GLQ12, GLQ13, "--format", "json").json["candidates"][0]
    assert {row["candidate"] for row in rows} == {found["name"]}
    deltas = [float(row["delta_ms_per_token"]) for row in rows]
    assert sum(deltas) == pytest.approx(found["wall_ms_per_token"]["delta"], abs=1e-9)


def test_csv_quotes_and_absent_values() -> None:
    text = to_csv(table(('say "hi", you', None, 2), ("line\nbreak", float("nan"), 3)))
    assert list(csv.reader(io.StringIO(text))) == [
        ["what", "ms", "count"],
        ['say "hi", you', "", "2"],
        ["line\nbreak", "", "3"],
    ]
