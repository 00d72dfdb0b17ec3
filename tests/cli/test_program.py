"""The program as a shell meets it: help, version, completion."""

from __future__ import annotations

import re

import pytest

from glqprof import __version__
from support.cli import glqprof, glqprof_process


def test_version() -> None:
    ran = glqprof("--version")
    assert (ran.status, ran.out, ran.err) == (0, f"glqprof {__version__}\n", "")


@pytest.mark.parametrize("verb", ["breakdown", "compare", "decode", "report", "export", "demo"])
def test_help_has_an_example_that_names_the_verb(verb) -> None:
    ran = glqprof(verb, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert re.search(rf"Example: glqprof {verb} ", ran.out)


def test_completion_knows_the_verbs() -> None:
    asked = {"_GLQPROF_COMPLETE": "complete_bash", "COMP_WORDS": "glqprof brea", "COMP_CWORD": "1"}
    ran = glqprof_process(env=asked)
    assert (ran.status, ran.out.split()) == (0, ["breakdown"])


def test_completion_script_for_a_shell() -> None:
    ran = glqprof_process(env={"_GLQPROF_COMPLETE": "source_bash"})
    assert ran.status == 0
    assert "_GLQPROF_COMPLETE=complete_bash" in ran.out


@pytest.mark.parametrize("verb", ["breakdown", "compare", "report", "export"])
def test_help_imports_neither_pandas_nor_torch(verb) -> None:
    """What makes --help quick, without a clock: a process that prints it has not loaded them."""
    import subprocess
    import sys

    code = (
        "import sys, contextlib, io\n"
        "from glqprof.cli.app import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main(['{verb}', '--help'])\n"
        "print(sorted({'pandas', 'numpy', 'torch', 'matplotlib', 'pyarrow'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
