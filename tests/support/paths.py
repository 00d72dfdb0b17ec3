"""Where the captures that tests read lie."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = REPOSITORY / "captures"  # the project's own
PUBLIC = REPOSITORY / "tests" / "data" / "captures"  # see the README in it
SCHEMAS = REPOSITORY / "glqprof" / "data" / "schemas"
