"""The process that the demo kills: it takes pages of flights from one space and puts their flights into another.

    python -m xaqueue.tools.demo.sender DIRECTORY STEP NUMBER

A page and its flights are one transaction over both spaces: the page goes and its flights come, or neither. Started
again, it knows nothing but its directory: the transaction manager finishes what was decided and rolls back the rest,
and the pages of these are there to be taken once more. STEP and NUMBER: it gets SIGKILL when a transaction comes to
that step for the n-th time. It says when it began, how many branches it finds in doubt, when all of them were finished,
and how many pages are left; then a line for each transaction, how many flights it had.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import xaqueue
import xaqueue.core.owner.watches
import xaqueue.rpc.client.reach  # both now, so that loading the engine is no part of a recovery
from xaqueue.tools.demo import records
from xaqueue.tools.demo.stage import say

PAGES, FLIGHTS = "pages", "flights"
"""Both the space and its queue are named so."""
SYNC = "JOURNAL"
"""Whatever XAQUEUE_FLAGS says: a decision log promises nothing over a queue that may forget."""
THREADS = 3
"""While one waits for the disk another writes."""
STUCK_S = 180.0
"""Without a transaction for so long it ends, and says where each of its threads is."""


def send(manager: xaqueue.TransactionManager) -> int:
    """One page; the number of its flights, 0 where there is no page left."""
    with manager.transaction() as tx:
        page = tx[PAGES].dequeue(PAGES)
        if page is None:
            return 0
        rows = json.loads(page.body)
        for number, row in enumerate(rows, int(page.correlation_id)):
            flight = records.body(row)
            tx[FLIGHTS].enqueue(FLIGHTS, flight, correlation_id=str(number), content_type="application/json")
    return len(rows)


def send_all(manager: xaqueue.TransactionManager) -> None:
    while sent := send(manager):
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        say("sent", sent)


def main(directory: str, death: str, number: str) -> None:
    numbers = count(1)

    def on_step(step: str, gtrid: bytes, participant: str) -> None:
        if step == death and participant in ("", PAGES) and next(numbers) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    open_manager = xaqueue.TransactionManager  # which loads it
    say("begun", time.monotonic())
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    spaces = {name: partial(xaqueue.connect, Path(directory, name), sync=SYNC) for name in (PAGES, FLIGHTS)}
    with ExitStack() as opened:
        pages, flights = (opened.enter_context(connect()) for connect in spaces.values())
        say("doubtful", len(pages.tpc_recover()) + len(flights.tpc_recover()))
        manager = open_manager(Path(directory, "decisions"), spaces, on_step=on_step)
        opened.enter_context(manager).recover()
        say("recovered", time.monotonic())
        say("left", sum(1 for _ in pages.browse(PAGES)))
        with ThreadPoolExecutor(THREADS, thread_name_prefix="sender") as pool:
            list(pool.map(send_all, [manager] * THREADS))
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(*sys.argv[1:])
