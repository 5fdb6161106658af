"""Orders that leave a queue for two tables of Iceberg and one of SQL, in one transaction; the catalogue is in the
database of the latter.

An order's body is its number. All three have it, or the queue has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import text

import xaqueue
from support.node_child import FAST
from support.patience import eventually
from xaqueue.lake.iceberg import participant
from xaqueue.tm import node

SCHEMA = pa.schema([("id", pa.int64()), ("item", pa.string())])
ORDERS, AUDIT = "shop.orders", "shop.audit"
CARRIED, PREPARED, TWO_PHASES, NODE = "carried", "prepared", "two phases", "node"
"""What becomes of the queue's part: it goes with the database's row, it prepares, both do; without a directory."""
WAYS = {"sqlite": [CARRIED, PREPARED, NODE], "postgresql": [CARRIED, PREPARED, TWO_PHASES, NODE]}
EVERY = [(kind, way) for kind, ways in WAYS.items() for way in ways]
BATCH = 4
FIRST, SECOND = list(range(1, BATCH + 1)), list(range(1, 2 * BATCH + 1))
OnStep = Callable[[str, bytes, str], None]


def rows_of(numbers: list[int]) -> pa.Table:
    return pa.Table.from_pylist([{"id": n, "item": f"apple {n}"} for n in numbers], schema=SCHEMA)


class Lake:
    def __init__(self, kind: str, url: str, place: Path, way: str) -> None:
        self.kind, self.url, self.place, self.way = kind, url, place, way
        self.warehouse = place / "lake"
        self.catalog = SqlCatalog("shop", uri=url, warehouse=f"file://{self.warehouse}")

        self.orders = 0
        """So many were put into the queue, from 1 on."""

    @classmethod
    def made(cls, kind: str, url: str, place: Path, way: str) -> Lake:
        """With a queue of three batches."""
        lake = cls(kind, url, place, way)
        lake.catalog.create_namespace("shop")
        for name in (ORDERS, AUDIT):
            lake.catalog.create_table(name, schema=SCHEMA)
        with lake.catalog.engine.begin() as connection:
            connection.execute(text("create table taken (id integer primary key)"))
        xaqueue.connect(place / "space", create=True).close()
        lake.put(3 * BATCH)
        return lake

    def put(self, count: int) -> None:
        numbers = range(self.orders + 1, self.orders + count + 1)
        with xaqueue.connect(self.place / "space") as queue:
            queue.enqueue_many("orders", [str(n).encode() for n in numbers])
        self.orders += count

    def manager(self, on_step: OnStep | None = None, **options: Any) -> xaqueue.TransactionManager:
        parties = {
            "db": self.catalog.engine,
            "lake": participant(self.catalog, "db"),
            "queue": str(self.place / "space"),
            **options.pop("more", {}),
        }
        options = {"recovery_interval_s": 0.1, "on_step": on_step, **options}
        if self.way == NODE:
            node.Timing = lambda: FAST  # type: ignore[assignment, attr-defined, misc]
            return xaqueue.TransactionManager(parties, **options)
        options |= {"two_phase": self.way == TWO_PHASES, "carry": self.way == CARRIED}
        return xaqueue.TransactionManager(self.place / "decisions", parties, **options)

    def take(self, tx: Any, count: int = BATCH) -> list[int]:
        """So many of the next orders, out of the queue and into the three tables."""
        numbers = [int(one.body) for one in tx["queue"].dequeue_many("orders", count)]
        if numbers:
            tx["lake"].load_table(ORDERS).append(rows_of(numbers))
            tx["db"].execute(text("insert into taken (id) values (:id)"), [{"id": n} for n in numbers])
            tx["lake"].load_table(AUDIT).append(rows_of(numbers))
        return numbers

    # What others see

    def table(self, name: str = ORDERS) -> list[int]:
        found = self.catalog.load_table(name).scan().to_arrow()
        return sorted(found["id"].to_pylist())

    def taken(self) -> list[int]:
        with self.catalog.engine.connect() as connection:
            return sorted(n for (n,) in connection.execute(text("select id from taken")))

    def left(self) -> list[int]:
        with xaqueue.connect(self.place / "space") as queue:
            return sorted(int(one.body) for one in queue.browse("orders"))

    def judge(self) -> list[int]:
        """Each order is in one place, or in all of the others. Returns those that are taken."""
        taken = self.taken()
        assert self.table(ORDERS) == self.table(AUDIT) == taken
        assert sorted(taken + self.left()) == list(range(1, self.orders + 1))
        return taken

    def waiting(self) -> bool:
        """Whether a transaction of PostgreSQL waits for another one."""
        with self.catalog.engine.connect() as connection:
            return bool(connection.scalar(text("select count(*) from pg_locks where not granted")))

    def in_doubt(self) -> list[Any]:
        with xaqueue.connect(self.place / "space") as queue:
            found: list[Any] = list(queue.tpc_recover())
        if self.kind == "postgresql":
            own = "select gid from pg_prepared_xacts where database = current_database()"
            with self.catalog.engine.connect() as connection:
                found += connection.scalars(text(own))
        return found

    def settle(self) -> None:
        """As the next life does."""
        with self.manager() as tm:
            tm.recover(60.0)
            eventually(lambda: not self.in_doubt())
