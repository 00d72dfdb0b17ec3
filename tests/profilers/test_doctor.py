"""`glqprof doctor`: a line and a fix for each thing that keeps a capture from working."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import pytest
from profilers.stand_ins import REPOSITORY, glqprof

from glqprof.profilers import ncu
from glqprof.profilers.doctor import diagnose
from glqprof.profilers.machine import Seen
from glqprof.traces.schema.manifest import Gpu, GpuState

HERE = Seen([Gpu(name="Pretend GPU")], [GpuState(utilization_pct=0, processes=0)], "580.1")


def line_of(diagnosis, name):
    return next(check for check in diagnosis.checks if check.name == name)


def test_all_is_well_with_the_stand_ins(tools):
    diagnosis = diagnose(("nsys", "ncu"), lambda: HERE)
    assert diagnosis.ok
    assert diagnosis.usable == {"nsys": True, "ncu": True}
    assert line_of(diagnosis, "nsys").found == "2025.3.2.0"
    assert line_of(diagnosis, "nsys importer").status == "ok"
    assert "1 × Pretend GPU, driver 580.1" in line_of(diagnosis, "GPU and driver").found


def test_the_importers_library_is_named(tools, monkeypatch):
    monkeypatch.setenv("STAND_IN", "importer")
    diagnosis = diagnose(("nsys",), lambda: HERE)
    assert not diagnosis.ok
    check = line_of(diagnosis, "nsys importer")
    assert "libdw.so.1 is missing" in check.found
    assert "libdw1" in check.fix


def test_an_old_tool_and_a_missing_one(tools, monkeypatch):
    monkeypatch.setenv("STAND_IN", "old")
    assert "too old" in line_of(diagnose(("nsys",), lambda: HERE), "nsys").found
    monkeypatch.setenv("PATH", str(tools))
    diagnosis = diagnose(("nsys", "ncu"), lambda: HERE)
    assert "not on the PATH" in line_of(diagnosis, "ncu").found
    assert not diagnosis.ok


def test_counters_for_administrators_only(tools, monkeypatch, tmp_path):
    parameters = tmp_path / "params"
    parameters.write_text("EnableMSI: 1\nRmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(ncu, "DRIVER_PARAMETERS", parameters)
    monkeypatch.setattr(ncu, "_is_admin", lambda: False)
    diagnosis = diagnose(("nsys", "ncu"), lambda: HERE)
    check = line_of(diagnosis, "GPU counters")
    assert "ERR_NVGPUCTRPERM" in check.found
    assert "NVreg_RestrictProfilingToAdminUsers=0" in check.fix
    assert diagnosis.usable == {"nsys": True, "ncu": False}
    assert diagnosis.ok
    ran = glqprof("capture", "ncu", "--", sys.executable, "-c", "pass")
    assert ran.status == 2
    assert "ERR_NVGPUCTRPERM" in ran.err
    monkeypatch.setattr(ncu, "_is_admin", lambda: True)
    assert diagnose(("ncu",), lambda: HERE).ok


def test_a_busy_gpu_is_a_note(tools):
    seen = Seen(HERE.gpus, [GpuState(utilization_pct=80, processes=2)], "580.1")
    check = line_of(diagnose(("torch",), lambda: seen), "GPU and driver")
    assert (check.status, "80 % utilised, 2 other processes" in check.found) == ("note", True)


def test_a_full_disk(tools, monkeypatch):
    from glqprof.profilers import doctor

    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 1 << 60)
    diagnosis = diagnose(("nsys",), lambda: HERE)
    assert line_of(diagnosis, "disk space").status == "fail"
    assert not diagnosis.ok


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a GPU here")
def test_the_command_without_a_gpu(tools):
    ran = glqprof("doctor", "--format", "json")
    assert ran.status == 1
    printed = json.loads(ran.out)
    schema = REPOSITORY / "glqprof" / "data" / "schemas" / "doctor-1.schema.json"
    jsonschema.validate(printed, json.loads(schema.read_text()))
    assert printed["ok"] is False
    assert all(check["fix"] for check in printed["checks"] if check["status"] != "ok")
    assert "capture cannot work here" in glqprof("doctor", "nsys").out
