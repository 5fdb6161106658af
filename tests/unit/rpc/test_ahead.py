"""A consumer's next message comes with the commit of its last one, and nobody commits what nobody has seen."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

import xaqueue
from support.served import PATIENCE_S, ServerThread
from xaqueue.connection import Connection
from xaqueue.core.owner import definitions_file
from xaqueue.errors import Error, OutcomeUnknown, RolledBack
from xaqueue.features.opening import create
from xaqueue.rpc.client import ahead
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.plain import WholeSession
from xaqueue.rpc.server import calls
from xaqueue.xid import Xid

QUEUES = "[queues.orders]\n[queues.others]\n[queues.grouped]\n"
X = Xid(1, b"gtrid", b"bqual")


PROMPT_S = ahead.PROMPT_S


@pytest.fixture(autouse=True)
def whoever_comes_is_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine that has much to do, and for the first message."""
    monkeypatch.setattr(ahead, "PROMPT_S", math.inf)


@pytest.fixture(params=["NONE", "JOURNAL"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    root = tmp_path / "space"
    create(root)
    definitions_file.write_definitions(root, QUEUES)
    made = ServerThread(root, tmp_path / "socket", sync=request.param)
    yield made
    made.stop()


@pytest.fixture
def connection(server: ServerThread) -> Iterator[Connection]:
    with xaqueue.connect(server.url) as made:
        for number in range(4):
            made.enqueue("orders", b"%d" % number)
        made.commit()
        yield made
        made.rollback()


@pytest.fixture
def other(server: ServerThread) -> Iterator[Connection]:
    with xaqueue.connect(server.url) as made:
        yield made
        made.rollback()


def manager_of(connection: Connection) -> RemoteManager:
    return cast(RemoteManager, connection._manager)


def is_ahead(connection: Connection) -> bool:
    return manager_of(connection)._ahead is not None


def first_free(other: Connection, queue: str = "orders") -> tuple[bytes, int] | None:
    """Of the message that another one would take now: its body and how often it was tried."""
    found = other.dequeue(queue)
    if found is not None:
        manager_of(other)._ask("return", other._transaction.xid)
        other.rollback()
    return None if found is None else (found.body, found.tries)


def committed_first(connection: Connection) -> Iterator[xaqueue.Message]:
    """A consumer that has committed one message, and not come for the next."""
    consumer = connection.consume("orders", wait_s=0)
    assert next(consumer).body == b"0"
    connection.commit()
    assert is_ahead(connection)
    return consumer


def test_a_message_takes_one_round_trip(connection: Connection) -> None:
    sent, bodies = [], []
    for message in connection.consume("orders", wait_s=0):
        connection.commit()
        bodies.append(message.body)
        assert manager_of(connection)._socket is not None
        sent.append(manager_of(connection)._socket.sends)  # type: ignore[union-attr]
    assert bodies == [b"0", b"1", b"2", b"3"]
    assert [after - before for before, after in pairwise(sent)] == [1, 1, 1]
    assert connection.dequeue("orders") is None


def test_who_ends_gives_it_back_at_once_and_untried(connection: Connection, other: Connection) -> None:
    for message in connection.consume("orders"):
        connection.commit()
        if message.body == b"1":
            break
    assert not is_ahead(connection)
    assert first_free(other) == (b"2", 0)
    assert not connection.in_transaction


def test_it_is_held_until_somebody_comes_for_it(connection: Connection, other: Connection) -> None:
    consumer = committed_first(connection)
    assert first_free(other) == (b"2", 0)
    assert not connection.in_transaction
    assert next(consumer).body == b"1"
    connection.rollback()
    assert [(one.body, one.tries) for one in connection.browse("orders")] == [(b"1", 1), (b"2", 0), (b"3", 0)]


CALLS: dict[str, Callable[[Connection], object]] = {
    "enqueue": lambda connection: connection.enqueue("others", b"x"),
    "enqueue_many": lambda connection: connection.enqueue_many("others", [b"x"]),
    "dequeue": lambda connection: connection.dequeue("others"),
    "dequeue_many": lambda connection: connection.dequeue_many("others", 2),
    "receive": lambda connection: connection.receive("others"),
    "tpc_begin": lambda connection: connection.tpc_begin(X),
    "tpc_recover": lambda connection: connection.tpc_recover(),
    "outcome": lambda connection: connection.outcome(X),
    "define": lambda connection: connection.define("others", description="x"),
    "browse": lambda connection: list(connection.browse("others")),
    "another consumer": lambda connection: list(connection.consume("others", wait_s=0)),
    "a block": lambda connection: connection.transaction().__enter__(),
    "close": lambda connection: connection.close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_whatever_else_is_asked_gives_it_back_first(server: ServerThread, other: Connection, name: str) -> None:
    connection = xaqueue.connect(server.url)
    connection.enqueue_many("orders", [b"0", b"1"])
    connection.commit()
    consumer = committed_first(connection)
    try:
        CALLS[name](connection)
        assert not is_ahead(connection)
        assert first_free(other) == (b"1", 0)
        if connection.in_transaction:
            connection.tpc_commit() if name == "tpc_begin" else connection.commit()
        assert first_free(other) == (b"1", 0)
        if name != "close":
            assert next(consumer).body == b"1"
            connection.commit()
    finally:
        connection.close()


def test_who_does_something_else_between_is_not_asked_ahead_each_time(connection: Connection) -> None:
    asked = []
    for message in connection.consume("orders", wait_s=0):
        connection.commit()
        asked.append(is_ahead(connection))
        connection.enqueue("others", message.body)
        connection.commit()
    assert asked == [True, False, False, False]


def test_an_empty_queue_is_waited_for(connection: Connection, other: Connection) -> None:
    found: list[bytes] = []
    asked = []
    for message in connection.consume("orders", wait_s=PATIENCE_S):
        connection.commit()
        found.append(message.body)
        asked.append(is_ahead(connection))
        if len(found) >= 4:
            late = threading.Timer(0.05, lambda: (other.enqueue("orders", b"late"), other.commit()))
            late.start()
        if len(found) == 7:
            break
    assert found == [b"0", b"1", b"2", b"3", b"late", b"late", b"late"]
    assert asked == [True, True, True, True, False, True, False]
    late.join()


def test_what_is_asked_for_is_over_with_the_wait(connection: Connection) -> None:
    assert [message.body for message in connection.consume("orders", wait_s=0.01) if not connection.commit()] == [
        *(b"0", b"1", b"2", b"3")
    ]
    assert connection.in_transaction  # as with a dequeue that has found nothing
    connection.rollback()


def test_an_uncommitted_message_asks_for_nothing(connection: Connection, other: Connection) -> None:
    consumer = connection.consume("orders")
    assert [next(consumer).body, next(consumer).body] == [b"0", b"1"]
    connection.rollback()
    assert not is_ahead(connection)
    assert first_free(other) == (b"0", 1)
    assert next(consumer).body == b"0"
    consumer.close()  # type: ignore[attr-defined]
    connection.commit()
    assert not is_ahead(connection)
    assert first_free(other) == (b"1", 1)


@pytest.mark.parametrize("begin", [lambda one: one.tpc_begin(X), lambda one: one.enqueue("others", b"")])
def test_a_transaction_of_somebody_else_brings_nothing(
    connection: Connection, begin: Callable[[Connection], object]
) -> None:
    begin(connection)
    consumer = connection.consume("orders")
    assert next(consumer).body == b"0"
    connection.commit() if connection._transaction.xid != X else connection.tpc_commit()
    assert not is_ahead(connection)


def test_the_next_of_a_group_is_begun_behind_the_commit(connection: Connection, other: Connection) -> None:
    for body in (b"a", b"b", b"c"):
        connection.enqueue("grouped", body, group="g")
    connection.commit()
    consumer = connection.consume("grouped")
    assert next(consumer).body == b"a"
    assert other.dequeue("grouped") is None
    connection.commit()
    assert is_ahead(connection)
    assert other.dequeue("grouped") is None
    assert next(consumer).body == b"b"
    assert other.dequeue("grouped") is None
    other.rollback()
    connection.commit()
    consumer.close()  # type: ignore[attr-defined]
    assert first_free(other, "grouped") == (b"c", 0)


def test_a_refused_commit_acknowledges_nothing(connection: Connection, other: Connection, server: ServerThread) -> None:
    consumer = connection.consume("orders")
    assert next(consumer).body == b"0"

    def doom() -> None:
        for branch in server.space.branches.values():
            branch.rollback_reason = RolledBack("by the test")

    server.call(doom)
    with pytest.raises(RolledBack, match="by the test"):
        connection.commit()
    assert not connection.in_transaction
    consumer.close()  # type: ignore[attr-defined]
    assert [(one.body, one.tries) for one in other.browse("orders")] == [(b"0", 1), (b"1", 0), (b"2", 0), (b"3", 0)]


def test_who_may_not_any_more_is_told(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in connection.consume("orders"):
        other.dequeue_many("orders", 4)
        other.commit()
        connection.commit()
        other.undefine("orders")
        break
    connection.define("orders")
    connection.enqueue_many("orders", [b"0", b"1"])
    connection.commit()
    consumer = connection.consume("orders", wait_s=0)
    next(consumer)
    monkeypatch.setitem(calls.METHODS, "dequeue", calls.METHODS["dequeue"]._replace(call=_refuse))
    monkeypatch.setattr(WholeSession, "try_work", lambda *_: None)
    connection.commit()
    with pytest.raises(Error, match="refused by the test"):
        list(consumer)


def _refuse(*_: Any) -> None:
    raise xaqueue.errors.QueueReserved("refused by the test")


def test_what_is_old_is_asked_for_again(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = committed_first(connection)
    monkeypatch.setattr(ahead, "PROMPT_S", -1.0)
    first = manager_of(connection)._ahead
    assert next(consumer).body == b"1"
    assert first is not None
    assert connection._transaction.xid != first.xid
    connection.rollback()


@pytest.mark.parametrize("is_known", [False, True], ids=["from the first on", "once it is seen"])
def test_who_works_behind_his_commit_holds_nothing_meanwhile(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    consumer = connection.consume("orders", wait_s=0)
    left = [b"0", b"1", b"2", b"3"]
    if is_known:  # that it comes at once; then one is held, until it is known better
        next(consumer)
        connection.commit()
        next(consumer)
        connection.commit()
        assert is_ahead(connection)
        del left[:2]
    monkeypatch.setattr(ahead, "PROMPT_S", PROMPT_S)
    if is_known:
        time.sleep(2 * PROMPT_S)
    while left:
        assert next(consumer).body == left.pop(0)
        connection.commit()
        assert not is_ahead(connection)
        assert first_free(other) == ((left[0], 0) if left else None)
        time.sleep(2 * PROMPT_S)


def test_who_comes_at_once_is_asked_ahead_from_his_second_message_on(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "PROMPT_S", PATIENCE_S)
    asked = []
    for _ in connection.consume("orders", wait_s=0):
        connection.commit()
        asked.append(is_ahead(connection))
    assert asked == [False, True, True, True]


def test_a_lost_connection_takes_it_along(connection: Connection, server: ServerThread, other: Connection) -> None:
    consumer = committed_first(connection)
    stream = manager_of(connection)._socket
    assert stream is not None
    stream.close()
    assert next(consumer).body in (b"1", b"2")  # by another connection, once the server knows that this one is gone
    connection.rollback()
    consumer.close()  # type: ignore[attr-defined]
    assert [one.body for one in other.browse("orders")] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("how", ["in a cycle", "in a call"])
def test_the_collector_may_end_a_consumer_anywhere(connection: Connection, other: Connection, how: str) -> None:
    consumer: Any = committed_first(connection)
    if how == "in a call":
        with connection._entered:
            del consumer
        assert is_ahead(connection)
        connection.outcome(X)
    else:
        circle: list[Any] = [consumer]
        circle.append(circle)
        del consumer, circle
        gc.collect()
    assert not is_ahead(connection)
    assert first_free(other) == (b"1", 0)


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("step", ["commit", "next", "other"])
def test_an_interrupt_loses_and_doubles_nothing(
    connection: Connection, other: Connection, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = connection.consume("orders", wait_s=PATIENCE_S)
    assert next(consumer).body == b"0"
    if step != "commit":
        connection.commit()
    stream = manager_of(connection)._socket
    assert stream is not None

    def interrupted(*_: Any) -> Any:
        raise Interrupt

    steps = {"commit": connection.commit, "next": lambda: next(consumer), "other": connection.tpc_recover}
    with monkeypatch.context() as patched:
        patched.setattr(stream, "_receive", interrupted)
        with pytest.raises(Interrupt):
            steps[step]()
    if step == "commit":
        connection.commit()  # asks what became of it
    consumer = connection.consume("orders", wait_s=PATIENCE_S)
    rest = []
    for message in consumer:
        rest.append(message.body)
        connection.commit()
        if len(rest) == 3:
            break
    assert sorted(rest) == [b"1", b"2", b"3"]
    assert list(other.browse("orders")) == []


def test_what_is_returned_is_of_the_branch_that_one_is_in(connection: Connection) -> None:
    manager = manager_of(connection)
    with pytest.raises(xaqueue.errors.ProtocolError, match="no branch"):
        manager.call("return", X)
    connection.tpc_begin(X)
    assert connection.dequeue("orders") is not None
    connection.enqueue("others", b"goes")
    with pytest.raises(xaqueue.errors.ProtocolError, match="nothing of"):
        manager._ask("return", Xid(1, b"another", b""))
    manager._ask("return", X)
    connection.tpc_rollback()
    assert [one.tries for one in connection.browse("orders")] == [0, 0, 0, 0]
    assert list(connection.browse("others")) == []


def test_asyncio_does_the_same(server: ServerThread, connection: Connection, other: Connection) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(server.url) as one:
            sent = []
            stream = manager_of(one._connection)._socket
            assert stream is not None
            async for message in one.consume("orders"):
                await one.commit()
                sent.append(stream.sends)
                if message.body == b"2":
                    break
            assert [after - before for before, after in pairwise(sent)] == [1, 1]
            await asyncio.sleep(0)  # the loop ends the generator
            while is_ahead(one._connection):
                await asyncio.sleep(0.001)
            assert first_free(other) == (b"3", 0)
            consumer = one.consume("orders", wait_s=0)
            assert (await anext(consumer)).body == b"3"
            await one.rollback()
            await consumer.aclose()

    asyncio.run(work())


def test_asyncio_gives_it_back_behind_a_break_before_its_commit(
    server: ServerThread, connection: Connection, other: Connection
) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(server.url) as one:
            async for _ in one.consume("orders"):
                break
            await one.commit()
            while is_ahead(one._connection):
                await asyncio.sleep(0.001)
            assert first_free(other) == (b"1", 0)
            consumer = one.consume("orders", wait_s=PATIENCE_S)
            await anext(consumer)
            await one.commit()
            waiting = asyncio.ensure_future(anext(consumer))
            assert (await waiting).body == b"2"
            await one.rollback()

    asyncio.run(work())


def test_asyncio_cancelled_between_loses_nothing(
    server: ServerThread, connection: Connection, other: Connection
) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(server.url) as one:
            found = []
            consumer = one.consume("orders", wait_s=PATIENCE_S)
            for _ in range(4):
                found.append((await anext(consumer)).body)
                await one.commit()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(consumer)
            with pytest.raises((RolledBack, OutcomeUnknown)):
                await one.commit()
            await one.rollback()
            assert found == [b"0", b"1", b"2", b"3"]

    asyncio.run(work())
    assert list(other.browse("orders")) == []


def test_asyncio_a_consumer_ends_while_another_task_waits(server: ServerThread, connection: Connection) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(server.url) as one:
            consumer = one.consume("orders")
            await anext(consumer)
            await one.commit()
            waiting = asyncio.ensure_future(one.dequeue("others", wait_s=PATIENCE_S))
            while not one.in_transaction:
                await asyncio.sleep(0.001)
            await consumer.aclose()
            assert not waiting.done()
            await asyncio.to_thread(lambda: (connection.enqueue("others", b"late"), connection.commit()))
            found = await waiting
            assert found is not None
            assert found.body == b"late"
            await one.rollback()

    asyncio.run(work())
