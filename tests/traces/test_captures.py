"""Opening captures: folders with manifests, bare files of every format, reports that need nsys."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import jsonschema
import pytest

import glqprof
from glqprof import InputError
from glqprof.traces.captures import bundled_capture, load_trace
from glqprof.traces.schema.manifest import Manifest, read_manifest
from support.nsys_builder import two_token_decode
from support.paths import PUBLIC, RECORDED


def make_capture(folder: Path, **more: object) -> Path:
    """A capture folder around the two-token decode."""
    folder.mkdir()
    two_token_decode().write(folder / "trace.sqlite")
    manifest = {
        "schema": "glqprof.capture/1",
        "name": "made",
        "tool": "nsys",
        "tool_version": "0",
        "files": ["trace.sqlite"],
    }
    (folder / "capture.json").write_text(json.dumps(manifest | more), encoding="utf-8")
    return folder


def test_a_folder_is_its_manifest_and_its_first_file(tmp_path) -> None:
    capture = glqprof.load(make_capture(tmp_path / "c", variant="v1", files=["trace.sqlite", "other.txt"]))
    assert capture.name == "made"
    assert capture.manifest is not None
    assert capture.manifest.variant == "v1"
    assert len(capture.trace.kernels) == 3


def test_a_bare_file_has_no_manifest_and_its_own_name(tmp_path) -> None:
    capture = glqprof.load(two_token_decode().write(tmp_path / "my.run.sqlite.gz"))
    assert (capture.name, capture.manifest) == ("my.run", None)


def test_the_format_is_read_off_the_content(tmp_path) -> None:
    odd = two_token_decode().write(tmp_path / "made.sqlite").rename(tmp_path / "no_suffix_at_all")
    assert len(glqprof.load(odd).trace.kernels) == 3


def test_launch_configuration_is_optional(tmp_path) -> None:
    path = two_token_decode().write(tmp_path / "made.sqlite")
    assert "grid_x" in load_trace(path, launch_config=True).kernels
    assert "grid_x" not in load_trace(path, launch_config=False).kernels


TIMELINES = [p for p in sorted(RECORDED.iterdir()) if read_manifest(p).tool != "ncu"]


@pytest.mark.parametrize("folder", TIMELINES, ids=lambda p: p.name)
def test_bundled_captures_open(folder) -> None:
    assert bundled_capture(folder.name) == folder
    manifest = read_manifest(folder)
    capture = glqprof.load(folder)
    assert capture.name == manifest.name
    assert capture.trace.info.tool == manifest.tool
    result = glqprof.breakdown(capture)
    assert [device.name for device in result.devices] == ["NVIDIA H200"]
    assert result.unattributed_share < 0.02


def test_the_four_tools_saw_the_same_decode() -> None:
    """One script on one H200: kernel counts equal, summed time of kernels of 20 µs and more within 3 %."""
    sums, counts, hashes = [], [], set()
    for tool in ("nsys", "cupti", "torch"):
        result = glqprof.breakdown(glqprof.load(RECORDED / f"toy-{tool}"))
        (device,) = result.devices
        counts.append(device.kernel_count)
        work, inside = result.prepared.work, result.prepared.starts_inside
        length = (work.end - work.start)[inside & (work.kind == 0)]
        sums.append(int(length[length >= 20_000].sum()))
        hashes.add(result.manifest.token_sha)
    assert counts == [640, 640, 640]  # 32 tokens of 20 kernels: 2 × 4 eager, 2 × 4 replayed, 4 of the head
    assert max(sums) / min(sums) < 1.03
    assert len(hashes) == 1


def test_an_ncu_capture_is_no_timeline() -> None:
    with pytest.raises(glqprof.InputError, match="glqprof ncu"):
        glqprof.load(RECORDED / "toy-ncu")


def test_the_manifest_schema_and_the_reader_know_the_same_fields(schema_of) -> None:
    assert set(schema_of("capture-1")["properties"]) == set(Manifest.__struct_fields__)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"tokens": "eight"}, "tokens"),
        ({"files": "trace.sqlite"}, "files"),
        ({"untraced": {"tok_s": 1}}, "ms_per_token"),
        ({"batch": None}, "batch"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_reader_and_schema_refuse_the_same_manifests(tmp_path, schema_of, change, wrong) -> None:
    folder = make_capture(tmp_path / "c", **change)
    with pytest.raises(InputError, match=wrong):
        glqprof.load(folder)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads((folder / "capture.json").read_text()), schema_of("capture-1"))


# --- .nsys-rep: a stand-in for nsys that copies a prepared export to --output


def stand_in(folder: Path, monkeypatch, prepared: Path | None, *, fail: str = "") -> Path:
    """Put an executable `nsys` on an otherwise empty PATH; it appends its arguments to a log, which is returned."""
    folder.mkdir()
    log = folder / "log"
    script = folder / "nsys"
    script.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys\n"
        f"open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        + (f"sys.stderr.write({fail!r} + '\\n'); sys.exit(1)\n" if fail else "")
        + f"shutil.copy({str(prepared)!r}, sys.argv[sys.argv.index('--output') + 1])\n",
        encoding="utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))
    return log


@pytest.fixture
def report(tmp_path) -> Path:
    path = tmp_path / "run" / "decode.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(b"\x00\x01 a report that only nsys reads")
    return path


def test_a_report_is_exported_once_and_cached_beside_it(tmp_path, monkeypatch, report) -> None:
    prepared = two_token_decode().write(tmp_path / "prepared.sqlite")
    log = stand_in(tmp_path / "bin", monkeypatch, prepared)
    first = glqprof.load(report)
    second = glqprof.load(report)
    assert len(first.trace.kernels) == len(second.trace.kernels) == 3
    (call,) = log.read_text().splitlines()
    assert call.startswith("export --type sqlite")
    assert call.endswith(str(report))
    assert sorted(p.name for p in report.parent.iterdir()) == ["decode.nsys-rep", "decode.sqlite"]


def test_a_report_newer_than_its_export_is_exported_again(tmp_path, monkeypatch, report) -> None:
    prepared = two_token_decode().write(tmp_path / "prepared.sqlite")
    log = stand_in(tmp_path / "bin", monkeypatch, prepared)
    glqprof.load(report)
    exported = report.with_suffix(".sqlite").stat().st_mtime
    os.utime(report, (exported + 10, exported + 10))
    glqprof.load(report)
    assert len(log.read_text().splitlines()) == 2


def test_a_cached_export_needs_no_nsys(monkeypatch, tmp_path, report) -> None:
    two_token_decode().write(report.with_suffix(".sqlite"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert len(glqprof.load(report).trace.kernels) == 3


def test_without_nsys_the_error_says_what_to_run(monkeypatch, tmp_path, report) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(InputError, match="nsys export --type sqlite") as caught:
        glqprof.load(report)
    assert caught.value.subject == str(report)


def test_a_failing_nsys_is_quoted_and_leaves_nothing(tmp_path, monkeypatch, report) -> None:
    stand_in(tmp_path / "bin", monkeypatch, None, fail="the report was made by a newer version")
    with pytest.raises(InputError, match="the report was made by a newer version"):
        glqprof.load(report)
    assert [p.name for p in report.parent.iterdir()] == ["decode.nsys-rep"]


def test_a_capture_folder_may_hold_a_report(tmp_path, monkeypatch) -> None:
    folder = make_capture(tmp_path / "c", files=["run.nsys-rep"])
    (folder / "trace.sqlite").rename(tmp_path / "prepared.sqlite")
    (folder / "run.nsys-rep").write_bytes(b"\x00 report")
    stand_in(tmp_path / "bin", monkeypatch, tmp_path / "prepared.sqlite")
    capture = glqprof.load(folder)
    assert (capture.name, len(capture.trace.kernels)) == ("made", 3)
    assert (folder / "run.sqlite").exists()


# --- public captures: facts counted with SQL, or on the JSON, outside of this code


def test_registered_strings_and_os_calls() -> None:
    trace = glqprof.load(PUBLIC / "nsightful_power_iteration__2025.3_s3.20.2.sqlite.gz").trace
    assert (len(trace.kernels), len(trace.ranges), len(trace.copies)) == (3_689, 786, 89)
    assert trace.ranges["start_ns"].min() == 14_883_704  # the domain row of start -1,957,198,520 is none
    assert not trace.ranges["name"].isin(["", "CCCL"]).any()
    assert trace.devices["name"].tolist() == ["Tesla T4"]
    assert {"api", "sync", "ranges", "os_calls"} <= trace.info.recorded
    assert set(trace.copies["src_kind"]) == {"Device"}
    assert set(trace.copies["dst_kind"]) == {"Pageable"}


def test_two_processes_on_two_gpus() -> None:
    trace = glqprof.load(PUBLIC / "nsysai_h100_2gpu_1s__2026.2_s3.25.0.sqlite.gz").trace
    kernels = trace.kernels.groupby(["device", "context"]).size()
    assert kernels.to_dict() == {(0, 1): 1_721, (1, 2): 1_721}
    assert trace.kernels.groupby("device")["process"].nunique().tolist() == [1, 1]
    assert trace.kernels["process"].nunique() == 2
    assert len(trace.ranges) == 16_782
    assert len(trace.overheads) == 198


def test_an_older_schema_without_ranges() -> None:
    trace = glqprof.load(PUBLIC / "fib_40_LayerNorm_custom__2024.2_s3.11.1.sqlite.gz").trace
    assert trace.info.schema_version == "3.11.1"
    assert (len(trace.kernels), len(trace.copies), len(trace.api), len(trace.overheads)) == (104, 3, 138, 142)
    assert sorted(trace.devices["device"]) == [0, 1]
    assert "ranges" not in trace.info.recorded


@pytest.mark.parametrize(
    ("name", "kernels", "copies", "memsets", "calls"),
    [
        ("hta_nccl_a100", 2_700, 960, 114, 8_740),
        ("tracelens_qwen1.5_eager_h100", 1_465, 1, 241, 1_922),
    ],
)
def test_torch_traces_of_nvidia_gpus(name, kernels, copies, memsets, calls) -> None:
    trace = glqprof.load(PUBLIC / f"{name}.json.gz").trace
    assert (trace.info.tool, trace.info.vendor) == ("torch", "nvidia")
    assert (len(trace.kernels), len(trace.copies), len(trace.memsets), len(trace.api)) == (
        kernels,
        copies,
        memsets,
        calls,
    )


def test_microseconds_become_nanoseconds_exactly() -> None:
    kernels = glqprof.load(PUBLIC / "hta_nccl_a100.json.gz").trace.kernels
    # The file's first kernel event: ts 4458676983543.183, dur 41.407.
    row = kernels[kernels["start_ns"] == 4_458_676_983_543_183]
    assert (row["end_ns"] - row["start_ns"]).tolist() == [41_407]


def test_a_trace_of_an_amd_gpu_gives_kernels_and_copies_alone() -> None:
    trace = glqprof.load(PUBLIC / "tracelens_vllm_decode_fullgraph.json.gz").trace
    assert trace.info.vendor == "amd"
    assert (len(trace.kernels), len(trace.copies)) == (425, 9)
    assert set(trace.kernels["device"]) == {2}
    assert len(trace.api) == len(trace.ranges) == 0
