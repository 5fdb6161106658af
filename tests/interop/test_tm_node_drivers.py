"""Nodes of a database that is opened by each way there is: a driver, an Engine, in threads and in tasks."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

import xaqueue
from support.node_child import FAST
from xaqueue import TransactionManager
from xaqueue.errors import RolledBack
from xaqueue.tm.node import DatabaseNode

ENGINES = {
    "engine of psycopg": "postgresql+psycopg",
    "engine of sqlite3": "sqlite",
    "engine of pymysql": "mysql+pymysql",
    "async engine of psycopg": "postgresql+psycopg",
    "async engine of aiosqlite": "sqlite+aiosqlite",
}
THREADS = ["psycopg", "sqlite3", "pymysql", "engine of psycopg", "engine of sqlite3", "engine of pymysql"]
TASKS = ["async psycopg", "async engine of psycopg", "async engine of aiosqlite"]
HOUR_S = 3600.0
INSERT = "insert into orders values ({})"


class Place:
    def __init__(self, request: pytest.FixtureRequest, path: Path, way: str) -> None:
        self.space = path / "space"
        xaqueue.connect(self.space, create=True).close()
        (self.space / "queues.toml").write_text("[queues.q]\n")
        if "psycopg" in way:
            dsn = request.getfixturevalue("dsn")
            words = conninfo_to_dict(dsn)
            where = f"://{words['user']}@/{words['dbname']}?host={words['host']}"
            self.plain: Callable[[], Any] = partial(psycopg.connect, dsn)
            self.awaited: Callable[[], Any] = partial(psycopg.AsyncConnection.connect, dsn)
        elif "sqlite" in way:
            where = f":///{path / 'db'}"
            self.plain = partial(sqlite3.connect, path / "db")
        else:
            import pymysql

            socket = request.getfixturevalue("mariadb_socket")
            name = request.getfixturevalue("mariadb_name")
            where = f"://root@localhost/{name}?unix_socket={socket}"
            self.plain = partial(pymysql.connect, unix_socket=socket, user="root", database=name)
        self.engines: list[Any] = []
        if way in ENGINES:
            make = create_async_engine if "async" in way else create_engine
            self.engines = [make(f"{ENGINES[way]}{where}") for _ in range(2)]
        self.is_async, self.way = "async" in way, way
        self.select("create table orders (n int)")

    def parties(self, number: int) -> dict[str, Any]:
        """Of each of two processes, by an Engine of its own."""
        opens = self.engines[number] if self.engines else self.awaited if self.is_async else self.plain
        return {"db": opens, "queue": partial(xaqueue.connect, self.space)}

    def select(self, statement: str) -> list[Any]:
        connection = self.plain()
        try:
            cursor = connection.cursor()
            cursor.execute(statement)
            found = list(cursor.fetchall()) if statement.startswith("select") else []
            connection.commit()
            return found
        finally:
            connection.close()

    def count(self, table: str) -> int:
        return int(self.select(f"select count(*) from xaqueue_{table}")[0][0])

    def agrees(self, *numbers: int) -> bool:
        with xaqueue.connect(self.space) as connection:
            messages = sorted(int(message.body) for message in connection.browse("q"))
            return messages == sorted(n for (n,) in self.select("select n from orders")) == list(numbers)


@pytest.fixture
def mariadb_name(mariadb_socket: str) -> Iterator[str]:
    from support.mariadb import database

    with database(mariadb_socket) as name:
        yield name


@pytest.fixture(params=[*THREADS, *TASKS])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if "aiosqlite" in request.param:
        pytest.importorskip("aiosqlite", reason="aiosqlite is not installed")
    monkeypatch.setattr("xaqueue.tm.node.Timing", lambda: FAST)
    return Place(request, tmp_path, request.param)


def node_of(manager: TransactionManager) -> DatabaseNode:
    node = manager._log
    assert isinstance(node, DatabaseNode)
    return node


async def put(manager: TransactionManager, number: int) -> None:
    """In a thread as in a task."""
    statement = INSERT.format(number)
    if node_of(manager)._deciding().loop._is_used:
        async with manager.transaction() as tx:
            database, queue = await tx.join("db"), await tx.join("queue")
            await database.execute(text(statement) if hasattr(database, "exec_driver_sql") else statement)
            queue.enqueue("q", b"%d" % number)
        return
    with manager.transaction() as tx:
        lent = tx["db"]
        if hasattr(lent, "exec_driver_sql"):
            lent.exec_driver_sql(statement)
        else:
            cursor = lent.cursor()
            cursor.execute(statement)
            cursor.close()
        tx["queue"].enqueue("q", b"%d" % number)


async def live(place: Place) -> None:
    """One process is silent; another one ends it, and the first goes on under a new name."""
    silent = TransactionManager(place.parties(0), recovery_interval_s=0.1)
    other = TransactionManager(place.parties(1), recovery_interval_s=0.1)
    if not place.is_async:
        silent_name = await _be_ended(place, silent, other)
        silent.close()
        other.close()
    else:
        async with silent, other:
            silent_name = await _be_ended(place, silent, other)
        for engine in place.engines:
            await engine.dispose()
    for engine in place.engines if not place.is_async else ():
        engine.dispose()
    assert place.agrees(1, 2, 3, 4)
    assert (silent_name,) in [tuple(row) for row in place.select("select node from xaqueue_ended")]


async def _be_ended(place: Place, silent: TransactionManager, other: TransactionManager) -> str:
    await put(silent, 1)
    await put(other, 2)
    node = node_of(silent)
    name = node.node
    node.turn, turn = lambda: None, node.turn  # type: ignore[method-assign]
    while await asyncio.to_thread(place.count, "ended") == 0:
        await asyncio.sleep(0.05)
    node._signed_s += HOUR_S  # it does not know, as one that was stopped within its transaction
    with pytest.raises(RolledBack):
        await put(silent, 3)
    node._signed_s -= HOUR_S
    node.turn = turn  # type: ignore[method-assign]
    while not await _is_put(silent, 3):  # in a task another thread takes the name
        await asyncio.sleep(0.05)
    assert node.node != name
    await put(other, 4)
    return name


async def _is_put(manager: TransactionManager, number: int) -> bool:
    with suppress(RolledBack):
        await put(manager, number)
        return True
    return False


def test_each_way_of_opening(place: Place) -> None:
    asyncio.run(live(place))
