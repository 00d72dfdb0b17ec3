"""One CUDA GPU as the bench sees it: device-wide synchronisation, graphs, the copy ceiling, a profiler pass."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glqprof.bench.clocks import clock_reader
from glqprof.bench.device import Call, CaptureError, Observed
from glqprof.bench.launches import AFTER_RANGE, CALL_RANGE, read_call
from glqprof.errors import InputError
from glqprof.traces.schema.bench import BenchDevice, Clocks

COPY_BYTES = 1 << 30
"""Size of one side of the measured copy: many times every L2."""
COPY_REPEATS = 30


class CudaDevice:
    """The current CUDA device of this process."""

    kind = "cuda"
    graph_note = ""

    def __init__(self) -> None:
        """Find the GPU and its clocks; raises InputError when there is none."""
        import torch

        if not torch.cuda.is_available():
            raise InputError("--device cuda", "no CUDA GPU is visible here; use --device cpu")
        self._torch = torch
        self._properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.l2_bytes = int(self._properties.L2_cache_size)
        uuid = getattr(self._properties, "uuid", None)
        if uuid is None:
            self.clock_source, self._read_clocks = "this torch does not tell the GPU's UUID", None
        else:
            self.clock_source, self._read_clocks = clock_reader(f"GPU-{uuid}")
        self._flush: Any = None

    def describe(self) -> BenchDevice:
        """Return the GPU's name, capability, L2, and the versions of driver, CUDA and torch."""
        torch = self._torch
        return BenchDevice(
            kind="cuda",
            name=str(self._properties.name),
            capability=f"{self._properties.major}.{self._properties.minor}",
            driver=driver_version(),
            cuda=str(torch.version.cuda),
            torch=str(torch.__version__),
            l2_bytes=self.l2_bytes,
        )

    def synchronize(self) -> None:
        """Wait for the whole device, so that work on any stream is inside the timed block."""
        self._torch.cuda.synchronize()

    def now(self) -> float:
        """Return ``time.perf_counter()``: with device-wide synchronisation it sees what no stream's event sees."""
        return time.perf_counter()

    def clocks(self) -> Clocks | None:
        """Return the clocks of this instant."""
        return None if self._read_clocks is None else self._read_clocks()

    def capture(self, calls: Sequence[Call]) -> Call:
        """Warm the calls up on a side stream, as graphs require, and capture them; raises CaptureError."""
        torch = self._torch
        caller, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(caller)
        with torch.cuda.stream(stream):
            for call in calls:
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                for call in calls:
                    call()
            torch.cuda.synchronize()
        except Exception as error:  # whatever the variant raises, or what CUDA says of a capture made invalid
            torch.cuda.set_stream(caller)  # torch leaves its own stream current when ending the capture fails
            raise CaptureError(_first_words(error)) from error
        return lambda: graph.replay()

    def flush_l2(self) -> None:
        """Read three times the L2: reading leaves no dirty lines whose write-back would be blamed on the next call."""
        torch = self._torch
        if self._flush is None:
            self._flush = torch.zeros(3 * self.l2_bytes // 4 + 1, dtype=torch.float32, device="cuda")
            self._sum = torch.empty((), dtype=torch.float32, device="cuda")
        torch.sum(self._flush, dim=0, out=self._sum)

    def seconds_after(self, before: Sequence[Call], call: Call) -> float:
        """Time ``call`` between two events; ``before`` should keep the GPU busy until the host has enqueued it."""
        torch = self._torch
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        for item in before:
            item()
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def copy_gb_s(self) -> float | None:
        """Return the fastest of 30 copies of 1 GiB of random bytes, read + written, in GB/s."""
        torch = self._torch
        source = torch.randint(0, 256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        times = []
        for _ in range(COPY_REPEATS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            target.copy_(source)
            end.record()
            end.synchronize()
            times.append(float(start.elapsed_time(end)) * 1e-3)
        return 2 * COPY_BYTES / min(times) / 1e9

    def observe(self, call: Call, graph: bool) -> Observed | None:
        """Run ``call`` once under torch.profiler, behind a few milliseconds of copies that it has to wait for."""
        torch = self._torch
        from torch.profiler import ProfilerActivity, profile, record_function

        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        ahead = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
        behind = torch.empty_like(ahead)
        small = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
        with profile(activities=activities):  # the first use starts CUPTI, which may miss the first activities
            small[0].copy_(small[1])
            torch.cuda.synchronize()
        with profile(activities=activities) as profiler:
            torch.cuda.synchronize()
            for _ in range(8):
                behind.copy_(ahead)
            with record_function(CALL_RANGE):
                call()
            with record_function(AFTER_RANGE):
                small[0].copy_(small[1])
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        return read_call(events, graph)


def _first_words(error: BaseException) -> str:
    """Return the first line of what was raised first: ending a broken capture raises once more, and says less."""
    while error.__context__ is not None:
        error = error.__context__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def driver_version() -> str:
    """Return the NVIDIA driver's version, or "" where neither NVML nor nvidia-smi tells it."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except Exception:  # ImportError or NVML's own classes: the version is a label, not worth failing for
        pass
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return ""
