"""An AsyncEngine's participant in async transactions: over aiosqlite, which decides, and psycopg, which may prepare."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, event, text
from sqlalchemy import exc as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool

import xaqueue
from support import postgres
from support.awaited import seconds_of
from support.sqlalchemy_scene import Base, Order
from xaqueue import TransactionManager
from xaqueue.contrib.sqlalchemy import participant
from xaqueue.errors import InvalidArgument, ProtocolError, RolledBack
from xaqueue.tm.coordinator import TraceStep as Step
from xaqueue.xa import Code, Outcome

WAYS: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "sqlite by a row": {"carry": False},
    "postgresql": {},
    "postgresql by a row": {"carry": False},
    "postgresql in two phases": {"two_phase": True},
}
PATIENCE_S = 30.0


class Own(AsyncSession):
    """Of the application."""


GIVEN: list[tuple[Any, type[Any]]] = [
    (False, AsyncConnection),
    (True, AsyncSession),
    (Own, Own),
    (async_sessionmaker(expire_on_commit=False), AsyncSession),
]


class Shop:
    """Orders behind an AsyncEngine, and a message of each."""

    def __init__(self, place: Path, way: str, dsn: str) -> None:
        self.way, self.dsn, self._place = way, dsn, place
        words = conninfo_to_dict(dsn)
        self.url, plain = f"sqlite+aiosqlite:///{place / 'shop.db'}", f"sqlite:///{place / 'shop.db'}"
        if dsn:
            self.url = plain = f"postgresql+psycopg://{words['user']}@/{words['dbname']}?host={words['host']}"
        self._witness = create_engine(plain)
        Base.metadata.create_all(self._witness)
        self._kept = xaqueue.connect(place / "space", create=True)

    def manager(self, engine: AsyncEngine, session: Any = False, **options: Any) -> TransactionManager:
        parties: dict[str, Any] = {
            "db": participant(engine, session=session),
            "queue": lambda: xaqueue.connect(self._place / "space"),
        }
        return TransactionManager(self._place / "log", parties, **{**WAYS[self.way], **options})

    def rows(self) -> list[int]:
        with self._witness.connect() as own:
            return list(own.execute(text("select id from orders order by id")).scalars())

    def messages(self) -> list[int]:
        return sorted(int(message.body) for message in self._kept.browse("orders"))

    def close(self) -> None:
        self._kept.close()
        self._witness.dispose()


@pytest.fixture(params=WAYS)
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    dsn = request.getfixturevalue("dsn") if request.param.startswith("postgresql") else ""
    made = Shop(tmp_path, request.param, dsn)
    yield made
    made.close()


async def order(tx: Any, *numbers: int) -> None:
    """A Session has not flushed them."""
    for number in numbers:
        if isinstance(tx["db"], AsyncSession):
            tx["db"].add(Order(id=number))
        else:
            await tx["db"].execute(text("insert into orders (id) values (:id)"), {"id": number})
        tx["queue"].enqueue("orders", b"%d" % number)


async def bought(tm: TransactionManager, number: int, begun: dict[int, bytes] | None = None, end: Any = None) -> None:
    async with tm.transaction("db", "queue") as tx:
        if begun is not None:
            begun[number] = tx.gtrid
        await order(tx, number)
        if end is not None:
            await end(tx)


async def ready(tm: TransactionManager) -> None:
    assert (await asyncio.to_thread(tm.recover)).complete


async def disposed(engine: AsyncEngine) -> None:
    """Nobody has a connection of it any more, nor keeps one a moment later.

    Where a task was cancelled twice, SQLAlchemy stops the thread of an aiosqlite connection and leaves a task behind
    that waits for that thread. It survives its first cancellation, and ``asyncio.run`` cancels once and waits for ever.
    """
    pool: Any = engine.pool
    until = time.monotonic() + PATIENCE_S
    while pool.checkedout():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    await engine.dispose()
    while left := [one for one in asyncio.all_tasks() if "_terminate_graceful_close" in repr(one.get_coro())]:
        assert time.monotonic() < until
        for task in left:
            task.cancel()
        await asyncio.sleep(0.01)


async def fail(tx: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(("given", "lent"), GIVEN, ids=["connection", "session", "class", "sessionmaker"])
def test_a_row_and_a_message_together_or_not_at_all(shop: Shop, given: Any, lent: type[Any]) -> None:
    async def main() -> None:
        engine = create_async_engine(shop.url)
        begun: dict[int, bytes] = {}
        async with shop.manager(engine, given) as tm:
            await ready(tm)
            await asyncio.gather(*(bought(tm, number, begun) for number in range(10)))
            async with tm.transaction("db", "queue") as tx:
                given_out = tx["db"]
                assert type(given_out) is lent
                await order(tx, 10)
                async with tx["db"].begin_nested() as savepoint:
                    await tx["db"].execute(text("insert into orders (id) values (99)"))
                    await savepoint.rollback()
            with pytest.raises(sa.InvalidRequestError, match="closed"):
                await given_out.execute(text("select 1"))
            with pytest.raises(ZeroDivisionError):
                await bought(tm, 100, end=fail)
            with pytest.raises((sa.IntegrityError, RolledBack)):
                await bought(tm, 1)
            assert {tm.outcome(gtrid) for gtrid in begun.values()} == {Outcome.COMMITTED}
            assert tm.in_doubt() == []
            await ready(tm)
        await disposed(engine)

    asyncio.run(main())
    assert shop.rows() == shop.messages() == list(range(11))


@pytest.mark.parametrize("given", [False, True], ids=["connection", "session"])
def test_nobody_else_ends_it(shop: Shop, given: bool) -> None:
    async def main() -> None:
        engine = create_async_engine(shop.url)
        async with shop.manager(engine, given) as tm:
            await ready(tm)
            for verb in ("commit", "rollback", "close"):
                with pytest.raises((ProtocolError, RolledBack)):
                    await bought(tm, 1, end=lambda tx: getattr(tx["db"], verb)())  # noqa: B023
            await bought(tm, 2)
        await disposed(engine)

    asyncio.run(main())
    assert shop.rows() == shop.messages() == [2]


@pytest.mark.parametrize("given", [False, True], ids=["connection", "session"])
def test_cancelled_at_any_moment(shop: Shop, given: bool) -> None:
    """Many at once, each cancelled some time or not at all; a second cancellation meets some as they end."""
    chance = random.Random(14)

    async def main() -> None:
        begun: dict[int, bytes] = {}
        engine = create_async_engine(shop.url)
        async with shop.manager(engine, given) as tm:
            await ready(tm)

            await bought(tm, 1000, begun)
            span_s = 2 * await seconds_of(*(bought(tm, number, begun) for number in range(1001, 1005)))

            async def cancelled(number: int) -> bool:
                task = asyncio.ensure_future(bought(tm, number, begun))
                await asyncio.sleep(chance.random() * span_s)
                task.cancel()
                await asyncio.sleep(chance.random() * span_s / 10)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                return task.cancelled()

            for first in range(0, 120, 4):
                met = await asyncio.gather(*(cancelled(number) for number in range(first, first + 4)))
                if all(met) or not any(met):  # it was measured in a bad moment
                    span_s = min(span_s * (2 if all(met) else 0.5), 1.0)
        await disposed(engine)
        committed = [number for number, gtrid in begun.items() if tm.outcome(gtrid) is Outcome.COMMITTED]
        assert sorted(committed) == shop.rows()

    asyncio.run(main())
    assert shop.rows() == shop.messages()
    assert 5 < len(shop.rows()) < 125


@pytest.mark.parametrize("shop", ["postgresql", "postgresql in two phases"], indirect=True)
def test_one_that_takes_too_long_or_loses_its_backend_is_rolled_back(shop: Shop) -> None:
    async def main() -> None:
        engine = create_async_engine(shop.url)
        async with shop.manager(engine, True) as tm:
            await ready(tm)
            with pytest.raises(RolledBack, match="took more than") as raised:
                await slow(tm)
            assert raised.value.code is Code.XA_RBTIMEOUT
            with pytest.raises((RolledBack, sa.DBAPIError)):
                await bought(tm, 2, end=lost)
            await bought(tm, 3)
            await ready(tm)
            assert tm.in_doubt() == []
        await disposed(engine)

    async def slow(tm: TransactionManager) -> None:
        async with tm.transaction("db", "queue", timeout_s=0.2) as tx:
            await order(tx, 1)
            await tx["db"].execute(text("select pg_sleep(60)"))

    async def lost(tx: Any) -> None:
        raw = await (await tx["db"].connection()).get_raw_connection()
        await asyncio.to_thread(postgres.terminate, shop.dsn, raw.driver_connection)

    asyncio.run(main())
    assert shop.rows() == shop.messages() == [3]


@pytest.mark.parametrize("shop", ["postgresql in two phases"], indirect=True)
def test_recovery_ends_what_was_prepared_and_leaves_what_is_somebody_elses(shop: Shop) -> None:
    """The backend is gone before it is told the decision, so that another connection tells it."""
    backends: list[Any] = []

    def step(step: Step, gtrid: bytes, name: str) -> None:
        if step is Step.DECIDED and backends:
            postgres.terminate(shop.dsn, backends.pop())

    async def main() -> None:
        engine = create_async_engine(shop.url)
        with psycopg.connect(shop.dsn, autocommit=True) as own:
            own.execute("begin")
            own.execute("insert into orders (id) values (2)")
            own.execute("prepare transaction 'somebody elses'")
            async with shop.manager(engine, on_step=step) as tm:
                await ready(tm)
                await bought(tm, 1, end=noted)
                assert not backends
                await ready(tm)
                assert tm.in_doubt() == []
            own.execute("rollback prepared 'somebody elses'")
        await disposed(engine)

    async def noted(tx: Any) -> None:
        backends.append((await tx["db"].get_raw_connection()).driver_connection)

    asyncio.run(main())
    assert shop.rows() == shop.messages() == [1]


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"], indirect=True)
def test_autocommit_is_refused(shop: Shop) -> None:
    async def main() -> None:
        engines = [create_async_engine(shop.url, isolation_level="AUTOCOMMIT")]
        engines.append(create_async_engine(shop.url).execution_options(isolation_level="AUTOCOMMIT"))
        for engine in engines:
            async with shop.manager(engine) as tm:
                with pytest.raises(InvalidArgument, match="AUTOCOMMIT"):
                    await bought(tm, 1)
            await disposed(engine)

    asyncio.run(main())
    assert shop.rows() == shop.messages() == []


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_its_commit_is_a_durable_one_and_its_sessions_are_async(shop: Shop) -> None:
    async def main() -> None:
        engine = create_async_engine(shop.url)
        event.listen(engine.sync_engine, "connect", lambda given, _: given.execute("pragma synchronous=normal").close())
        async with shop.manager(engine) as tm, tm.transaction("db") as tx:
            assert (await tx["db"].execute(text("pragma synchronous"))).scalar_one() == 2
        async with shop.manager(engine, sessionmaker()) as tm:
            with pytest.raises(InvalidArgument, match="async_sessionmaker"):
                await bought(tm, 1)
        await disposed(engine)

    asyncio.run(main())


def test_what_cannot_take_part_is_refused(tmp_path: Path) -> None:
    file = f"sqlite+aiosqlite:///{tmp_path / 'a.db'}"
    for engine in (create_async_engine("sqlite+aiosqlite://"), create_async_engine(file, poolclass=StaticPool)):
        with pytest.raises(InvalidArgument, match="QueuePool"):
            participant(engine)
    other = create_async_engine(file)
    other.sync_engine.dialect.driver = "other"
    with pytest.raises(InvalidArgument, match=r"use postgresql\+psycopg or sqlite\+aiosqlite"):
        participant(other)
