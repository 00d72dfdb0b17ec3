"""`glqprof ncu` as its users meet it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import time

import jsonschema
import pytest
from ncu.reports import DETAILS, GB200, RAW, T4, raw_text, rows_of, write_rows

from support.cli import glqprof, glqprof_process
from support.paths import RECORDED

CONTRACT = (
    "name", "grid", "block", "duration_us", "dram_pct", "l2_pct", "l1_hit_pct", "l2_hit_pct", "occupancy_pct",
    "registers", "limiter", "stalls", "diagnosis",
)  # fmt: skip


@pytest.fixture(scope="module")
def faster(tmp_path_factory):
    """The report with its first launch twice as fast on twice the blocks, and without its second."""
    header, units, *rows = rows_of(RAW)
    rows[0][header.index("gpu__time_duration.sum")] = "16.464000"
    rows[0][header.index("Grid Size")] = "(168, 4, 1)"
    return write_rows(tmp_path_factory.mktemp("ncu") / "faster.csv", [header, units, rows[0], *rows[2:]])


def test_json_follows_the_contract(schema_of):
    found = glqprof("ncu", RAW, DETAILS, "--format", "json").json
    jsonschema.validate(found, schema_of("ncu-1"), jsonschema.Draft202012Validator)
    assert found["schema"] == "glqprof.ncu/1"
    matvec = found["kernels"][0]
    assert set(CONTRACT) <= set(matvec)
    assert (matvec["grid"], matvec["block"], matvec["registers"]) == ([84, 4, 1], [32, 8, 1], 32)
    for key, metric in (
        ("duration_us", "gpu__time_duration.sum"),
        ("dram_pct", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
        ("l2_pct", "lts__throughput.avg.pct_of_peak_sustained_elapsed"),
        ("l1_hit_pct", "l1tex__t_sector_hit_rate.pct"),
        ("l2_hit_pct", "lts__t_sector_hit_rate.pct"),
        ("occupancy_pct", "sm__warps_active.avg.pct_of_peak_sustained_active"),
    ):
        assert matvec[key] == pytest.approx(float(raw_text(metric, 0)[0])), key
    assert matvec["limiter"] == "grid too small"
    assert matvec["diagnosis"]["code"] == "latency-bound"
    assert [f["code"] for f in matvec["diagnosis"]["findings"]] == ["latency-bound", "l2-gather-bound"]
    assert {r["rule"] for r in matvec["ncu_rules"]} >= {"CPIStall", "SOLBottleneck"}


@pytest.mark.parametrize("path", [T4, DETAILS, GB200])
def test_json_of_every_source_follows_the_schema(schema_of, path):
    if path is GB200:
        pytest.importorskip("ncu_report", reason="the extra [ncu] is not installed")
    found = glqprof("ncu", path, "--format", "json").json
    jsonschema.validate(found, schema_of("ncu-1"), jsonschema.Draft202012Validator)


def test_json_of_a_comparison_and_of_weights(schema_of, faster):
    timeline = RECORDED / "h200-cascade2-30b-glq-v0.2.13"
    found = glqprof("ncu", RAW, faster, "--capture", timeline, "--format", "json").json
    jsonschema.validate(found, schema_of("ncu-1"), jsonschema.Draft202012Validator)
    comparison = found["comparisons"][0]
    changed = {c["quantity"]: c for c in comparison["kernels"][0]["changes"]}
    assert changed["duration_us"]["ratio"] == pytest.approx(0.5)
    assert (changed["grid"]["base"], changed["grid"]["cand"]) == ("84×4", "168×4")
    assert [k["base_id"] for k in comparison["vanished"]] == [1]
    worth = [k["weight"]["at_most_ms"] for k in found["kernels"]]
    assert worth == sorted(worth, reverse=True)
    assert found["kernels"][0]["id"] == 0  # the matvec with three stages
    assert "39.1% of its GPU work" in found["notes"][0]


@pytest.mark.parametrize(
    "options", [(), ("--view", "memory"), ("--view", "occupancy"), ("--view", "stalls"), ("--view", "rules")]
)
def test_every_view_fits_80_columns(options):
    ran = glqprof_process("ncu", RAW, *(() if options else (DETAILS,)), *options)
    assert ran.status == 0, ran.err
    assert max(len(line) for line in ran.out.splitlines()) <= 80


def test_the_summary_says_what_binds_and_whose_numbers_these_are():
    out = glqprof_process("ncu", RAW, DETAILS).out
    assert "latency, L2 gather" in out
    assert "grid too small" in out
    assert "durations are ncu's" in out
    assert "ncu's own rules" in out
    assert "Nsight Compute's estimates, not glqprof's" in out
    assert "joined, not compared" in out
    assert "full L2 rate asks" in " ".join(out.split())


def test_comparison_and_weights_fit_80_columns(faster):
    ran = glqprof_process("ncu", RAW, faster)
    assert max(len(line) for line in ran.out.splitlines()) <= 80
    assert "7 launches matched, 1 vanished, 0 appeared" in " ".join(ran.out.split())
    assert "168×4" in ran.out
    ran = glqprof_process("ncu", RAW, "--capture", RECORDED / "h200-cascade2-30b-glq-v0.2.13")
    assert max(len(line) for line in ran.out.splitlines()) <= 80
    assert "What a fix is worth, by the timeline" in ran.out


def test_markdown_and_csv():
    markdown = glqprof("ncu", RAW, "--format", "markdown").out
    assert "| 0 | `glq_matvec_splitk_scratch_kernel<3>` | 84×4 | 32.93 | 3.0 | 28.0 | latency, L2 gather |" in markdown
    rows = list(csv.DictReader(io.StringIO(glqprof("ncu", RAW, "--format", "csv").out)))
    assert [int(r["id"]) for r in rows] == list(range(8))
    assert float(rows[1]["duration_us"]) == float(raw_text("gpu__time_duration.sum", 1)[0])
    assert rows[0]["name"].startswith("void glq_matvec")
    stalls = list(csv.DictReader(io.StringIO(glqprof("ncu", RAW, "--view", "stalls", "--format", "csv").out)))
    assert float(stalls[0]["cycles_per_issue"]) == 10.068177
    changes = glqprof("ncu", T4, RAW, "--format", "csv").out
    assert changes.startswith("candidate,base_id,cand_id,name,matched_by,quantity,unit,base,cand,ratio")


def test_kernel_chooses_launches():
    found = glqprof("ncu", RAW, "--kernel", r"reduce|matvec.*<2>", "--format", "json").json
    assert [k["id"] for k in found["kernels"]] == [1, 4, 5]


def test_figures_are_written(tmp_path):
    roofline, stalls = tmp_path / "roofline.png", tmp_path / "stalls.svg"
    assert glqprof("ncu", RAW, "--figure", roofline, "--stalls", stalls).status == 0
    assert roofline.read_bytes().startswith(b"\x89PNG")
    assert "long scoreboard" in stalls.read_text(encoding="utf-8") or "<svg" in stalls.read_text(encoding="utf-8")


def test_2238_columns_in_under_two_seconds():
    assert len(rows_of(RAW)[0]) == 2238
    begin = time.perf_counter()
    ran = glqprof_process("ncu", RAW, "--format", "json")
    assert time.perf_counter() - begin < 2
    assert json.loads(ran.out)["kernels"][7]["id"] == 7


def test_a_report_is_read_without_pandas():
    program = (
        "import sys; sys.argv[0] = 'glqprof'\n"
        "from glqprof.cli.app import main\n"
        f"try: main(['ncu', {str(RAW)!r}, '--format', 'csv'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "sys.stderr.write(str([m for m in ('pandas', 'matplotlib', 'torch', 'ncu_report') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == "[]"
