"""The notebooks run from start to end, say again what they say, and use nothing but the public API."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import glqprof
from support.paths import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("0[1-3]_*.ipynb"))


def runner():
    pytest.importorskip("nbclient", reason="needs nbclient (the dev extra)")
    pytest.importorskip("ipykernel", reason="needs ipykernel (the dev extra)")
    path = REPOSITORY / "notebooks" / "execute.py"
    spec = importlib.util.spec_from_file_location("execute_notebooks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path):
    return pytest.importorskip("nbformat", reason="needs nbformat (the dev extra)").read(path, as_version=4)


def code(path: Path) -> list:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def words(cell) -> list:
    """What a cell shows as text or HTML; pictures depend on fonts and versions."""
    shown = []
    for output in cell.outputs:
        data = output.get("data", {"text/plain": output.get("text", "")})
        shown.append({kind: str(data[kind]) for kind in ("text/plain", "text/html") if kind in data})
    return shown


def test_there_are_three() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs_and_its_outputs_are_those_committed(path) -> None:
    again = [cell for cell in runner().executed(path).cells if cell.cell_type == "code"]
    for number, (cell, fresh) in enumerate(zip(code(path), again, strict=True)):
        assert words(fresh) == words(cell), f"cell {number}: run notebooks/execute.py {path.name}"
        assert ("image/png" in str(fresh.outputs)) == ("image/png" in str(cell.outputs))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_was_run_in_order_and_shows_something(path) -> None:
    cells = code(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell.outputs for cell in cells)
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_uses_the_public_api_alone(path) -> None:
    tree = ast.parse("\n".join(cell.source for cell in code(path)))
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert set(imported) <= {"glqprof", "pandas"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "glqprof"
    }
    assert used <= set(glqprof.__all__)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_holds_no_path_of_a_machine(path) -> None:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r'"image/png": "[^"]*"', "", text)
    assert re.search(r"/(home|root|tmp|work|Users|usr)/", text) is None
    assert path.stat().st_size < 400_000
