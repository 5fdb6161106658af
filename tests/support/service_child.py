"""A process of a service that puts and takes orders, each a row and a message, until it is told to rest.

Arguments, in JSON: where the database is (see ``connect_to``), the queue's URL or directory, the first of its numbers,
and whether it is in haste: then what takes a transaction manager a minute takes it a second. It says of each number
what it was told: ``put``, ``took``, ``not`` where the transaction was rolled back, ``perhaps`` where nobody could tell.
Any line that it reads has it rest, and the end of its input has it close its transaction manager.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import xaqueue
from support.node_child import BUSY_S, FAST, QUEUE, say
from xaqueue.errors import HeuristicOutcome
from xaqueue.tm import node
from xaqueue.tm.driver import run
from xaqueue.xa import Outcome

PAUSE_S = 0.01
"""Between two transactions, at most: the kills are to meet other work as well."""


class Undone(Exception):
    """A savepoint is left, and nothing that was done in it holds."""


def connect_to(address: str) -> Any:
    """``postgresql DSN``, ``pgbouncer DSN``, ``sqlite PATH`` or ``mariadb SOCKET NAME``."""
    kind, _, where = address.partition(" ")
    if kind == "sqlite":
        import sqlite3

        return sqlite3.connect(where, timeout=BUSY_S)
    if kind == "mariadb":
        import pymysql

        socket, name = where.split()
        return pymysql.connect(unix_socket=socket, user="root", database=name)
    import psycopg

    return psycopg.connect(where, prepare_threshold=None if kind == "pgbouncer" else 5)


class Service:
    def __init__(self, manager: xaqueue.TransactionManager, first: int) -> None:
        self._manager = manager
        self._number = first
        self._dice = random.Random(first)
        self.is_resting = threading.Event()

    def serve(self) -> None:
        while not self.is_resting.is_set():
            try:
                self._go(self._dice.choice((self._put, self._take, self._exchange)))
            except Exception as error:  # of a driver, or ours: before a transaction has begun
                say(f"error {type(error).__name__}: {error}".replace("\n", " "))
            time.sleep(self._dice.uniform(0.0, PAUSE_S))

    def _go(self, work: Any) -> None:
        did: list[tuple[str, int]] = []
        tx = self._manager.transaction()
        try:
            with tx:
                work(tx, did)
        except HeuristicOutcome as error:
            say(f"fault {error}")
        except Exception as error:
            say(f"error {type(error).__name__}: {error}".replace("\n", " "))
        for word, number in did:
            if tx.outcome is Outcome.COMMITTED:
                say(f"{word} {number}")
            elif word == "put":
                say(f"{'not' if tx.outcome is Outcome.ROLLED_BACK else 'perhaps'} {number}")

    def _put(self, tx: Any, did: list[tuple[str, int]]) -> None:
        self._number += 1
        did.append(("put", self._number))
        run(tx["db"], f"insert into orders (n) values ({self._number})")
        tx["queue"].enqueue(QUEUE, str(self._number).encode())
        if self._dice.random() < 0.1:
            self._number += 1
            did.append(("not", self._number))
            with suppress(Undone), tx.savepoint():
                run(tx["db"], f"insert into orders (n) values ({self._number})")
                tx["queue"].enqueue(QUEUE, str(self._number).encode())
                raise Undone

    def _take(self, tx: Any, did: list[tuple[str, int]]) -> None:
        message = tx["queue"].dequeue(QUEUE, wait_s=0.1)
        if message is not None:
            did.append(("took", int(message.body)))
            run(tx["db"], f"insert into handled (n) values ({int(message.body)})")

    def _exchange(self, tx: Any, did: list[tuple[str, int]]) -> None:
        self._take(tx, did)
        self._put(tx, did)


def main(address: str, queue: str, first: int, is_hasty: bool) -> None:
    logging.basicConfig(format=f"%(asctime)s {os.getpid()} %(levelname)s %(message)s", level=logging.INFO)
    if is_hasty:
        node.Timing = lambda: FAST  # type: ignore[assignment, attr-defined, misc]
    parties = {"db": partial(connect_to, address), "queue": partial(xaqueue.connect, queue)}
    with xaqueue.TransactionManager(parties, recovery_interval_s=0.1 if is_hasty else 30.0) as manager:
        service = Service(manager, first)
        worker = threading.Thread(target=service.serve)
        worker.start()
        sys.stdin.readline()
        service.is_resting.set()
        worker.join()
        say("resting")
        sys.stdin.readline()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
