"""benchmarks/device_bench.sh runs only on a GPU machine; what can go stale about it is checked here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from bench.toys import Bench, FakeDevice, honest
from glqprof.bench.discovery import load_bundled
from glqprof.cli.bench import bench

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "device_bench.sh"
TEXT = SCRIPT.read_text(encoding="utf-8")

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def test_the_script_parses():
    assert subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, check=False).returncode == 0


def test_it_uses_options_and_variants_that_exist():
    command = typer.main.get_command(_app())
    options = {name for parameter in command.params for name in parameter.opts}
    lines = re.findall(r"glqprof bench glq-moe(.*?)--format", TEXT, re.DOTALL)
    assert len(lines) == 2
    names = {variant.name for variant in load_bundled()[0].of_group("glq-moe")}
    for line in lines:
        assert set(re.findall(r"--[a-z-]+", line)) <= options
        assert set(re.search(r"--variants (\S+)", line).group(1).split(",")) <= names


def _app():
    app = typer.Typer()
    app.command()(bench)
    return app


def test_its_closing_table_reads_a_result(tmp_path):
    program = re.search(r'python3 - "\$out" <<\'P\'\n(.*?)\nP\n', TEXT, re.DOTALL).group(1)
    result = Bench(FakeDevice(copy_gb_s=10.0)).run(honest(40.0), capturable=False)
    (tmp_path / "bench-a.json").write_text(json.dumps(result.to_json()))
    (tmp_path / "bench-b.json").write_text("")
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"cand +1 +0\.040 +-  0\.400 +same +1 +0", done.stdout), done.stdout
    assert "bench-b.json: no result" in done.stdout
