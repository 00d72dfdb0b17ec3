from __future__ import annotations

import sys
import textwrap

import pytest

from bench.toys import toy_group
from glqprof.bench.discovery import load_bundled, load_file
from glqprof.bench.registry import Registry
from glqprof.errors import InputError


def write(path, text):
    path.write_text(textwrap.dedent(text))
    return path


def registry_with_toy():
    registry = Registry()
    registry.add_group(toy_group())
    return registry


MINE = """
    from glqprof.bench.registry import Tolerance, Variant

    def register(registry):
        registry.add_variant(Variant(
            name="mine", group="toy", summary="", contract=Tolerance(1e-3), build=lambda workload: None,
            kernels=lambda workload, batch: {}, bytes_moved=lambda workload, batch: 1))
"""


def test_a_users_file_adds_variants(tmp_path):
    registry = registry_with_toy()
    load_file(write(tmp_path / "mine.py", MINE), registry)
    assert [variant.name for variant in registry.of_group("toy")] == ["mine"]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("x = 1\ndef register(registry:\n    pass\n", 2, "SyntaxError"),
        ("x = 1\n\nimport no_such_module_here\n", 3, "No module named 'no_such_module_here'"),
        ("def register(registry):\n    x = 1\n    return x / 0\n", 3, "ZeroDivisionError: division by zero"),
        (
            "def helper():\n    raise ValueError('bad\\nnews')\n\ndef register(registry):\n    helper()\n",
            2,
            "ValueError: bad news",
        ),
    ],
)
def test_an_error_in_a_users_file_names_file_and_line_on_one_line(tmp_path, text, line, problem):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_file(path, registry_with_toy())
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_taken_name_points_at_the_users_line(tmp_path):
    registry = registry_with_toy()
    path = write(tmp_path / "mine.py", MINE)
    load_file(path, registry)
    with pytest.raises(InputError, match=r"mine\.py:5: ValueError: variant 'mine' of 'toy' is registered already"):
        load_file(path, registry)


def test_a_file_without_register_and_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"has no function register\(registry\)"):
        load_file(write(tmp_path / "mine.py", "x = 1\n"), Registry())
    with pytest.raises(InputError, match="no such file"):
        load_file(tmp_path / "none.py", Registry())
    with pytest.raises(InputError, match=r"must end in \.py"):
        load_file(write(tmp_path / "mine.txt", MINE), Registry())


@pytest.fixture
def package(tmp_path, monkeypatch):
    root = tmp_path / "toy_kernels_pkg"
    for name, text in {
        "good": "def register(registry):\n    registry.good = True\n",
        "broken": "def register(registry):\n    raise RuntimeError('half-finished')\n",
        "torchless": "raise ModuleNotFoundError('No module named torch', name='torch')\n",
        "unregistered": "x = 1\n",
    }.items():
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text("")
        (root / name / "variants.py").write_text(text)
    (root / "empty").mkdir()
    (root / "empty" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield root.name
    for name in [name for name in sys.modules if name.startswith(root.name)]:
        del sys.modules[name]


def test_one_broken_group_does_not_hide_the_others(package):
    registry, problems = load_bundled(package)
    assert registry.good
    why = {problem.module.split(".")[1]: problem.why for problem in problems}
    assert why["broken"] == "variants.py:2: RuntimeError: half-finished"
    assert "pip install 'glqprof[torch]'" in why["torchless"]
    assert "no register(registry)" in why["unregistered"]
    assert set(why) == {"broken", "torchless", "unregistered"}


def test_a_missing_package_is_a_problem_and_no_crash():
    registry, problems = load_bundled("no_such_package_at_all")
    assert registry.groups == {}
    assert "no_such_package_at_all" in problems[0].why


def test_the_bundled_groups_load():
    registry, problems = load_bundled()
    assert problems == []
    assert "glq-moe" in registry.groups
