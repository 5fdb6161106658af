"""How each page of the console is reached: for its pictures, and for the tests that look at all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from support.console_scene import OPERATOR, Console

if TYPE_CHECKING:
    from playwright.sync_api import Page


def sign_in(page: Page, token: str = OPERATOR) -> None:
    token_asked(page, token)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    page.get_by_text("Signed in as ").wait_for()


def token_asked(page: Page, token: str = OPERATOR) -> None:
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Token", exact=True).fill(token)


def messages(page: Page, queue: str) -> None:
    page.evaluate("name => { location.hash = `#queue=${name}`; }", queue)
    page.get_by_role("heading", name=queue, exact=True).wait_for()
    page.locator("#message-rows tr").first.wait_for()


def _message(page: Page, queue: str) -> None:
    messages(page, queue)
    page.locator("#message-rows tr").first.get_by_role("button").first.click()


def _branch(page: Page, console: Console) -> None:
    page.locator(f'#doubt [data-do="openBranch"][data-of="{console.xid}"]').click()
    dialog = page.get_by_role("dialog", name="Branch in doubt")
    dialog.get_by_text("the decision log says").wait_for()
    page.locator("#dry-rows tr").first.wait_for()
    dialog.get_by_label("Reason").fill("the ledger has it, says its owner")


def _agree(page: Page, console: Console) -> None:
    _branch(page, console)
    page.get_by_role("dialog").get_by_role("button", name="Commit").click()
    page.locator("#sure-yes").wait_for()


PAGES: dict[str, Callable[[Page, Console], None]] = {
    "space": lambda page, _: page.locator("#queue-rows tr").first.wait_for(),
    "queue": lambda page, _: messages(page, "orders"),
    "letters": lambda page, _: messages(page, "orders.failed"),
    "message": lambda page, _: _message(page, "orders.failed"),
    "branch": _branch,
    "sure": _agree,
    "token": lambda page, _: token_asked(page),
}
"""From a page that was just loaded; who comes to all but the last is signed in."""
