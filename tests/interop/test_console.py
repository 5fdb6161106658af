"""The console in a real browser: what it shows, what its buttons do, what it says where they do not, and attacks."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from support import console_scene as scene
from support import console_scripts as scripts
from support.chromium import browsing, expect, looking
from support.console_pages import PAGES
from support.console_pages import sign_in as sign
from support.console_scene import Console
from xaqueue.offline.inspect_branches import InDoubt
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.methods.service import RemoteOperator
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

pytestmark = pytest.mark.xdist_group("chromium")
_numbers = count(1)
MINUS = "\N{MINUS SIGN}"


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


def look(page: Page, queue: str) -> Locator:
    """The rows of its messages."""
    page.evaluate("name => { location.hash = `#queue=${name}`; }", queue)
    page.get_by_role("heading", name=queue, exact=True).wait_for()
    return page.locator("#message-rows tr")


def branch(page: Page, xid: Xid) -> Locator:
    opener(page, xid).click()
    return page.get_by_role("dialog", name="Branch in doubt")


def opener(page: Page, xid: Xid) -> Locator:
    return page.locator(f'#doubt [data-do="openBranch"][data-of="{xid}"]')


def agree(page: Page, told: str) -> None:
    """To what it is about, which is asked before anything is done."""
    box = page.locator("#sure")
    expect(box).to_contain_text(told)
    box.locator("#sure-yes").click()


def short(xid: Xid) -> str:
    text = str(xid)
    return text if len(text) <= 20 else f"{text[:8]}…{text[-8:]}"


def left(console: Console) -> dict[Xid, InDoubt]:
    manager = remote_manager(console.server.url)
    found = {one.xid: one for one in RemoteOperator(manager).in_doubt()}
    manager.close()
    return found


def ask(page: Page) -> None:
    """As when the tab is looked at again: it asks at once."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def row(page: Page, section: str, name: str) -> str:
    return page.get_by_role("region", name=section).get_by_role("row", name=name).first.inner_text().replace("\n", "\t")


# Looking


def test_it_shows_the_whole_space_without_a_token(page: Page, console: Console) -> None:
    page.get_by_text("Looking only.").wait_for()
    assert row(page, "Queues", "events").split("\t")[1:3] == ["7", "1 in doubt"]
    assert row(page, "Spark streams", "readings").split("\t") == ["readings", "lake", "2", "8", "6", "3 to 5"]
    assert f"{MINUS}1 from events, +1 into replies" in row(page, "Branches in doubt", short(scene.FOREIGN))
    assert "+1 into orders" in row(page, "Branches in doubt", short(console.xid))
    facts = page.get_by_role("region", name="Space and replica")
    expect(facts).to_contain_text("JOURNAL: a commit survives power loss")
    expect(facts).to_contain_text("Replica\nnone", use_inner_text=True)


def test_it_follows_what_happens(page: Page, console: Console) -> None:
    line = page.get_by_role("row", name="replies").get_by_role("img")
    expect(line).to_have_attribute("aria-label", "from 0 to 0 messages, 0 to 0 between")
    with console.connect() as connection:
        sent = connection.enqueue("replies", b"one")
        connection.commit()
        ask(page)
        expect(line).to_have_attribute("aria-label", "from 0 to 1 messages, 0 to 1 between")
        connection.remove("replies", sent)
        connection.commit()
    ask(page)
    expect(line).to_have_attribute("aria-label", "from 0 to 0 messages, 0 to 1 between")


@contextmanager
def doctored(page: Page, status: dict[str, Any], **parts: Any) -> Iterator[None]:
    """As if the server told this, too."""

    def answer(route: Any) -> None:
        answered = route.fetch()
        told = answered.json()
        told["status"] |= status
        route.fulfill(response=answered, json=told | parts)

    page.route("**/api/overview", answer)
    ask(page)
    yield
    page.unroute_all(behavior="ignoreErrors")


REPLICA = {"role": "source", "url": "", "waits": True, "connected": False, "lag_bytes": 2048, "lag_s": 90.0}


def test_the_light(page: Page) -> None:
    for found, light in (
        ([("fenced", "fdatasync failed", True), ("note", "two", False)], "bad"),
        ([("low disk", "enqueues are refused", False)], "fair"),
        ([], "good"),
    ):
        health = [{"kind": kind, "text": text, "bad": is_bad} for kind, text, is_bad in found]
        with doctored(page, {"replication": REPLICA}, health=health):
            expect(page.locator("#findings li")).to_have_text([f"{kind}: {text}" for kind, text, _ in found])
            assert light in str(page.locator("#light").get_attribute("class"))
            said = page.get_by_role("status").first.inner_text()
            assert ("look" in said) is bool(found)
            expect(page.get_by_role("region", name="Space and replica")).to_contain_text("2.0 KiB behind, 1 min; steps")


def test_sessions_tell_who_waits_and_who_holds_what(page: Page) -> None:
    held = [{"xid": str(scene.FOREIGN), "state": "active", "since": 0, "messages": 3}]
    one = {"who": "token:0123456789abcdef", "address": "10.0.0.1:5000", "transport": "tls", "since": 0, "calls": 1234}
    rows = [
        one | {"waits_for": "orders", "waits_since": 1, "holds": 0, "branches": []},
        one | {"waits_for": "", "waits_since": 0, "holds": 101, "branches": held},
    ]
    with doctored(page, {}, sessions={"rows": rows, "total": 2}):
        found = page.get_by_role("region", name="Sessions").get_by_role("row")
        expect(found.nth(1)).to_contain_text("10.0.0.1:5000 (tls)")
        expect(found.nth(1)).to_contain_text("orders, for ")
        expect(found.nth(2)).to_contain_text(f"{short(scene.FOREIGN)} (active, 3 messages)")
        expect(found.nth(2)).to_contain_text("and 100 more")


def test_it_says_when_the_server_is_away_and_comes_back(page: Page, console: Console) -> None:
    expect(page.locator("#queue-rows tr")).to_have_count(5)
    page.context.set_offline(True)
    expect(page.locator("#state")).to_have_text("the server does not answer: is it running? What stands below is old.")
    page.context.set_offline(False)
    expect(page.locator("body")).not_to_have_class("old")
    console.front.show(None)
    ask(page)
    expect(page.locator("#state")).to_contain_text("the space is being opened or closed: ask again in a moment")
    console.front.show(console.server.server)
    ask(page)
    expect(page.locator("body")).not_to_have_class("old")


# Who it is


def test_who_signs_in_is_kept_by_the_tab_until_he_signs_out(page: Page, browser: Browser, console: Console) -> None:
    sign(page)
    page.reload()
    page.get_by_text("Signed in as operator.").wait_for()
    assert scene.OPERATOR not in page.content()
    with looking(browser, console.url) as other:
        other.get_by_text("Looking only.").wait_for()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_text("Looking only.").wait_for()
    assert page.evaluate("sessionStorage.length + localStorage.length + document.cookie.length") == 0


def test_a_wrong_token_is_refused(page: Page) -> None:
    """An attack."""
    page.get_by_role("button", name="Sign in").click()
    for token in (scene.STRANGER, "short", "a → b" * 5, ""):
        page.get_by_label("Token", exact=True).fill(token)
        page.get_by_label("Token", exact=True).press("Enter")
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("token")
        assert page.evaluate("sessionStorage.length") == 0
    page.get_by_role("button", name="Close").click()
    page.get_by_text("Looking only.").wait_for()


# Messages


def test_messages_are_listed_found_and_opened(page: Page) -> None:
    sign(page)
    rows = look(page, "orders")
    expect(rows).to_have_count(5)
    rows.nth(0).get_by_role("button").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Body")).to_have_text(scene.JSON_BODY.decode())  # a number in it would be rounded
    expect(dialog).to_contain_text("Graz")
    page.keyboard.press("Escape")
    identity = str(rows.nth(2).get_by_role("button").first.get_attribute("data-of"))
    find = page.get_by_label("An id or its beginning")
    find.fill(identity[:12])
    page.get_by_role("button", name="Find").click()
    expect(rows).to_have_count(1)
    rows.get_by_role("button").first.click()
    expect(dialog.get_by_label("Body")).to_have_text("Base64: //4A")
    dialog.get_by_role("button", name="Close").click()
    for wanted, found in (("PLAIN", 1), ("onerror", 5), ("", 5)):  # in the body of one, in a header of all
        find.fill(wanted)
        find.press("Enter")
        expect(rows).to_have_count(found)
    for wrong in ("0" * 32, "nowhere"):
        find.fill(wrong)
        find.press("Enter")
        page.get_by_text("No message has such an id, or such words.").wait_for()
    page.go_back()
    expect(page.locator("#queue")).to_be_hidden()
    expect(page.locator("#queue-rows tr")).to_have_count(5)


def test_an_id_is_short_and_copied_whole(page: Page, console: Console) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=console.url.rstrip("/"))
    opener(page, console.xid).wait_for()
    page.locator(f'#doubt [data-do="copy"][data-of="{console.xid}"]').click()
    expect(page.locator(f'#doubt .copied[data-of="{console.xid}"]')).to_have_count(1)
    assert page.evaluate("navigator.clipboard.readText()") == str(console.xid)


def test_json_is_laid_out_and_a_long_body_is_cut(page: Page, console: Console) -> None:
    with console.connect() as connection:
        for sent in (b'{"a": {"b": [1]}}', b"x" * 300_000):
            connection.enqueue("replies", sent)
        connection.commit()
    sign(page)
    rows = look(page, "replies")
    rows.nth(0).get_by_role("button").first.click()
    body = page.get_by_role("dialog").get_by_label("Body")
    assert body.inner_text() == '{\n  "a": {\n    "b": [\n      1\n    ]\n  }\n}'
    page.keyboard.press("Escape")
    rows.nth(1).get_by_role("button").first.click()
    expect(body).to_contain_text("... cut: it has 300000 bytes")
    with console.connect() as connection:
        for message in list(connection.browse("replies")):
            connection.remove("replies", message.message_id)


def test_dead_letters_go_back_when_somebody_agrees(page: Page, console: Console) -> None:
    with console.connect() as connection:
        ids = scene.fail(connection, 6)
        sign(page)
        expect(page.get_by_role("region", name="Dead letters")).to_contain_text("6")
        page.get_by_role("button", name="Look at orders.failed").click()
        rows = page.locator("#message-rows tr")
        expect(rows).to_have_count(6)
        expect(rows.first).to_contain_text("ValueError: no such <b>customer</b>")
        expect(rows.first).to_contain_text("from orders, 1 try")
        page.locator(f'#messages [data-do="openMessage"][data-of="{ids[0]}"]').click()
        dialog = page.locator("#message")
        expect(dialog).to_contain_text("ValueError: no such <b>customer</b>")
        expect(dialog).to_contain_text(re.compile(r"Last failure\s*\d+ s ago"))
        dialog.get_by_role("button", name="Requeue").click()
        page.locator("#sure").get_by_role("button", name="Leave it").click()
        expect(rows).to_have_count(6)
        connection.dequeue("orders.failed", message_id=ids[0])
        dialog.get_by_role("button", name="Requeue").click()
        agree(page, "Requeue one message of orders.failed?")
        page.get_by_text("0 messages of orders.failed went back; 1 are held by transactions").wait_for()
        expect(dialog).to_be_hidden()
        connection.rollback()
        page.get_by_label("An id or its beginning").fill('{"failed": 5}')
        page.get_by_role("button", name="Find").click()
        page.get_by_role("button", name="Requeue these 1").click()
        agree(page, 'Requeue 1 with “{"failed": 5}” of orders.failed?')
        page.get_by_text("1 message of orders.failed went back.").wait_for()
        page.get_by_label("An id or its beginning").fill("")
        page.get_by_role("button", name="Find").click()
        expect(rows).to_have_count(5)
        page.get_by_role("button", name=re.compile("^5 .{1,3}ValueError")).click()
        page.get_by_role("button", name="Requeue these 5").click()
        agree(page, "Requeue 5 with")
        page.get_by_text("5 messages of orders.failed went back.").wait_for()
        page.get_by_role("link", name="All queues").click()
        expect(page.get_by_role("region", name="Dead letters")).to_have_count(0)
        taken = [connection.dequeue("orders", message_id=one) for one in ids]
        connection.rollback()  # their only try, again
        assert None not in taken
        page.get_by_role("button", name="Requeue all of orders.failed").click()
        agree(page, "Requeue 6 messages of orders.failed?")
        page.get_by_text("6 messages of orders.failed went back.").wait_for()
        assert all(connection.remove("orders", one) for one in ids)


# Branches in doubt


def test_a_branch_tells_what_it_holds_and_what_is_advised(page: Page, console: Console) -> None:
    dialog = branch(page, console.xid)
    expect(dialog).to_contain_text("It waits to be committed: +1 into orders.")
    expect(dialog.get_by_role("table", name="Messages of the branch").get_by_role("row").nth(1)).to_contain_text(
        "order"
    )
    expect(dialog.get_by_role("table", name="Dry run").get_by_role("row").nth(1)).to_have_text(
        re.compile(r"orders\s*\+1 into orders\s*5\s*6")
    )
    expect(dialog).to_contain_text("commit: the decision log says commit")
    expect(dialog).to_contain_text("ledger")
    expect(dialog.get_by_role("button", name="Commit")).to_be_disabled()
    page.keyboard.press("Escape")
    dialog = branch(page, scene.FOREIGN)
    expect(dialog).to_contain_text("None: no transaction manager of xaqueue made this branch: ask the one that did")
    held = page.locator("#branch-messages").get_by_role("row", name=f"{MINUS}1 from events")
    expect(held).to_be_visible()
    expect(dialog.locator("#dry-note")).to_contain_text("indoubt_bodies needs a token")  # there are roles
    page.keyboard.press("Escape")
    sign(page)
    branch(page, scene.FOREIGN)
    expect(held).to_contain_text("event 0")


@pytest.mark.parametrize(
    ("button", "told", "outcome"), [("Commit", "committed", "commit"), ("Roll back", "rolled back", "rollback")]
)
def test_a_branch_is_decided_with_a_reason_and_forgotten(
    page: Page, console: Console, doubt: Xid, button: str, told: str, outcome: str
) -> None:
    sign(page)
    dialog = branch(page, doubt)
    dialog.get_by_role("button", name=button).click()
    expect(dialog.get_by_role("alert")).to_contain_text("write a reason")
    expect(dialog.get_by_label("Reason")).to_be_focused()
    assert left(console)[doubt].decision is None
    dialog.get_by_label("Reason").fill(scene.SCRIPT)
    dialog.get_by_role("button", name=button).click()
    agree(page, f"{button} branch {short(doubt)}?")
    page.get_by_text(f"Branch {short(doubt)} is {told}.").wait_for()
    decision = left(console)[doubt].decision
    assert decision
    assert (decision.outcome, decision.reason) == (outcome, scene.SCRIPT)
    assert decision.by.startswith("console (token:")
    dialog = branch(page, doubt)
    expect(dialog).to_contain_text(scene.SCRIPT)
    expect(dialog.get_by_role("button", name="Roll back")).to_be_hidden()
    dialog.get_by_label("Reason").fill("it is told")
    dialog.get_by_role("button", name="Forget the decision").click()
    agree(page, "Forget the decision on branch")
    page.get_by_text(f"Branch {short(doubt)} is forgotten.").wait_for()
    assert doubt not in left(console)


def test_a_branch_is_opened_again_as_it_is_by_then(page: Page, doubt: Xid) -> None:
    """The answers with what there is come late."""
    sign(page)
    dialog = branch(page, doubt)
    page.evaluate(
        "() => { const real = fetch; window.fetch = async (path, how) => {"
        " if (path === 'api/overview') await new Promise((ready) => setTimeout(ready, 700));"
        " return real(path, how); }; }"
    )
    dialog.get_by_label("Reason").fill("because")
    dialog.get_by_role("button", name="Roll back").click()
    agree(page, "Roll back branch")
    page.get_by_text(f"Branch {short(doubt)} is rolled back.").wait_for()
    dialog = branch(page, doubt)
    expect(dialog).to_contain_text("because")
    expect(dialog.get_by_role("button", name="Roll back")).to_be_hidden()


def test_a_decision_that_comes_too_late_is_refused(page: Page, console: Console, doubt: Xid) -> None:
    sign(page)
    dialog = branch(page, doubt)
    console.server.call(lambda: None)
    with console.connect() as connection:
        connection.tpc_rollback(doubt)
    dialog.get_by_label("Reason").fill("late")
    dialog.get_by_role("button", name="Commit").click()
    agree(page, "+1 into replies")
    expect(dialog.get_by_role("alert")).to_contain_text(str(doubt))
    expect(dialog).to_be_visible()


# For everybody


def test_of_two_decisions_at_once_one_is_sent(page: Page, doubt: Xid) -> None:
    sign(page)
    dialog = branch(page, doubt)
    dialog.get_by_label("Reason").fill("because")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    page.evaluate("""() => {
        const buttons = [...document.querySelectorAll("#branch .act")].filter((one) => !one.hidden);
        for (const one of [...buttons, ...buttons]) one.click();
    }""")
    agree(page, "+1 into replies")
    page.get_by_text(f"Branch {short(doubt)} is ").wait_for()
    assert len(sent) == 1


def test_an_answer_that_comes_late_is_for_what_it_was_asked_for(page: Page, console: Console, doubt: Xid) -> None:
    """Neither the branch that is looked at meanwhile, nor a list that was closed."""
    sign(page)
    held: list[Any] = []
    page.route("**/api/decide", lambda route: held.append(route))
    dialog = branch(page, doubt)
    dialog.get_by_label("Reason").fill("because")
    dialog.get_by_role("button", name="Commit").click()
    agree(page, "+1 into replies")
    page.keyboard.press("Escape")
    dialog = branch(page, scene.FOREIGN)
    until(page, lambda: bool(held))
    held[0].continue_()
    page.get_by_text(f"Branch {short(doubt)} is committed.").wait_for()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    held.clear()
    page.route("**/api/messages*", lambda route: held.append(route))
    page.locator("#queue-rows").get_by_role("link", name="orders.failed", exact=True).click()
    until(page, lambda: bool(held))
    page.unroute("**/api/messages*")
    look(page, "events")
    held[0].continue_()
    ask(page)
    page.wait_for_timeout(200)
    expect(page.get_by_role("heading", name="events", exact=True)).to_be_visible()
    expect(page.locator("#message-rows tr").first).to_contain_text("event")


def until(page: Page, seen: Callable[[], bool]) -> None:
    for _ in range(1200):
        if seen():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it never came to that")


def test_a_server_that_hangs_is_told_and_what_is_shown_is_old(page: Page) -> None:
    page.route("**/api/overview", lambda _: None)
    ask(page)
    expect(page.locator("#state")).to_contain_text("has not answered for 10 s", timeout=60_000)
    expect(page.locator("body")).to_have_class(re.compile("old"))
    page.unroute("**/api/overview")
    ask(page)
    expect(page.locator("body")).not_to_have_class(re.compile("old"), timeout=60_000)


def test_an_answer_that_is_no_document_says_where_to_look(page: Page) -> None:
    page.route("**/api/overview", lambda route: route.fulfill(status=500, body="Internal Server Error"))
    ask(page)
    expect(page.locator("#state")).to_contain_text("the server answered 500: its log says why")
    page.unroute("**/api/overview")


def test_nothing_that_is_not_there_has_a_name(page: Page, console: Console) -> None:
    queue = {
        "watermark": None,
        "oldest": None,
        "consumers": None,
        "description": "",
        "in_flight": None,
        "size_bytes": None,
    }
    journal = {"end": None, "checkpoint": None, "segments": 0, "allocated_bytes": 0, "ahead": None, "damage": ""}
    status = {"owner": None, "journal": journal, "replication": REPLICA | {"lag_s": None}, "free_inodes": None}
    overview = page.request.get(f"{console.url}api/overview").json()
    queues = [one | queue for one in overview["status"]["queues"]]
    with doctored(page, status | {"queues": queues}):
        expect(page.get_by_role("region", name="Space and replica")).to_contain_text("in 0 segments")
        assert not re.search(r"\b(null|undefined|NaN)\b", page.locator("main").inner_text())


def test_it_is_used_by_keyboard(page: Page, doubt: Xid) -> None:
    found = opener(page, doubt)
    found.wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the queues")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    for _ in range(60):
        page.keyboard.press("Tab")
        if found.evaluate("one => one === document.activeElement"):
            break
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Branch in doubt")
    expect(dialog).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    page.keyboard.press("Escape")
    expect(found).to_be_focused()
    held: list[Route] = []
    page.route("**/advice**", lambda route: held.append(route))  # the button is at work while the table is drawn anew
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    for _ in range(2):
        page.wait_for_event("response", lambda answer: "overview" in answer.url)
    page.keyboard.press("Escape")
    expect(found).to_be_focused()
    for route in held:
        route.continue_()
    expect(page.locator("body")).not_to_have_class("old")
    seen = page.locator("#facts dd").last
    before = seen.inner_text()
    expect(seen).not_to_have_text(before)  # it has been asked for anew meanwhile
    expect(found).to_be_focused()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_read_in_light_and_dark_and_on_each_screen(page: Page, console: Console, name: str) -> None:
    with console.connect() as connection:
        (failed,) = scene.fail(connection, 1)
        if name != "token":
            sign(page)
        PAGES[name](page, console)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (paper == "rgb(255, 255, 255)") is (scheme == "light")
            assert page.evaluate(scripts.CONTRASTS) == []
            assert page.evaluate(scripts.NAMELESS) == []
        for width in (360, 390, 800, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(scripts.CUT) == [], width
        assert connection.remove("orders.failed", failed)


def test_what_is_long_is_broken_and_what_gets_full_is_marked(page: Page, console: Console) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    rows = page.request.get(f"{console.url}api/overview").json()["status"]["queues"]
    expect(page.locator("#queue-rows tr")).to_have_count(len(rows))
    long = {"name": "orders." + "from" * 40, "description": "a" * 300}
    health = [{"kind": "fenced", "text": f"fdatasync of journal/{'0' * 80}.log failed", "bad": True}]
    with doctored(page, {"queues": [rows[0] | {"full": True}, rows[1] | long, *rows[2:]]}, health=health):
        expect(page.locator("#queue-rows tr").first).to_have_class("fair")
        expect(page.locator("#findings")).to_contain_text("fdatasync")
        for width in (360, 800):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(scripts.CUT) == [], width
        page.evaluate("name => { location.hash = `#queue=${name}`; }", long["name"])
        page.get_by_role("heading", name=long["name"]).wait_for()
        page.set_viewport_size({"width": 360, "height": 800})
        assert page.evaluate(scripts.CUT) == []


def test_an_empty_space_says_what_to_do(page: Page) -> None:
    overview = page.request.get(f"{page.url}api/overview").json()
    with doctored(page, {"queues": []}):
        expect(page.get_by_role("region", name="No queue yet")).to_contain_text("xaqueue define orders --space ")
        expect(page.locator("#first")).to_contain_text(overview["status"]["directory"])
        expect(page.get_by_role("region", name="Queues", exact=True)).to_have_count(0)


def test_the_page_of_a_queue_has_the_hour_that_the_server_kept(page: Page, console: Console) -> None:
    rows = page.request.get(f"{console.url}api/overview").json()["status"]["queues"]
    for ago_s in range(1800, 900, -150):  # of all queues together a page gets some points only
        console.front.link.history.add(time.time() - ago_s, [one | {"depth": 4000} for one in rows])
    look(page, "events")
    chart = page.locator("#depth-chart").get_by_role("img")
    expect(chart).to_have_attribute("aria-label", re.compile(r"Messages in the last hour: \d+ now, 4000 at most"))
    expect(page.locator("#depth-chart")).to_contain_text("at most 4,000 messages")
    page.get_by_role("link", name="All queues").click()
    expect(page.locator("#whole-chart").get_by_role("img")).to_have_attribute("aria-label", re.compile("20000 at most"))


# Attacks


def test_nothing_is_done_without_a_token(page: Page, console: Console, doubt: Xid) -> None:
    """Neither by a button that somebody has made usable, nor by a request of its own."""
    dialog = branch(page, doubt)
    dialog.get_by_label("Reason").fill("because")
    dialog.get_by_role("button", name="Commit").evaluate("one => { one.disabled = false; }")
    dialog.get_by_role("button", name="Commit").click()
    agree(page, "+1 into replies")
    expect(dialog.get_by_role("alert")).to_contain_text("needs a token")
    page.keyboard.press("Escape")
    page.locator("#queue-rows").get_by_role("link", name="orders", exact=True).click()
    expect(page.locator("#failure")).to_contain_text("browse needs a token")
    assert left(console)[doubt].decision is None


def test_a_role_is_not_exceeded(page: Page, console: Console, doubt: Xid) -> None:
    sign(page, scene.VIEWER)
    expect(page.locator("#who")).to_have_text("Signed in as viewer.")
    expect(look(page, "orders")).to_have_count(5)
    look(page, "events")
    expect(page.locator("#failure")).to_contain_text("browse of queue 'events' needs the right to browse")
    expect(page.locator("#doubt .note")).to_contain_text("Not shown: indoubt_list needs the right to")
    refused = page.evaluate(scripts.ACT, ["api/decide", {"xid": str(doubt), "commit": True, "reason": "because"}])
    assert "needs the right to resolve" in refused["error"]
    assert left(console)[doubt].decision is None


def test_scripts_in_messages_are_text(page: Page) -> None:
    """In a body, in headers, in a content type, in a description and in an xid; ``looking`` sees that none has run."""
    sign(page)
    look(page, "orders").nth(1).get_by_role("button").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Body")).to_have_text(scene.SCRIPT)
    for text in (*scene.HEADERS, *scene.HEADERS.values(), "<b>text</b>"):
        expect(dialog).to_contain_text(text)
    page.keyboard.press("Escape")
    page.get_by_role("link", name="All queues").click()
    expect(branch(page, scene.FOREIGN)).to_contain_text("<img src=x onerror=hacked=1>")
    page.keyboard.press("Escape")
    described = page.locator("#queue-rows").get_by_role("link", name="events", exact=True)
    expect(described).to_have_attribute("title", "<script>hacked=1</script>")
    assert page.locator("main img, main b, dialog img, dialog b, main script").count() == 0


def test_no_script_runs_that_is_not_the_page_s(page: Page) -> None:
    page.evaluate(scripts.FOREIGN)
    page.wait_for_timeout(200)


@contextmanager
def elsewhere(html: str) -> Iterator[str]:
    """Another site's page, on this machine as well."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_another_site_s_page_does_nothing_sees_nothing_and_frames_nothing(
    browser: Browser, console: Console, doubt: Xid
) -> None:
    asked = json.dumps({"xid": str(doubt), "commit": True, "reason": "forged"})
    with elsewhere(scripts.FORGED % {"url": console.url, "json": asked}) as url, looking(browser, url) as page:
        tried = page.evaluate("window.tried")
        assert set(tried) <= {"refused", "opaque"}
        assert tried[1:3] == ["refused", "refused"]
        page.wait_for_timeout(300)
        frames = [frame for frame in page.frames if frame != page.main_frame]
        assert [frame.locator("#queues").count() for frame in frames] == [0, 0]
    assert left(console)[doubt].decision is None
