"""A document as a piece of HTML for a notebook: headings, texts and tables, everything in it escaped."""

from __future__ import annotations

from html import escape

from glqprof.reports.document import Document, Table, Text, printable

STYLES = {"headline": "font-weight:bold;margin:0", "plain": "margin:0", "warning": "font-style:italic;margin:0"}


def to_html_fragment(document: Document) -> str:
    """The document without a page around it: notebooks bring their own style, dark or light."""
    parts = [_text(part) if isinstance(part, Text) else _table(part) for part in document.parts]
    return f"<div>{''.join(parts)}</div>"


def _text(text: Text) -> str:
    return "".join(f'<p style="{STYLES[text.style]}">{_escape(line)}</p>' for line in text.lines)


def _table(table: Table) -> str:
    aligned = ['style="text-align:left"' if c.text else 'style="text-align:right"' for c in table.columns]
    head = "".join(f"<th {a}>{_escape(c.title)}</th>" for c, a in zip(table.columns, aligned, strict=True))
    rows = [[c.show(v) for c, v in zip(table.columns, row, strict=True)] for row in table.rows]
    body = "".join(_row(row, aligned, "td") for row in rows)
    if table.total is not None:
        body += _row(
            [c.show(v) if v != "" else "" for c, v in zip(table.columns, table.total, strict=True)], aligned, "th"
        )
    note = f"<p><small>{_escape(table.note)}</small></p>" if table.note else ""
    title = f"<p><b>{_escape(table.title)}</b></p>"
    return f"{title}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _row(cells: list[str], aligned: list[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag} {a}>{_escape(c)}</{tag}>" for c, a in zip(cells, aligned, strict=True)) + "</tr>"


def _escape(text: str) -> str:
    return escape(printable(text))
