from __future__ import annotations

import stat
import sys

import pytest

from glqprof.bench import clocks
from glqprof.bench.roofline import floor_us, rate_gb_s, recorded_gpu, warm_l2
from glqprof.traces.schema.bench import Clocks


def test_throttling_is_named_and_idling_is_not_throttling():
    assert clocks.throttle_names(0x0) == ""
    assert clocks.throttle_names(0x1) == ""  # idle
    assert clocks.throttle_names(0x2) == ""  # application clocks: a setting
    assert clocks.throttle_names(0x4 | 0x40) == "power cap, hardware thermal slowdown"


def test_nvidia_smi_is_parsed():
    assert clocks.parse_smi("1980, 3201, 0x0000000000000004") == Clocks(1980, 3201, "power cap")
    with pytest.raises(ValueError, match="invalid literal"):
        clocks.parse_smi("[N/A], [N/A], [N/A]")


@pytest.fixture
def no_nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # import raises ImportError


def test_nvidia_smi_is_asked_when_nvml_is_missing(tmp_path, monkeypatch, no_nvml):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho asked >> "$0.log"\necho "1755, 2619, 0x0000000000000000"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    source, read = clocks.clock_reader("GPU-1")
    assert source == "nvidia-smi"
    assert [read(), read()] == [Clocks(1755, 2619)] * 2
    assert (tmp_path / "nvidia-smi.log").read_text().count("asked") == 1  # not once a block: it is slow


def test_without_either_the_reason_is_told(tmp_path, monkeypatch, no_nvml):
    monkeypatch.setenv("PATH", str(tmp_path))
    source, read = clocks.clock_reader("GPU-1")
    assert read is None
    assert "ModuleNotFoundError" in source
    assert "nvidia-smi: FileNotFoundError" in source


def test_rates_and_floors():
    assert floor_us(860_000_000, 4300.0) == pytest.approx(200.0)
    assert rate_gb_s(860_000_000, 200.0) == pytest.approx(4300.0)


def test_the_recorded_ceiling_of_the_h200():
    gpu = recorded_gpu("NVIDIA H200")
    assert gpu is not None
    assert gpu.copy_gb_s == 4300
    assert gpu.source
    assert recorded_gpu("some other GPU") is None


def test_warm_is_judged_with_room_for_what_a_decode_keeps_in_cache():
    assert warm_l2(rotated_us=31.0, cold_us=100.0, warm_us=30.0)
    assert not warm_l2(rotated_us=98.0, cold_us=100.0, warm_us=30.0)
    assert not warm_l2(rotated_us=1000.0, cold_us=1010.0, warm_us=1000.0)  # bound by arithmetic: the cache is no matter
    assert not warm_l2(rotated_us=4.0, cold_us=4.9, warm_us=4.0)  # code and tables that emptying evicts
