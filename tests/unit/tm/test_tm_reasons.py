"""What ends a global transaction is told to its queues: their dead letters say it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import xaqueue
from support.contract_connection import bodies, put
from support.patience import eventually
from support.served import ServerThread

pytestmark = pytest.mark.usefixtures("quiet")
TOLD = "LookupError: 'no row of this order'"


@pytest.fixture
def space(tmp_path: Path) -> Path:
    root = tmp_path / "space"
    with xaqueue.connect(root, create=True, sync="NONE") as connection:
        connection.define("failed")
        connection.define("orders", max_tries=1, failure_queue="failed")
        put(connection, b"x")
    return root


@pytest.fixture
def served(space: Path, tmp_path: Path) -> Iterator[str]:
    server = ServerThread(space, tmp_path / "socket", sync="NONE")
    yield server.url
    server.stop()


def detail(place: Path | str) -> str:
    with xaqueue.connect(place) as connection:
        eventually(lambda: bodies(connection, "failed") == [b"x"])
        (moved,) = connection.browse("failed")
    assert moved.origin is not None
    return moved.origin.detail


def fail(tm: xaqueue.TransactionManager, by: str) -> None:
    with suppress(LookupError), tm.transaction() as tx:
        if by == "dequeue":
            assert tx["queue"].dequeue("orders") is not None
        else:
            (delivery,) = tx["queue"].receive("orders")
            tx.accept(delivery)
        raise LookupError("'no row of this order'")


async def fail_in_a_task(tm: xaqueue.TransactionManager, *, is_async: bool) -> None:
    with suppress(LookupError):
        async with tm.transaction("queue") as tx:
            taken = tx["queue"].dequeue("orders")
            assert (await taken if is_async else taken) is not None
            raise LookupError("'no row of this order'")


@pytest.mark.parametrize("by", ["dequeue", "accept"])
def test_embedded(space: Path, tmp_path: Path, by: str) -> None:
    with (
        xaqueue.connect(space),
        xaqueue.TransactionManager(tmp_path / "log", {"queue": lambda: xaqueue.connect(space)}) as tm,
    ):
        fail(tm, by)
        assert detail(space) == TOLD


@pytest.mark.parametrize("by", ["dequeue", "accept"])
def test_served(served: str, tmp_path: Path, by: str) -> None:
    with xaqueue.TransactionManager(tmp_path / "log", {"queue": lambda: xaqueue.connect(served)}) as tm:
        fail(tm, by)
        assert detail(served) == TOLD


@pytest.mark.parametrize("is_async", [True, False], ids=["awaited", "in threads"])
def test_in_a_task(served: str, tmp_path: Path, is_async: bool) -> None:
    connect = xaqueue.connect_async if is_async else xaqueue.connect

    async def work() -> None:
        tm = xaqueue.TransactionManager(tmp_path / "log", {"queue": lambda: connect(served)})
        await fail_in_a_task(tm, is_async=is_async)
        await asyncio.to_thread(tm.close)

    asyncio.run(work())
    assert detail(served) == TOLD
