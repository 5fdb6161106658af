"""A message on lease is settled with a global transaction: with all participants, or it has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.contract_connection import QUEUES, bodies, put
from support.contract_leases import tries
from support.served import ServerThread
from xaqueue import TransactionManager
from xaqueue.connection import Connection
from xaqueue.errors import InvalidArgument, LeaseExpired, ProtocolError
from xaqueue.features.opening import create

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def spaces(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in ("one", "two")]
    for path in found:
        create(path, sync="NONE")
        (path / "queues.toml").write_text(f"{QUEUES}\n")
    return found


@pytest.fixture
def user(spaces: list[Path]) -> Iterator[Connection]:
    with xaqueue.connect(spaces[0]) as connection:
        put(connection, b"a", b"b")
        yield connection


@pytest.fixture
def tm(spaces: list[Path], tmp_path: Path) -> Iterator[TransactionManager]:
    one, two = spaces
    participants = {"one": lambda: xaqueue.connect(one), "two": lambda: xaqueue.connect(two)}
    with closing(TransactionManager(tmp_path / "log", participants)) as made:
        yield made


def test_it_goes_with_the_transaction(tm: TransactionManager, user: Connection, spaces: list[Path]) -> None:
    first, second = user.receive("orders", 2)
    with tm.transaction("one", "two") as tx:
        tx["two"].enqueue("replies", b"of a")
        tx.accept(first, "one")
        tx["one"].accept(second)
    assert bodies(user) == []
    with xaqueue.connect(spaces[1]) as other:
        assert bodies(other, "replies") == [b"of a"]
    with pytest.raises(ProtocolError, match="settled already"):
        first.ack()


def test_the_only_queue_needs_no_name(tm: TransactionManager, user: Connection) -> None:
    first, second = user.receive("orders", 2)
    with tm.transaction("one") as tx:
        tx.accept(first)
    assert bodies(user) == [b"b"]
    with tm.transaction() as tx:
        with pytest.raises(ProtocolError, match="0 queues have joined"):
            tx.accept(second)
        tx["one"].enqueue("replies", b"x")
        tx["two"].enqueue("replies", b"x")
        with pytest.raises(ProtocolError, match="2 queues have joined"):
            tx.accept(second)
        with pytest.raises(InvalidArgument, match="no participant"):
            tx.accept(second, "three")
        with pytest.raises(LeaseExpired):
            tx.accept(second, "two")  # not that space's
    second.ack()
    assert (bodies(user), bodies(user, "replies")) == ([], [b"x"])


def test_a_transaction_that_fails_has_tried_it(tm: TransactionManager, user: Connection) -> None:
    (held,) = user.receive("orders")
    tx = tm.transaction("one")
    with tx:
        tx.accept(held)
        tx.rollback()
    assert tries(user) == [1, 0]


@pytest.mark.parametrize("is_async", [False, True])
def test_in_a_task(spaces: list[Path], tmp_path: Path, is_async: bool) -> None:
    """Of a server by an async connection, or of a space that this process has open."""
    server = ServerThread(spaces[0], tmp_path / "socket", sync="NONE") if is_async else None

    async def work() -> None:
        one = (lambda: xaqueue.connect_async(server.url)) if server else (lambda: xaqueue.connect(spaces[0]))
        tm = TransactionManager(tmp_path / "log", {"one": one, "two": lambda: xaqueue.connect(spaces[1])})
        user: Any = await xaqueue.connect_async(server.url) if server else xaqueue.connect(spaces[0])
        sent = [user.enqueue("orders", body) for body in (b"a", b"b", b"c")]
        for each in (*sent, user.commit()):
            if server:
                await each
        found = user.receive("orders", 3)
        first, second, third = await found if server else found
        async with tm.transaction("one", "two") as tx:
            await tx["one"].enqueue("replies", b"x") if server else tx["one"].enqueue("replies", b"x")
            tx["two"].enqueue("replies", b"x")
            await tx.accept(first, "one")
        async with tm.transaction("one") as tx:
            await tx.accept(second)
        await third.ack() if server else third.ack()
        assert first.message.body == b"a"
        with pytest.raises(ProtocolError):
            await tx.accept(first)
        await user.close() if server else user.close()
        await asyncio.to_thread(tm.close)

    asyncio.run(work())
    if server is not None:
        server.stop()
    with xaqueue.connect(spaces[0]) as connection:
        assert (bodies(connection), bodies(connection, "replies")) == ([], [b"x"])
