"""One global transaction over PostgreSQL and a queue space, in a process that dies at a named step.

Arguments: dsn, space, decision log, way (see ``ways``), step, participant.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import psycopg

import xaqueue
from support.carrying import wait_until_it_carries


def ways(way: str) -> dict[str, Any]:
    """Options of a transaction manager. "two phases": PostgreSQL prepares, "row": its own commit decides, "carried":
    and has the message, too.
    """
    return {"two_phase": way == "two phases", "carry": way == "carried"}


def main(arguments: Sequence[str]) -> None:
    dsn, space, log, way, fatal, victim = arguments
    warm = False

    def on_step(step: str, gtrid: bytes, participant: str) -> None:
        if warm and (step, participant) == (fatal, victim):
            os.kill(os.getpid(), signal.SIGKILL)

    participants = {"ledger": lambda: psycopg.connect(dsn), "queue": lambda: xaqueue.connect(space)}
    with xaqueue.TransactionManager(log, participants, **ways(way), on_step=on_step) as manager:
        if way == "carried":
            wait_until_it_carries(manager)
        warm = True
        with manager.transaction("ledger", "queue") as tx:
            tx["ledger"].execute("insert into orders values (1)")
            tx["queue"].enqueue("orders", b"1")
            if fatal.startswith("roll"):
                tx.rollback()


if __name__ == "__main__":
    main(sys.argv[1:])
