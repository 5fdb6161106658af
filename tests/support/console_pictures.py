"""Makes the guide's pictures of the console: ``python tests/support/console_pictures.py man/guide/pictures``.

They are made by hand when the page has changed, and not by a test.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path

from PIL import Image

from support.chromium import browsing, looking
from support.console_scene import OPERATOR, Console, fail, served
from xaqueue.connection import Connection
from xaqueue.features.opening import create
from xaqueue.web.history import EVERY_S, KEPT

SECONDS = 12.0
WIDTH, HEIGHT, NARROW = 1180, 900, 390


def fill(connection: Connection) -> None:
    for number in range(40):
        connection.enqueue("orders", b'{"order": %d, "sku": "A-%d", "count": 2}' % (number, number % 7))
        connection.enqueue("events", b"event %d" % number)
        connection.enqueue("readings", b"21.5")
    connection.commit()
    fail(connection, 3)


def work(console: Console) -> None:
    """For some seconds messages come and go, so that there is something to draw."""
    with console.connect() as connection:
        until, number = time.monotonic() + SECONDS, 0
        while time.monotonic() < until:
            number += 1
            for _ in range(number % 11):
                connection.enqueue("orders", b"{}")
            for queue in ("orders", "orders", "events") if number % 23 > 9 else ("orders",):
                connection.dequeue(queue)
            connection.commit()
            time.sleep(0.2)


def remember(console: Console) -> None:
    """As if it had been like this for an hour."""
    came, now = 0, time.time()
    for point in range(KEPT, 0, -1):
        wave = 300 + 250 * math.sin(point / 22) + 40 * math.sin(point / 3)
        came += 200 + 60 * (point % 7)
        orders = int(wave) if point > 5 else 700 - 100 * point
        depths = {"orders": orders, "events": 200 - point, "orders.failed": int(point < 60) + 2 * int(point < 20)}
        depths |= {"readings": 40 + 20 * (point % 12), "replies": 0}
        total = {one: came if one in ("orders", "readings") else depth for one, depth in depths.items()}
        rows = [{"name": one, "depth": depths[one], "counters": {"enqueued": total[one]}} for one in depths]
        console.front.link.history.add(now - EVERY_S * point, rows)


def small(picture: bytes, path: Path) -> None:
    few = Image.open(BytesIO(picture)).convert("RGB").quantize(96, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(path, path.stat().st_size)  # noqa: T201


def main(place: Path) -> None:
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="xaqueue-") as made, browsing() as browser:
        create(Path(made) / "queue", name="shop", any_queue=True)
        with served(Path(made), fill) as console, looking(browser, console.url) as page:
            remember(console)
            page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            page.get_by_role("button", name="Sign in").click()
            page.get_by_label("Token", exact=True).fill(OPERATOR)
            page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
            with console.connect() as waiting:
                work(console)
                page.reload()
                page.get_by_text("Signed in as ").wait_for()
                small(page.screenshot(), place / "console-light.png")
                page.emulate_media(color_scheme="dark")
                small(page.screenshot(), place / "console-dark.png")
                waiting.rollback()
            page.emulate_media(color_scheme="light")
            page.get_by_role("link", name="orders.failed", exact=True).last.click()
            page.locator("#message-rows tr").first.wait_for()
            small(page.screenshot(), place / "console-queue.png")
            page.set_viewport_size({"width": NARROW, "height": HEIGHT})
            page.get_by_role("link", name="All queues").click()
            page.locator("#queue-rows tr").first.wait_for()
            small(page.screenshot(), place / "console-narrow.png")
            page.set_viewport_size({"width": WIDTH, "height": 2 * HEIGHT})
            page.locator(f'#doubt [data-do="openBranch"][data-of="{console.xid}"]').click()
            dialog = page.get_by_role("dialog", name="Branch in doubt")
            dialog.get_by_text("the decision log says").wait_for()
            dialog.get_by_label("Reason").fill("the ledger has it, says its owner")
            small(dialog.screenshot(), place / "console-branch.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
