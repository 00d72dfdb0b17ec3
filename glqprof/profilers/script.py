"""Run a user's script or module in this interpreter as ``python`` would. Standard library only."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from glqprof import annotate
from glqprof.annotate import RangeRecorder


class Tracer(RangeRecorder, Protocol):
    """What a tool's part inside the program offers: it records ranges, and writes what it recorded."""

    def save(self, path: Path) -> None:
        """Write the recording."""


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


def trace_script(argv: Sequence[str], make_tracer: Callable[[], Tracer]) -> None:
    """Run ``OUTPUT all|marked -- script.py …`` under a tracer: all of the script, or what is inside
    `annotate.profiled`. The output is written however the script ends."""
    (output, what), script = split_arguments(argv)
    tracer = make_tracer()
    if what == "all":
        tracer.start()
        annotate.attach(WholeProgram(tracer))
    else:
        annotate.attach(tracer)
    try:
        run_script(script)
    finally:
        tracer.save(Path(output))


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """A runner's own arguments and, after ``--``, the script's."""
    at = argv.index("--")
    return list(argv[:at]), list(argv[at + 1 :])
