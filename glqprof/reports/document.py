"""A report as data: texts and tables that every renderer understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | int | float | bool | None


def printable(text: str) -> str:
    """Names come from the program that was captured: a line break or an escape code in one must not reach a page or a
    terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


@dataclass(frozen=True)
class Column:
    """``title`` as shown; ``key`` is the CSV header (units in names); ``digits`` of a float; ``signed`` shows a plus;
    ``percent`` shows a share as a percentage; ``flexible`` columns give way when the terminal is narrow, cut with an
    ellipsis or, with ``wrap``, on several lines. ``markdown``: the text is Markdown that an author
    wrote, which a Markdown report passes on."""

    title: str
    key: str
    digits: int = 2
    signed: bool = False
    percent: bool = False
    flexible: bool = False
    text: bool = False
    wrap: bool = False
    markdown: bool = False

    def show(self, value: Cell) -> str:
        """The cell as a reader sees it; an absent value is a dash, never 0."""
        if value is None or (isinstance(value, float) and value != value):
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return printable(value)
        if self.percent:
            return f"{100 * value:{'+' if self.signed else ''}.1f} %"
        if isinstance(value, float) and round(value, self.digits) == 0:
            return f"{0:.{self.digits}f}"  # no sign on what rounds to nothing
        if isinstance(value, int):
            return f"{value:{'+' if self.signed else ''},d}"
        return f"{value:{'+' if self.signed else ''},.{self.digits}f}"


@dataclass
class Table:
    """Rows under a title. ``total`` is set apart below them; ``bar`` names the key of a share drawn as a bar."""

    title: str
    columns: Sequence[Column]
    rows: list[Sequence[Cell]]
    total: Sequence[Cell] | None = None
    note: str = ""
    bar: str | None = None


@dataclass
class Text:
    """Lines of prose; ``style``: headline, plain or warning."""

    lines: list[str]
    style: str = "plain"


@dataclass
class Document:
    """What one command shows, in order."""

    title: str
    parts: list[Table | Text] = field(default_factory=list)
