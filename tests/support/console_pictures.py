"""Makes the guide's pictures of console and README: ``python tests/support/console_pictures.py man/guide/pictures``.

Each page in light colours, in dark ones, and as wide as a telephone. They are made when the page has changed, and not
by a test. With ``whole`` behind it the pictures have all of each page, to be looked at.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from PIL import Image

import xaqueue
from support.chromium import browsing, looking
from support.console_pages import PAGES, sign_in
from support.console_scene import FOREIGN, Console, prepared, served
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.features.opening import create
from xaqueue.web.front import HttpConfig, HttpFront
from xaqueue.web.history import EVERY_S, KEPT
from xaqueue.xid import Xid

if TYPE_CHECKING:
    from playwright.sync_api import Page

SECONDS = 12.0
LOOKS = {"light": 1180, "dark": 1180, "narrow": 390}
HIGH = {"console-branch": 1150, "console-message": 800, "console-token": 600, "console-empty": 700}
ELSE_HIGH, WHOLE_HIGH = 860, 2600
NEAR = 15
"""So far are two colours apart that both are kept, in all three parts together."""
Colour = tuple[int, int, int]
TAKES = """
taken = tx["queue"].dequeue("stock")
tx["queue"].enqueue("orders", b'{"order": 4711, "sku": "A-6", "count": 2, "for": "Graz"}')"""
"""What the killed transaction manager was about."""
ORDER = b'{"order": %d, "sku": "A-%d", "count": 2}'
WHY = (ValueError("no such customer"), ConnectionError("the warehouse does not answer"), ValueError("no such customer"))


def stocked(space: Path) -> None:
    create(space, name="shop", any_queue=True)
    with xaqueue.connect(space) as connection:
        for number in range(12):
            connection.enqueue("stock", b'{"sku": "A-%d", "pieces": 2}' % (6 + number % 7))
        connection.commit()


def fill(connection: Connection) -> None:
    for number in range(40):
        connection.enqueue("orders", ORDER % (number, number % 7), headers={"shop": "Graz"})
        connection.enqueue("events", b"event %d" % number)
        connection.enqueue("readings", b"21.5")
    for number, _ in enumerate(WHY):
        key = b"failed %d" % number
        headers = {"shop": "Wien", "channel": "web"}
        connection.enqueue("orders", ORDER % (800 + number, number), correlation_id=key, headers=headers)
    connection.commit()
    for number, error in enumerate(WHY):
        assert connection.dequeue("orders", correlation_id=b"failed %d" % number) is not None
        connection.explain_rollback(error)
        connection.rollback()


def another_branch(console: Console) -> None:
    """In the place of the scene's, whose name is an attack."""
    with console.connect() as connection:
        connection.tpc_rollback(FOREIGN)
        prepared(connection, Xid(4, b"shop-java-0a17", b"queue"))


def work(console: Console) -> None:
    """For some seconds messages come and go, so that there is something to draw."""
    with console.connect() as connection:
        until, number = time.monotonic() + SECONDS, 0
        while time.monotonic() < until:
            number += 1
            for one in range(number % 11):
                connection.enqueue("orders", ORDER % (900 + one, one % 7))
            for queue in ("orders", "orders", "events") if number % 23 > 9 else ("orders",):
                connection.dequeue(queue)
            connection.commit()
            time.sleep(0.2)


def remember(console: Console, page: Page) -> None:
    """As if it had been like this for an hour, which ended with what there is."""
    queues = {one["name"]: one for one in page.request.get(f"{console.url}api/overview").json()["status"]["queues"]}
    ended = time.time()
    for point in range(KEPT, 0, -1):
        wave = 160 * math.sin(point / 22) + 30 * math.sin(point / 3)
        more = {"orders": int(wave), "events": point // 6, "readings": 20 * (point % 12), "stock": point // 12}
        more["orders.failed"] = -(point > 20) - 2 * (point > 60)
        rows = []
        for name, queue in queues.items():
            depth = max(0, queue["depth"] + more.get(name, 0))
            came = {"orders": point * 240 + int(900 * math.sin(point / 9)), "readings": 20 * point}.get(name, 0)
            rows.append({"name": name, "depth": depth, "counters": {"enqueued": queue["counters"]["enqueued"] - came}})
        console.front.link.history.add(ended - EVERY_S * point, rows)


def few_colours(picture: bytes) -> Image.Image:
    """What differs little from what there is more of, as edges of letters do, gets that."""
    whole = Image.open(BytesIO(picture)).convert("RGB")
    read = iter(whole.tobytes())
    pixels = list(zip(read, read, read, strict=True))
    kept: list[Colour] = []
    nearest: dict[Colour, int] = {}
    for colour, _ in Counter(pixels).most_common():
        far, at = min(((sum(map(abs, map(sub, colour, one))), at) for at, one in enumerate(kept)), default=(999, 0))
        if far > NEAR and len(kept) < 256:
            at = len(kept)
            kept.append(colour)
        nearest[colour] = at
    made = Image.new("P", whole.size)
    made.putpalette([part for colour in kept for part in colour])
    made.putdata([nearest[colour] for colour in pixels])
    return made


@contextmanager
def empty(root: Path) -> Iterator[str]:
    """A space that has no queue yet."""
    create(root / "shop", name="shop", any_queue=True)
    with HttpFront(HttpConfig("127.0.0.1:0")) as front:
        server = ServerThread(root / "shop", root / "socket")
        try:
            front.show(server.server)
            yield front.url
        finally:
            front.show(None)
            server.stop()


README = Path(__file__).parents[2] / "README.md"
STYLE = """:root { color-scheme: light dark } pre { overflow-x: auto; padding: 1em; background: #8881 }
img { max-width: 100% }
body { font: 16px/1.5 sans-serif; max-width: 62em; margin: 0 auto; padding: 1em } table { border-collapse: collapse }
td, th { border: 1px solid #8886; padding: .4em .8em; text-align: left } code { font-size: 85% } a { color: #37d }"""


@contextmanager
def readme() -> Iterator[str]:
    """A page of it, as a site for code would show it."""
    page = README.with_name(".readme.html")  # where its pictures are found
    body = MarkdownIt().enable("table").render(README.read_text())
    page.write_text(f'<!doctype html><meta charset="utf-8"><title>README</title><style>{STYLE}</style>{body}')
    try:
        yield page.as_uri()
    finally:
        page.unlink()


def take(page: Page, place: Path, name: str, is_whole: bool) -> None:
    """In each of the looks, as it stands."""
    for look, width in LOOKS.items():
        height = WHOLE_HIGH if is_whole else HIGH.get(name, ELSE_HIGH)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if look == "dark" else "light")
        page.mouse.move(0, 0)
        path = place / f"{name}-{look}.png"
        few_colours(page.screenshot(full_page=name == "readme")).save(path, optimize=True)
        print(path, path.stat().st_size)  # noqa: T201


def main(place: Path, is_whole: bool) -> None:
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="xaqueue-") as made, browsing() as browser:
        root = Path(made)
        with readme() as url, looking(browser, url) as page:
            take(page, place, "readme", is_whole)
        with empty(root) as url, looking(browser, url) as page:
            page.get_by_text("No queue yet").wait_for()
            take(page, place, "console-empty", is_whole)
        stocked(root / "queue")
        with served(root, fill, TAKES) as console, looking(browser, console.url) as page:
            another_branch(console)
            sign_in(page)
            work(console)
            remember(console, page)
            with console.connect() as busy:
                busy.dequeue("orders")
                for name, go in PAGES.items():
                    page.goto("about:blank")
                    page.goto(console.url)
                    if name == "token":
                        page.get_by_role("button", name="Sign out").click()
                    go(page, console)
                    take(page, place, f"console-{name}", is_whole)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["whole"])
