"""torch.profiler around a user's Python script: a Chrome trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glqprof.errors import InputError
from glqprof.profilers.processes import Finished
from glqprof.profilers.profiler import (
    Availability,
    InProcessProfiler,
    ProgramFailed,
    Written,
    last_error,
    refuse_common,
    version_in,
)

INSTALL = "pip install 'glqprof[torch]' into the program's Python"
NO_GPU = "torch saw no GPU in this run: the trace holds no GPU work, and breakdown will refuse it"


@dataclass(frozen=True)
class TorchProfiler(InProcessProfiler):
    """torch.profiler, started in front of the user's Python script."""

    name = "torch"
    runner = "glqprof.profilers.torch_run"
    output = "trace.json"

    def availability(self) -> Availability:
        """torch is installed for the program's Python; it is not imported for this."""
        found = version_in(self.python, "torch")
        return Availability(found) if found else Availability("", "torch is not installed", INSTALL)

    def written(self, raw: Path, finished: Finished) -> Written:
        """The Chrome trace. Without a GPU it is one of host operators only, and a warning says so."""
        if finished.timed_out:
            raise ProgramFailed(finished.status, "the program ran into the time-out under torch.profiler and was ended")
        trace = raw / "trace.json"
        for module in ("torch", "glqprof"):
            if f"No module named '{module}'" in finished.text and not trace.exists():
                raise InputError("torch", f"{module} is not installed for the program's Python; install it there")
        if finished.status != 0:
            refuse_common(
                "torch", "\n".join(line for line in finished.lines if line.startswith(("OSError", "RuntimeError")))
            )
            raise ProgramFailed(
                finished.status, f"the program ended with status {finished.status} under torch.profiler"
            )
        if not trace.exists():
            raise InputError(
                "torch",
                f"wrote no trace ({last_error(finished)}); was the marked part reached? --range all records all",
            )
        return Written({"trace.json": trace}, {}, _warnings(trace))


def _warnings(path: Path) -> list[str]:
    from glqprof.traces.readers.chrome import read_chrome_trace

    trace = read_chrome_trace(path)
    work = len(trace.kernels) + len(trace.copies) + len(trace.memsets)
    if work:
        return []
    if len(trace.devices) or len(trace.api):
        raise InputError("torch", "recorded no GPU work although the program used CUDA; capture again, or try nsys")
    return [NO_GPU]
