"""Async transactions over psycopg.AsyncConnection and queues, of this process and behind a server."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import xaqueue
from support import postgres
from support.awaited import seconds_of
from support.served import ServerThread
from xaqueue import TransactionManager
from xaqueue.errors import RolledBack
from xaqueue.tm.async_transaction import AsyncTransaction
from xaqueue.xa import Code, Outcome

WAYS = {"carried": {}, "row": {"carry": False}, "two phases": {"two_phase": True}, "served": {}}


class Shop:
    """Orders in PostgreSQL, and a message of each."""

    def __init__(self, place: Path, dsn: str, way: str) -> None:
        self.dsn, self.way, self._place = dsn, way, place
        self._kept: xaqueue.Connection | None = None
        self._server: ServerThread | None = None
        space = place / "space"
        self.queue: Callable[[], Any] = lambda: xaqueue.connect(space)
        self._kept = xaqueue.connect(space, create=True)
        if way == "served":
            self._kept.close()
            self._server = ServerThread(space, place / "socket")
            self._kept = xaqueue.connect(self._server.url)
            url = self._server.url
            self.queue = lambda: xaqueue.connect_async(url)
        with psycopg.connect(dsn) as own:
            own.execute("create table orders (n int)")

    def manager(self, **options: Any) -> TransactionManager:
        parties = {"ledger": lambda: psycopg.AsyncConnection.connect(self.dsn), "queue": self.queue}
        return TransactionManager(self._place / "log", parties, **{**WAYS[self.way], **options})

    async def order(self, tx: AsyncTransaction, number: int) -> None:
        await tx["ledger"].execute("insert into orders values (%s)", (number,))
        put = tx["queue"].enqueue("orders", b"%d" % number)
        if self.way == "served":
            await put

    def rows(self) -> list[int]:
        with psycopg.connect(self.dsn) as own:
            return [row[0] for row in own.execute("select n from orders order by n").fetchall()]

    def messages(self) -> list[int]:
        assert self._kept is not None
        return sorted(int(message.body) for message in self._kept.browse("orders"))

    def close(self) -> None:
        assert self._kept is not None
        self._kept.close()
        if self._server is not None:
            self._server.stop()


@pytest.fixture(params=WAYS)
def shop(tmp_path: Path, dsn: str, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(tmp_path, dsn, request.param)
    yield made
    made.close()


async def ready(tm: TransactionManager) -> None:
    assert (await asyncio.to_thread(tm.recover)).complete


async def bought(shop: Shop, tm: TransactionManager, number: int, begun: dict[int, bytes], **options: Any) -> None:
    async with tm.transaction("ledger", "queue", **options) as tx:
        begun[number] = tx.gtrid
        await shop.order(tx, number)


def test_a_row_and_a_message_together_or_not_at_all(shop: Shop) -> None:
    async def main() -> None:
        begun: dict[int, bytes] = {}
        async with shop.manager() as tm:
            await ready(tm)
            await asyncio.gather(*(bought(shop, tm, number, begun) for number in range(20)))
            with pytest.raises(ZeroDivisionError):
                await fails(tm)
            with pytest.raises(RolledBack, match="took more than") as raised:
                await slow(tm)
            assert raised.value.code is Code.XA_RBTIMEOUT
            assert {tm.outcome(gtrid) for gtrid in begun.values()} == {Outcome.COMMITTED}
            assert tm.in_doubt() == []

    async def fails(tm: TransactionManager) -> None:
        async with tm.transaction("ledger", "queue") as tx:
            await shop.order(tx, 100)
            raise ZeroDivisionError

    async def slow(tm: TransactionManager) -> None:
        async with tm.transaction("ledger", "queue", timeout_s=0.2) as tx:
            await shop.order(tx, 200)
            await tx["ledger"].execute("select pg_sleep(60)")

    asyncio.run(main())
    assert shop.rows() == shop.messages() == list(range(20))


def test_cancelled_at_any_moment(shop: Shop) -> None:
    """Many at once, each cancelled some time or not at all; a second cancellation meets some as they end."""
    chance = random.Random(14)

    async def main() -> None:
        begun: dict[int, bytes] = {}
        async with shop.manager() as tm:
            await ready(tm)

            await bought(shop, tm, 1000, begun)
            span_s = 2 * await seconds_of(*(bought(shop, tm, number, begun) for number in range(1001, 1005)))

            async def cancelled(number: int) -> bool:
                task = asyncio.ensure_future(bought(shop, tm, number, begun))
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
        committed = [number for number, gtrid in begun.items() if tm.outcome(gtrid) is Outcome.COMMITTED]
        assert sorted(committed) == shop.rows()

    asyncio.run(main())
    assert shop.rows() == shop.messages()
    assert 5 < len(shop.rows()) < 125


def test_a_backend_that_hangs_holds_up_its_own_transaction(shop: Shop) -> None:
    """In a statement, and in whatever it is asked at the end."""

    async def main() -> None:
        begun: dict[int, bytes] = {}
        async with shop.manager() as tm:
            await ready(tm)
            for number, moment in enumerate(("in a statement", "at its end")):
                tx = tm.transaction("ledger", "queue")
                entered = await tx.__aenter__()
                await shop.order(entered, number)
                pid = entered["ledger"].info.backend_pid
                os.kill(pid, signal.SIGSTOP)
                try:
                    hanging = asyncio.ensure_future(
                        entered["ledger"].execute("select 1") if moment == "in a statement" else ended(tx)
                    )
                    async with asyncio.timeout(10):
                        await bought(shop, tm, 10 + number, begun, independent=True)
                    assert not hanging.done()
                finally:
                    os.kill(pid, signal.SIGCONT)
                await hanging
                if entered.outcome is None:
                    await ended(tx)
                assert entered.outcome is Outcome.COMMITTED

    async def ended(tx: Any) -> None:
        await tx.__aexit__(None, None, None)

    asyncio.run(main())
    assert shop.rows() == shop.messages() == [0, 1, 10, 11]


def test_a_backend_that_dies_takes_its_transaction_with_it(shop: Shop) -> None:
    async def main() -> None:
        begun: dict[int, bytes] = {}
        async with shop.manager() as tm:
            await ready(tm)
            with pytest.raises((RolledBack, psycopg.Error)):
                await dies(tm)
            await bought(shop, tm, 2, begun)
            await ready(tm)
            assert tm.in_doubt() == []

    async def dies(tm: TransactionManager) -> None:
        async with tm.transaction("ledger", "queue") as tx:
            await shop.order(tx, 1)
            await asyncio.to_thread(postgres.terminate, shop.dsn, tx["ledger"])

    asyncio.run(main())
    assert shop.rows() == shop.messages() == [2]


@pytest.mark.parametrize("carry", [True, False])
def test_aiosqlite_decides(tmp_path: Path, carry: bool) -> None:
    aiosqlite = pytest.importorskip("aiosqlite", reason="aiosqlite is not installed")
    file, space = tmp_path / "shop.db", tmp_path / "space"
    with closing(sqlite3.connect(file)) as own:
        own.execute("create table orders (n int)")

    async def main() -> None:
        parties = {"ledger": lambda: aiosqlite.connect(file), "queue": lambda: xaqueue.connect(space)}
        async with TransactionManager(tmp_path / "log", parties, carry=carry) as tm:
            await ready(tm)
            for number in range(3):
                async with tm.transaction("ledger", "queue") as tx:
                    await tx["ledger"].execute("insert into orders values (?)", (number,))
                    tx["queue"].enqueue("orders", b"%d" % number)
                assert tx.outcome is Outcome.COMMITTED
            async with tm.transaction("ledger") as tx:
                found = await (await tx["ledger"].execute("select n from orders")).fetchall()
            assert [row[0] for row in found] == [0, 1, 2]

    with xaqueue.connect(space, create=True) as kept:
        asyncio.run(main())
        assert [message.body for message in kept.browse("orders")] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_loop_that_is_closed_while_the_database_decides_leaves_it_to_recovery(
    shop: Shop, is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told how the commit ended: the database is asked, and the queue follows it."""
    begun: list[AsyncTransaction] = []
    managers: list[TransactionManager] = []
    kept: list[asyncio.Task[None]] = []
    loop = asyncio.new_event_loop()

    async def dies(tm: TransactionManager) -> None:
        async with tm.transaction("ledger", "queue") as tx:
            begun.append(tx)
            await shop.order(tx, 2)
            commits = tx["ledger"].tpc_commit

            async def stops() -> None:
                if is_committed:
                    await commits()
                loop.stop()
                await asyncio.Event().wait()

            tx["ledger"].tpc_commit = stops

    async def first() -> None:
        managers.append(tm := shop.manager(recovery_interval_s=3600))
        await ready(tm)
        for number in range(-20, 0):  # until it carries, where it does
            await bought(shop, tm, number, {})
            await asyncio.sleep(0.01)
        kept.append(asyncio.ensure_future(dies(tm)))

    kept.append(loop.create_task(first()))
    loop.run_forever()
    loop.close()
    (tm,), (left,) = managers, begun

    async def second() -> None:
        is_decided = shop.way == "two phases"
        async with tm:
            async with tm.transaction():
                assert left.outcome is (Outcome.COMMITTED if is_decided else Outcome.IN_DOUBT)
            async with asyncio.timeout(60):
                while tm.in_doubt() or shop.messages() != shop.rows():
                    await asyncio.to_thread(tm.recover)
            outcome = Outcome.COMMITTED if is_committed or is_decided else Outcome.ROLLED_BACK
            assert tm.outcome(left.gtrid) is outcome
            assert (2 in shop.rows()) is (outcome is Outcome.COMMITTED)
            monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # its task cannot end without its loop
            kept.clear()
            begun.clear()
            gc.collect()  # what was cut off is told so now
            assert tm.outcome(left.gtrid) is outcome

    asyncio.run(second())
