"""Write a document as GitHub-flavoured Markdown."""

from __future__ import annotations

from glqprof.reports.document import Document, Table, Text, printable


def to_markdown(document: Document) -> str:
    """The document as Markdown, ending in a newline."""
    blocks = [f"# {_escape(document.title)}"]
    for part in document.parts:
        if isinstance(part, Text):
            blocks.append(_paragraph(part))
        else:
            blocks.append(_table(part))
    return "\n\n".join(blocks) + "\n"


def _paragraph(text: Text) -> str:
    lines = [_escape(line) for line in text.lines]
    if text.style == "headline":
        return "\n".join(f"**{line}**  " for line in lines)
    if text.style == "warning":
        return "\n".join(f"> {line}  " for line in lines)
    return "  \n".join(lines)


def _table(table: Table) -> str:
    head = "| " + " | ".join(_escape(c.title) for c in table.columns) + " |"
    rule = "|" + "|".join("---" if c.text else "--:" for c in table.columns) + "|"
    rows = [[_cell(c.show(v), code=c.flexible) for c, v in zip(table.columns, row, strict=True)] for row in table.rows]
    if table.total is not None:
        shown = [c.show(v) if v != "" else "" for c, v in zip(table.columns, table.total, strict=True)]
        rows.append([f"**{_cell(v)}**" if v else "" for v in shown])
    lines = [head, rule, *("| " + " | ".join(row) + " |" for row in rows)]
    block = f"## {_escape(table.title)}\n\n" + "\n".join(lines)
    return block + (f"\n\n{_escape(table.note)}" if table.note else "")


def _cell(text: str, code: bool = False) -> str:
    if code and text and "`" not in text and any(mark in text for mark in "<_*"):
        return "`" + text.replace("|", "\\|") + "`"
    return _escape(text)


def _escape(text: str) -> str:
    text = printable(text)
    for mark in ("\\", "|", "*", "_", "<", "`", "[", "]"):
        text = text.replace(mark, "\\" + mark)
    return text
