"""Nsight Compute: hardware counters of single kernels, each replayed several times."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glqprof.errors import InputError
from glqprof.profilers.processes import Finished, run
from glqprof.profilers.profiler import (
    NO_PERMISSION,
    Availability,
    Profiler,
    ProgramFailed,
    Written,
    last_error,
    program_availability,
    refuse_common,
    refuse_failed_program,
)

OLDEST = (2021, 1)
INSTALL = "install Nsight Compute 2021.1 or newer and put ncu on the PATH"
PAGES = ("raw", "details")
STEM = "report"
IMPORT_TIMEOUT_S = 600.0
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
_PROGRAM_STATUS = re.compile(r"application returned an error code \((\d+)\)", re.IGNORECASE)
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True)
class Ncu(Profiler):
    """``ncu``. ``kernel``: a regular expression of kernel names; ``skip`` and ``count`` choose among the matches.

    ``sections``: instead of ``--set full``. ``extra``: options of ncu that are added after glqprof's own.
    """

    kernel: str = ""
    skip: int = 0
    count: int | None = None
    sections: Sequence[str] = field(default_factory=tuple)
    extra: Sequence[str] = field(default_factory=tuple)
    name = "ncu"

    def availability(self) -> Availability:
        """ncu is on the PATH, new enough, and the driver lets this user read counters."""
        found = program_availability("ncu", OLDEST, "the options used here", INSTALL)
        if found.ok and not counters_permitted():
            return Availability(found.version, "ERR_NVGPUCTRPERM: counters are for administrators", NO_PERMISSION)
        return found

    def command_line(self, command: Sequence[str], raw: Path, marked: bool) -> list[str]:
        """Clocks are left alone: ncu locks them to base otherwise, and its times would be of another machine."""
        line = ["ncu", "--clock-control", "none", "--print-units", "base", "--target-processes", "all"]
        for section in self.sections:
            line += ["--section", section]
        if not self.sections:
            line += ["--set", "full"]
        if self.kernel:
            line += ["-k", f"regex:{self.kernel}"]
        if self.skip:
            line += ["--launch-skip", str(self.skip)]
        if self.count is not None:
            line += ["--launch-count", str(self.count)]
        if marked:
            line += ["--profile-from-start", "off"]
        return [*line, *self.extra, "--force-overwrite", "-o", str(raw / STEM), *command]

    def written(self, raw: Path, finished: Finished) -> Written:
        """Both CSV pages of the report, imported by ncu itself."""
        refuse_failed_program(finished, _PROGRAM_STATUS, "the program")
        refuse_common("ncu", finished.text)
        report = raw / f"{STEM}.ncu-rep"
        if "No kernels were profiled" in finished.text:
            wanted = f"kernel names match {self.kernel!r}" if self.kernel else "the program launched none"
            raise InputError(
                "ncu", f"profiled no kernel; check that {wanted}, that --skip leaves some, or use --range all"
            )
        if not report.exists():
            raise InputError("ncu", f"wrote no report ({last_error(finished)}); see its output above")
        if finished.status != 0:  # ncu did its part: the status is the program's, which ncu passes on
            raise ProgramFailed(finished.status, f"the program ended with status {finished.status} under ncu")
        files = {f"{page}.csv": self._page(report, page, raw) for page in PAGES}
        from glqprof.traces.ncu_reports import load_ncu_report

        for path in files.values():
            load_ncu_report(path)
        return Written(files, {report.name: report})

    def _page(self, report: Path, page: str, raw: Path) -> Path:
        target = raw / f"{page}.csv"
        line = ["ncu", "--import", str(report), "--csv", "--page", page, "--print-units", "base"]
        try:
            done = run(line, timeout_s=IMPORT_TIMEOUT_S, quiet=True, output=target)
        except OSError as error:
            raise InputError(
                target, f"cannot be written ({error.strerror}); free space or choose another place"
            ) from None
        if done.status != 0:
            refuse_common("ncu", done.text)
            raise InputError("ncu", f"could not print the report's {page} page ({last_error(done)})")
        return target


def counters_permitted() -> bool:
    """Whether the driver lets this user read hardware counters, as far as it says (True where it does not)."""
    try:
        restricted = "RmProfilingAdminOnly: 1" in DRIVER_PARAMETERS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return not restricted or _is_admin()


def _is_admin() -> bool:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        match = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
        return bool(match and int(match[1], 16) >> _CAP_SYS_ADMIN & 1)
    except OSError:
        return os.geteuid() == 0
