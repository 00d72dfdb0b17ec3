"""Read a report as a parser sees it, not as text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    def all(self, tag: str, **wanted: str) -> list[Element]:
        found = [self] if self.tag == tag and wanted.items() <= self.attributes.items() else []
        for child in self.children:
            if isinstance(child, Element):
                found += child.all(tag, **wanted)
        return found

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)


VOID = {"meta", "link", "input", "br", "img", "rect", "path"}


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("#root", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {k: v or "" for k, v in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID or tag == "rect":
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(html: str) -> Element:
    """The page's elements; fails where tags do not balance."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert builder.open == [builder.root]
    return builder.root


def table_rows(table: Element) -> list[list[str]]:
    """Texts of the cells of a table's body."""
    (body,) = table.all("tbody")
    return [[c.text.strip() for c in row.children if isinstance(c, Element)] for row in body.all("tr")]


def timeline_data(root: Element) -> list[list[dict[str, Any]]]:
    """Per capture, per choice: the timeline with absolute starts (``start``) instead of steps."""
    (script,) = root.all("script", id="report-data")
    data = json.loads(script.text)["timelines"]
    for choices in data:
        for one in choices:
            for lane in one["lanes"]:
                at, lane["start"] = 0, []
                for step in lane.pop("t"):
                    at += step
                    lane["start"].append(at)
    return data
