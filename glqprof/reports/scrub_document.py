"""What `scrub` removed, as a document."""

from __future__ import annotations

from glqprof.reports.document import Column, Document, Table, Text
from glqprof.traces.schema.scrubbed import Scrubbed


def scrub_table(result: Scrubbed) -> Table:
    """One row per kind of thing that was removed from a file."""
    columns = [
        Column("file", "file", text=True),
        Column("kind", "kind", text=True),
        Column("what", "what", text=True, flexible=True),
        Column("removed", "removed"),
    ]
    return Table("Removed", columns, [[r.file, r.kind, r.what, r.count] for r in result.removed])


def scrub_document(result: Scrubbed) -> Document:
    """Where the result is, then what was removed by kind."""
    size = f"{result.bytes_before / 1e6:.2f} → {result.bytes_after / 1e6:.2f} MB"
    document = Document("Scrubbed", [Text([f"{result.output}: {', '.join(result.files)}, {size}"], "headline")])
    document.parts.append(scrub_table(result) if result.removed else Text(["nothing had to be removed"]))
    return document
