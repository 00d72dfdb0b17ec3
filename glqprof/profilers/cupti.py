"""CUPTI inside the program, for machines without nsys: same records, same file format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glqprof.errors import InputError
from glqprof.profilers.nsys import refuse_without_gpu_work
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

INSTALL = "pip install 'glqprof[cupti]' (cupti-python 13.0.1 for CUDA 13) into the program's Python"


@dataclass(frozen=True)
class Cupti(InProcessProfiler):
    """An in-process tracer, started in front of the user's Python script."""

    name = "cupti"
    runner = "glqprof.profilers.cupti_run"
    output = "trace.sqlite"

    def availability(self) -> Availability:
        """cupti-python is installed for the program's Python."""
        found = version_in(self.python, "cupti-python")
        return Availability(found) if found else Availability("", "the package cupti-python is not installed", INSTALL)

    def written(self, raw: Path, finished: Finished) -> Written:
        """The export; also whether there is GPU work in it."""
        if finished.timed_out:
            raise ProgramFailed(finished.status, "the program ran into the time-out under the tracer and was ended")
        export = raw / "trace.sqlite"
        if "No module named 'cupti" in finished.text and not export.exists():
            raise InputError("cupti", f"cupti-python is not installed for the program's Python; {INSTALL}")
        if "No module named 'glqprof" in finished.text and not export.exists():
            raise InputError("cupti", "glqprof is not installed for the program's Python; install it there")
        if finished.status != 0:
            refuse_common("cupti", "\n".join(line for line in finished.lines if line.startswith("sqlite3.")))
            raise ProgramFailed(finished.status, f"the program ended with status {finished.status} under the tracer")
        if not export.exists():
            raise InputError("cupti", f"wrote no export ({last_error(finished)}); did the program end by os._exit?")
        return Written({"trace.sqlite": export}, {}, refuse_without_gpu_work(export, "cupti"))
