"""Run a command so that it, and all that it started, is gone when it has to be."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO

RUN_VARIABLE = "GLQPROF_RUN"
"""Marks every process of one run, daemons that left the process group too."""
GRACE_S = 2.0
TAIL_LINES = 400
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked to stop; the processes are gone. ``status`` is what the command line exits with."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__("interrupted by Ctrl-C" if number == signal.SIGINT else f"ended by {_name(number)}")


@dataclass
class Finished:
    """How a command ended: ``status`` as a shell would say it, wall ``seconds``, its last output lines."""

    status: int
    seconds: float
    lines: list[str] = field(default_factory=list)
    timed_out: bool = False

    @property
    def text(self) -> str:
        """The last lines of both its streams."""
        return "\n".join(self.lines)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    quiet: bool = False,
    output: Path | None = None,
) -> Finished:
    """Run ``command``; what it prints goes to standard error, unless ``quiet``, and its last lines are kept.

    ``output``: a file for its standard output instead. ``env`` is added to this process's environment; its standard
    input is empty. After ``timeout_s`` it is ended. Raises OSError when it cannot be started and `Interrupted` after
    Ctrl-C, SIGTERM or SIGHUP; in each case no process of it is left.
    """
    token = secrets.token_hex(8)
    environment = {**os.environ, **(env or {}), RUN_VARIABLE: token}
    started = time.monotonic()
    with _signals() as received, contextlib.ExitStack() as files:
        file = files.enter_context(output.open("wb")) if output else None
        # A session of its own: a Ctrl-C of the terminal reaches this process only, which then ends all of them.
        process = subprocess.Popen(
            list(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file or subprocess.PIPE,
            stderr=subprocess.PIPE if file else subprocess.STDOUT,
            start_new_session=True,
        )
        lines: deque[str] = deque(maxlen=TAIL_LINES)
        pipe = process.stderr if file else process.stdout
        assert pipe is not None
        reader = threading.Thread(target=_read, args=(pipe, lines, quiet), daemon=True)
        reader.start()
        timed_out = False
        try:
            while process.poll() is None and not received:
                if timeout_s is not None and time.monotonic() - started > timeout_s:
                    timed_out = True
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
        finally:
            ended = process.poll() is not None
            _end_all(process, token, first=signal.SIGTERM if not ended else signal.SIGKILL)
        # A daemon may have held the pipe open; it is gone now.
        reader.join(2.0)
        if received:
            raise Interrupted(received[0])
    code = process.returncode
    status = 128 - code if code < 0 else code
    if timed_out and status == 0:
        status = 124  # what timeout(1) says of a program that ended well when told to end
    return Finished(status, time.monotonic() - started, list(lines), timed_out)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask to end, instead of dying of them with children left behind."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, note) for number in ENDING_SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read(stream: BinaryIO, lines: deque[str], quiet: bool) -> None:
    for raw in iter(stream.readline, b""):
        text = raw.decode("utf-8", "replace")
        lines.append(text.rstrip("\r\n"))
        if not quiet:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
                sys.stderr.flush()


def _end_all(process: subprocess.Popen[bytes], token: str, first: int) -> None:
    """End the process, its group, its descendants and whatever else carries the run's token."""
    targets = _family(process.pid, token)
    if first != signal.SIGKILL:
        _send(process.pid, targets, first)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and (process.poll() is None or _family(process.pid, token)):
            time.sleep(0.05)
    for _ in range(3):  # a process can start another between the look and the blow
        targets |= _family(process.pid, token)
        if process.poll() is not None and not targets:
            break
        _send(process.pid, targets, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        targets = _family(process.pid, token)
    process.wait()


def _send(group: int, pids: set[int], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _family(root: int, token: str) -> set[int]:
    """Living processes below ``root``, of its session, or with the run's token in their environment."""
    mark = f"{RUN_VARIABLE}={token}".encode()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir() if Path("/proc/self").exists() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        try:
            state, parent, _group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if state in "ZX":
                continue
            parents[pid] = int(parent)
            if int(session) == root or mark in (entry / "environ").read_bytes():
                found.add(pid)
        except (OSError, ValueError):  # gone meanwhile, or another user's
            continue
    below = {root} | found
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in below and pid not in below}
        below |= children
        grown = bool(children)
    return {pid for pid in below if pid in parents}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
