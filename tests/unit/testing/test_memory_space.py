"""A space in memory: the same connections, the user's definitions, time that is moved, and nothing left behind."""

from __future__ import annotations

import sqlite3
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from xaqueue.endpoint import parse
from xaqueue.errors import InvalidArgument, NoReply, NotSupportedError, ResourceFailed, RetryLater, UnknownQueue
from xaqueue.message import MessageId
from xaqueue.rpc.client import reach
from xaqueue.testing import MemorySpace

RETRIES = {"orders": {"max_tries": 2, "failure_queue": "orders.failed"}, "orders.failed": {}}


def bodies(space: MemorySpace, queue: str) -> list[bytes]:
    return [message.body for message in space.messages(queue)]


def put(space: MemorySpace, queue: str, *all_bodies: bytes) -> None:
    with space.connect() as connection:
        for body in all_bodies:
            connection.enqueue(queue, body)


def test_what_is_committed_is_seen_by_others() -> None:
    with MemorySpace(["orders"]) as space:
        with space.connect() as one, space.connect() as other:
            one.enqueue("orders", b"1")
            assert other.dequeue("orders") is None
            one.commit()
            message = other.dequeue("orders")
            assert message is not None
            assert message.body == b"1"
            other.rollback()
        assert bodies(space, "orders") == [b"1"]


@pytest.mark.parametrize("sync", ["JOURNAL", "NONE", "FSYNC;DSYNC"])
def test_bodies_of_any_size(sync: str) -> None:
    large = b"x" * 3_000_000
    with MemorySpace(["orders"], sync=sync) as space:
        put(space, "orders", b"", large)
        assert bodies(space.reopen(), "orders") == [b"", large]


def test_two_phases_over_a_reopen() -> None:
    with MemorySpace(["orders"]) as space:
        with space.connect() as connection:
            xid = connection.xid(1, "g", "b")
            connection.tpc_begin(xid)
            connection.enqueue("orders", b"1")
            assert connection.tpc_prepare()
        with space.reopen("nothing").connect() as connection:
            assert connection.tpc_recover() == [xid]
            connection.tpc_commit(xid)
        assert bodies(space, "orders") == [b"1"]


def test_several_threads() -> None:
    with MemorySpace(["orders"]) as space:

        def work(number: int) -> None:
            for count in range(20):
                put(space, "orders", b"%d.%d" % (number, count))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(bodies(space, "orders"))) == 80


def test_a_worker_takes_the_space_itself() -> None:
    with MemorySpace(RETRIES) as space:
        put(space, "orders", b"good", b"bad")
        done = []

        def handle(message: xaqueue.Message, _: xaqueue.Connection) -> None:
            if message.body == b"bad":
                raise ValueError("bad")
            done.append(message.body)

        worker = xaqueue.Worker(space, "orders", handle)
        with worker, space.connect() as connection:
            failed = connection.dequeue("orders.failed", wait_s=30.0)
            assert failed is not None
            assert failed.body == b"bad"
        assert done == [b"good"]


def test_a_row_and_a_message_in_one_transaction(tmp_path: Path) -> None:
    space = MemorySpace(["a"])
    participants = {"db": lambda: sqlite3.connect(tmp_path / "rows"), "queue": space.connect}
    with space, xaqueue.TransactionManager(tmp_path / "log", participants) as manager:
        with manager.transaction() as tx:
            tx["db"].execute("create table rows (x)")
            tx["queue"].enqueue("a", b"1")
        assert bodies(space, "a") == [b"1"]


# Definitions


def test_names_are_all_that_there_is() -> None:
    with MemorySpace(["orders", "orders.failed"]) as space, pytest.raises(UnknownQueue):
        put(space, "order", b"1")


def test_without_names_any_queue_is_taken() -> None:
    with MemorySpace() as space:
        put(space, "whatever", b"1")


def test_the_queues_toml_of_a_space(tmp_path: Path) -> None:
    with xaqueue.connect(tmp_path / "space", create=True) as connection:
        connection.define("orders", order="lifo")
    text = (tmp_path / "space" / "queues.toml").read_text() + "\n[replication]\n[snapshots]\ninterval_min = 5\n"
    (tmp_path / "queues.toml").write_text(text)
    for given in (tmp_path / "space", str(tmp_path / "queues.toml"), text):
        with MemorySpace(given) as space:
            put(space, "orders", b"1", b"2")
            assert bodies(space, "orders") == [b"2", b"1"]


@pytest.mark.parametrize(
    "queues",
    [
        "no/such/file",
        "orders",
        {"a": {"max_tries": object()}},
        {"a": {"order": None}},
        {"a": {"colour": "red"}},
        ["a b"],
        "[queues.a]\ncolour = 1\n",
    ],
)
def test_definitions_that_are_refused(queues: str | list[str]) -> None:
    with pytest.raises(InvalidArgument):
        MemorySpace(queues)


def test_a_queue_is_defined_and_undefined() -> None:
    with MemorySpace(["orders"]) as space, space.connect() as connection:
        connection.define("parcels", order="lifo")
        connection.define_topic("events")
        connection.subscribe("events", "readers")
        connection.publish("events", b"1")
        connection.commit()
        with pytest.raises(RetryLater):
            connection.undefine("readers")
        connection.undefine("parcels")
        put(space.reopen(), "readers", b"2")
        assert len(bodies(space, "readers")) == 2
        with pytest.raises(UnknownQueue):
            put(space, "parcels", b"1")


# Time


def test_time_is_moved() -> None:
    with MemorySpace({"orders": {"expiry_queue": "late"}, "late": {}}) as space, space.connect() as connection:
        connection.enqueue("orders", b"later", delay=3600)
        connection.enqueue("orders", b"gone", ttl=60)
        connection.commit()
        with pytest.raises(InvalidArgument, match="seconds"):
            space.advance(-1)
        space.advance(timedelta(seconds=61))
        late = connection.dequeue("late", wait_s=30.0)
        assert late is not None
        assert late.body == b"gone"
        assert connection.dequeue("orders") is None
        connection.commit()
        space.advance(3600)
        message = connection.dequeue("orders")
        assert message is not None
        assert message.body == b"later"
        connection.rollback()


def test_who_waits_sees_time_move() -> None:
    with MemorySpace(["orders"]) as space:
        with space.connect() as connection:
            connection.enqueue("orders", b"later", delay=3600)
        found: list[bytes] = []

        def wait() -> None:
            with space.connect() as connection:
                message = connection.dequeue("orders", wait_s=60.0)
                found.append(message.body if message else b"")

        thread = threading.Thread(target=wait)
        thread.start()
        space.advance(3601)
        thread.join(60.0)
        assert found == [b"later"]


# Its end, and what it cannot do


def test_nothing_is_left_behind() -> None:
    before, spaces = set(threading.enumerate()), dict(reach.in_memory)
    with MemorySpace(RETRIES) as space, space.connect() as connection:
        connection.enqueue("orders", b"1", ttl=3600)
        connection.commit()
        assert set(threading.enumerate()) - before  # one looks for what expires
    assert set(threading.enumerate()) - before == set()  # those of others may end meanwhile
    assert reach.in_memory == spaces


def test_a_closed_space_is_refused() -> None:
    with MemorySpace(["orders"]) as space:
        connection = space.connect()
    with pytest.raises(ResourceFailed, match="closed"):
        connection.enqueue("orders", b"1")
    with pytest.raises(ResourceFailed, match="make another"):
        space.connect()
    with pytest.raises(ResourceFailed, match="make another"):
        space.reopen()
    with pytest.raises(InvalidArgument, match="in memory"):
        xaqueue.connect(space)


def test_it_is_what_xaqueue_connect_takes() -> None:
    with MemorySpace(["orders"]) as space:
        with xaqueue.connect(space.place, create=True, sync="JOURNAL") as connection:
            assert connection.is_embedded
        with pytest.raises(InvalidArgument, match="JOURNAL"):
            xaqueue.connect(space, sync="NONE")


def test_what_is_not_in_memory_is_refused() -> None:
    with MemorySpace() as space, space.connect() as connection:
        with pytest.raises(NotSupportedError, match="directory"):
            connection.snapshot()
        with pytest.raises(InvalidArgument, match="xaqueue serve"):
            parse(space.place)


def test_a_request_has_expired_once_its_client_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it was on its way: its time begins when it is there."""
    with MemorySpace(["orders", "replies"]) as space, space.connect() as client, space.connect() as worker:
        enqueue = client.enqueue

        def slow(*given: Any, **options: Any) -> MessageId:
            time.sleep(0.2)
            return enqueue(*given, **options)

        monkeypatch.setattr(client, "enqueue", slow)
        with pytest.raises(NoReply):
            client.request("orders", b"forgotten", reply_queue="replies", timeout_s=0.1)
        assert worker.dequeue("orders") is None
