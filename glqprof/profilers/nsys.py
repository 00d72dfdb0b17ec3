"""Nsight Systems: the timeline of API calls, GPU work and NVTX ranges."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glqprof.errors import InputError
from glqprof.profilers.processes import Finished
from glqprof.profilers.profiler import (
    Availability,
    Profiler,
    ProgramFailed,
    Written,
    last_error,
    program_availability,
    refuse_common,
    refuse_failed_program,
)

OLDEST = (2022, 1)
INSTALL = (
    "install Nsight Systems 2022.1 or newer, or put the nsys inside Nsight Compute's folder on the PATH "
    "(host/target-linux-x64)"
)
IMPORTER = (
    "nsys recorded the run but its importer cannot start: a library is missing ({}); install libdw1 and libelf1 (apt), "
    "or put them on LD_LIBRARY_PATH; `glqprof doctor nsys` checks"
)
_LIBRARY = re.compile(r"(lib[\w+-]+\.so[\w.]*): cannot open shared object file")
_PROGRAM_STATUS = re.compile(
    r"(?:non-zero exit code|exited with (?:non-zero )?(?:exit )?code)[:\s]+(\d+)", re.IGNORECASE
)
STEM = "trace"


@dataclass(frozen=True)
class Nsys(Profiler):
    """``nsys profile``. ``graph_trace``: node or graph. ``follow_forks``: also trace forks that never exec.

    ``extra``: options of nsys that are added after glqprof's own, and so win.
    """

    graph_trace: str = "node"
    follow_forks: bool = False
    extra: Sequence[str] = field(default_factory=tuple)
    name = "nsys"

    def availability(self) -> Availability:
        """nsys is on the PATH and knows the options used here; whether its importer works shows only when it runs."""
        return program_availability("nsys", OLDEST, "tracing CUDA graphs by node", INSTALL)

    def command_line(self, command: Sequence[str], raw: Path, marked: bool) -> list[str]:
        """Sampling off: with it, an hour's traces and hangs were seen; capture-range-end=stop lets the program end."""
        line = [
            "nsys",
            "profile",
            "--trace=cuda,nvtx",
            "--sample=none",
            "--cpuctxsw=none",
            f"--cuda-graph-trace={self.graph_trace}",
        ]
        if marked:
            line += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        if self.follow_forks:
            line.append("--trace-fork-before-exec=true")
        line += [*self.extra, "--force-overwrite=true", "--export=sqlite", "-o", str(raw / STEM)]
        return [*line, *command]

    def written(self, raw: Path, finished: Finished) -> Written:
        """The SQLite export; also whether there is GPU work in it."""
        refuse_failed_program(finished, _PROGRAM_STATUS, "the program")
        export, report = raw / f"{STEM}.sqlite", raw / f"{STEM}.nsys-rep"
        if not export.exists():
            refuse_common("nsys", finished.text)
            if library := missing_library(finished):
                raise InputError("nsys", IMPORTER.format(library))
            if list(raw.glob("*.qdstrm")):
                raise InputError("nsys", f"recorded the run but could not import it ({last_error(finished)})")
            if "capture range" in finished.text.lower() or (finished.status == 0 and not report.exists()):
                raise InputError(
                    "nsys",
                    f"wrote no report ({last_error(finished)}); was cudaProfilerStart reached? --range all records "
                    "the whole program",
                )
            raise InputError("nsys", f"wrote no report ({last_error(finished)}); see its output above")
        if finished.status != 0:  # nsys did its part: the status is the program's, which nsys passes on
            raise ProgramFailed(finished.status, f"the program ended with status {finished.status} under nsys")
        closed = {report.name: report} if report.exists() else {}
        return Written({f"{STEM}.sqlite": export}, closed, refuse_without_gpu_work(export, "nsys"))


def missing_library(finished: Finished) -> str:
    """The shared library that a loader could not find, or ""."""
    match = _LIBRARY.search(finished.text)
    return match[1] if match else ""


def refuse_without_gpu_work(export: Path, tool: str) -> list[str]:
    """Raise InputError for an export without any GPU activity, in the words of `breakdown`; else its warnings."""
    from glqprof.analysis.answers import refuse_unusable
    from glqprof.traces.readers.nsys_sqlite import read_nsys_sqlite

    try:
        trace = read_nsys_sqlite(export)
        refuse_unusable(trace)
    except InputError as error:
        raise InputError(tool, f"wrote an export that cannot be used: it {error.problem}") from None
    except sqlite3.Error as error:
        raise InputError(tool, f"wrote a damaged export ({error}); capture again") from None
    texts = trace.diagnostics[trace.diagnostics["severity"] == "error"]["text"]
    return [str(text)[:200] for text in texts]
