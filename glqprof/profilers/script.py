"""Run a user's script or module in this interpreter as ``python`` would. Standard library only."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from glqprof.annotate import RangeRecorder


def run_script(arguments: Sequence[str]) -> None:
    """``script.py ARG…`` or ``-m module ARG…``, with the sys.argv and sys.path that it expects.

    Whatever the script raises, SystemExit too, comes out of here.
    """
    if arguments[0] == "-m":
        sys.argv = [arguments[1], *arguments[2:]]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


class WholeProgram:
    """A tracer that does not follow the marks: it records from the program's start to its end."""

    def __init__(self, tracer: RangeRecorder) -> None:
        self.push, self.pop = tracer.push, tracer.pop

    def start(self) -> None:
        """The recording has begun already."""

    def stop(self) -> None:
        """The recording ends with the program."""


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """A runner's own arguments and, after ``--``, the script's."""
    at = argv.index("--")
    return list(argv[:at]), list(argv[at + 1 :])
