"""SM and memory clocks and throttle reasons of one GPU: read, never set."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable

from glqprof.traces.schema.bench import Clocks

# NVML's "clocks event reasons" that mean that the GPU ran slower than it would have chosen to. Idle, application
# clocks and display clocks are settings or states, not throttling.
THROTTLE_BITS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}

SMI_INTERVAL_S = 1.0
"""nvidia-smi takes about 0.1 s to answer: within this time its last answer is given again."""


def throttle_names(mask: int) -> str:
    """Return the names of the throttling bits in NVML's mask, joined by commas; "" when there are none."""
    return ", ".join(name for bit, name in THROTTLE_BITS.items() if mask & bit)


def nvml_reader(uuid: str) -> Callable[[], Clocks]:
    """Return a reader through nvidia-ml-py for the GPU with this UUID; raises ImportError or pynvml.NVMLError."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    # The function was renamed when "throttle" became "event"; older packages have only the old name.
    reasons = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if reasons is None:
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons

    def read() -> Clocks:
        return Clocks(
            sm_mhz=int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            mem_mhz=int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
            throttled=throttle_names(int(reasons(handle))),
        )

    read()  # a GPU that refuses the question must be found out now, not in the middle of a timing
    return read


def parse_smi(line: str) -> Clocks:
    """Parse ``clocks.sm, clocks.mem, clocks_throttle_reasons.active`` as nvidia-smi prints them without units."""
    sm, mem, mask = (part.strip() for part in line.split(","))
    return Clocks(int(sm), int(mem), throttle_names(int(mask, 16)))


def smi_reader(uuid: str) -> Callable[[], Clocks]:
    """Return a reader through nvidia-smi, at most one question a second; raises OSError or ValueError."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise FileNotFoundError("nvidia-smi")
    last: list[tuple[float, Clocks]] = []

    def read() -> Clocks:
        if last and time.monotonic() - last[0][0] < SMI_INTERVAL_S:
            return last[0][1]
        query = "clocks.sm,clocks.mem,clocks_throttle_reasons.active"
        answer = subprocess.run(
            [program, f"--id={uuid}", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        last[:] = [(time.monotonic(), parse_smi(answer.stdout.strip()))]
        return last[0][1]

    read()
    return read


def clock_reader(uuid: str) -> tuple[str, Callable[[], Clocks] | None]:
    """Return who reads the clocks and the reader: NVML, else nvidia-smi, else the reason and None."""
    try:
        return "nvml", nvml_reader(uuid)
    except Exception as error:  # ImportError, or any of NVML's error classes, which exist only with the package
        why = f"nvml: {type(error).__name__}"
    try:
        return "nvidia-smi", smi_reader(uuid)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{why}; nvidia-smi: {type(error).__name__}", None
