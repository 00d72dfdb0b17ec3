"""docs/capture.md and benchmarks/device_capture.sh stay true: flags, options, files and the closing table."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import typer
from profilers.stand_ins import REPOSITORY

from glqprof.cli.app import app
from glqprof.profilers.ncu import Ncu
from glqprof.profilers.nsys import Nsys

TEXT = (REPOSITORY / "docs" / "capture.md").read_text(encoding="utf-8")
SCRIPT = REPOSITORY / "benchmarks" / "device_capture.sh"


def options_of(*names):
    command = typer.main.get_command(app)
    for name in names:
        command = command.commands[name]
    return {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}


def test_every_flag_of_a_tool_is_explained():
    lines = [
        Nsys(follow_forks=True).command_line(["x"], Path("raw"), True),
        Ncu("k", 1, 1).command_line(["x"], Path("raw"), True),
    ]
    plumbing = {"--target-processes", "--launch-skip", "--launch-count", "--force-overwrite", "--export"}
    for line in lines:
        for word in line:
            if word.startswith("--") and (flag := word.partition("=")[0]) not in plumbing:
                assert flag in TEXT, flag


def test_every_option_that_the_page_names_exists():
    known = set().union(
        *(options_of("capture", tool) for tool in ("nsys", "ncu", "cupti", "torch")), options_of("scrub")
    )
    tools = {flag.partition("=")[0] for flag in re.findall(r"--[a-z-]+", " ".join(
        [*Nsys(follow_forks=True).command_line([], Path(), True), *Ncu("k", 1, 1).command_line([], Path(), True)]
    ))}  # fmt: skip
    page = TEXT.partition("## On a machine without network")[0]
    assert set(re.findall(r"--[a-z][a-z-]+", page)) <= known | tools


def test_every_option_of_capture_is_on_the_page():
    for tool in ("nsys", "ncu", "cupti", "torch"):
        for option in options_of("capture", tool) - {"--untraced", "--kernel", "--output"}:
            assert option in TEXT, option


def test_links_and_files_exist():
    for link in re.findall(r"\]\((\.\./[^)#]+|[\w/]+\.md)\)", TEXT):
        assert (REPOSITORY / "docs" / link).exists(), link
    for name in re.findall(r"`((?:tests|benchmarks|glqprof)/[\w/.]+)`", TEXT):
        assert (REPOSITORY / name).exists(), name


def test_there_is_no_table_of_inflation_without_a_capture_behind_it():
    block = re.search("<!-- inflation: begin -->(.*?)<!-- inflation: end -->", TEXT, re.DOTALL)[1]
    recorded = [tool for tool in ("nsys", "cupti", "torch", "ncu") if f"| {tool} |" in block]
    for tool in recorded:
        manifest = json.loads((REPOSITORY / "captures" / f"toy-{tool}" / "capture.json").read_text())
        assert f"{manifest['inflation']:.2f}×" in block
    assert recorded or not block.strip()


def test_the_device_script_parses_and_names_what_exists():
    if shutil.which("bash"):
        assert subprocess.run(["bash", "-n", str(SCRIPT)], check=False).returncode == 0
    text = SCRIPT.read_text(encoding="utf-8")
    known = options_of("capture", "nsys") | options_of("capture", "ncu")
    used = re.findall(r"(?<= )--[a-z-]+", " ".join(line for line in text.splitlines() if "glqprof capture" in line))
    assert set(used) <= known
    assert re.search(r"--count", text)


def table(folder, *arguments):
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "capture_table.py"), str(folder), *map(str, arguments)]
    env = {"PYTHONPATH": str(REPOSITORY), "PATH": ""}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_the_closing_table_of_captures_that_agree_and_that_do_not(tmp_path):
    source = REPOSITORY / "captures" / "h200-toy-cuda-graph-node"
    manifest = json.loads((source / "capture.json").read_text())
    runs = {"untraced": {"tok_s": 500.0, "ms_per_token": 2.0}, "traced": {"ms_per_token": 3.0}, "inflation": 1.5}
    for tool in ("nsys", "cupti", "torch", "ncu"):
        folder = tmp_path / f"toy-{tool}"
        shutil.copytree(source, folder)
        (folder / "capture.json").write_text(json.dumps(manifest | runs | {"tool": tool}))
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- inflation: begin -->\n<!-- inflation: end -->\nb\n")
    done = table(tmp_path, "--docs", page)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| nsys | 2025.3.2.0 | 2.000 | 3.000 | 1.50× | 500.0 |" in page.read_text()
    assert page.read_text().startswith("a\n")
    assert page.read_text().endswith("b\n")
    shutil.copy(REPOSITORY / "captures" / "h200-toy-cuda-graph-graph" / "trace.sqlite.gz", tmp_path / "toy-cupti")
    shutil.rmtree(tmp_path / "toy-ncu")
    done = table(tmp_path)
    assert done.returncode == 1
    assert "PROBLEM: kernel counts differ" in done.stdout
    assert "PROBLEM: ncu: no capture" in done.stdout
