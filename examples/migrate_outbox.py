"""Moves a transactional outbox into a queue: each row once, while the programs that write it still run.

    python examples/migrate_outbox.py DIRECTORY

makes an outbox in SQLite first, with a program that writes it as it did before and one that writes the queue already.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import xaqueue

OUTBOX = "create table outbox (id integer primary key, topic text, payload text)"


def relay(tm: xaqueue.TransactionManager, count: int = 100) -> int:
    """Takes rows out of the outbox and puts them into the queues that they name, both or neither. How many."""
    with tm.transaction() as tx:
        rows = tx["db"].execute("select id, topic, payload from outbox order by id limit ?", (count,)).fetchall()
        for number, topic, payload in rows:
            tx["queue"].enqueue(topic, payload.encode())
            tx["db"].execute("delete from outbox where id = ?", (number,))
    return len(rows)


def order_as_before(db: sqlite3.Connection, item: str) -> None:
    with db:
        db.execute("insert into orders (item) values (?)", (item,))
        db.execute("insert into outbox (topic, payload) values ('orders', ?)", (item,))


def order(tm: xaqueue.TransactionManager, item: str) -> None:
    with tm.transaction() as tx:
        tx["db"].execute("insert into orders (item) values (?)", (item,))
        tx["queue"].enqueue("orders", item.encode())


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    database, space = directory / "shop.db", directory / "space"
    with closing(sqlite3.connect(database)) as db:
        db.execute(OUTBOX)
        db.execute("create table orders (id integer primary key, item text)")
        order_as_before(db, "two apples")
        participants = {"db": lambda: sqlite3.connect(database), "queue": lambda: xaqueue.connect(space, create=True)}
        with xaqueue.TransactionManager(directory / "decisions", participants) as tm:
            print("relayed", relay(tm))  # in the place of the old relay
            order_as_before(db, "three pears")  # by a program that was not changed yet
            order(tm, "four plums")  # by one that was
            while count := relay(tm):  # until nobody writes the outbox any more: then drop the table
                print("relayed", count)
    with xaqueue.connect(space) as conn:
        print(*(message.body.decode() for message in conn.browse("orders")), sep=", ")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
