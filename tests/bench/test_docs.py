"""docs/bench.md stays true: its codes are those of the program, its planted cheats are tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glqprof.bench.reasons import ERRORS, WARNINGS
from glqprof.bench.registry import Registry

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")


def table(heading):
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_reason_code_is_explained_in_the_programs_own_words():
    found = {code.strip("`"): (meaning, kind) for code, meaning, kind in table("Reason codes")}
    expected = {code: (meaning, "error") for code, meaning in ERRORS.items()}
    expected |= {code: (meaning, "warning") for code, meaning in WARNINGS.items()}
    assert found == expected


def test_each_of_the_ten_ways_has_codes_and_tests_that_exist():
    rows = table("Ten ways to fool a benchmark, and what becomes of them")
    assert [row[0] for row in rows] == [str(number) for number in range(1, 11)]
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*/test_*.py"))
    for _, way, _, codes, planted in rows:
        names = re.findall(r"`([^`]+)`", codes)
        assert names, way
        assert set(names) <= ERRORS.keys() | WARNINGS.keys(), way
        plants = re.findall(r"`([^`]+)`", planted)
        assert plants, way
        for test in plants:
            assert f"def {test}(" in tests, test


def test_every_verdict_reason_is_named():
    from glqprof.bench import stats

    reasons = [value for name, value in vars(stats).items() if name.isupper() and isinstance(value, str)]
    assert len(reasons) == 6
    for reason in reasons:
        assert f"`{reason}`" in TEXT


def test_the_example_of_a_users_file_works(tmp_path):
    pytest.importorskip("torch")
    from glqprof.bench.discovery import load_bundled, load_file

    path = tmp_path / "mine.py"
    path.write_text(re.search(r"```python\n(.*?)```", TEXT, re.DOTALL).group(1))
    registry: Registry = load_bundled()[0]
    load_file(path, registry)
    assert str(registry.variants["glq-moe", "mine"].contract) == "same bits as v3b"
