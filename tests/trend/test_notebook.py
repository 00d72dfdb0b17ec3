"""notebooks/04_trend.ipynb runs, and says again what it says."""

from __future__ import annotations

import os
import re

import pytest

from support.paths import REPOSITORY

PATH = REPOSITORY / "notebooks" / "04_trend.ipynb"


def words(cells):
    shown = []
    for cell in cells:
        data = [o.get("data", {"text/plain": o.get("text", "")}) for o in cell.get("outputs", [])]
        shown.append([{kind: "".join(d[kind]) for kind in ("text/plain", "text/html") if kind in d} for d in data])
    return shown


def test_it_runs_and_its_outputs_are_those_committed(monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    notebook = nbformat.read(PATH, as_version=4)
    committed = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in committed] == list(range(1, len(committed) + 1))
    assert all(cell.outputs for cell in committed)
    before = words(committed)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    resources = {"metadata": {"path": str(PATH.parent)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    assert words(cell for cell in notebook.cells if cell.cell_type == "code") == before


def test_it_holds_no_path_of_a_machine():
    text = re.sub(r'"image/png": "[^"]*"', "", PATH.read_text(encoding="utf-8"))
    assert re.search(r"/(home|root|tmp|work|Users|usr)/", text) is None
    assert "synthetic" in text
