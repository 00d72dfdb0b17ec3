"""The four questions that every profiler answers here, and the sentences that several give."""

from __future__ import annotations

import os
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar

import glqprof
from glqprof.errors import InputError
from glqprof.profilers.processes import Finished, run

Version = tuple[int, ...]
NO_PERMISSION = (
    "has no permission to read the GPU's counters (ERR_NVGPUCTRPERM); run as root or with CAP_SYS_ADMIN, or load the "
    "driver with NVreg_RestrictProfilingToAdminUsers=0 (file in /etc/modprobe.d, then reboot); in a container add "
    "--cap-add=SYS_ADMIN"
)
DISK_FULL = "the disk is full; free space or choose another place with -o"
_PERMISSION = re.compile(r"ERR_NVGPUCTRPERM|insufficient privilege", re.IGNORECASE)
_DISK = re.compile(r"No space left on device|disk (?:is )?full|ENOSPC", re.IGNORECASE)
_VERSION = re.compile(r"\b(\d{4})\.(\d+)(?:\.(\d+))?(?:\.(\d+))?")


@dataclass(frozen=True)
class Availability:
    """Is it here and permitted: ``problem`` and ``fix`` say what is wrong, "" when nothing is."""

    version: str = ""
    problem: str = ""
    fix: str = ""

    @property
    def ok(self) -> bool:
        """Whether a capture can be tried."""
        return not self.problem


@dataclass(frozen=True)
class Written:
    """What a tool wrote and what it is good for: ``files``, the trace first, by their name in the capture folder.

    ``closed``: reports in the tool's own format, kept only with --keep-environment. ``warnings``: sentences.
    """

    files: dict[str, Path]
    closed: dict[str, Path] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class ProgramFailed(Exception):
    """The program ended with a status of its own; it is passed on."""

    def __init__(self, status: int, sentence: str) -> None:
        self.status = status
        super().__init__(sentence)


class Profiler(ABC):
    """One tool. ``name`` as on the command line and in the manifest."""

    name: str

    @abstractmethod
    def availability(self) -> Availability:
        """Whether the tool is here, new enough and permitted."""

    @abstractmethod
    def command_line(self, command: Sequence[str], raw: Path, marked: bool) -> list[str]:
        """The command that profiles ``command`` and writes into the folder ``raw``.

        ``marked``: record what lies between the program's cudaProfilerStart and -Stop, instead of all of it.
        """

    def run(
        self,
        command: Sequence[str],
        raw: Path,
        marked: bool,
        env: Mapping[str, str],
        timeout_s: float | None,
    ) -> Finished:
        """Run the program under the tool."""
        return run(self.command_line(command, raw, marked), env={**env, **self.environment()}, timeout_s=timeout_s)

    def environment(self) -> dict[str, str]:
        """Variables that the tool's part inside the program needs."""
        return {}

    @abstractmethod
    def written(self, raw: Path, finished: Finished) -> Written:
        """What was written and whether it can be used.

        Raises `ProgramFailed` with the program's status when it was the program that failed, else InputError.
        """


@dataclass(frozen=True)
class InProcessProfiler(Profiler):
    """A tool that is started in front of the user's Python script. ``python``: the script's interpreter."""

    python: str = sys.executable
    runner: ClassVar[str]
    """The module that runs the script: ``glqprof.profilers.…_run``."""
    output: ClassVar[str]
    """The file that it writes."""

    def command_line(self, command: Sequence[str], raw: Path, marked: bool) -> list[str]:
        """``python -m RUNNER OUTPUT all|marked -- script.py …`` with the command's own interpreter."""
        arguments = [str(raw / self.output), "marked" if marked else "all"]
        return python_runner(self.name, self.runner, command, arguments)

    def environment(self) -> dict[str, str]:
        """The program's interpreter must find this package."""
        return package_environment()


def parse_version(text: str) -> Version:
    """2025.3.1.0 → (2025, 3, 1, 0); () where there is none."""
    match = _VERSION.search(text)
    return tuple(int(part) for part in match.groups() if part is not None) if match else ()


def program_availability(program: str, oldest: Version, why_oldest: str, install: str) -> Availability:
    """Whether a program is on the PATH, answers, and is new enough."""
    path = shutil.which(program)
    if path is None:
        return Availability("", f"{program} is not on the PATH", install)
    try:
        finished = run([path, "--version"], timeout_s=60, quiet=True)
    except OSError as error:
        return Availability("", f"{program} cannot be started ({error.strerror})", f"reinstall it; {install}")
    parsed = parse_version(finished.text)
    shown = ".".join(str(part) for part in parsed)
    if finished.status != 0 or not parsed:
        last = next((line for line in reversed(finished.lines) if line.strip()), f"status {finished.status}")
        return Availability("", f"{program} --version fails ({last.strip()[:80]})", f"reinstall it; {install}")
    if parsed < oldest:
        wanted = ".".join(str(part) for part in oldest)
        return Availability(shown, f"{program} {shown} is too old: {why_oldest} came with {wanted}", install)
    return Availability(shown)


def refuse_common(tool: str, text: str) -> None:
    """Raise InputError for what goes wrong in the same words with every tool: permission, disk."""
    if _PERMISSION.search(text):
        raise InputError(tool, NO_PERMISSION)
    if _DISK.search(text):
        raise InputError(tool, DISK_FULL)


def refuse_failed_program(finished: Finished, said: re.Pattern[str], command: str) -> None:
    """Raise `ProgramFailed` when the tool's output says that the program failed, or was ended by the time-out.

    ``said`` matches the tool's sentence about the program's status, which is its group 1.
    """
    if finished.timed_out:
        raise ProgramFailed(finished.status, f"{command} ran into the time-out under the profiler and was ended")
    match = said.search(finished.text)
    if match and int(match[1]) != 0:
        raise ProgramFailed(int(match[1]), f"{command} ended with status {match[1]} under the profiler")


def last_error(finished: Finished) -> str:
    """The tool's last line that speaks of an error, else its last line."""
    lines = [line.strip() for line in finished.lines if line.strip()]
    errors = [line for line in lines if re.search(r"error|fail|cannot|unable", line, re.IGNORECASE)]
    return (errors or lines or [f"status {finished.status}"])[-1][:160]


def python_runner(tool: str, module: str, command: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The command that runs a Python script inside ``module`` of glqprof, with the interpreter that it names.

    Raises InputError when the command is no ``python script.py`` or ``python -m module``.
    """
    name = Path(command[0]).name
    if not re.fullmatch(r"python[\d.]*(?:\.exe)?|pypy[\d.]*", name):
        if name.endswith(".py"):
            return [sys.executable, "-m", module, *arguments, "--", *command]
        raise InputError(
            f"capture {tool}", f"runs inside Python and cannot follow {name}; give it as: -- python script.py …"
        )
    options = list(command[1:])
    kept: list[str] = []
    while options and options[0].startswith("-") and options[0] not in ("-m", "-c"):
        kept.append(options.pop(0))
        if kept[-1] in ("-W", "-X") and options:
            kept.append(options.pop(0))
    if not options or options[0] == "-c" or options == ["-m"]:
        raise InputError(f"capture {tool}", "needs a script or -m module after python; put -c code into a file")
    return [command[0], *kept, "-m", module, *arguments, "--", *options]


def interpreter_of(command: Sequence[str]) -> str:
    """The Python that a command names, else this one."""
    return command[0] if command and re.fullmatch(r"python[\d.]*(?:\.exe)?", Path(command[0]).name) else sys.executable


def version_in(python: str, package: str) -> str:
    """The version of a package that ``python`` would import, without importing it; "" where it has none."""
    found = shutil.which(python)
    if found is None or Path(found) == Path(sys.executable):
        try:
            return version(package)
        except PackageNotFoundError:
            return ""
    code = f"import importlib.metadata as m; print('version', m.version({package!r}))"
    lines = run([found, "-c", code], timeout_s=60, quiet=True).lines
    return next((line.removeprefix("version ") for line in lines if line.startswith("version ")), "")


def package_environment() -> dict[str, str]:
    """The variable by which the program's interpreter finds this package, where it runs from a source tree."""
    folder = Path(glqprof.__file__).resolve().parents[1]
    if folder.name in ("site-packages", "dist-packages"):  # another interpreter must not be given this one's packages
        return {}
    return {"PYTHONPATH": os.pathsep.join(p for p in (str(folder), os.environ.get("PYTHONPATH", "")) if p)}
