"""The example of docs/kernels/step.md runs, its commands are the bench's, its sizes the kernels'."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from glqprof.bench.discovery import load_bundled
from glqprof_kernels.step import checks, ops
from glqprof_kernels.step.workload import GEOMETRIES, OPTIONS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "kernels" / "step.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    assert names["y"].shape == (1, 96)
    assert names["out"].dtype == torch.int64
    assert 0 <= names["out"].item() < 512


def test_commands_name_what_exists() -> None:
    registry, problems = load_bundled()
    assert problems == []
    assert registry.groups["decode-step"].geometries == GEOMETRIES
    for variant in registry.of_group("decode-step"):
        assert f"`{variant.name}`" in TEXT
    commands = re.findall(r"^glqprof bench decode-step(.*)$", TEXT, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert set(re.findall(r"--option (\w+)=", command)) <= set(OPTIONS)


def test_sizes_are_the_kernels() -> None:
    words = " ".join(TEXT.split())
    sizes = f"hidden to {ops.MAX_HIDDEN}, `linear`'s and the head's inputs to {ops.MAX_INPUTS}, all multiples of 8"
    assert sizes in words
    assert f"heads' dim to {ops.MAX_HEAD_DIM}, a multiple of 8" in words
    assert f"up to {checks.MAX_EXPERTS} experts and {checks.MAX_TOP_K} of them chosen" in words
