"""The HTML report without a browser: its numbers, its escapes, its policy, its size."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

import glqprof
from glqprof.reports.report_page import report_html
from support.cli import glqprof as run
from support.nsys_builder import TWO_TOKENS, NsysExport, two_token_decode
from support.page import Element, parse, table_rows, timeline_data
from support.paths import PUBLIC, RECORDED

GLQ12, GLQ13 = RECORDED / "h200-cascade2-30b-glq-v0.2.12", RECORDED / "h200-cascade2-30b-glq-v0.2.13"
AMD = PUBLIC / "tracelens_vllm_decode_fullgraph.json.gz"
TWO_GPUS = PUBLIC / "nsysai_h100_2gpu_1s__2026.2_s3.25.0.sqlite.gz"
EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>"


def report(*captures: Path, folder: Path) -> str:
    out = folder / "report.html"
    ran = run("report", *captures, "-o", out)
    assert (ran.status, ran.err) == (0, "")
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def decode(tmp_path_factory) -> tuple[str, Element]:
    folder = tmp_path_factory.mktemp("report")
    html = report(two_token_decode().write(folder / "decode.sqlite"), folder=folder)
    return html, parse(html)


def section(root: Element, name: str) -> Element:
    (found,) = [e for tag in ("div", "figure") for e in root.all(tag, id=name)]
    return found


def test_the_account_and_its_bar_are_the_hand_counted_one(decode) -> None:
    _, root = decode
    part = section(root, "c1-account")
    rows = {(r[0], r[1]): float(r[2]) for r in table_rows(part.all("table")[0])}
    assert rows == {key: pytest.approx(ns / 1e6, abs=0.005) for key, ns in TWO_TOKENS["rows"].items()}
    (bar,) = [e for e in part.all("svg") if e.attributes.get("role") == "img"]
    widths = [float(r.attributes["width"]) for r in bar.all("rect")]
    expected = sorted(1000 * ns / TWO_TOKENS["wall_ns"] for ns in TWO_TOKENS["rows"].values())
    assert sorted(widths) == pytest.approx(expected, abs=0.001)
    assert sum(widths) == pytest.approx(1000, abs=0.01)
    lefts = [float(r.attributes["x"]) for r in bar.all("rect")]
    assert lefts == pytest.approx([sum(widths[:i]) for i in range(len(widths))], abs=0.01)


def test_the_timeline_holds_every_event_of_a_token(decode) -> None:
    _, root = decode
    ((median, slowest),) = timeline_data(root)
    # Both tokens last 10,000 ns; the first stands for the median and the slowest.
    assert [t["wall"] for t in (median, slowest)] == [10_000, 10_000]
    lanes = {lane["label"]: lane for lane in median["lanes"]}
    gpu = lanes["GPU 0 stream 7"]
    events = [(median["names"][n][2], s, d) for n, s, d in zip(gpu["n"], gpu["start"], gpu["d"], strict=True)]
    # From the export: kernel, copy, memset, less the start of decode_token_0 at 1,000.
    assert events == [("matvec", 2_000, 2_000), ("copy", 4_600, 1_000), ("memset", 6_500, 100)]
    calls = lanes["host thread 1001: CUDA calls"]
    assert calls["start"] == [1_000, 4_200, 6_000, 6_300]
    idle = lanes["GPU 0: why it is idle"]
    spans = [(median["names"][n][0], s, d) for n, s, d in zip(idle["n"], idle["start"], idle["d"], strict=True)]
    assert spans == [  # the comment beside TWO_TOKENS, less 1,000
        ("host-code", 0, 1_000),
        ("host-launch", 1_000, 500),
        ("launch-latency", 1_500, 500),
        ("host-code", 4_000, 200),
        ("host-sync", 4_200, 400),
        ("host-sync", 5_600, 200),
        ("host-code", 5_800, 200),
        ("host-api", 6_000, 200),
        ("launch-latency", 6_200, 300),
        ("host-sync", 6_600, 400),
        ("host-code", 7_000, 3_000),
    ]
    ranges = [lane for lane in median["lanes"] if lane["kind"] == "range"]
    assert [(median["names"][x["n"][0]][0], x["start"][0], x["d"][0]) for x in ranges[:2]] == [
        ("decode_token_0", 0, 10_000),
        ("layer_00_E", 500, 7_500),
    ]


def test_the_timeline_of_a_recording_against_sql(tmp_path) -> None:
    root = parse(report(GLQ12, folder=tmp_path))
    ((median, slowest),) = timeline_data(root)
    plain = tmp_path / "plain.sqlite"
    with gzip.open(GLQ12 / "trace.sqlite.gz") as source, plain.open("wb") as target:
        shutil.copyfileobj(source, target)
    with sqlite3.connect(plain) as db:
        steps = db.execute(
            "SELECT coalesce(text, (SELECT value FROM StringIds WHERE id = textId)) AS name, start, end"
            " FROM NVTX_EVENTS WHERE name LIKE 'decode_token%' ORDER BY end - start"
        ).fetchall()
        for shown, (name, start, end) in ((median, steps[3]), (slowest, steps[-1])):
            assert shown["label"].startswith(f"{name} ")
            assert shown["wall"] == end - start
            inside = "WHERE start < ? AND end > ?"
            for kind, tables in (
                ("gpu", ("KERNEL", "MEMCPY", "MEMSET")),
                ("call", ("RUNTIME",)),
            ):
                counted, summed = 0, 0
                for table in tables:
                    query = f"SELECT count(*), total(end - start) FROM CUPTI_ACTIVITY_KIND_{table} {inside}"
                    count, total = db.execute(query, (end, start)).fetchone()
                    counted, summed = counted + count, summed + int(total)
                lanes = [lane for lane in shown["lanes"] if lane["kind"] == kind]
                assert sum(len(lane["d"]) for lane in lanes) == counted
                assert sum(sum(lane["d"]) for lane in lanes) == summed


@pytest.mark.parametrize(
    "path", [GLQ12, TWO_GPUS, RECORDED / "h200-toy-cuda-graph-node"], ids=["decode", "gpus", "toy"]
)
def test_events_of_a_lane_do_not_overlap(tmp_path, path) -> None:
    for choices in timeline_data(parse(report(path, folder=tmp_path))):
        for one in choices:
            for lane in one["lanes"]:
                ends = [s + d for s, d in zip(lane["start"], lane["d"], strict=True)]
                assert all(later >= end for end, later in zip(ends, lane["start"][1:], strict=False)), lane["label"]


def test_all_kernels_stand_in_the_table(tmp_path, breakdown_json) -> None:
    root = parse(report(GLQ12, folder=tmp_path))
    table = next(t for t in root.all("table") if t.attributes.get("id") == "c1-k1")
    top = breakdown_json(GLQ12)["devices"][0]["top"]
    shown = Counter((row[1], row[2], row[3]) for row in table_rows(table))
    assert shown == Counter((k["bucket"], f"{k['launches']:,}", f"{k['sum_ms']:,.3f}") for k in top)
    whole = {code.text for code in table.all("code", **{"class": "full"})} | {r[0] for r in table_rows(table)}
    assert {k["name"] for k in top} <= whole


def hostile(folder: Path) -> Path:
    capture = folder / "evil"
    capture.mkdir()
    (
        NsysExport()
        .gpu(0, EVIL)
        .nvtx(1_000, 9_000, "decode_token_0" + EVIL)
        .nvtx(1_100, 8_000, "layer_00_E" + EVIL)
        .api(2_000, 2_500, "cudaLaunchKernel_v7000", correlation=1)
        .kernel(3_000, 5_000, "void matvec" + EVIL + "\u2028\u202e(int)", correlation=1)
        .write(capture / "trace.sqlite")
    )
    fields = ("name", "tool_version", "workload", "variant", "driver", "source")
    manifest = {"schema": "glqprof.capture/1", "tool": "nsys", "files": ["trace.sqlite"], "warnings": [EVIL]}
    manifest |= {"command": ["nsys", EVIL]} | dict.fromkeys(fields, EVIL)
    (capture / "capture.json").write_text(json.dumps(manifest), encoding="utf-8")
    return capture


def test_hostile_names_are_text(tmp_path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(f"[[rule]]\nbucket = {json.dumps('b' + EVIL)}\nkernel = 'matvec'\n", encoding="utf-8")
    out = tmp_path / "report.html"
    capture = hostile(tmp_path)
    assert run("report", capture, capture, "-o", out, "--buckets", rules).status == 0
    html = out.read_text(encoding="utf-8")
    root = parse(html)
    assert len(root.all("script")) == 2
    assert root.all("img") == []
    assert html.count("alert(1)") > 20  # they are there, as text
    assert "<!--" not in html
    assert "\u202e" not in html  # would turn the text after it around
    assert {c for e in root.all("rect") for c in [e.attributes["class"]] if not re.fullmatch(r"c\d+", c)} == set()


def test_nothing_is_fetched_and_only_its_own_script_may_run(decode) -> None:
    html, root = decode
    (policy,) = root.all("meta", **{"http-equiv": "Content-Security-Policy"})
    rules = dict(part.strip().split(" ", 1) for part in policy.attributes["content"].split(";"))
    assert rules["default-src"] == "'none'"
    (style,) = root.all("style")
    program = root.all("script")[1]
    for kind, element in (("style-src", style), ("script-src", program)):
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert rules[kind] == f"'sha256-{digest}'"
    assert "http://" not in html
    assert "https://" not in html
    assert "url(" not in html
    assert "@import" not in html
    links = [e.attributes["href"] for tag in ("a", "link") for e in root.all(tag)]
    ids = set(re.findall(r' id="([^"]+)"', html))
    assert all(link == "data:," or link.removeprefix("#") in ids for link in links)
    assert not [e for e in _every(root) if e.attributes.keys() & {"style", "onclick", "onload", "src", "srcset"}]


def _every(element: Element) -> list[Element]:
    found = [element]
    for child in element.children:
        if isinstance(child, Element):
            found += _every(child)
    return found


def test_tables_have_scopes_and_ids_are_unique(decode) -> None:
    html, root = decode
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    for head in root.all("th"):
        assert head.attributes["scope"] in ("col", "row")
    for table in root.all("table"):
        assert table.all("caption")


def test_a_question_answered_no_prints_no_number(tmp_path) -> None:
    root = parse(report(AMD, folder=tmp_path))
    part = section(root, "c1-account")
    assert part.all("table") == []
    assert "not answered: AMD trace" in part.text
    assert re.search(r"\d+(\.\d+)? ?(%|ms)", part.text) is None
    (main,) = root.all("main")
    assert "verdict" not in main.text
    ((one,),) = timeline_data(root)
    assert {lane["kind"] for lane in one["lanes"]} == {"gpu"}


def test_untimed_graphs_have_no_idle_lane(tmp_path) -> None:
    export = two_token_decode().api(8_200, 8_400, "cudaGraphLaunch_v10000", correlation=90)
    root = parse(report(export.write(tmp_path / "untimed.sqlite"), folder=tmp_path))
    assert "not answered: 1 graph launches ran untimed" in section(root, "c1-account").text
    assert all(lane["kind"] != "idle" for one in timeline_data(root)[0] for lane in one["lanes"])
    assert "idle gaps" not in section(root, "c1-more").text


def test_a_comparison_says_what_compare_says(tmp_path) -> None:
    root = parse(report(GLQ12, GLQ13, folder=tmp_path))
    (part,) = root.all("section", id="comparison")
    said = run("compare", GLQ12, GLQ13, "--top", 1000)
    for line in said.out.splitlines()[:3]:
        assert line.strip() in part.text
    deltas = [float(r[4]) for r in table_rows(part.all("table")[0])]
    assert sum(deltas) == pytest.approx(float(part.all("tfoot")[0].all("td")[3].text), abs=0.0005 * len(deltas))
    assert len(timeline_data(root)) == 2
    assert (tmp_path / "report.html").stat().st_size < 3e6


def test_captures_that_cannot_be_compared_are_still_reported(tmp_path) -> None:
    root = parse(report(GLQ12, AMD, folder=tmp_path))
    (part,) = root.all("section", id="comparison")
    assert "not compared: tracelens_vllm_decode_fullgraph" in part.text
    assert part.all("table") == []
    assert len(root.all("section")) == 3


@pytest.mark.parametrize(
    "path", sorted(p for p in RECORDED.iterdir() if p.name.startswith("h200")), ids=lambda p: p.name
)
def test_a_recorded_capture_stays_below_3_mb(tmp_path, path) -> None:
    report(path, folder=tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def test_a_token_of_too_many_events_is_cut_and_says_so(tmp_path, monkeypatch) -> None:
    from glqprof.reports import report_timeline

    monkeypatch.setattr(report_timeline, "MAX_EVENTS", 1000)
    b = glqprof.breakdown(glqprof.load(GLQ12, launch_config=False))
    ((median, _),) = timeline_data(parse(report_html([b], [])))
    assert "its first" in median["label"]
    assert "1,000 events" in median["label"]
    started = [s for lane in median["lanes"] if lane["kind"] != "idle" for s in lane["start"] if s >= 0]
    assert len(started) == 1000
    assert max(started) < median["wall"] < 112e6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.sqlite"], "nowhere.sqlite: no such file"),
        (["decode.sqlite", "-o", "no/such/report.html"], "its folder does not exist"),
        (["decode.sqlite", "-o", "."], "is a folder"),
        (["decode.sqlite", "-o", "decode.sqlite"], "is an input, which would be lost"),
        (["decode.sqlite", "--window", "nvtx:none*"], "matches no range"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_leaves_nothing(tmp_path, monkeypatch, arguments, words) -> None:
    monkeypatch.chdir(tmp_path)
    before = two_token_decode().write(tmp_path / "decode.sqlite").read_bytes()
    ran = run("report", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.startswith("error: ")
    assert [p.name for p in tmp_path.iterdir()] == ["decode.sqlite"]
    assert (tmp_path / "decode.sqlite").read_bytes() == before


def test_an_older_report_is_replaced(tmp_path) -> None:
    two_token_decode().write(tmp_path / "decode.sqlite")
    out = tmp_path / "report.html"
    out.write_text("old", encoding="ascii")
    assert run("report", tmp_path / "decode.sqlite", "-o", out).status == 0
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
