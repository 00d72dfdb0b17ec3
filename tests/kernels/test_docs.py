"""The examples of docs/kernels/glq.md run."""

from __future__ import annotations

import re
from pathlib import Path

import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels" / "glq.md"


def test_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        names: dict[str, object] = {}
        exec(block, names)
        assert isinstance(names["out"], torch.Tensor)
        assert torch.isfinite(names["out"]).all()
