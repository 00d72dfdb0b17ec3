"""Draw a document in a terminal with rich: readable at 80 columns, and without colour."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from glqprof.reports.document import Document, Table, Text, printable

BAR_WIDTH = 8
MIN_TEXT_WIDTH = 8
GAP = 2
STYLES = {"headline": "bold", "plain": "", "warning": "yellow"}


def draw(document: Document, console: Console) -> None:
    """Print the document."""
    for i, part in enumerate(document.parts):
        if i:
            console.print()
        if isinstance(part, Text):
            for line in part.lines:
                console.print(RichText(printable(line), STYLES[part.style]))
        else:
            _draw_table(part, console)


def _draw_table(table: Table, console: Console) -> None:
    console.print(RichText(table.title, "bold cyan"))
    drawn = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    widths = _widths(table, console.width)
    for column, width in zip(table.columns, widths, strict=True):
        drawn.add_column(
            column.title,
            justify="left" if column.text else "right",
            width=width,
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
        )
    if table.bar:
        drawn.add_column("", width=BAR_WIDTH, no_wrap=True)
    position = [c.key for c in table.columns].index(table.bar) if table.bar else -1
    for row in table.rows:
        cells = [RichText(c.show(v), _cell_style(v)) for c, v in zip(table.columns, row, strict=True)]
        if table.bar:
            share = row[position]
            cells.append(RichText(_bar(share if isinstance(share, float) else 0.0), "cyan"))
        drawn.add_row(*cells)
    if table.total is not None:
        drawn.add_section()
        shown = [c.show(v) if v != "" else "" for c, v in zip(table.columns, table.total, strict=True)]
        drawn.add_row(*(RichText(text, "bold") for text in shown))
    console.print(drawn)
    if table.note:
        console.print(RichText(table.note, "dim"))


def _widths(table: Table, total: int) -> list[int]:
    """Natural widths; what does not fit is taken from the flexible columns, then from the other texts, never from
    numbers."""
    widths = [_width(table, position) for position in range(len(table.columns))]
    excess = sum(widths) + GAP * (len(widths) - 1) + (GAP + BAR_WIDTH if table.bar else 0) - total
    flexible = [i for i, column in enumerate(table.columns) if column.flexible]
    texts = [i for i, column in enumerate(table.columns) if column.text and not column.flexible]
    for group in (flexible, texts):
        while excess > 0 and group and max(widths[i] for i in group) > MIN_TEXT_WIDTH:
            widths[max(group, key=lambda i: widths[i])] -= 1
            excess -= 1
    return widths


def _width(table: Table, position: int) -> int:
    column = table.columns[position]
    rows = [*table.rows, table.total] if table.total is not None else table.rows
    return max([cell_len(column.title), *(cell_len(column.show(row[position])) for row in rows)])


def _bar(share: float) -> str:
    return "█" * round(share * BAR_WIDTH) or ("▏" if share > 0 else "")


def _cell_style(value: object) -> str:
    return {"yes": "green", "partly": "yellow", "no": "red"}.get(value, "") if isinstance(value, str) else ""
