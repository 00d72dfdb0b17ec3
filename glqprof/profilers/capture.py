"""One capture: an untraced run, a run under the profiler, scrubbed files and, last of all, the manifest."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from glqprof.annotate import REPORT_DIR_VARIABLE
from glqprof.errors import InputError
from glqprof.profilers.machine import (
    Reader,
    Seen,
    Watched,
    busy_warnings,
    machine_reader,
    throttle_warnings,
    watched,
    with_states,
)
from glqprof.profilers.processes import Finished, run
from glqprof.profilers.profiler import Profiler, ProgramFailed, Written
from glqprof.profilers.run_report import RunReport, read_reports, traced_of, untraced_of
from glqprof.reports.output import write_atomically, write_text
from glqprof.scrub.capture import pack, scrub_file, scrub_manifest
from glqprof.traces.schema.manifest import (
    MANIFEST_NAME,
    MANIFEST_SCHEMA,
    UNFINISHED_NAME,
    Git,
    Manifest,
    encode_manifest,
)
from glqprof.traces.schema.scrubbed import Removed

MIN_FREE_BYTES = 256 << 20
RAW = "raw"
MAX_WARNINGS = 20


@dataclass(frozen=True)
class Plan:
    """What to capture. ``marked``: None lets the untraced run say whether the program marks a part of itself.

    ``repeat``: untraced runs, 0 for none. ``timeout_s``: of each run. ``keep_environment``: no scrubbing, and the
    tool's closed report stays.
    """

    profiler: Profiler
    command: Sequence[str]
    folder: Path
    marked: bool | None = None
    repeat: int = 1
    timeout_s: float | None = None
    keep_environment: bool = False
    workload: str = ""
    variant: str = ""


@dataclass
class Captured:
    """The finished capture: its manifest, and what scrubbing took out."""

    folder: Path
    manifest: Manifest
    removed: list[Removed] = field(default_factory=list)


def capture(plan: Plan) -> Captured:
    """Carry out ``plan`` and return the finished capture.

    Raises InputError when the tool is not usable or wrote nothing usable, `ProgramFailed` when the program failed,
    `Interrupted` when a signal asked to end. In each of these cases the folder stays, without a manifest and with
    the file UNFINISHED that says why, and no process of the run is left.
    """
    availability = plan.profiler.availability()
    if not availability.ok:
        raise InputError(f"capture {plan.profiler.name}", f"{availability.problem}; {availability.fix}")
    plan.profiler.command_line(plan.command, plan.folder, True)  # refuses what this tool cannot follow, before any run
    with _folder(plan.folder) as raw:
        return _Session(plan, availability.version, raw).run()


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    """The folder, marked unfinished until the body is through, and the place in it for what the tool writes."""
    if folder.exists() and not (folder / UNFINISHED_NAME).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(folder, "exists already; choose another folder with -o, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / RAW, ignore_errors=True)
        (folder / RAW).mkdir()
    except OSError as error:
        raise InputError(folder, f"cannot be made ({error.strerror}); choose another folder with -o") from None
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        raise InputError(folder, f"has {free >> 20} MiB of disk left; free space or choose another place with -o")
    marker = folder / UNFINISHED_NAME
    write_text(marker, "the capture is being made, or died without a word\n")
    try:
        yield folder / RAW
    except BaseException as error:
        _say_why(marker, folder / RAW, error)
        raise
    shutil.rmtree(folder / RAW, ignore_errors=True)
    marker.unlink()


def _say_why(marker: Path, raw: Path, error: BaseException) -> None:
    lines = [" ".join((str(error) or type(error).__name__).split())]
    if any(raw.iterdir()):
        lines.append(f"{RAW}/ holds what the tool wrote: not scrubbed, do not share it")
    else:
        raw.rmdir()
    with contextlib.suppress(InputError):
        write_text(marker, "\n".join(lines) + "\n")


class _Session:
    def __init__(self, plan: Plan, tool_version: str, raw: Path) -> None:
        self.plan, self.tool_version, self.raw = plan, tool_version, raw
        self.read: Reader = machine_reader()
        self.watched: list[tuple[str, Watched]] = []
        self.shown = shlex.join(plan.command)[:80]

    def run(self) -> Captured:
        before = self.read()
        untraced = [self._untraced(number) for number in range(self.plan.repeat)]
        marked = self.plan.marked if self.plan.marked is not None else any(report.marked for report in untraced)
        report, finished = self._traced(marked)
        after = self.read()
        written = self.plan.profiler.written(self.raw, finished)
        command = self.plan.profiler.command_line(self.plan.command, Path(RAW), marked)
        manifest = self._manifest(command, untraced, report, written, before, after)
        return self._keep(manifest, written)

    def _untraced(self, number: int) -> RunReport:
        def go(env: Mapping[str, str]) -> Finished:
            return run(self.plan.command, env=env, timeout_s=self.plan.timeout_s)

        name = "untraced" if self.plan.repeat == 1 else f"untraced {number + 1}"
        report, finished = self._observed(name, go)
        if finished.timed_out:
            raise ProgramFailed(finished.status, f"{self.shown} ran into the time-out untraced and was ended")
        if finished.status != 0:
            raise ProgramFailed(finished.status, f"{self.shown} ended with status {finished.status} untraced")
        return report

    def _traced(self, marked: bool) -> tuple[RunReport, Finished]:
        def go(env: Mapping[str, str]) -> Finished:
            return self.plan.profiler.run(self.plan.command, self.raw, marked, env, self.plan.timeout_s)

        return self._observed("traced", go)

    def _observed(self, name: str, go: Callable[[Mapping[str, str]], Finished]) -> tuple[RunReport, Finished]:
        with tempfile.TemporaryDirectory(prefix="glqprof-report-") as reports, watched(self.read) as seen:
            try:
                finished = go({REPORT_DIR_VARIABLE: reports})
            except OSError as error:
                raise InputError(self.plan.command[0], f"cannot be started ({error.strerror}); check it") from None
            self.watched.append((name, seen))
            return read_reports(Path(reports)), finished

    def _manifest(
        self,
        command: list[str],
        untraced: list[RunReport],
        report: RunReport,
        written: Written,
        before: Seen,
        after: Seen,
    ) -> Manifest:
        runs, traced = untraced_of(untraced), traced_of(report)
        warnings = [*written.warnings, *busy_warnings(before), *throttle_warnings(self.watched)]
        hashes = {r.token_sha for r in [*untraced, report] if r.token_sha}
        if len(hashes) > 1:
            warnings.append("the runs did not decode the same tokens: token_sha differs between them")
        if untraced and runs is None:
            warnings.append("the program marks no step (glqprof.annotate.decode_token): no milliseconds a token")
        versions = report.versions
        return Manifest(
            schema=MANIFEST_SCHEMA,
            name=self.plan.folder.resolve().name,
            tool=self.plan.profiler.name,
            tool_version=self.tool_version,
            files=list(written.files),
            command=command,
            workload=self.plan.workload or report.workload,
            variant=self.plan.variant or report.variant,
            gpus=with_states(before, after),
            driver=before.driver,
            cuda=versions.get("cuda", ""),
            torch=versions.get("torch", ""),
            transformers=versions.get("transformers", ""),
            git=git_here(),
            batch=report.batch,
            tokens=report.tokens,
            untraced=runs,
            traced=traced,
            inflation=round(traced.ms_per_token / runs.ms_per_token, 4) if traced and runs else None,
            token_sha=next(iter(hashes)) if len(hashes) == 1 else None,
            captured_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            scrubbed=not self.plan.keep_environment,
            warnings=list(dict.fromkeys(warnings))[:MAX_WARNINGS],
        )

    def _keep(self, manifest: Manifest, written: Written) -> Captured:
        """Scrub or only pack the tool's files into the folder, then write the manifest: it makes the capture one."""
        removed: list[Removed] = []
        names: list[str] = []
        for name, path in written.files.items():
            scratch = self.raw / f"scrub-{name}"
            scratch.mkdir()
            data = path
            if not self.plan.keep_environment:
                data, found = scrub_file(path, scratch)
                removed += found
            pack(data, scratch / "packed")
            (scratch / "packed").replace(self.plan.folder / f"{name}.gz")
            names.append(f"{name}.gz")
        for name, path in written.closed.items():
            if self.plan.keep_environment:
                path.replace(self.plan.folder / name)
                names.append(name)
            else:
                why = "closed format: holds the environment; --keep-environment keeps it"
                removed.append(Removed(name, "closed report", why, 1))
        if self.plan.keep_environment:
            manifest = msgspec.structs.replace(manifest, files=names)
        else:
            manifest = scrub_manifest(manifest, names, removed)
        write_atomically(self.plan.folder / MANIFEST_NAME, lambda file: file.write(encode_manifest(manifest)))
        return Captured(self.plan.folder, manifest, removed)


COMMIT = "GLQPROF_COMMIT"
"""Environment variable: the commit of code that runs outside its repository, as on a machine it was copied to."""


def git_here() -> Git | None:
    """The commit that ``GLQPROF_COMMIT`` names, else that of the current folder; None where there is neither."""
    if os.environ.get(COMMIT):
        return Git(os.environ[COMMIT], dirty=False)

    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if not commit:
        return None
    changes = ask("status", "--porcelain", "--untracked-files=no")
    return Git(commit, bool(changes))


def default_folder(tool: str, command: Sequence[str]) -> Path:
    """``capture-<tool>-<program>``, with a number where that exists: a name that says what is in it."""
    words = [word for word in command if not word.startswith("-")]
    if len(words) > 1 and re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        words = words[1:]
    name = Path(words[0]).name.removesuffix(".py") if words else "program"
    stem = f"capture-{tool}-{re.sub(r'[^A-Za-z0-9_-]+', '-', name.rpartition('.')[2])[:40] or 'program'}"
    for number in range(1, 1000):
        folder = Path(stem if number == 1 else f"{stem}-{number}")
        if not folder.exists():
            return folder
    raise InputError(stem, "exists a thousand times; choose a folder with -o")
