"""GPU state in the manifest, from NVML or nvidia-smi, and the warnings made of it."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from glqprof.profilers.machine import (
    Seen,
    Watched,
    busy_warnings,
    machine_reader,
    parse_smi,
    throttle_warnings,
    watched,
    with_states,
)
from glqprof.traces.schema.manifest import Gpu, GpuState

SMI = (
    "NVIDIA H200, 143771, 580.159.04, Enabled, 700.00, 1980, 3201, 34, 76.20, 0, 0x0000000000000001\n"
    "NVIDIA T4, 15360, 580.159.04, [N/A], [N/A], 300, 405, 50, [N/A], 97, 0x0000000000000024\n"
)


class FakeNvml:
    """The functions of pynvml that are used, for one GPU; ECC is not told."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    reasons = 0

    class NVMLError(Exception):
        pass

    def __getattr__(self, name):
        answers = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlSystemGetDriverVersion": b"580.1",
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1 << 37),
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetPowerUsage": 76_200,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
            "nvmlDeviceGetComputeRunningProcesses": [1, 2],
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetTemperature": 34,
        }
        if name == "nvmlDeviceGetCurrentClocksEventReasons":
            return lambda *_: type(self).reasons
        if name == "nvmlDeviceGetEccMode":
            return self._refuse
        if name in answers:
            return lambda *_: answers[name]
        raise AttributeError(name)

    def _refuse(self, *_):
        raise self.NVMLError


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())


def test_nvml(nvml):
    seen = machine_reader()()
    assert seen.driver == "580.1"
    assert seen.gpus == [Gpu(name="NVIDIA H200", memory_bytes=1 << 37, ecc=None, power_limit_w=700.0)]
    state = seen.states[0]
    assert (state.sm_mhz, state.power_w, state.processes, state.throttled) == (1980, 76.2, 2, "")
    assert busy_warnings(seen) == [
        "GPU 0 was busy before the run (3 % utilised, 2 other processes): its times are not the program's alone"
    ]


def test_throttling_during_a_run_is_seen_though_it_is_over_afterwards(nvml, monkeypatch):
    reader = machine_reader()
    with watched(reader) as seen:
        monkeypatch.setattr(FakeNvml, "reasons", 0x44)
        time.sleep(0.8)
        monkeypatch.setattr(FakeNvml, "reasons", 0)
    assert throttle_warnings([("traced", seen)]) == [
        "GPU 0 was throttled during the traced run (hardware thermal slowdown, power cap): its times are too long"
    ]


def test_nvidia_smi():
    seen = parse_smi(SMI)
    assert seen.driver == "580.159.04"
    assert [gpu.ecc for gpu in seen.gpus] == [True, None]
    assert seen.gpus[0].memory_bytes == 143771 << 20
    assert [state.throttled for state in seen.states] == ["", "power cap, thermal slowdown"]
    assert seen.states[1].power_w is None
    assert "GPU 1 was busy" in busy_warnings(seen)[0]
    assert parse_smi("No devices were found\n") == Seen()


def test_without_a_gpu_nothing_is_claimed(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = machine_reader()()
    assert seen == Seen()
    assert busy_warnings(seen) == throttle_warnings([("traced", Watched())]) == []
    assert with_states(seen, seen) == []


def test_states_before_and_after():
    before = Seen([Gpu(name="a"), Gpu(name="b")], [GpuState(sm_mhz=1), GpuState(sm_mhz=2)])
    gpus = with_states(before, Seen([Gpu(name="a")], [GpuState(sm_mhz=3)]))
    assert [(g.before.sm_mhz, g.after and g.after.sm_mhz) for g in gpus] == [(1, 3), (2, None)]
