"""A COMMIT or ROLLBACK of the user's is told at the next use or at the end, whatever follows: nobody else commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

import xaqueue
from support.postgres import prepared, reached
from xaqueue import ProtocolError, RolledBack, TransactionManager

WAYS: dict[str, dict[str, Any]] = {"carried": {}, "row": {"carry": False}, "two phases": {"two_phase": True}}


@pytest.fixture
def place(dsn: str, tmp_path: Path) -> Path:
    with reached(dsn, autocommit=True) as own:
        own.execute("create table t (n int)")
    xaqueue.connect(tmp_path / "queue", create=True).close()
    return tmp_path


def manager(dsn: str, place: Path, **options: Any) -> TransactionManager:
    connect: Callable[[], Any] = options.pop("connect", lambda: psycopg.connect(dsn))
    participants = {"db": connect, "queue": lambda: xaqueue.connect(place / "queue")}
    return TransactionManager(place / "log", participants, **options)


def rows(dsn: str) -> list[int]:
    with reached(dsn) as own:
        return [n for (n,) in own.execute("select n from t order by n")]


def messages(place: Path) -> int:
    with xaqueue.connect(place / "queue") as connection:
        return len(list(connection.browse("orders")))


def work(tx: Any, statement: str, *, goes_on: bool) -> None:
    tx["queue"].enqueue("orders", b"1")
    db = tx["db"]
    db.execute("insert into t values (1)")
    db.execute(statement)
    if "chain" not in statement:  # behind which a transaction is open again
        with pytest.raises(ProtocolError, match="was ended by a COMMIT or ROLLBACK"):
            tx["db"]
    if goes_on:
        db.execute("insert into t values (2)")


@pytest.mark.parametrize(("way", "goes_on"), list(product(WAYS, (False, True))))
@pytest.mark.parametrize("statement", ["commit", "rollback", "/* at once */ commit and chain"])
def test_nobody_else_commits(dsn: str, place: Path, way: str, goes_on: bool, statement: str) -> None:
    with manager(dsn, place, **WAYS[way]) as tm:
        with tm.transaction() as tx:
            tx["queue"].enqueue("orders", b"0")
            tx["db"].execute("insert into t values (0)")
        with pytest.raises(RolledBack, match="'db' was ended by a COMMIT or ROLLBACK"), tm.transaction() as tx:
            work(tx, statement, goes_on=goes_on)
        assert tm.recover(30).complete
        assert tm.in_doubt() == []
    assert (rows(dsn), messages(place), prepared(dsn)) == ([0] if statement == "rollback" else [0, 1], 1, [])


def by_connection(db: psycopg.Connection) -> None:
    with db:
        db.execute("insert into t values (2)")


@pytest.mark.parametrize(
    "end",
    [by_connection, lambda db: db.commit(), lambda db: setattr(db, "autocommit", True)],
    ids=["with connection", "commit", "autocommit"],
)
@pytest.mark.parametrize("way", WAYS)
def test_psycopg_commits_nothing_of_its_own(
    dsn: str, place: Path, way: str, end: Callable[[psycopg.Connection], object]
) -> None:
    def work(tx: Any) -> None:
        tx["queue"].enqueue("orders", b"1")
        tx["db"].execute("insert into t values (1)")
        end(tx["db"])

    with manager(dsn, place, **WAYS[way]) as tm:
        with pytest.raises(psycopg.ProgrammingError), tm.transaction() as tx:
            work(tx)
        assert (rows(dsn), messages(place)) == ([], 0)


@pytest.mark.parametrize("way", WAYS)
def test_blocks_of_psycopg_are_savepoints(dsn: str, place: Path, way: str) -> None:
    """The first in the transaction, too, which chooses what it sees behind its begin."""
    with manager(dsn, place, **WAYS[way]) as tm, tm.transaction() as tx:
        tx["db"].execute("set transaction isolation level serializable")
        for number in (1, 2):
            with tx["db"].transaction(force_rollback=number == 1):
                tx["db"].execute("insert into t values (%s)", (number,))
            assert rows(dsn) == []
        tx["queue"].enqueue("orders", b"1")
    assert (rows(dsn), messages(place)) == ([2], 1)


@pytest.mark.parametrize("statement", ["commit", "commit and chain"])
def test_in_a_task(dsn: str, place: Path, statement: str) -> None:
    async def work(tm: TransactionManager) -> None:
        async with tm.transaction("db", "queue") as tx:
            tx["queue"].enqueue("orders", b"1")
            db = tx["db"]
            await db.execute("insert into t values (1)")
            await db.execute(statement)
            if statement == "commit":
                with pytest.raises(ProtocolError, match="was ended by a COMMIT"):
                    tx["db"]
            await db.execute("insert into t values (2)")

    async def main() -> None:
        async with manager(dsn, place, connect=lambda: psycopg.AsyncConnection.connect(dsn)) as tm:
            with pytest.raises(RolledBack, match="'db' was ended by a COMMIT or ROLLBACK"):
                await work(tm)

    asyncio.run(main())
    assert (rows(dsn), messages(place)) == ([1], 0)
