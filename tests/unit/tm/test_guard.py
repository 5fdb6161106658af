"""Whoever ends the transaction of a lent connection is refused, before anything is committed where the driver asks."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, nullcontext, suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from xaqueue import ProtocolError, RolledBack, TransactionManager


class Failed(Exception):
    """The application's own."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.execute("create table t (n integer unique)")
        connection.commit()
    return tmp_path / "db"


@pytest.fixture
def opened(path: Path, tmp_path: Path) -> Iterator[TransactionManager]:
    with manager(path, tmp_path) as tm:
        yield tm


def manager(path: Path, place: Path, connect: Callable[[], Any] | None = None, **options: Any) -> TransactionManager:
    queue = place / "queue"
    xaqueue.connect(queue, create=True).close()
    connect = connect or (lambda: sqlite3.connect(path, timeout=0.1))
    return TransactionManager(place / "log", {"db": connect, "queue": lambda: xaqueue.connect(queue)}, **options)


def rows(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [n for (n,) in connection.execute("select n from t order by n")]


def messages(place: Path) -> int:
    with xaqueue.connect(place / "queue") as connection:
        return len(list(connection.browse("orders")))


def by_block(db: sqlite3.Connection) -> None:
    with db:
        db.execute("insert into t values (2)")


def by_failed_block(db: sqlite3.Connection) -> None:
    with db:
        raise Failed


def by_level(db: sqlite3.Connection) -> None:
    db.isolation_level = None


ENDINGS: list[Callable[[sqlite3.Connection], object]] = [
    *(by_block, by_failed_block, by_level),
    lambda db: db.commit(),
    lambda db: db.rollback(),
    lambda db: db.executescript("insert into t values (3)"),
    *(
        lambda db, statement=statement: db.execute(statement)
        for statement in ("COMMIT", "/* at once */ end transaction", "rollback")
    ),
]


def swallow(end: Callable[[Any], object], db: Any) -> None:
    with suppress(sqlite3.Error, Failed):
        end(db)


def swallow_and_go_on(end: Callable[[Any], object], db: Any) -> None:
    swallow(end, db)
    with suppress(sqlite3.Error):
        db.execute("insert into t values (4)")


@pytest.mark.parametrize(("end", "carry"), list(product(range(len(ENDINGS)), (True, False))))
@pytest.mark.parametrize("go_on", [None, swallow, swallow_and_go_on])
def test_sqlite_commits_nothing_of_its_own(
    path: Path, tmp_path: Path, end: int, carry: bool, go_on: Callable[[Callable[[Any], object], Any], None] | None
) -> None:
    def work(tx: Any) -> None:
        tx["queue"].enqueue("orders", b"1")
        db = tx["db"]
        db.execute("insert into t values (1)")
        try:
            (ENDINGS[end] if go_on is None else lambda db: go_on(ENDINGS[end], db))(db)
        finally:
            assert rows(path) == []
            with pytest.raises(ProtocolError, match="leave out BEGIN"):
                tx["db"]

    with manager(path, tmp_path, carry=carry) as tm:
        with pytest.raises((ProtocolError, RolledBack), match="leave out BEGIN, commit"), tm.transaction() as tx:
            work(tx)
        assert (rows(path), messages(tmp_path)) == ([], 0)
        with tm.transaction() as tx:
            tx["db"].execute("insert into t values (5)")
            tx["queue"].enqueue("orders", b"5")
    assert (rows(path), messages(tmp_path)) == ([5], 1)


@pytest.mark.parametrize(
    "statements",
    [
        ("savepoint a", "insert into t values (1)", "release a"),
        ("with one (n) as (select 1) insert into t select n from one",),
        ("create table u (n integer)", "insert into t values (1)"),
        ("pragma user_version = 7", "insert into t values (1)"),
    ],
    ids=lambda statements: statements[0][:12],
)
def test_what_would_be_a_transaction_of_its_own_is_none(
    opened: TransactionManager, path: Path, statements: tuple[str, ...]
) -> None:
    """sqlite3 begins before some statements only: what comes first in the block is in the transaction, too."""

    def schema() -> object:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute("select name from sqlite_master where name = 'u'").fetchall(), connection.execute(
                "pragma user_version"
            ).fetchone()

    def work(tx: Any) -> None:
        for statement in statements:
            tx["db"].execute(statement)
        assert (rows(path), schema()) == ([], before)
        raise Failed

    before = schema()
    with pytest.raises(Failed), opened.transaction() as tx:
        work(tx)
    assert (rows(path), schema()) == ([], before)
    with opened.transaction() as tx:
        for statement in statements:
            tx["db"].execute(statement)
    assert rows(path) == [1]


def test_a_savepoint_is_rolled_back_to(opened: TransactionManager, path: Path) -> None:
    with opened.transaction() as tx:
        for statement in ("savepoint a", "insert into t values (1)", "rollback to a", "insert into t values (2)"):
            tx["db"].execute(statement)
    assert rows(path) == [2]


def test_what_sqlite_has_rolled_back_by_itself_does_not_go_on(
    opened: TransactionManager, path: Path, tmp_path: Path
) -> None:
    def work(tx: Any) -> None:
        db = tx["db"]
        tx["queue"].enqueue("orders", b"1")
        db.execute("insert into t values (1)")
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("insert or rollback into t values (1)")
        with suppress(sqlite3.Error):
            db.execute("insert into t values (2)")

    with pytest.raises(RolledBack, match="db"), opened.transaction() as tx:
        work(tx)
    assert (rows(path), messages(tmp_path)) == ([], 0)


def test_foreign_keys_are_not_left_off_in_silence(opened: TransactionManager) -> None:
    with (
        pytest.raises(ProtocolError, match=r"foreign_keys does nothing .* the function that opens"),
        opened.transaction() as tx,
    ):
        tx["db"].execute("pragma foreign_keys = on")


def test_the_level_of_the_connection_is_kept(path: Path, tmp_path: Path) -> None:
    """Also in the first transaction, whose database gets its table by another connection."""
    connect = lambda: sqlite3.connect(path, timeout=0.1, isolation_level="IMMEDIATE")  # noqa: E731
    with manager(path, tmp_path, connect) as tm, tm.transaction("db") as tx:
        with closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(sqlite3.OperationalError, match="lock"):
            other.execute("insert into t values (2)")
        tx["db"].execute("insert into t values (1)")
        tx["queue"].enqueue("orders", b"1")
    assert rows(path) == [1]


@pytest.mark.parametrize(("options", "is_alone"), [({}, True), ({"isolation_level": "DEFERRED"}, False)], ids=str)
def test_nobody_writes_between_what_is_read_and_what_is_written(
    path: Path, tmp_path: Path, options: dict[str, Any], is_alone: bool
) -> None:
    """SQLite would refuse the second at once, without its timeout; nor may who removes rows of decisions."""
    connect = lambda: sqlite3.connect(path, timeout=0, **options)  # noqa: E731
    with manager(path, tmp_path, connect) as tm, closing(sqlite3.connect(path, timeout=0)) as other:
        with tm.transaction() as tx:
            assert tx["db"].execute("select count(*) from t").fetchone() == (0,)
            refused = pytest.raises(sqlite3.OperationalError, match="locked") if is_alone else nullcontext()
            with refused:
                other.execute("begin immediate")
            other.rollback()
            tx["db"].execute("insert into t values (1)")
            tx["queue"].enqueue("orders", b"1")
        assert (rows(path), messages(tmp_path)) == ([1], 1)


def test_where_it_cannot_begin_nothing_is_lent(path: Path, tmp_path: Path) -> None:
    """And it is tried again with the next use."""
    connect = lambda: sqlite3.connect(path, timeout=0, isolation_level="IMMEDIATE")  # noqa: E731
    with manager(path, tmp_path, connect) as tm:
        with tm.transaction("db"):
            pass
        with closing(sqlite3.connect(path)) as other, tm.transaction() as tx:
            other.execute("begin immediate")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                tx["db"]
            other.rollback()
            tx["db"].execute("insert into t values (1)")
    assert rows(path) == [1]


class Driver:
    """A driver of another database, in Python: its methods end whatever is open."""

    def __init__(self, path: Path) -> None:
        self._real = sqlite3.connect(path)

    def cursor(self) -> sqlite3.Cursor:
        return self._real.cursor()

    def commit(self) -> None:
        self._real.commit()

    def rollback(self) -> None:
        self._real.rollback()

    def begin(self) -> None:
        self._real.commit()

    def close(self) -> None:
        self._real.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        (self.commit if kind is None else self.rollback)()


@pytest.mark.parametrize("method", ["commit", "rollback", "begin", "__exit__"])
def test_methods_of_other_drivers_are_refused(path: Path, tmp_path: Path, method: str) -> None:
    def work(tx: Any, caught: tuple[type[Exception], ...]) -> None:
        tx["queue"].enqueue("orders", b"1")
        tx["db"].cursor().execute("insert into t values (1)")
        with suppress(*caught):
            getattr(tx["db"], method)(*([None] * 3 if method == "__exit__" else []))

    with manager(path, tmp_path, lambda: Driver(path)) as tm:
        for caught in ((), (ProtocolError,)):
            with pytest.raises((ProtocolError, RolledBack), match="leave out BEGIN, commit"), tm.transaction() as tx:
                work(tx, caught)
            assert (rows(path), messages(tmp_path)) == ([], 0)
        with tm.transaction() as tx:
            tx["queue"].enqueue("orders", b"1")
            tx["db"].cursor().execute("insert into t values (1)")
    assert (rows(path), messages(tmp_path)) == ([1], 1)


AWAITED: list[Callable[[Any], Awaitable[object]]] = [
    lambda db: db.commit(),
    lambda db: db.rollback(),
    lambda db: db.execute("COMMIT"),
    lambda db: db.executescript("select 1"),
]


@pytest.mark.parametrize("end", range(len(AWAITED)))
@pytest.mark.parametrize("is_caught", [False, True])
def test_in_a_task(path: Path, tmp_path: Path, end: int, is_caught: bool) -> None:
    aiosqlite = pytest.importorskip("aiosqlite", reason="aiosqlite is not installed")

    async def work(tm: TransactionManager) -> None:
        async with tm.transaction("db", "queue") as tx:
            tx["queue"].enqueue("orders", b"1")
            await tx["db"].execute("insert into t values (1)")
            with suppress(*([sqlite3.Error] if is_caught else [])):
                await AWAITED[end](tx["db"])
            with pytest.raises(ProtocolError, match="leave out"):
                tx["db"]

    async def main() -> None:
        async with manager(path, tmp_path, lambda: aiosqlite.connect(path)) as tm:
            with pytest.raises((ProtocolError, RolledBack), match="leave out BEGIN, commit"):
                await work(tm)
            assert rows(path) == []
            async with tm.transaction("db", "queue") as tx:
                tx["queue"].enqueue("orders", b"2")
                await tx["db"].execute("insert into t values (2)")

    asyncio.run(main())
    assert (rows(path), messages(tmp_path)) == ([2], 1)
