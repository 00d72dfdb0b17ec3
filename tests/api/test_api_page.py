"""docs/api.md: its names exist, its columns are those of the tables, its examples run."""

from __future__ import annotations

import re
import subprocess
import sys
import types

import pandas as pd
import pytest

import glqprof
from support.paths import RECORDED, REPOSITORY

TEXT = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
BENCH = REPOSITORY / "benchmarks" / "results" / "bench-glq-moe.json"
NCU = REPOSITORY / "tests" / "data" / "ncu" / "h200-glq-v0.2.13-raw.csv"


@pytest.fixture(scope="module")
def results() -> dict:
    new, old = (
        glqprof.breakdown(glqprof.load(RECORDED / f"h200-cascade2-30b-glq-{v}")) for v in ("v0.2.13", "v0.2.12")
    )
    found = {"Breakdown": new, "Comparison": glqprof.compare(old, new)[0], "NcuAnalysis": glqprof.ncu(NCU, capture=new)}
    return found | {"read_bench": glqprof.read_bench, "path": BENCH}


def documented_columns() -> dict[str, list[str]]:
    sections = re.findall(r"^### `([^`]+)`\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return {name: re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE) for name, body in sections}


@pytest.mark.parametrize("name", documented_columns())
def test_columns_are_the_tables_columns(results, name) -> None:
    table = eval(name, {}, results)  # the page's own words, such as Breakdown.gaps()
    assert isinstance(table, pd.DataFrame)
    assert len(table)
    assert documented_columns()[name] == list(table.columns)


def test_every_public_name_is_on_the_page_and_the_other_way_round() -> None:
    functions = set(re.findall(r"^\| `(\w+)\(", TEXT, re.MULTILINE))
    public = set(glqprof.__all__) - {"__version__"}
    kept = {name for name in public if isinstance(getattr(glqprof, name), types.FunctionType)}
    assert functions == kept
    for name in public:
        assert f"`{name}" in TEXT, name


def test_attributes_named_on_the_page_exist(results) -> None:
    page = TEXT.partition("## `Breakdown`")[2].partition("### ")[0]
    for row in re.findall(r"^\| (`.*?) \| (.*?) \|$", page, re.MULTILINE):
        for name in re.findall(r"`(\w+)(?:\(x\))?`", row[0]):
            value = getattr(results["Breakdown"], name)
            if name == "answers":
                value = value["gpu_time"]
            if name == "devices":
                value = value[0]
            if name in ("window", "untraced", "devices", "step_spread", "answers"):
                for attribute in re.findall(r"`\.(\w+)`", row[1]):
                    assert hasattr(value, attribute), f"{name}.{attribute}"


def test_the_examples_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    program = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    exec(compile(program, "docs/api.md", "exec"), {})
    assert capsys.readouterr().out == "nowhere.sqlite: no such file or folder; check the path\n"


def test_links_exist() -> None:
    for page in ("api.md", "report.md", "export.md"):
        text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(((?!https?:)[^)#]+)\)", text):
            assert (REPOSITORY / "docs" / link).exists(), f"{page}: {link}"


def test_importing_costs_nothing_and_names_are_listed() -> None:
    code = "import sys, glqprof; print(dir(glqprof) == glqprof.__all__, sorted({'pandas','numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "True []"


# --- how results show themselves


@pytest.fixture
def shown(results):
    import glqprof.reports.notebook  # noqa: F401 - in IPython the package does this itself

    return lambda name: results[name]._repr_html_()


@pytest.mark.parametrize("name", ["Breakdown", "Comparison", "NcuAnalysis"])
def test_results_show_the_documents_of_the_command_line(shown, name) -> None:
    html = shown(name)
    assert html.startswith("<div>")
    assert html.count("<table>") == html.count("</table>") >= 1
    first = {
        "Breakdown": "What this capture can answer",
        "Comparison": ": faster (one untraced run",
        "NcuAnalysis": "latency",
    }
    assert first[name] in html


def test_names_of_others_are_escaped_in_notebooks() -> None:
    from glqprof.reports.document import Column, Document, Table, Text
    from glqprof.reports.html_fragment import to_html_fragment

    evil = "<img src=x onerror=alert(1)>\x1b"
    table = Table(evil, [Column(evil, "a", text=True)], [[evil]], total=[evil], note=evil)
    html = to_html_fragment(Document(evil, [Text([evil]), table]))
    assert "<img" not in html
    assert "\x1b" not in html
    assert html.count("&lt;img") == 6


def test_a_repr_is_one_line(results) -> None:
    capture = glqprof.load(RECORDED / "h200-toy-cuda-graph-node")
    for thing in (capture, capture.trace, results["Breakdown"], results["Comparison"], results["NcuAnalysis"]):
        assert repr(thing).startswith("<")
        assert len(repr(thing)) < 200


def test_pictures_are_pictures(results, tmp_path) -> None:
    for picture in (glqprof.account_picture(results["Breakdown"]), glqprof.timeline_picture(results["Breakdown"])):
        assert picture._repr_png_().startswith(b"\x89PNG\r\n")
        picture.save(tmp_path / "out.svg")
        assert b"<svg" in (tmp_path / "out.svg").read_bytes()


def test_files_are_written_as_by_the_commands(results, tmp_path) -> None:
    from support.cli import glqprof as run

    path = RECORDED / "h200-cascade2-30b-glq-v0.2.13"
    glqprof.write_report(tmp_path / "api.html", results["Breakdown"])
    glqprof.write_perfetto(tmp_path / "api.json", results["Breakdown"])
    assert run("report", path, "-o", tmp_path / "cli.html").status == 0
    assert run("export", path, "-o", tmp_path / "cli.json").status == 0
    for kind in ("html", "json"):
        assert (tmp_path / f"api.{kind}").read_bytes() == (tmp_path / f"cli.{kind}").read_bytes()
    with pytest.raises(glqprof.InputError, match="needs at least one"):
        glqprof.write_report(tmp_path / "none.html")


def test_a_bench_result_reads_back_as_printed() -> None:
    import json

    document = json.loads(BENCH.read_text(encoding="utf-8"))
    frame = glqprof.read_bench(BENCH)
    timed = [(v["name"], v["rows"], t) for v in document["variants"] for t in ("eager", "graph") if v["timings"][t]]
    assert list(zip(frame["name"], frame["rows"], frame["timing"], strict=True)) == timed
    first = document["variants"][0]["timings"]["eager"]
    assert frame["median_us"][0] == first["median_us"]
    assert [frame["ratio_low"][0], frame["ratio_high"][0]] == first["ratio_ci"]
    assert frame.attrs["device"]["name"] == "NVIDIA H200"


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "no such file"), ("{", "is not JSON"), ("[]", "has schema None"),
     ('{"schema": "glqprof.compare/1"}', "compare/1"),
     ('{"schema": "glqprof.bench/1"}', "does not follow")],
)  # fmt: skip
def test_what_is_no_bench_result(tmp_path, text, words) -> None:
    if text is not None:
        (tmp_path / "x.json").write_text(text, encoding="ascii")
    with pytest.raises(glqprof.InputError, match=words):
        glqprof.read_bench(tmp_path / "x.json")
