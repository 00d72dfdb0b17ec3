"""What the tests of captures, reports and commands share."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@functools.cache
def _breakdown_json(path: Path) -> str:
    from support.cli import glqprof

    return json.dumps(glqprof("breakdown", path, "--format", "json", "--top", "1000").json)


@pytest.fixture(scope="session")
def breakdown_json() -> Callable[[Path], Any]:
    """The object that `breakdown --format json --top 1000` prints for a capture; run once per capture."""
    return lambda path: json.loads(_breakdown_json(path))


@pytest.fixture(scope="session")
def schema_of() -> Callable[[str], Any]:
    """A shipped JSON Schema by its short name, such as breakdown-1."""
    from support.paths import SCHEMAS

    return lambda name: json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
