"""What `doctor` found, as a document."""

from __future__ import annotations

from glqprof.reports.document import Column, Document, Table, Text
from glqprof.traces.schema.doctor import FAIL, OK, Diagnosis


def doctor_table(diagnosis: Diagnosis) -> Table:
    """One row a check; the fix stands beside what does not hold."""
    columns = [
        Column("check", "check", text=True),
        Column("status", "status", text=True),
        Column("found", "found", text=True, flexible=True, wrap=True),
        Column("fix", "fix", text=True, flexible=True, wrap=True),
    ]
    return Table("Checks", columns, [[c.name, c.status, c.found, c.fix] for c in diagnosis.checks])


def doctor_document(diagnosis: Diagnosis) -> Document:
    """Whether capture can work and with which tools, then the checks."""
    works = [tool for tool, usable in diagnosis.usable.items() if usable]
    cannot = [tool for tool, usable in diagnosis.usable.items() if not usable]
    lines = [f"capture works with {', '.join(works)}" if works else "capture cannot work here"]
    if works and cannot:
        lines.append(f"not with {', '.join(cannot)}: see the fixes")
    notes = sum(check.status not in (OK, FAIL) for check in diagnosis.checks)
    if notes:
        lines.append(f"{notes} note{'s' if notes > 1 else ''}: all works, less is seen")
    return Document("Doctor", [Text(lines, "headline"), doctor_table(diagnosis)])
