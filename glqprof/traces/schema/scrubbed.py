"""What `glqprof scrub` did to a capture."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = "glqprof.scrub/1"


@dataclass(frozen=True)
class Removed:
    """``count`` things of one ``kind`` (environment, paths …) were taken out of ``file``; ``what`` says which."""

    file: str
    kind: str
    what: str
    count: int


@dataclass
class Scrubbed:
    """The result: where it was written, which files it holds, what was removed, and how it was made safe.

    ``bytes_before`` and ``bytes_after`` are sizes on disk of the files that were looked at and of those kept.
    """

    output: Path
    files: list[str] = field(default_factory=list)
    removed: list[Removed] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0

    def to_json(self) -> dict[str, Any]:
        """The object that ``scrub --format json`` prints."""
        return {
            "schema": SCHEMA,
            "output": str(self.output),
            "files": self.files,
            "removed": [{"file": r.file, "kind": r.kind, "what": r.what, "count": r.count} for r in self.removed],
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }
