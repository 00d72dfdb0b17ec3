"""Headless Chromium, as Debian packages it (`chromium`; playwright's own download is never used)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = ["--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update"]


def chromium_path() -> str:
    """Where Chromium is; skips the test where there is none, or no playwright to drive it."""
    pytest.importorskip("playwright", reason="needs playwright (the dev extra)")
    path = os.environ.get("GLQPROF_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium), or its path in GLQPROF_CHROMIUM")
    return path


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser."""
    path = chromium_path()
    from playwright.sync_api import sync_playwright

    # Chromium's sandbox refuses to start as root, which is who CI is; the pages are our own.
    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page and everything it said or asked for: ``trouble`` (console errors and warnings, exceptions, dialogs) and
    ``requests`` beyond the file itself."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.trouble.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.trouble.append(dialog.message), dialog.dismiss()))
        own = file.as_uri()
        self.page.on("request", lambda request: None if request.url == own else self.requests.append(request.url))
        self.page.goto(own)
