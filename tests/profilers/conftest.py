from __future__ import annotations

import pytest
from profilers import stand_ins


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """nsys and ncu stand-ins on the PATH, an empty current folder; set STAND_IN with monkeypatch to choose a mode."""
    for name, value in stand_ins.install(tmp_path / "tools").items():
        monkeypatch.setenv(name, value)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def program(tools):
    """A program that marks its steps; its arguments are printed as it received them."""
    path = tools / "decode it.py"
    path.write_text(
        "import sys, time\n"
        "from glqprof import annotate\n"
        "print('arguments', sys.argv[1:])\n"
        "with annotate.decode_token(-1): pass\n"
        "with annotate.profiled():\n"
        "    for i in range(4):\n"
        "        with annotate.decode_token(i), annotate.layer('00_E'):\n"
        "            time.sleep(0.002)\n"
        "annotate.report(token_sha=annotate.sha_of([1, 2]), batch=2, workload='sleep', variant='x')\n"
    )
    return path
