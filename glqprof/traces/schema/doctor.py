"""What `glqprof doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SCHEMA = "glqprof.doctor/1"
OK, FAIL, NOTE = "ok", "fail", "note"


@dataclass(frozen=True)
class Check:
    """One line: ``status`` is ok, fail (``tools`` cannot be used) or note (something is worse off, all works).

    ``found``: a version or what is wrong. ``fix``: what to do, "" where nothing is. ``tools``: those that need it.
    """

    name: str
    status: str
    found: str
    fix: str = ""
    tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """All checks, and per tool whether a capture can work. ``wanted``: the tools that were asked about."""

    checks: tuple[Check, ...]
    wanted: tuple[str, ...]

    @property
    def usable(self) -> dict[str, bool]:
        """Whether each tool can be used: none of the checks that it needs failed."""
        broken = {tool for check in self.checks if check.status == FAIL for tool in check.tools}
        return {tool: tool not in broken for tool in self.wanted}

    @property
    def ok(self) -> bool:
        """Whether capture can work: the one tool that was asked about, or any of several."""
        return any(self.usable.values())

    def to_json(self) -> dict[str, Any]:
        """The object that ``doctor --format json`` prints."""
        checks = [
            {"check": c.name, "status": c.status, "found": c.found, "fix": c.fix, "tools": list(c.tools)}
            for c in self.checks
        ]
        return {"schema": SCHEMA, "ok": self.ok, "tools": self.usable, "checks": checks}
