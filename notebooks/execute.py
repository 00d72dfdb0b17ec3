"""Execute the notebooks beside this file and keep their outputs: `python notebooks/execute.py [NAME.ipynb …]`.

What differs between machines and runs without meaning anything is left out: execution times, versions of Python and
of the kernel, identifiers of cells. Needs the extra [notebooks].
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs; raises nbclient's CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    # The checkout that holds the notebooks, not another one that happens to be installed.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.metadata = {}
        cell["id"] = f"cell-{number}"
    nbformat.validate(notebook)
    return notebook


if __name__ == "__main__":
    for path in [HERE / name for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        nbformat.write(executed(path), path)
        print(f"executed {path.name}")
