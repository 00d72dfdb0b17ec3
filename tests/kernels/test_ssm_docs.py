"""docs/kernels/ssm.md stays true: its example runs, its commands and variants exist, its numbers follow from sizes."""

from __future__ import annotations

import re
from pathlib import Path

from glqprof.bench.discovery import load_bundled
from glqprof_kernels import ssm
from glqprof_kernels.ssm.workload import OPTIONS, geometries

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "kernels" / "ssm.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    assert names["out"].isfinite().all()


def test_commands_name_what_exists() -> None:
    registry, problems = load_bundled()
    assert problems == []
    group = registry.groups["ssm-step"]
    known = {variant.name for variant in registry.of_group("ssm-step")}
    assert known == set(ssm.VARIANTS)
    commands = re.findall(r"^glqprof bench ssm-step(.*)$", TEXT, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert set(re.findall(r"--geometry (\S+)", command)) <= set(group.geometries)
        assert set(re.findall(r"--option (\w+)=", command)) <= set(OPTIONS)
        for listed in re.findall(r"--variants (\S+)", command):
            assert set(listed.split(",")) <= known


def test_files_that_the_page_names_exist() -> None:
    for name in re.findall(r"`((?:tests|kernels|benchmarks)/[\w/.]+)`", TEXT):
        assert (ROOT / name).exists(), name


def test_the_floor_is_the_sizes_count() -> None:
    sizes, layers = geometries()["cascade2-30b"]
    inter, conv = sizes.heads * sizes.head_dim, sizes.heads * sizes.head_dim + 2 * sizes.groups * sizes.state
    state, conv_state = 2 * inter * sizes.state * 4, 2 * conv * sizes.taps * 2
    rest = (
        2 * (inter + conv + sizes.heads + inter)
        + 2 * (conv * (sizes.taps + 1) + inter + 2 * sizes.heads)
        + 4 * sizes.heads
    )
    assert (state / 2**20, conv_state / 2**10, round(rest / 2**10)) == (4, 96, 97)
    assert round(layers * (state + conv_state + rest) / 1e6) == 101
    assert round(layers * (state + conv_state + rest) / 4.2e6) == 24
    assert round(layers * state / 1e6) == 96
