"""A release specification: what is wrong is refused with its line, and docs/release-notes.md lists what there is."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from glqprof import InputError
from glqprof.traces.decode_results import read_decode
from glqprof.traces.release_spec import read_release_spec, source_files
from glqprof.traces.schema import release
from support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "release-notes.md").read_text(encoding="utf-8")
GOOD = """title = "t"
summary = '''
[[row]]
label = "in a text, no table"
'''
[[row]]
label = "a"
capture = "x"

[[row]]
label = "b"
decode = "y"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "spec.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_specification_reads_back_as_written(tmp_path) -> None:
    spec = read_release_spec(
        write(tmp_path, GOOD + '[gap]\nreference = "a"\n[gap.floor]\nms_per_token = 1.5\nsource = "s"\n')
    )
    assert [(r.label, r.capture, r.decode) for r in spec.row] == [("a", "x", None), ("b", None, "y")]
    assert spec.gap is not None
    assert spec.gap.floor is not None
    assert spec.gap.floor.ms_per_token == 1.5


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD + "extra = 1\n", 13, "[row]: unknown key 'extra'"),
        ("extra = 1\n" + GOOD, 1, "unknown key 'extra'"),
        (GOOD + '[[kernels]]\nfile = "x"\n', 14, "[kernels]: unknown key 'file'"),
        (GOOD + '[[change]]\ntext = "x"\n', 13, "lacks the key 'heading'"),
        (GOOD + '[gap]\nreference = "a"\n[gap.floor]\nms = 1\n', 16, "[gap.floor]: unknown key 'ms'"),
        (GOOD.replace('"b"', '"a"'), 11, "label 'a' is taken (line 7)"),
        (GOOD.replace('decode = "y"', ""), 10, "row 'b' has no source"),
        (GOOD.replace('decode = "y"', 'decode = ""'), 10, "row 'b' has no source"),
        (GOOD.replace('"y"', "3"), 12, "expected 'str | null', got 'int' for 'decode'"),
        (GOOD.replace('"b"', '"b\\nc"'), 11, "one printable line"),
        (GOOD + 'bench = "z"\n', 10, "bench and variant go together"),
        (GOOD + 'bench = "z"\nvariant = "v"\nbench_rows = 0\n', 15, "from 1"),
        (GOOD + '[[reference]]\nlabel = "a"\ncapture = "z"\n', 14, "is taken (line 7)"),
        (GOOD + '[[change]]\nheading = "h"\nbefore = "a"\n', 13, "before and after go together"),
        (
            GOOD + '[[change]]\nheading = "h"\nbefore = "a"\nafter = "c"\n',
            16,
            "after names no row: 'c'; known are a, b",
        ),
        (GOOD + '[gap]\nreference = "c"\n', 14, "reference names no row: 'c'"),
        (GOOD + '[gap]\nreference = "b"\n', 14, "the last row itself"),
        (GOOD + '[gap]\nreference = "a"\n[gap.floor]\n', 15, "exactly one of"),
        (GOOD + '[gap]\nreference = "a"\n[gap.floor]\nms_per_token = 1\n', 16, "needs its source"),
        (GOOD + '[gap]\nreference = "a"\n[gap.floor]\nms_per_token = -1\nsource = "s"\n', 16, "above 0"),
        (GOOD + '[gap]\nreference = "a"\n[gap.floor]\nvariant = "v"\n', 16, "needs a bench file"),
        (GOOD.replace('"t"', '" "'), 1, "title is empty"),
        ('title = "t"\nrow = 1\n', 2, "must be one or more [[row]]"),
        ('title = "t"\n', 1, "has no [[row]]"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, line, words) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_release_spec(path)
    assert caught.value.subject == str(path)
    assert caught.value.problem.startswith(f"line {line}: "), caught.value.problem
    assert words in caught.value.problem
    assert "\n" not in caught.value.problem


@pytest.mark.parametrize(("content", "words"), [(None, "no such file"), (b"\xff", "not UTF-8"), (b"a = \n", "line 1")])
def test_what_is_no_specification(tmp_path, content, words) -> None:
    path = tmp_path / "spec.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_release_spec(path)


def test_all_files_that_are_read_are_known_before(tmp_path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "capture.json").touch()
    more = '[[kernels]]\nbench = "k"\n[gap]\nreference = "a"\nfloor = {variant = "v", bench = "f"}\n'
    path = write(tmp_path, 'buckets = "r"\n' + GOOD + more)
    names = {p.relative_to(tmp_path).as_posix() for p in source_files(path, read_release_spec(path))}
    assert names == {"spec.toml", "x", "x/capture.json", "y", "k", "f", "r"}


def test_the_page_lists_every_key_and_no_other() -> None:
    section = PAGE.split("## SPEC.toml\n")[1].split("\n## ")[0]
    tables = [
        set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", block, re.MULTILINE))))
        for block in re.split(r"\n\n", section)
        if block.startswith("| key")
    ]
    kinds = (release.RowSpec, release.ChangeSpec, release.KernelsSpec, release.GapSpec, release.FloorSpec)
    fields = [{f.name for f in msgspec.structs.fields(kind)} for kind in kinds]
    tabled = {"row", "reference", "change", "kernels", "gap"}
    assert tables == [{f.name for f in msgspec.structs.fields(release.ReleaseSpec)} - tabled, *fields]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        ("{", "is not JSON"),
        ("[]", "has schema None"),
        ('{"schema": "glqprof.bench/1"}', "has schema 'glqprof.bench/1'"),
        ('{"schema": "glqprof.decode/1", "tok_s": "12", "ms_per_token": 1}', "does not follow"),
        ('{"schema": "glqprof.decode/1", "tok_s": 0, "ms_per_token": 1}', "holds no rate"),
    ],
)
def test_what_is_no_decode_result(tmp_path, content, words) -> None:
    if content is not None:
        (tmp_path / "d.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(words)):
        read_decode(tmp_path / "d.json")
