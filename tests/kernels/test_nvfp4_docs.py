"""The example of docs/kernels/nvfp4-format.md runs, and its commands are the bench's."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from glqprof.bench.discovery import load_bundled
from glqprof_kernels.nvfp4.workload import OPTIONS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "kernels" / "nvfp4-format.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    assert names["weights"].shape == (96, 64)
    assert torch.equal(names["layer"].down.codes, names["down"].codes)


def test_commands_name_what_exists() -> None:
    registry, problems = load_bundled()
    assert problems == []
    group = registry.groups["nvfp4-moe"]
    known = {variant.name for variant in registry.of_group("nvfp4-moe")}
    commands = re.findall(r"^glqprof bench nvfp4-moe(.*)$", TEXT, flags=re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        assert set(re.findall(r"--geometry (\S+)", command)) <= set(group.geometries)
        assert set(re.findall(r"--option (\w+)=", command)) <= set(OPTIONS)
        for listed in re.findall(r"--variants (\S+)", command):
            assert set(listed.split(",")) <= known
