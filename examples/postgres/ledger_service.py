"""The service of ``ledger_demo.py``, which kills it: it takes orders and sends them, each in one transaction.

    python ledger_service.py DSN QUEUE LOG LIFE ORDERS

It works until it has taken so many. A taken order is a row in PostgreSQL and a message in the queue; sending it takes
the message and marks the row. It says a line for each: ``taken ID``, ``sent ID``; ``refused ID`` where the transaction
was rolled back, ``unknown ID`` where nobody can tell. Orders are named after the life of the service, so that no two
lives take the same one.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import psycopg

import xaqueue
from xaqueue.errors import Error, HeuristicOutcome, OutcomeUnknown
from xaqueue.tools.demo.stage import say

QUEUE = "orders"
TABLE = (
    "create table if not exists orders "
    "(id text primary key deferrable initially deferred, item text not null, state text not null)"
)
TAKE = "insert into orders values (%s, %s, 'taken')"
SEND = "update orders set state = 'sent' where id = %s and state = 'taken'"
TAKERS = 3
PAUSE_S = 0.1
"""After a failure: what is down may be up again then."""
STUCK_S = 120.0
"""Where no order is taken for so long it ends, and says where each of its threads is."""


Work = Callable[[Any, str], str]
"""What is done in a transaction for an order; returns which order it was."""


class Nothing(Exception):
    """There is no order that can be sent now."""


def manager_of(dsn: str, queue: str, log: str, **options: Any) -> xaqueue.TransactionManager:
    """Over both, whom it first asks what is left open. ``queue``: a URL or a directory."""
    parties: dict[str, Callable[[], Any]] = {
        "ledger": partial(psycopg.connect, dsn),
        "queue": partial(xaqueue.connect, queue),
    }
    return xaqueue.TransactionManager(log, parties, timeout_s=20.0, recovery_interval_s=1.0, **options)


def take(tx: Any, order: str) -> str:
    tx["ledger"].execute(TAKE, (order, f"item of {order}"))
    tx["queue"].enqueue(QUEUE, f"item of {order}".encode(), correlation_id=order)
    return order


def send(tx: Any, _: str) -> str:
    message = tx["queue"].dequeue(QUEUE)
    if message is None:
        raise Nothing
    order: str = message.correlation_id.decode()
    if tx["ledger"].execute(SEND, (order,)).rowcount != 1:
        raise Nothing
    return order


def attempt(manager: xaqueue.TransactionManager, word: str, order: str, work: Work) -> bool:
    """One transaction; whether it is over. It is said which order was done, or that ``order`` was not."""
    try:
        with manager.transaction() as tx:
            done = work(tx, order)
    except Nothing:
        return False
    except (HeuristicOutcome, OutcomeUnknown) as error:
        say("unknown", order)
        sys.stderr.write(f"{order}: {error!r}\n")
        return True
    except (Error, psycopg.Error) as error:
        say("refused", order)
        sys.stderr.write(f"{order}: {error!r}\n")
        return False
    say(word, done)
    return True


def serve(manager: xaqueue.TransactionManager, life: str, orders: int, work: Work = take) -> None:
    """Until so many orders are taken; with every other one an order is sent."""
    numbers = count()

    def turn(number: int) -> None:
        while not attempt(manager, "taken", f"{life}-{next(numbers):05d}", work):
            time.sleep(PAUSE_S)
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        if number % 2:
            attempt(manager, "sent", "-", send)

    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    with ThreadPoolExecutor(TAKERS) as takers:
        list(takers.map(turn, range(orders)))
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    dsn, queue, log, life, orders = sys.argv[1:]
    with manager_of(dsn, queue, log) as manager:
        serve(manager, life, int(orders))
