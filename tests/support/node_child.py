"""A process of a service whose transaction manager has no directory: a row and a message in each transaction.

Arguments, in JSON: where the database is (see ``connect_to``), the queue's URL, the first number, and how it ends: a
step at which it stops (SIGSTOP) or is killed in its second transaction, as ``stop:prepared``, or ``go:count``; and
where a second database is, which prepares, if there is one. Between the decision and its COMMIT is the step
``decided``. It says each number that was committed, and why one was not.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from functools import partial
from typing import Any

import xaqueue
from xaqueue.errors import RolledBack
from xaqueue.tm import driver, node
from xaqueue.tm.branch import EnlistedBranch
from xaqueue.tm.node_schema import Timing
from xaqueue.tm.voting import Reply

FAST = Timing(sign=0.2, silent=5, stale=0.6, sweep=0.2)
"""So that what takes a minute takes a second."""
IDLE_MS = 2000
"""After so long a database ends who stands still between decision and commit."""
TABLE = "create table orders (n int primary key)"
QUEUE = "orders"
BUSY_S = 5.0


def connect_to(address: str) -> Any:
    """``postgresql DSN``, ``sqlite PATH`` or ``mariadb SOCKET NAME``."""
    kind, _, where = address.partition(" ")
    if kind == "sqlite":
        return sqlite3.connect(where, timeout=BUSY_S)
    if kind == "postgresql":
        import psycopg

        return psycopg.connect(where, options=f"-c idle_in_transaction_session_timeout={IDLE_MS}")
    import pymysql

    socket, name = where.split()
    own = pymysql.connect(unix_socket=socket, user="root", database=name)
    with own.cursor() as cursor:
        cursor.execute(f"SET SESSION idle_write_transaction_timeout = {IDLE_MS // 1000}")
    return own


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def ledger_at(address: str) -> Any:
    """How a second database is opened: MariaDB prepares by an Engine only."""
    kind, _, where = address.partition(" ")
    if kind != "mariadb":
        return partial(connect_to, address)
    from sqlalchemy import NullPool, create_engine

    socket, name = where.split()
    return create_engine(f"mysql+pymysql://root@localhost/{name}?unix_socket={socket}", poolclass=NullPool)


class Ends:
    def __init__(self, end: str, address: str) -> None:
        self.how, _, self.step = end.partition(":")
        self._address = address
        self.is_armed = False
        self.is_over = False

    def on_step(self, step: str, gtrid: bytes = b"", name: str = "") -> None:
        if self.is_armed and step == self.step:
            self.is_armed, self.is_over = False, True
            say(f"at {step}")
            if self.how == "stop" and self._address.startswith("sqlite "):
                self._wait_for_writers()
            os.kill(os.getpid(), signal.SIGSTOP if self.how == "stop" else signal.SIGKILL)

    def _wait_for_writers(self) -> None:
        """Another thread that was stopped while it gives a sign would keep out all who write, and so end this node."""
        with closing(connect_to(self._address)) as connection:
            driver.run(connection, "BEGIN IMMEDIATE")
            connection.rollback()

    def watch_decision(self) -> None:
        commit = EnlistedBranch._commit_deciding

        def commit_later(branch: EnlistedBranch) -> Reply:
            self.on_step("decided")
            return commit(branch)

        setattr(EnlistedBranch, commit.__name__, commit_later)


def put(manager: xaqueue.TransactionManager, number: int, *, with_ledger: bool = False) -> None:
    with manager.transaction() as tx:
        cursor = tx["db"].cursor()
        cursor.execute(f"insert into orders values ({number})")
        cursor.close()
        if with_ledger:
            lent = tx["ledger"]
            statement = f"insert into orders values ({number})"
            if hasattr(lent, "exec_driver_sql"):
                lent.exec_driver_sql(statement)
            else:
                driver.run(lent, statement)
        tx["queue"].enqueue(QUEUE, str(number).encode())


def main(address: str, url: str, first: int, end: str, ledger: str = "") -> None:
    node.Timing = lambda: FAST  # type: ignore[assignment, attr-defined, misc]
    ends = Ends(end, address)
    ends.watch_decision()
    parties = {"db": partial(connect_to, address), "queue": partial(xaqueue.connect, url)}
    if ledger:
        parties["ledger"] = ledger_at(ledger)
    with xaqueue.TransactionManager(parties, decides="db", recovery_interval_s=0.1, on_step=ends.on_step) as manager:
        for number in range(first, first + (int(ends.step) if ends.how == "go" else 4)):
            is_done = False
            while not is_done:
                ends.is_armed = ends.how != "go" and number == first + 1 and not ends.is_over
                try:
                    put(manager, number, with_ledger=bool(ledger))
                    is_done = True
                except RolledBack as error:  # which is to be done again
                    say(f"not {number} {error.code.name} {error}")
            say(f"done {number}")


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
