"""Ctrl-C, SIGTERM and time-outs: nothing of the run stays alive, the folder says that it is unfinished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from profilers.stand_ins import glqprof

from glqprof.profilers.processes import Finished, run

# A child that has left the process group, one that has not, and a parent that ignores SIGTERM.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
nap = [sys.executable, "-c", "import time; time.sleep(60)"]
children = [subprocess.Popen(nap), subprocess.Popen(nap, start_new_session=True)]
with open("pids", "w") as file:
    file.write(" ".join(str(p) for p in [os.getpid(), *(c.pid for c in children)]) + " end")
time.sleep(60)
"""


def wait_for_pids(path: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().endswith("end"):
            return [int(p) for p in path.read_text().split()[:-1]]
        time.sleep(0.02)
    raise AssertionError("the program did not start")


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_profiler_and_the_program(tools, number, status):
    command = [sys.executable, "-m", "glqprof", "capture", "nsys", "--no-untraced", "-o", "c", "--"]
    started = subprocess.Popen([*command, sys.executable, "-c", STUBBORN], stderr=subprocess.PIPE, text=True)
    try:
        pids = wait_for_pids(tools / "pids")
        started.send_signal(number)
        _, err = started.communicate(timeout=30)
    finally:
        started.kill()
    assert started.returncode == status
    assert "is marked unfinished" in err.splitlines()[-1]
    assert not any(is_alive(pid) for pid in pids)
    assert (tools / "c" / "UNFINISHED").exists()
    assert not (tools / "c" / "capture.json").exists()


def test_a_time_out_ends_them_too_and_gives_the_childs_status(tools):
    ran = glqprof("capture", "nsys", "--no-untraced", "--timeout", 5, "-o", "c", "--", sys.executable, "-c", STUBBORN)
    assert ran.status in (128 + signal.SIGTERM, 128 + signal.SIGKILL)  # the stand-in's: by what it was ended
    assert "time-out" in ran.err
    assert not any(is_alive(pid) for pid in wait_for_pids(tools / "pids"))
    assert "time-out" in (tools / "c" / "UNFINISHED").read_text()


def test_a_daemon_that_outlives_its_program_is_ended(tmp_path):
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys\n"
        "nap = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        f"open({str(pid_file)!r}, 'w').write(str(nap.pid))\n"
    )
    assert run([sys.executable, "-c", code], quiet=True).status == 0
    assert not is_alive(int(pid_file.read_text()))


def test_what_ended_well_when_told_to_counts_as_timed_out():
    # A shell, not Python: it has set its trap long before the time-out, on a busy machine too.
    program = 'trap "exit 0" TERM; while :; do sleep 0.1; done'
    finished = run(["sh", "-c", program], timeout_s=3.0, quiet=True)
    assert isinstance(finished, Finished)
    assert (finished.status, finished.timed_out) == (124, True)


def test_both_streams_are_kept_in_order_and_shown(capfd):
    finished = run([sys.executable, "-c", "import os; os.write(1, b'one\\n'); os.write(2, b'two\\xff\\n')"])
    assert finished.lines == ["one", "two�"]
    assert os.linesep.join(finished.lines) in capfd.readouterr().err
