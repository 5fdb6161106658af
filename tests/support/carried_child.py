"""Transactions that databases carry, in a process that dies in the last one, or stands still there.

Arguments, in JSON: space; the databases, by the name of the directory of the log, or "" where there is none, and the
transaction manager is a node in the database; what is done; how it ends. A work is
``log/put/n`` or ``log/take``, or ``harden``, which has the queue's journal take all that was done. The end is a named
step at which the process is killed, ``sent``, when COMMIT is on its way to a PostgreSQL that stands still, ``frozen``,
when it is about to be sent and this process stops, or nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import xaqueue
from support.carrying import wait_until_it_carries
from xaqueue import TransactionManager
from xaqueue.errors import RolledBack
from xaqueue.tm.coordinator import TraceStep as Step

PUT = "insert into orders values ({})"
TAKE = "insert into taken values ({})"
TABLES = ("create table orders (n int)", "create table taken (n int)")
TIMEOUT_S = 20.0


def connect_to(database: str) -> Any:
    """A file of SQLite by its path, or a PostgreSQL by its DSN."""
    if database.startswith("/"):
        return sqlite3.connect(database, timeout=TIMEOUT_S)
    import psycopg

    return psycopg.connect(database)


def put(tx: Any, number: int) -> None:
    tx["ledger"].cursor().execute(PUT.format(number))
    tx["queue"].enqueue("orders", str(number).encode())


def take(tx: Any) -> int:
    """Returns which one."""
    message = tx["queue"].dequeue("orders", wait_s=TIMEOUT_S)
    number = int(message.body)
    tx["ledger"].cursor().execute(TAKE.format(number))
    return number


class Ends:
    """The end of this process, once it is armed."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.is_armed = False

    def on_step(self, step: Step, gtrid: bytes, name: str) -> None:
        if not self.is_armed:
            return
        if step == self.how:
            os.kill(os.getpid(), signal.SIGKILL)
        if (self.how, step) == ("frozen", Step.COMMIT_LAST):
            say("frozen")
            os.kill(os.getpid(), signal.SIGSTOP)

    def connect(self, database: str) -> Any:
        if self.how != "sent":
            return connect_to(database)
        import psycopg

        ends = self

        class Held(psycopg.Connection[Any]):
            def tpc_commit(self, xid: Any = None) -> None:
                if ends.is_armed:
                    say(f"sent {self.info.backend_pid}")
                    os.kill(self.info.backend_pid, signal.SIGSTOP)
                    self.pgconn.send_query(b"commit")
                    assert self.pgconn.flush() == 0
                    os.kill(os.getpid(), signal.SIGKILL)
                super().tpc_commit(xid)

        return Held.connect(database)


def perform(manager: TransactionManager, verb: str) -> None:
    """``put/n`` or ``take``."""
    with manager.transaction() as tx:
        if verb == "take":
            take(tx)
        else:
            put(tx, int(verb.partition("/")[2]))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(space: str, databases: dict[str, str], works: list[str], how: str) -> None:
    ends = Ends(how)
    queue = partial(xaqueue.connect, space)
    with ExitStack() as stack:
        managers = {}
        for log, database in databases.items():
            parties = {"ledger": partial(ends.connect, database), "queue": queue}
            given: list[Any] = [*([Path(space).parent / log] if log else []), parties]
            managers[log] = stack.enter_context(
                TransactionManager(*given, recovery_interval_s=0.2, on_step=ends.on_step)
            )
            wait_until_it_carries(managers[log])
        for number, work in enumerate(works, start=1):
            ends.is_armed = number == len(works)
            log, _, verb = work.partition("/")
            if work == "harden":
                with queue() as own:
                    own.harden()
                continue
            try:
                perform(managers[log], verb)
            except RolledBack as error:
                say(f"rolled back: {error}")


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
