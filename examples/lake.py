"""Orders leave a queue for a table of Iceberg and for one of SQL, in one transaction.

    python examples/lake.py DIRECTORY

Makes a queue space, a database of SQLite and a table of Iceberg in the directory; the catalogue is in the database, as
it may be in PostgreSQL. One batch fails when all is written: its orders are in the queue again, and no reader has seen
them in a table.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import text

import xaqueue
from xaqueue.lake.iceberg import participant

SCHEMA = pa.schema([("item", pa.string()), ("count", pa.int64())])
BATCH = 100


def archive(tm: xaqueue.TransactionManager, fails: bool = False) -> int:
    with tm.transaction() as tx:
        orders = tx["queue"].dequeue_many("orders", BATCH)
        rows = pa.Table.from_pylist([json.loads(order.body) for order in orders], schema=SCHEMA)
        tx["lake"].load_table("shop.orders").append(rows)
        tx["db"].execute(text("insert into batches (orders) values (:orders)"), {"orders": len(orders)})
        if fails:
            raise ConnectionError
        return len(orders)


def batches(tm: xaqueue.TransactionManager) -> Iterator[int]:
    while done := archive(tm):
        yield done
        if done < BATCH:
            return


def main(place: Path) -> None:
    catalog = SqlCatalog("shop", uri=f"sqlite:///{place}/shop.db", warehouse=f"file://{place}/lake")
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", schema=SCHEMA)
    with catalog.engine.begin() as connection:
        connection.execute(text("create table batches (number integer primary key, orders integer)"))
    with xaqueue.connect(place / "space", create=True) as queue:
        queue.enqueue_many("orders", [json.dumps({"item": "apples", "count": n}).encode() for n in range(250)])
    lake = participant(catalog, "db")
    with xaqueue.TransactionManager({"db": catalog.engine, "lake": lake, "queue": place / "space"}) as tm:
        try:
            archive(tm, fails=True)
        except ConnectionError:
            print("failed: rows in the lake:", count_rows(catalog))
        print("batches:", *batches(tm))
    with catalog.engine.connect() as connection:
        print("in SQL:", connection.scalar(text("select sum(orders) from batches")), "orders")
    with xaqueue.connect(place / "space") as queue:
        print("in the lake:", count_rows(catalog), "rows; in the queue:", len(list(queue.browse("orders"))))
    catalog.close()


def count_rows(catalog: SqlCatalog) -> int:
    return int(catalog.load_table("shop.orders").scan().to_arrow().num_rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
