"""A real browser: Chromium of the system, without network and without scripts of the page's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# The browser and its driver are large: `make test-browser` runs these tests.
collect_ignore_glob = [] if os.environ.get("NEST_BROWSER") else ["test_*.py"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium. That it is missing is an error and no reason to skip: whoever runs this tier wants it."""
    from playwright.sync_api import sync_playwright

    found = os.environ.get("CHROMIUM") or next((path for name in _NAMES if (path := shutil.which(name))), None)
    assert found, "no Chromium: apt-get install chromium, or set CHROMIUM to its path"
    with sync_playwright() as playwright:
        # In containers Chromium runs as root, where its sandbox does not.
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_html(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens HTML in a page of its own; at the end no page has complained, fetched anything or shown a dialog."""
    contexts, complaints = [], []

    def open_page(html: str, *, width: int = 1280, scheme: Any = "light", scripts: bool = False) -> Page:
        file = tmp_path / f"{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=scripts
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda r: r.url.split("#")[0] == file.as_uri() or complaints.append(f"request: {r.url}"))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints
