"""The process that the demo kills: it takes pages of the CSV from one space and puts their flights into another.

    python -m xaqueue.tools.demo.sender DIRECTORY STEP NUMBER

A page and its flights are one transaction over both spaces: the page goes and its flights come, or neither. Started
again, it knows nothing but its directory: the transaction manager finishes what was decided and rolls back the rest,
and the pages of these are there to be taken once more. STEP and NUMBER: it gets SIGKILL when a transaction comes to
that step for the n-th time. It says how many flights are left, then a line
for each transaction, how many it had.
"""

from __future__ import annotations

import csv
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import xaqueue
from xaqueue.storage.hardening import DEFAULT
from xaqueue.tools.demo import records

PAGES, FLIGHTS = "pages", "flights"
"""Both the space and its queue are named so."""
THREADS = 3
"""While one waits for the disk another writes."""
STUCK_S = 180.0
"""Without a transaction for so long it ends, and says where each of its threads is."""


def fate(step: str, number: int) -> Callable[[str, bytes, str], None]:
    """What kills this process at one step of one transaction."""
    numbers = count(1)

    def on_step(now: str, _: bytes, participant: str) -> None:
        if now == step and participant in ("", PAGES) and next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_step


def send(manager: xaqueue.TransactionManager) -> int:
    """One page; the number of its flights, 0 where there is no page left."""
    with manager.transaction() as tx:
        page = tx[PAGES].dequeue(PAGES)
        if page is None:
            return 0
        columns, *lines = page.body.decode().splitlines()
        first = int(page.correlation_id)
        for number, row in enumerate(csv.DictReader(lines, columns.split(",")), first):
            flight = records.body(row)
            tx[FLIGHTS].enqueue(FLIGHTS, flight, correlation_id=str(number), content_type="application/json")
    return len(lines)


def _send_all(manager: xaqueue.TransactionManager) -> None:
    while sent := send(manager):
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        _say(f"sent {sent}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    directory, step, number = arguments
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    # Durable whatever XAQUEUE_FLAGS says: a decision log promises nothing over a queue that may forget.
    spaces = {name: partial(xaqueue.connect, Path(directory, name), sync=str(DEFAULT)) for name in (PAGES, FLIGHTS)}
    with ExitStack() as stack:
        pages, _ = [stack.enter_context(connect()) for connect in spaces.values()]
        on_step = fate(step, int(number))
        manager = xaqueue.TransactionManager(Path(directory, "decisions"), spaces, on_step=on_step)
        stack.enter_context(manager).recover()
        _say(f"left {sum(len(page.body.splitlines()) - 1 for page in pages.browse(PAGES))}")
        with ThreadPoolExecutor(THREADS, thread_name_prefix="sender") as pool:
            for finished in [pool.submit(_send_all, manager) for _ in range(THREADS)]:
                finished.result()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1:])
