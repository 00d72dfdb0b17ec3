"""Run the command line in this process, or as a program."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ran:
    """Exit status, standard output and standard error of one command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on standard output; fails when there is anything else."""
        assert self.status == 0, self.err
        return json.loads(self.out)


def glqprof(*arguments: object) -> Ran:
    """Run in this process, as `glqprof ARGUMENTS` would: quick, and enough where no process matters."""
    from glqprof.cli.app import main

    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(a) for a in arguments])
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return Ran(status, out.getvalue(), err.getvalue())


def glqprof_process(*arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> Ran:
    """Run `python -m glqprof ARGUMENTS` as a process of its own."""
    command = [sys.executable, "-m", "glqprof", *(str(a) for a in arguments)]
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "80"} | (env or {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=120, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)
