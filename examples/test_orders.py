"""Tests of a program that makes parcels of orders.

    python -m pytest examples/test_orders.py

The program is ``take``, ``pack`` and ``pack_all``; it would stand in a module of its own. QUEUES is its queues.toml.
"""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from xaqueue.testing import Crashed, MemorySpace, every_crash

QUEUES = """
[queues.orders]
max_tries = 3
failure_queue = "orders.failed"

[queues."orders.failed"]

[queues.parcels]
"""
pytestmark = pytest.mark.xaqueue(QUEUES)


def take(tm: xaqueue.TransactionManager, order: str) -> None:
    with tm.transaction() as tx:
        tx["db"].execute("insert into orders values (?)", [order])
        tx["queue"].enqueue("orders", order.encode())


def pack(message: xaqueue.Message, tx: Any) -> None:
    if not message.body:
        raise ValueError("an order of nothing")
    tx.enqueue("parcels", b"parcel of " + message.body)


def pack_all(space: MemorySpace | str) -> None:
    with xaqueue.Worker(space, "orders", pack, until_empty=True) as worker:
        worker.join()


def put(space: MemorySpace | str, order: bytes) -> None:
    with xaqueue.connect(space) as connection:
        connection.enqueue("orders", order)


def bodies(space: MemorySpace, queue: str) -> list[bytes]:
    return [message.body for message in space.messages(queue)]


def test_an_order_becomes_a_parcel(queue_space: MemorySpace) -> None:
    put(queue_space, b"apples")
    pack_all(queue_space)
    assert bodies(queue_space, "parcels") == [b"parcel of apples"]
    assert bodies(queue_space, "orders") == []


def test_an_order_of_nothing_is_set_aside(queue_space: MemorySpace) -> None:
    put(queue_space, b"")
    with queue_space.connect() as connection, xaqueue.Worker(queue_space, "orders", pack):
        failed = connection.dequeue("orders.failed", wait_s=30)
    assert failed is not None
    assert failed.origin is not None
    assert failed.origin.queue == "orders"


def test_a_delayed_order_waits(queue_space: MemorySpace) -> None:
    with queue_space.connect() as connection:
        connection.enqueue("orders", b"apples", delay=3600)
    pack_all(queue_space)
    assert bodies(queue_space, "parcels") == []
    queue_space.advance(3600)
    pack_all(queue_space)
    assert bodies(queue_space, "parcels") == [b"parcel of apples"]


def test_no_power_loss_loses_a_parcel_or_makes_two() -> None:
    for crash in every_crash(QUEUES):
        put(crash.space, b"apples")
        with crash:
            pack_all(crash.space)
        pack_all(crash.space)  # the program starts again
        assert bodies(crash.space, "parcels") == [b"parcel of apples"], crash


def test_no_power_loss_parts_an_order_from_its_row(tmp_path: Path) -> None:
    for crash in every_crash(QUEUES):
        home = tmp_path / f"{crash.call} {crash.kept}"  # a database of its own for each
        home.mkdir()
        with closing(sqlite3.connect(home / "db")) as db:
            db.execute("create table orders (item)")
            participants: dict[str, Any] = {"db": partial(sqlite3.connect, home / "db"), "queue": crash.space.connect}
            with crash, xaqueue.TransactionManager(home / "tm", participants) as tm:
                take(tm, "apples")
            with xaqueue.TransactionManager(home / "tm", participants) as tm:  # the program starts again
                assert tm.recover(timeout_s=30).complete
            rows = [item.encode() for (item,) in db.execute("select item from orders")]
            assert bodies(crash.space, "orders") == rows, crash


def test_one_power_loss(queue_space: MemorySpace, crash_after: Any) -> None:
    put(queue_space, b"apples")
    crash_after(0)
    with pytest.raises(Crashed):
        pack_all(queue_space)
    assert bodies(queue_space.reopen("nothing"), "orders") == [b"apples"]


def test_a_server(queue_server: str) -> None:
    put(queue_server, b"apples")
    pack_all(queue_server)
    with xaqueue.connect(queue_server) as connection:
        assert [message.body for message in connection.browse("parcels")] == [b"parcel of apples"]
