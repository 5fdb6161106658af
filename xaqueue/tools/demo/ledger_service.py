"""The service of the ledger: takes orders and sends them, several at a time, until it has taken so many.

A taken order is a row in PostgreSQL and a message in the queue; sending it takes the message and marks the row. Each
is one transaction over both. It says a line for each: ``taken ID``, ``sent ID``; ``refused ID`` where the transaction
was rolled back, ``unknown ID`` where nobody can tell, ``early ID`` where the message was there and its row was not yet.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

import xaqueue
from xaqueue.errors import Error, HeuristicOutcome, OutcomeUnknown

QUEUE = "orders"
TABLE = (
    "create table if not exists orders "
    "(id text primary key deferrable initially deferred, item text not null, state text not null)"
)
TAKE = "insert into orders values (%s, %s, 'taken')"
SEND = "update orders set state = 'sent' where id = %s and state = 'taken'"
TAKERS = 3
PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.3
"""After a failure, and longer after each one that follows it: what is down may be up again then."""
TIMEOUT_S = 20.0
RECOVERY_S = 1.0


class Early(Exception):
    """The message is there before its row: the other half of the transaction is being committed."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the parties are. ``queue``: a URL or a directory. ``log``: the transaction manager's directory."""

    dsn: str
    queue: str
    log: Path

    def manager(self, on_step: Callable[[str, bytes, str], None] | None = None) -> xaqueue.TransactionManager:
        """A transaction manager over both, which first finishes what its log and the parties have open."""
        parties: dict[str, Callable[[], Any]] = {
            "ledger": partial(psycopg.connect, self.dsn),
            "queue": partial(xaqueue.connect, self.queue),
        }
        return xaqueue.TransactionManager(
            self.log, parties, timeout_s=TIMEOUT_S, recovery_interval_s=RECOVERY_S, on_step=on_step
        )


def say(word: str, order: str) -> None:
    """A line to whoever counts; it is out when this returns."""
    os.write(1, f"{word} {order}\n".encode())


class Service:
    """One life of it. Orders are named after the life, so that no two lives take the same one."""

    def __init__(self, manager: xaqueue.TransactionManager, life: str, orders: int) -> None:
        self._manager = manager
        self._life = life
        self._left = iter(range(orders))
        """Shared by the takers: each number is given to one of them."""
        self._numbers = count()
        self._taken = 0

    def run(self) -> None:
        """Until all are taken; about half of them are sent by then."""
        takers = [threading.Thread(target=self._take_orders) for _ in range(TAKERS)]
        sender = threading.Thread(target=self._send_orders, args=(takers,))
        for thread in (*takers, sender):
            thread.start()
        for thread in (*takers, sender):
            thread.join()

    def _take_orders(self) -> None:
        for _ in self._left:
            pause_s = PAUSE_S
            while not self._attempt("taken", self._take, f"{self._life}-{next(self._numbers):05d}"):
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._taken += 1

    def _take(self, order: str) -> str:
        with self._manager.transaction() as tx:
            self._write(tx, order)
        return order

    def _write(self, tx: Any, order: str) -> None:
        tx["ledger"].execute(TAKE, (order, f"item of {order}"))
        tx["queue"].enqueue(QUEUE, f"item of {order}".encode(), correlation_id=order)

    def _send_orders(self, takers: Sequence[threading.Thread]) -> None:
        sent = 0
        while any(taker.is_alive() for taker in takers):
            if sent < self._taken // 2 and self._attempt("sent", self._send, "-"):
                sent += 1
            else:
                time.sleep(PAUSE_S)

    def _send(self, _: str) -> str | None:
        with self._manager.transaction() as tx:
            message = tx["queue"].dequeue(QUEUE)
            if message is None:
                return None
            order: str = message.properties.correlation_id.decode()
            if tx["ledger"].execute(SEND, (order,)).rowcount != 1:
                raise Early(order)
        return order

    def _attempt(self, word: str, work: Callable[[str], str | None], order: str) -> bool:
        """Whether it is done; what became of it is said."""
        try:
            done = work(order)
        except Early as early:
            say("early", str(early))
        except (HeuristicOutcome, OutcomeUnknown) as error:
            say("unknown", order)
            sys.stderr.write(f"{order}: {error!r}\n")
            return True
        except (Error, psycopg.Error) as error:
            say("refused", order)
            sys.stderr.write(f"{order}: {error!r}\n")
        else:
            if done is not None:
                say(word, done)
            return done is not None
        return False


def main(
    arguments: Sequence[str],
    on_step: Callable[[str, bytes, str], None] | None = None,
    kind: type[Service] = Service,
) -> None:
    """``on_step``: as the transaction manager takes it."""
    dsn, queue, log, life, orders = arguments
    with Addresses(dsn, queue, Path(log)).manager(on_step) as manager:
        say("ready", life)
        kind(manager, life, int(orders)).run()
    say("done", life)


if __name__ == "__main__":
    main(sys.argv[1:])
