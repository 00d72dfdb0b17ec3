"""Chrome traces, ncu pages, closed reports and bad input."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import jsonschema
import pytest
from profilers.stand_ins import DETAILS_PAGE, RAW_PAGE, glqprof

import glqprof as package
from glqprof.errors import InputError
from glqprof.scrub.capture import scrub
from glqprof.scrub.patterns import find, private_values, redact
from glqprof.traces.ncu_reports import load_ncu_report

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "glqprof" / "data" / "schemas" / "scrub-1.schema.json"


def kernel(ts, name="gemv<4>(float*)", **args):
    fields = {"device": 0, "stream": 7, "correlation": 1, "grid": [1, 2, 3]} | args
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 2.0, "args": fields}


def trace(*events):
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Pretend GPU", "uuid": "GPU-1234"}],
        "traceName": "/home/ada/trace.json",
        "hostname": "gpu-host-77",
        "traceEvents": list(events),
    }


EVENTS = (
    kernel(10.5, path="/home/ada/x"),
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": 5, "ts": 9.0, "dur": 1.0,
     "args": {"correlation": 1, "kernel": "secret_name", "cbid": 211}},
    {"ph": "X", "cat": "python_function", "name": "/home/ada/run.py(12): main", "pid": 5, "tid": 5, "ts": 1, "dur": 9},
    {"ph": "X", "cat": "user_annotation", "name": "decode_token_0", "pid": 5, "tid": 5, "ts": 8, "dur": 9, "secret": 1},
    {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "args": {"name": "python3 --token abc"}},
    {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": 0, "dur": 9},
)  # fmt: skip


def test_a_chrome_trace_keeps_work_and_loses_paths_arguments_and_host(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace(*EVENTS)).encode()))
    before = package.breakdown(package.load(path))
    result = scrub(path)
    text = gzip.decompress(path.read_bytes()).decode()
    for private in ("ada", "gpu-host-77", "secret", "python3", "GPU-1234"):
        assert private not in text
    assert {"arguments", "host functions", "metadata", "process and thread names"} <= {r.kind for r in result.removed}
    document = json.loads(text)
    assert len(document["traceEvents"]) == 5
    assert package.breakdown(package.load(path)).wall.equals(before.wall)


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (kernel(1, name="k at /home/ada/k.cu"), "a path in names of kernel"),
        (kernel(1, name="AKIA" + "A" * 16), "an AWS key"),
    ],
)
def test_a_chrome_trace_with_a_private_name_is_refused(tmp_path, event, named):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace(event)))
    with pytest.raises(InputError, match=named):
        scrub(path)


def test_ncu_pages_lose_the_program_and_the_host(tmp_path):
    noise = "==PROF== Connected to process 77 (/home/ada/python3)\nlogging in as ada\n"
    for name, page in (("raw.csv", RAW_PAGE), ("details.csv", DETAILS_PAGE)):
        path = tmp_path / name
        path.write_text(noise + page)
        before = load_ncu_report(path)
        result = scrub(path)
        text = path.read_text()
        for private in ("ada", "gpu-host-7", "python3", "PROF"):
            assert private not in text
        after = load_ncu_report(path)
        assert [(k.name, k.metrics) for k in after.launches] == [(k.name, k.metrics) for k in before.launches]
        assert {"process and host", "program output"} == {r.kind for r in result.removed}


def test_a_rule_that_quotes_a_source_file_loses_its_text(tmp_path):
    path = tmp_path / "details.csv"
    path.write_text(
        DETAILS_PAGE.replace('"Duration","ns","2000","","",""', '"","","","R","INF","see /home/ada/k.cu:3"')
    )
    result = scrub(path)
    assert "ada" not in path.read_text()
    assert ("paths", "Rule Description", 1) in {(r.kind, r.what, r.count) for r in result.removed}


def test_an_ncu_page_with_a_private_kernel_name_is_refused(tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text(RAW_PAGE.replace("norm(float *)", "lambda at /home/ada/k.cu"))
    with pytest.raises(InputError, match="a path in column Kernel Name"):
        scrub(path)


def test_closed_reports_are_refused_with_the_reason(tmp_path):
    for name in ("a.nsys-rep", "a.ncu-rep", "renamed.bin"):
        (tmp_path / name).write_bytes(b"NVR\x00 report")
        with pytest.raises(InputError, match="closed format"):
            scrub(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"SQLite format 3\x00 cut", "damaged"),
        (b"\x1f\x8b\x08\x00cut", "damaged gzip"),
        (b'{"traceEvents": [', "cut short"),
        (b'{"a": 1}', "no Chrome trace"),
        (b"hello", "no Nsight Compute CSV"),
    ],
)
def test_bad_files_are_one_line(tmp_path, content, words):
    path = tmp_path / "file"
    path.write_bytes(content)
    ran = glqprof("scrub", path)
    assert ran.status == 2
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) == 1
    assert words in ran.err
    assert path.read_bytes() == content


def test_another_database_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "x.sqlite") as db:
        db.execute("CREATE TABLE passwords (text TEXT)")
    db.close()
    assert "no nsys export" in glqprof("scrub", tmp_path / "x.sqlite").err


def test_an_output_that_exists_is_left_alone(tmp_path):
    (tmp_path / "out").write_text("mine")
    ran = glqprof("scrub", ROOT / "captures" / "h200-toy-cuda-graph-node", "-o", tmp_path / "out")
    assert ran.status == 2
    assert (tmp_path / "out").read_text() == "mine"


def test_a_manifest_cannot_reach_outside_its_folder(tmp_path):
    folder = tmp_path / "c"
    folder.mkdir()
    manifest = json.loads((ROOT / "captures" / "h200-toy-cuda-graph-node" / "capture.json").read_text())
    (folder / "capture.json").write_text(json.dumps(manifest | {"files": ["../outside.sqlite"]}))
    (tmp_path / "outside.sqlite").write_text("x")
    with pytest.raises(InputError, match="outside the folder"):
        scrub(folder)


def test_the_command_prints_what_it_removed(tmp_path):
    source = ROOT / "captures" / "h200-toy-cuda-graph-node"
    ran = glqprof("scrub", source, "-o", tmp_path / "out", "--format", "json")
    printed = json.loads(ran.out)
    jsonschema.validate(printed, json.loads(SCHEMA.read_text()))
    assert any(item["what"] == "TARGET_INFO_GPU.uuid" for item in printed["removed"])
    table = glqprof("scrub", source, "-o", tmp_path / "again")
    assert "date and time zone" in table.out
    assert glqprof("scrub", source, "-o", tmp_path / "csv", "--format", "csv").out.startswith("file,kind,what,removed")


@pytest.mark.parametrize(
    "text",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, std::array<char*, 1>)",
        "decode_token_12", "layer_00_moe", "next_token: 151936", "/model/layers.0/mlp/gate", "jit(step)/jit(main)/dot",
        "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8",
        "12 / 4 = 3", "aten::linear", "nccl:all_reduce", "(256, 1, 1)", "2025.3.2.0", "op a/b", "1.5e-3/token",
    ],
)  # fmt: skip
def test_names_of_a_decode_are_not_taken_for_secrets(text):
    assert find(text) is None
    assert redact(text) in (text, text.rpartition("/")[2]) or "/" in text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/ada/run.py", "run.py"),
        ("--model=/data/llama/7b", "--model=7b"),
        ("~/x/y.py", "y.py"),
        ("C:\\Users\\ada\\run.py", "run.py"),
        ("HF_TOKEN=hf_" + "a" * 20, "HF_TOKEN=<removed>"),
        ("a/b", "a/b"),
        ("--tokens", "--tokens"),
    ],
)
def test_texts_of_the_manifest_are_redacted(text, left):
    assert redact(text) == left


def test_values_that_may_stand_nowhere_else():
    environment = {
        "HF_TOKEN": "abcd1234efgh",
        "Hostname": "gpu-host-7",
        "TOKENIZERS_PARALLELISM": "something-long",
        "HF_HUB_DISABLE_AUTH": "disabled",
        "PATH": "/usr/bin:/bin",
        "API_KEY": "short",
    }
    assert private_values(environment.items()) == {"abcd1234efgh", "gpu-host-7"}
    assert private_values([("Hostname", "cuda")]) == set()  # else no kernel of at::cuda could be kept
