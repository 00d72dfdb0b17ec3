"""Write a document as GitHub-flavoured Markdown."""

from __future__ import annotations

from glqprof.reports.document import Cell, Column, Document, Table, Text, printable


def to_markdown(document: Document) -> str:
    """The document as Markdown, ending in a newline."""
    blocks = [f"# {escape(document.title)}"]
    for part in document.parts:
        if isinstance(part, Text):
            blocks.append(_paragraph(part))
        else:
            blocks.append(f"## {escape(part.title)}\n\n{markdown_table(part)}")
    return "\n\n".join(blocks) + "\n"


def _paragraph(text: Text) -> str:
    lines = [escape(line) for line in text.lines]
    if text.style == "headline":
        return "\n".join(f"**{line}**  " for line in lines)
    if text.style == "warning":
        return "\n".join(f"> {line}  " for line in lines)
    return "  \n".join(lines)


def markdown_table(table: Table) -> str:
    """A table and its note, without its title."""
    head = "| " + " | ".join(escape(c.title) for c in table.columns) + " |"
    rule = "|" + "|".join("---" if c.text else "--:" for c in table.columns) + "|"
    rows = [[_cell(c, v) for c, v in zip(table.columns, row, strict=True)] for row in table.rows]
    if table.total is not None:
        shown = [c.show(v) if v != "" else "" for c, v in zip(table.columns, table.total, strict=True)]
        rows.append([f"**{escape(v)}**" if v else "" for v in shown])
    lines = [head, rule, *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines) + (f"\n\n{escape(table.note)}" if table.note else "")


def _cell(column: Column, value: Cell) -> str:
    text = column.show(value)
    if column.markdown and isinstance(value, str):
        return text.replace("|", "\\|")
    if column.flexible and text and "`" not in text and any(mark in text for mark in "<_*"):
        return "`" + text.replace("|", "\\|") + "`"
    return escape(text)


def escape(text: str) -> str:
    """Text that no mark in it turns into Markdown."""
    text = printable(text)
    for mark in ("\\", "|", "*", "_", "<", "`", "[", "]"):
        text = text.replace(mark, "\\" + mark)
    return text
