"""What the GPUs were doing around a run: clocks, power, ECC, throttling, other processes. Read, never set."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from glqprof.bench.clocks import throttle_names
from glqprof.traces.schema.manifest import Gpu, GpuState

BUSY_PCT = 5
SAMPLE_S = 0.5
_QUERY = (
    "name,memory.total,driver_version,ecc.mode.current,power.limit,clocks.sm,clocks.mem,temperature.gpu,power.draw,"
    "utilization.gpu,clocks_throttle_reasons.active"
)


@dataclass(frozen=True)
class Seen:
    """Every GPU at one moment, in the driver's order, and the driver's version."""

    gpus: list[Gpu] = field(default_factory=list)
    states: list[GpuState] = field(default_factory=list)
    driver: str = ""


class Reader(Protocol):
    """Looks at the GPUs."""

    def __call__(self) -> Seen:
        """Look now."""


def machine_reader() -> Reader:
    """A reader through nvidia-ml-py, else through nvidia-smi, else one that sees no GPU."""
    try:
        return _NvmlReader()
    except Exception:  # ImportError, or any of NVML's classes, which exist only with the package
        pass
    program = shutil.which("nvidia-smi")
    return _SmiReader(program) if program else Seen


class _NvmlReader:
    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self.nvml = pynvml
        self.handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        reasons = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        self.reasons = reasons or pynvml.nvmlDeviceGetCurrentClocksThrottleReasons

    def _ask(self, function: Any, *arguments: Any) -> Any:
        """The answer, or None where this GPU or this driver does not tell."""
        try:
            return function(*arguments)
        except self.nvml.NVMLError:
            return None

    def __call__(self) -> Seen:
        driver = _text(self._ask(self.nvml.nvmlSystemGetDriverVersion))
        return Seen([self._gpu(h) for h in self.handles], [self._state(h) for h in self.handles], driver)

    def _gpu(self, handle: Any) -> Gpu:
        ask, nvml = self._ask, self.nvml
        memory, ecc = ask(nvml.nvmlDeviceGetMemoryInfo, handle), ask(nvml.nvmlDeviceGetEccMode, handle)
        limit = ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        return Gpu(
            name=_text(ask(nvml.nvmlDeviceGetName, handle)) or "unknown",
            memory_bytes=int(memory.total) if memory else None,
            ecc=bool(ecc[0]) if ecc else None,
            power_limit_w=limit / 1000 if limit else None,
        )

    def _state(self, handle: Any) -> GpuState:
        ask, nvml = self._ask, self.nvml
        power, load = ask(nvml.nvmlDeviceGetPowerUsage, handle), ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return GpuState(
            sm_mhz=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            mem_mhz=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            temperature_c=ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=power / 1000 if power is not None else None,
            utilization_pct=int(load.gpu) if load else None,
            throttled=throttle_names(int(ask(self.reasons, handle) or 0)),
            processes=len(processes) if processes is not None else None,
        )


@dataclass(frozen=True)
class _SmiReader:
    program: str

    def __call__(self) -> Seen:
        command = [self.program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return Seen()
        return parse_smi(answer)


def parse_smi(answer: str) -> Seen:
    """What ``nvidia-smi --query-gpu`` printed for the fields asked for here; "[N/A]" and the like become None."""
    gpus, states, driver = [], [], ""
    for line in answer.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_QUERY.split(",")):
            continue
        name, memory, driver, ecc, limit, sm, mem, temperature, power, load, reasons = cells
        mib = _number(memory)
        has_ecc = {"Enabled": True, "Disabled": False}.get(ecc)
        gpus.append(
            Gpu(
                name=name,
                memory_bytes=int(mib * 2**20) if mib is not None else None,
                ecc=has_ecc,
                power_limit_w=_number(limit),
            )
        )
        states.append(
            GpuState(
                sm_mhz=_integer(sm),
                mem_mhz=_integer(mem),
                temperature_c=_integer(temperature),
                power_w=_number(power),
                utilization_pct=_integer(load),
                throttled=throttle_names(int(reasons, 16)) if reasons.startswith("0x") else "",
            )
        )
    return Seen(gpus, states, driver)


@dataclass
class Watched:
    """Throttling seen while a run went on, by GPU number."""

    throttled: dict[int, set[str]] = field(default_factory=dict)


@contextlib.contextmanager
def watched(read: Reader) -> Iterator[Watched]:
    """Look for throttling twice a second while the body runs: after a run the clocks have recovered."""
    result, stop = Watched(), threading.Event()

    def look() -> None:
        while not stop.wait(SAMPLE_S):
            for number, state in enumerate(read().states):
                if state.throttled:
                    result.throttled.setdefault(number, set()).update(state.throttled.split(", "))

    thread = threading.Thread(target=look, daemon=True)
    # nvidia-smi takes a tenth of a second of a core each time: that would show in the run.
    if isinstance(read, _NvmlReader):
        thread.start()
    try:
        yield result
    finally:
        stop.set()
        if thread.is_alive():
            thread.join(5.0)


def busy_warnings(before: Seen) -> list[str]:
    """A sentence per GPU that others used before the first run."""
    found = []
    for number, state in enumerate(before.states):
        others, load = state.processes or 0, state.utilization_pct or 0
        if others or load > BUSY_PCT:
            found.append(
                f"GPU {number} was busy before the run ({load} % utilised, {others} other processes): its times are "
                "not the program's alone"
            )
    return found


def throttle_warnings(runs: Sequence[tuple[str, Watched]]) -> list[str]:
    """A sentence per GPU and run in which it was slowed down."""
    return [
        f"GPU {number} was throttled during the {name} run ({', '.join(sorted(reasons))}): its times are too long"
        for name, seen in runs
        for number, reasons in sorted(seen.throttled.items())
    ]


def with_states(before: Seen, after: Seen) -> list[Gpu]:
    """The GPUs for the manifest, each with its state before and after."""
    last: list[GpuState | None] = [*after.states, *([None] * len(before.gpus))]
    return [
        Gpu(g.name, g.memory_bytes, g.sm_count, g.ecc, g.power_limit_w, before.states[i], last[i])
        for i, g in enumerate(before.gpus)
    ]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _integer(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)
