"""A savepoint undoes rows and messages together, whoever has set it: the transaction, one in its block, or
an Engine's own Session."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from sqlalchemy import create_engine, text
from sqlalchemy import exc as sa
from sqlalchemy.ext.asyncio import create_async_engine

import xaqueue
from support.crash_cases import FULL
from support.served import ServerThread
from support.sqlalchemy_scene import ROW, TWO_PHASES, WAYS, Base, Order, Shop, take
from xaqueue.contrib.sqlalchemy import participant
from xaqueue.errors import ProtocolError, RolledBack

RUNS = 3_400 if FULL else 20
EVERY = [(kind, way) for kind, ways in WAYS.items() for way in ways]


class RefusedError(Exception):
    """Of the work in a block."""


def over(*kinds: tuple[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("sql_shop", kinds, indirect=True, ids=["-".join(kind) for kind in kinds])


def insert(tx: Any, number: int) -> None:
    tx["queue"].enqueue("orders", str(number).encode())
    tx["db"].execute(text("insert into orders (id) values (:id)"), {"id": number})


def books(shop: Shop) -> tuple[list[int], list[int]]:
    shop.settle()
    return shop.rows(), sorted(shop.messages())


def in_block(block: Any, *calls: Callable[[], object]) -> None:
    with block:
        for call in calls:
            call()


def refuse() -> None:
    raise RefusedError


def undo(block: Any = None) -> None:
    raise psycopg.Rollback(block)


@over(*EVERY)
@pytest.mark.parametrize("session", [True, False])
def test_what_is_refused_in_a_savepoint_is_undone_at_both(sql_shop: Shop, session: bool) -> None:
    with sql_shop.manager(session=session).transaction() as tx:
        for number in (1, 2, 2, 3):
            with suppress(sa.IntegrityError), tx.savepoint():
                insert(tx, number)
    assert books(sql_shop) == ([1, 2, 3], [1, 2, 3])


@over(*EVERY)
@pytest.mark.parametrize("session", [True, False])
def test_a_nested_block_of_sqlalchemy_reaches_the_queue(sql_shop: Shop, session: bool) -> None:
    """In its own and in ours, nested in each other; a flush that fails is undone there by the Session itself."""
    with sql_shop.manager(session=session).transaction() as tx:
        for number in (1, 2, 2, 3):
            with suppress(sa.IntegrityError), tx["db"].begin_nested():
                insert(tx, number)
        with pytest.raises(RefusedError):
            in_block(
                tx["db"].begin_nested(),
                lambda: insert(tx, 4),
                lambda: in_block(tx.savepoint(), lambda: insert(tx, 5)),
                lambda: in_block(tx["db"].begin_nested(), lambda: insert(tx, 6)),
                refuse,
            )
        with tx.savepoint() as savepoint, tx["db"].begin_nested():
            insert(tx, 8)
        savepoint_of_all = tx.savepoint()
        insert(tx, 9)
        for _ in range(2):
            savepoint_of_all.rollback()
            insert(tx, 10)
        assert savepoint.is_over
    assert books(sql_shop) == ([1, 2, 3, 8, 10], [1, 2, 3, 8, 10])


class Atomic:
    """Nests as ``atomic()`` of Django: each block is a savepoint, which is released also where it was rolled back."""

    def __init__(self, create: Callable[[str], Any], roll_back: Callable[[str], Any], release: Callable[[str], Any]):
        self._create, self._roll_back, self._release = create, roll_back, release
        self._ids: list[str] = []

    def __call__(self) -> Atomic:
        return self

    def __enter__(self) -> None:
        self._ids.append(f"s{threading.get_ident()}_x{next(NUMBERS)}")
        self._create(self._ids[-1])

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        savepoint = self._ids.pop()
        if error is not None:
            self._roll_back(savepoint)
        self._release(savepoint)


NUMBERS = count()


def nest(tx: Any, atomic: Atomic, put: Callable[[Any, int], None], refusal: type[Exception]) -> None:
    """Of 1 to 9, all but 4 to 6 stay."""
    for number in (1, 2, 2, 3):
        with suppress(refusal), atomic():
            put(tx, number)
    with suppress(RefusedError), atomic():
        put(tx, 4)
        with atomic():
            put(tx, 5)
        with suppress(refusal), atomic(), atomic():
            put(tx, 1)
        refuse()
    with atomic():
        with suppress(RefusedError), atomic():
            put(tx, 6)
            refuse()
        put(tx, 7)
    put(tx, 8)
    with atomic(), atomic():
        put(tx, 9)


@over(*EVERY)
@pytest.mark.parametrize("session", [True, False])
def test_what_nests_as_django_does_by_statements(sql_shop: Shop, session: bool) -> None:
    """On what an Engine has lent."""
    quote = "`" if sql_shop.kind == "mariadb" else '"'
    with sql_shop.manager(session=session).transaction() as tx:
        said = [
            lambda name, verb=verb: tx["db"].execute(text(f"{verb} SAVEPOINT {quote}{name}{quote}".strip()))
            for verb in ("", "ROLLBACK TO", "RELEASE")
        ]
        nest(tx, Atomic(*said), insert, sa.IntegrityError)
    assert books(sql_shop) == ([1, 2, 3, 7, 8, 9],) * 2


@over(*EVERY)
def test_objects_of_a_session_go_with_their_savepoint(sql_shop: Shop) -> None:
    with sql_shop.manager().transaction() as tx:
        tx["db"].add(Order(id=1))
        tx["queue"].enqueue("orders", b"1")
        for number in (2, 1):
            with suppress(sa.IntegrityError), tx["db"].begin_nested():
                tx["queue"].enqueue("orders", b"%d" % number)
                tx["db"].add(Order(id=number))
                tx["db"].flush()
        with pytest.raises(RefusedError):
            in_block(tx.savepoint(), lambda: tx["db"].add(Order(id=3)), refuse)
        for number in (4, 1, 5):
            with suppress(sa.IntegrityError), tx.savepoint():
                take(tx, number)
                tx["db"].flush()
        with pytest.raises(sa.IntegrityError):
            in_block(tx.savepoint(), lambda: take(tx, 1))
    assert books(sql_shop) == ([1, 2, 4, 5],) * 2


@over(*EVERY)
def test_a_transaction_in_the_block_of_another_one(sql_shop: Shop) -> None:
    """What a Session flushes at its end, and its database refuses, is undone alone, as in its own begin_nested."""
    tm = sql_shop.manager()
    with tm.transaction():
        for number in (1, 2, 2, 3):
            with suppress(sa.IntegrityError), tm.transaction() as tx:
                take(tx, number)
        with suppress(RefusedError), tm.transaction() as tx:
            take(tx, 4)
            with tm.transaction() as deep:
                take(deep, 5)
            with pytest.raises(sa.IntegrityError):
                in_block(tx["db"].begin_nested(), lambda: take(tx, 1))
            refuse()
        with tm.transaction("queue", independent=True) as own:
            own["queue"].enqueue("orders", b"6")
        with tm.transaction() as tx, tx.savepoint():
            take(tx, 7)
    assert books(sql_shop) == ([1, 2, 3, 7], [1, 2, 3, 6, 7])


@over(*EVERY)
def test_who_joins_in_a_savepoint_begins_again(sql_shop: Shop) -> None:
    with sql_shop.manager().transaction() as tx:
        for _ in range(2):
            with pytest.raises(RefusedError):
                in_block(tx.savepoint(), lambda: in_block(tx.savepoint(), lambda: insert(tx, 1)), refuse)
        with tx.savepoint():
            insert(tx, 2)
    assert books(sql_shop) == ([2], [2])


@over(("sqlite", ROW), ("postgresql", TWO_PHASES))
def test_a_savepoint_that_fails_at_one_rolls_all_back(sql_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    tm = sql_shop.manager()
    tx = tm.transaction()
    tx.__enter__()
    insert(tx, 1)
    savepoint = tx.savepoint()
    insert(tx, 2)
    monkeypatch.setattr(tx["queue"]._manager, "cut", refuse)
    with pytest.raises(TypeError):
        savepoint.rollback()
    with pytest.raises(RolledBack, match="savepoint"):
        tx.__exit__(None, None, None)
    with pytest.raises(ProtocolError):
        savepoint.release()
    assert books(sql_shop) == ([], [])


# Drivers themselves


@pytest.fixture(params=["sqlite3", "psycopg", "psycopg in two phases"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A transaction manager over a driver's connection and a queue, and what reads the rows."""
    with_postgres = request.param != "sqlite3"
    connect: Callable[[], Any] = lambda: sqlite3.connect(tmp_path / "db")  # noqa: E731
    if with_postgres:
        dsn = request.getfixturevalue("dsn")
        connect = lambda: psycopg.connect(dsn)  # noqa: E731
    own = connect()
    own.execute("create table orders (id integer primary key)")
    own.commit()
    xaqueue.connect(tmp_path / "space", create=True).close()
    parties = {"db": connect, "queue": lambda: xaqueue.connect(tmp_path / "space")}
    with xaqueue.TransactionManager(tmp_path / "log", parties, two_phase="two" in request.param) as tm:
        yield tm, own
    own.close()


def counts(tm: Any, own: Any) -> tuple[list[int], list[int]]:
    rows = own.execute("select id from orders order by id").fetchall()
    own.rollback()
    with tm.transaction() as tx:
        messages = [int(message.body) for message in tx["queue"].browse("orders")]
    return [row[0] for row in rows], messages


def put(tx: Any, number: int) -> None:
    tx["queue"].enqueue("orders", b"%d" % number)
    tx["db"].execute(f"insert into orders values ({number})")


def test_a_drivers_connection(pair: Any) -> None:
    tm, own = pair
    with tm.transaction() as tx:
        for block, numbers in ((tx.savepoint, (1, 2, 2, 3)), (tm.transaction, (4, 4, 5, 3))):
            for number in numbers:
                with suppress(sqlite3.IntegrityError, psycopg.IntegrityError), block():
                    put(tx, number)
    assert counts(tm, own) == ([1, 2, 3, 4, 5],) * 2


def test_what_nests_as_django_does_by_savepoints_of_the_transaction(pair: Any) -> None:
    """On a driver's connection: see the guide for what Django itself wants of it."""
    tm, own = pair
    made: dict[str, Any] = {}
    refusal = sqlite3.IntegrityError if isinstance(own, sqlite3.Connection) else psycopg.IntegrityError
    with tm.transaction() as tx:
        atomic = Atomic(
            lambda name: made.__setitem__(name, tx.savepoint()),
            lambda name: made[name].rollback(),
            lambda name: made[name].release(),
        )
        with suppress(RefusedError), tm.transaction():
            nest(tx, atomic, put, refusal)
            refuse()
        nest(tx, atomic, put, refusal)
    assert counts(tm, own) == ([1, 2, 3, 7, 8, 9],) * 2


ENDS = st.sampled_from(["left", "raised", "commit", "rollback"])
BLOCKS = st.tuples(
    ENDS,
    st.recursive(
        st.lists(st.sampled_from(["add", "add", "take"]), max_size=4),
        lambda inner: st.lists(st.one_of(st.sampled_from(["add", "take"]), st.tuples(ENDS, inner)), max_size=5),
        max_leaves=12,
    ),
)
"""How a block ends, and what is done in it; of that some are blocks."""


def play(tm: Any, end: str, steps: list[Any], left: list[int], added: list[int]) -> tuple[list[int], list[int]]:
    """In a block; returns what may be taken behind it, and what was added. A row goes with its message."""
    before = [*left], [*added]
    with suppress(RefusedError), tm.transaction() as tx:
        for step in steps:
            if step == "add":
                put(tx, number := next(NUMBERS))
                added.append(number)
            elif step == "take":
                message = tx["queue"].dequeue("orders")
                assert (message and int(message.body)) == (left[0] if left else None)
                if left:
                    tx["db"].execute(f"delete from orders where id = {left.pop(0)}")
            else:
                how, inner = step
                left, added = play(tm, how, inner, left, added)
        if end == "raised":
            refuse()
        elif end != "left":
            getattr(tx, end)()
    return (left, added) if end in ("left", "commit") else before


def test_blocks_in_blocks_as_a_model_has_them(pair: Any) -> None:
    tm, own = pair
    there: list[int] = []

    @settings(max_examples=RUNS, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(block=BLOCKS)
    def each(block: tuple[str, list[Any]]) -> None:
        left, added = play(tm, *block, [*there], [])
        there[:] = left + added
        assert counts(tm, own) == (there, there)

    each()


@pytest.mark.parametrize("pair", ["psycopg", "psycopg in two phases"], indirect=True)
def test_a_transaction_block_of_psycopg_reaches_the_queue(pair: Any) -> None:
    tm, own = pair
    for _ in range(2):  # on the same connection
        with tm.transaction() as tx:
            db = tx["db"]
            for number in (1, 2, 2, 3):
                with suppress(psycopg.IntegrityError), db.transaction():
                    put(tx, number)
            in_block(db.transaction(), lambda: put(tx, 4), undo)
            with db.transaction() as outer:
                in_block(db.transaction("named"), lambda: put(tx, 5), lambda: undo(outer))
            with db.transaction(force_rollback=True), tx.savepoint():
                put(tx, 6)
            put(tx, 7)
            assert tx.savepoints == ()
        assert counts(tm, own) == ([1, 2, 3, 7], [1, 2, 3, 7])
        own.execute("truncate orders")
        own.commit()
        with tm.transaction() as tx:
            tx["queue"].dequeue_many("orders", 9)
    with pytest.raises(ProtocolError):
        in_block(db.transaction(), refuse)


def test_a_transaction_block_of_psycopg_in_a_task(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn) as own:
        own.execute("create table orders (id integer primary key)")
    xaqueue.connect(tmp_path / "space", create=True).close()

    async def work() -> None:
        parties: dict[str, Any] = {
            "db": lambda: psycopg.AsyncConnection.connect(dsn),
            "queue": lambda: xaqueue.connect(tmp_path / "space"),
        }
        async with xaqueue.TransactionManager(tmp_path / "log", parties) as tm, tm.transaction(*parties) as tx:
            for block, numbers in (
                (tx["db"].transaction, (4, 4)),
                (tx.savepoint, (1, 2, 2, 3)),
                (tm.transaction, (5, 4, 5)),
            ):
                for number in numbers:
                    with suppress(psycopg.IntegrityError):
                        async with block():
                            tx["queue"].enqueue("orders", b"%d" % number)
                            await tx["db"].execute(f"insert into orders values ({number})")

    asyncio.run(work())
    with psycopg.connect(dsn) as own, xaqueue.connect(tmp_path / "space") as queue:
        rows = [row[0] for row in own.execute("select id from orders order by id")]
        assert (rows, sorted(int(message.body) for message in queue.browse("orders"))) == ([1, 2, 3, 4, 5],) * 2


# In tasks


def test_in_tasks(tmp_path: Path) -> None:
    """An AsyncEngine, and a queue behind a server, or in this process."""
    engine = create_engine(f"sqlite:///{tmp_path}/db")
    Base.metadata.create_all(engine)
    xaqueue.connect(tmp_path / "space", create=True).close()

    async def work(queue: Any, number: int) -> None:
        db = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/db")
        parties = {"db": participant(db, session=True), "queue": queue}
        async with xaqueue.TransactionManager(tmp_path / "log", parties) as tm, tm.transaction("db", "queue") as tx:
            for block in (tx.savepoint, tx["db"].begin_nested, tm.transaction):
                for is_refused in (True, False):
                    with suppress(RefusedError):
                        async with block():
                            sent = tx["queue"].enqueue("orders", b"%d" % is_refused)
                            if asyncio.iscoroutine(sent):
                                await sent
                            tx["db"].add(Order(item=str(is_refused)))
                            if block is not tm.transaction:  # whose end flushes
                                await tx["db"].flush()
                            if is_refused:
                                raise RefusedError
            for body in (b"0", b"1"):
                with suppress(sa.IntegrityError):
                    async with tm.transaction():
                        if asyncio.iscoroutine(sent := tx["queue"].enqueue("orders", body)):
                            await sent
                        tx["db"].add(Order(id=number, item="False"))
        await db.dispose()

    asyncio.run(work(lambda: xaqueue.connect(tmp_path / "space"), 100))
    served = ServerThread(tmp_path / "space", tmp_path / "socket")
    try:
        asyncio.run(work(lambda: xaqueue.connect_async(served.url), 200))
    finally:
        served.stop()
    with engine.connect() as connection, xaqueue.connect(tmp_path / "space") as queue:
        items = connection.execute(text("select item from orders")).scalars().all()
        assert items == ["False"] * 8
        assert [message.body for message in queue.browse("orders")] == [b"0"] * 8
    engine.dispose()
