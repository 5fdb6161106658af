"""One Chromium for the tests of a module, driven by Playwright. Where there is none they are skipped, and say why."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium is installed: apt-get install chromium, and pip install 'xaqueue[test-console]'"
PATIENCE_MS = 20_000


@contextmanager
def browsing() -> Iterator[Browser]:
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    try:
        from playwright.sync_api import expect, sync_playwright
    except ModuleNotFoundError:
        pytest.skip(MISSING)
    if path is None:
        pytest.skip(MISSING)
    expect.set_options(timeout=PATIENCE_MS)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, args=sandbox) as browser:
        yield browser


@contextmanager
def looking(browser: Browser, url: str, *, is_dark: bool = False) -> Iterator[Page]:
    """A page in a window of its own, which shares nothing with others. No script of it may fail."""
    failed: list[str] = []
    window = browser.new_context(color_scheme="dark" if is_dark else "light", viewport={"width": 1280, "height": 900})
    window.set_default_timeout(PATIENCE_MS)
    page = window.new_page()
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(url)
    yield page
    assert page.evaluate("typeof hacked") == "undefined"
    window.close()
    assert failed == []


def expect(found: Locator) -> Any:
    """Playwright's own, of what is to be so soon."""
    from playwright import sync_api

    return sync_api.expect(found)
