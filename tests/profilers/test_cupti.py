"""The CUPTI tracer over a stand-in package: an export that the nsys reader takes, ranges and layers included."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from profilers.stand_ins import glqprof, manifest_of

import glqprof as package
from glqprof.analysis.work import KERNEL
from glqprof.profilers.cupti_records import demangled

PYTHON = sys.executable
FAKE = Path(__file__).parent / "fake_cupti"
PROGRAM = """
import sys
from cupti import cupti
from glqprof import annotate
cupti.launch("_Z4warmv")
with annotate.profiled():
    with annotate.layer("01_G"):
        cupti.make_graph_node(100)
    cupti.make_graph_node(200, original=100)
    for i in range(3):
        with annotate.decode_token(i):
            with annotate.layer("00_E"):
                cupti.launch("_Z4gemvPf", us=40)
            cupti.launch("plain_kernel", us=25, node=200)
            cupti.copy_to_host(4096)
with annotate.profiled():
    cupti.launch("_Z4latev")
annotate.report(token_sha=annotate.sha_of([3]))
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.fixture
def script(tools, monkeypatch):
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE), os.environ["PYTHONPATH"]]))
    path = tools / "decode.py"
    path.write_text(PROGRAM)
    return path


def test_it_writes_what_the_nsys_reader_takes(script):
    ran = glqprof("capture", "cupti", "-o", "c", "--", sys.executable, script)
    assert ran.status == 0, ran.err
    manifest = manifest_of(Path("c"))
    assert (manifest["tool"], manifest["tool_version"]) == ("cupti", "13.0.1")
    assert manifest["command"][1:6] == ["-m", "glqprof.profilers.cupti_run", "raw/trace.sqlite", "marked", "--"]
    assert manifest["inflation"] > 0
    trace = package.load("c").trace
    assert trace.info.tool == "cupti"
    assert trace.kernels["name"].astype(str).tolist() == ["gemv(float*)", "plain_kernel"] * 3
    assert trace.copies[["bytes", "copy_kind", "src_kind", "dst_kind"]].astype(str).iloc[0].tolist() == [
        "4096", "DtoH", "Device", "Pinned",
    ]  # fmt: skip
    assert set(trace.overheads["name"].astype(str)) == {"CUPTI: driver_compiler", "CUPTI: overhead 99"}
    assert set(trace.overheads["thread"]) == set(trace.api["thread"])
    assert trace.devices["name"].tolist() == ["Pretend GPU"]
    assert (trace.ranges["thread"] == trace.api["thread"].iloc[0]).all()
    # The driver call inside a runtime call is that call; its kernel belongs to the runtime call.
    assert trace.api["name"].astype(str).tolist() == ["cudaLaunchKernel"] * 6
    assert set(trace.kernels["correlation_id"]) == set(trace.api["correlation_id"])


def test_breakdown_finds_tokens_and_layers_in_it(script):
    assert glqprof("capture", "cupti", "-o", "c", "--", sys.executable, script).status == 0
    result = package.breakdown(package.load("c"))
    assert result.window.steps["name"].tolist() == ["decode_token_0", "decode_token_1", "decode_token_2"]
    assert result.devices[0].kernel_count == 6
    assert result.devices[0].kernel_sum_ns == 3 * (40 + 25) * 1000
    # Every kernel leads to its layer: the eager ones by their launch, the graph's by the range of their capture.
    assert result.answers["layers"].answer == "yes"
    assert (result.prepared.attribution.layer[result.prepared.work.kind == KERNEL] >= 0).all()


def test_range_all_records_all(script):
    assert glqprof("capture", "cupti", "--range", "all", "-o", "c", "--", sys.executable, script).status == 0
    assert len(package.load("c").trace.kernels) == 1 + 6 + 1


def test_the_scripts_status_is_passed_on_under_the_tracer(script):
    ran = glqprof("capture", "cupti", "--no-untraced", "-o", "c", "--", sys.executable, script, "5")
    assert ran.status == 5
    assert "status 5 under the tracer" in ran.err


def test_no_launch_is_refused(script):
    script.write_text("print('no GPU work')")
    ran = glqprof("capture", "cupti", "-o", "c", "--", sys.executable, script)
    assert ran.status == 2
    assert "holds no GPU work" in ran.err.splitlines()[-1]


def test_what_the_package_lacks_is_said_and_the_rest_recorded(script):
    script.write_text("from cupti import cupti\n" + PROGRAM.replace("cupti.make_graph_node(100)", "pass"))
    site = Path("site")
    (site / "cupti").mkdir(parents=True)
    (site / "cupti" / "__init__.py").write_text("")
    lacking = (FAKE / "cupti" / "cupti.py").read_text().replace("def subscribe(", "def unsubscribe(")
    (site / "cupti" / "cupti.py").write_text(lacking)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site.resolve()), os.environ["PYTHONPATH"]])
    assert glqprof("capture", "cupti", "-o", "c", "--", sys.executable, script).status == 0
    texts = package.load("c").trace.diagnostics["text"].tolist()
    assert any("no graph nodes" in text for text in texts)


def test_without_the_package_one_line_says_what_to_install(tools, program):
    ran = glqprof("capture", "cupti", "--", sys.executable, program)
    assert ran.status == 2
    assert "glqprof[cupti]" in ran.err


def test_the_programs_own_python_is_asked(script, monkeypatch):
    from glqprof.profilers import profiler

    monkeypatch.setattr(profiler.sys, "executable", "/nowhere/python")  # another interpreter than the program's
    assert profiler.version_in(PYTHON, "cupti-python") == "13.0.1"
    assert profiler.version_in(PYTHON, "no-such-package") == ""


def test_names_are_demangled():
    assert demangled("_Z4gemvIfLi4EEvPT_") == "void gemv<float, 4>(float*)"
    assert demangled("plain") == "plain"
    assert demangled("_Znot_a_name") == "_Znot_a_name"
