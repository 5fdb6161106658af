"""The console in a real browser: what it shows, what its buttons do, and what it says where they do not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import console_scene as scene
from support.chromium import browsing, looking
from support.console_scene import Console
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.xdist_group("chromium")
_numbers = count(1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as started:
        yield started


@pytest.fixture(scope="module")
def console(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with scene.served(tmp_path_factory.mktemp("console")) as served:
        yield served


@pytest.fixture
def page(browser: Browser, console: Console) -> Iterator[Page]:
    with looking(browser, console.url) as shown:
        yield shown


@pytest.fixture
def doubt(console: Console) -> Xid:
    """A branch in doubt of the test's own, which adds one message to replies."""
    xid = Xid(9, f"test-{next(_numbers)}", "shop")
    with console.connect() as connection:
        connection.tpc_begin(xid)
        connection.enqueue("replies", b"in doubt")
        connection.tpc_prepare()
    return xid


def sign(page: Page, token: str = scene.OPERATOR) -> None:
    page.get_by_role("button", name="Show a token").click()
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_role("button", name="Use it").click()
    page.get_by_text("With a token.").wait_for()


def expect(found: object) -> object:
    from playwright import sync_api

    return sync_api.expect(found)


def test_a_branch_is_committed_with_a_reason(page: Page, console: Console, doubt: Xid) -> None:
    sign(page)
    page.get_by_role("button", name=str(doubt)).click()
    dialog = page.get_by_role("dialog", name="Branch in doubt")
    dialog.get_by_label("Reason").fill("the shop says so")
    dialog.get_by_role("button", name="Commit").click()
    page.get_by_text(f"Branch {doubt} is committed.").wait_for()
