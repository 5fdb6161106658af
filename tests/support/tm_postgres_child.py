"""One global transaction over PostgreSQL and a queue space, in a process that dies at a named step.

Arguments: dsn, space, decision log, "row" where PostgreSQL's own commit decides, step, participant.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import psycopg

import xaqueue


def main(arguments: Sequence[str]) -> None:
    dsn, space, log, way, fatal, victim = arguments

    def on_step(step: str, gtrid: bytes, participant: str) -> None:
        if (step, participant) == (fatal, victim):
            os.kill(os.getpid(), signal.SIGKILL)

    participants = {"ledger": lambda: psycopg.connect(dsn), "queue": lambda: xaqueue.connect(space)}
    with (
        xaqueue.TransactionManager(log, participants, two_phase=way != "row", on_step=on_step) as manager,
        manager.transaction("ledger", "queue") as tx,
    ):
        tx["ledger"].execute("insert into orders values (1)")
        tx["queue"].enqueue("orders", b"1")
        if fatal.startswith("roll"):
            tx.rollback()


if __name__ == "__main__":
    main(sys.argv[1:])
