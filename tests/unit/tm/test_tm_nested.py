"""A transaction in the block of another one of its thread, or task, is a savepoint of that."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.tm_world import Bank, World
from xaqueue import TransactionManager
from xaqueue.errors import ProtocolError, RolledBack
from xaqueue.xa import Code, Outcome


class RefusedError(Exception):
    """Of the work in a block."""


class Shop:
    """Two queues in two spaces, of which each message goes to both."""

    def __init__(self, directory: Path) -> None:
        self.paths = {name: directory / name for name in "ab"}
        for path in self.paths.values():
            xaqueue.connect(path, create=True).close()
        self.tm = TransactionManager(directory / "log", {name: self.opener(name) for name in "ab"})

    def opener(self, name: str) -> Callable[[], xaqueue.Connection]:
        return lambda: xaqueue.connect(self.paths[name])

    def books(self) -> list[bytes]:
        found = []
        for path in self.paths.values():
            with xaqueue.connect(path) as queue:
                found.append([message.body for message in queue.browse("q")])
        assert found[0] == found[1]
        return found[0]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    with made.tm:
        yield made


def put(tx: Any, *bodies: bytes) -> None:
    for body in bodies:
        tx["a"].enqueue("q", body)
        tx["b"].enqueue("q", body)


def refused(*_: object) -> None:
    raise RefusedError


def within(block: Any, *calls: Callable[[Any], object]) -> None:
    with block as tx:
        for call in calls:
            call(tx)


def adds(*bodies: bytes) -> Callable[[Any], None]:
    return lambda tx: put(tx, *bodies)


def test_it_is_undone_on_an_exception_and_else_the_outer_one_commits_it(shop: Shop) -> None:
    tm = shop.tm
    with tm.transaction() as outer:
        put(outer, b"1")
        with tm.transaction("a") as tx:
            put(tx, b"2")
            with pytest.raises(RefusedError):
                within(deep := tm.transaction(), adds(b"3"), refused)
            assert (deep.outcome, tx.outcome) == (Outcome.ROLLED_BACK, None)
        assert shop.books() == []
        with pytest.raises(RefusedError):
            within(tm.transaction(), lambda _: within(tm.transaction(), adds(b"4")), adds(b"5"), refused)
        put(outer, b"6")
        assert tx.gtrid == deep.gtrid == outer.gtrid
        assert (tx.outcome, tx.pending) == (None, ())
    assert outer.outcome is Outcome.COMMITTED
    assert shop.books() == [b"1", b"2", b"6"]
    with pytest.raises(RefusedError):
        within(tm.transaction(), lambda _: within(tm.transaction(), adds(b"7")), refused)
    assert shop.books() == [b"1", b"2", b"6"]


def test_who_joins_in_it_has_joined_the_outer_one(shop: Shop) -> None:
    with shop.tm.transaction() as outer:
        with pytest.raises(RefusedError):
            within(shop.tm.transaction("a", "b"), adds(b"1"), refused)
        with shop.tm.transaction("a", "b") as tx:
            put(tx, b"2")
            assert tx["a"] is outer["a"]
    assert shop.books() == [b"2"]


def test_it_is_ended_by_hand(shop: Shop) -> None:
    tm = shop.tm
    with tm.transaction() as outer:
        with tm.transaction() as tx:
            put(tx, b"1")
            tx.rollback()
            assert tx.outcome is Outcome.ROLLED_BACK
            for call in (tx.commit, tx.rollback, tx.savepoint, lambda: tx["a"]):
                with pytest.raises(ProtocolError, match="is over"):
                    call()
            put(outer, b"2")
        with pytest.raises(RefusedError):
            within(tm.transaction(), adds(b"3"), lambda tx: tx.commit(), refused)
        with tm.transaction() as tx:
            savepoint = tx.savepoint()
            put(tx, b"4")
            savepoint.rollback()
            with tm.transaction() as deep:  # within that savepoint
                put(deep, b"5")
            tx.commit()
            with pytest.raises(ProtocolError, match="is over"):
                savepoint.release()
    assert shop.books() == [b"2", b"3", b"5"]


def test_the_end_of_the_outer_one_is_its_end(shop: Shop) -> None:
    tm = shop.tm
    with pytest.raises(RolledBack, match="block of a savepoint was not left"):
        within(tm.transaction(), lambda outer: within(tm.transaction(), adds(b"1"), lambda _: outer.commit()))
    with pytest.raises(RefusedError):
        within(
            tm.transaction(), lambda outer: within(tm.transaction(), adds(b"2"), lambda _: outer.rollback(), refused)
        )
    with tm.transaction() as outer:
        put(outer, b"3")
        outer.commit()
        with tm.transaction() as tx:  # in nobody's any more
            put(tx, b"4")
        assert tx.outcome is Outcome.COMMITTED
    with tm.transaction() as outer:
        savepoint = outer.savepoint()
        with pytest.raises(ProtocolError, match="savepoint is over"):
            within(tm.transaction(), adds(b"5"), lambda _: savepoint.rollback())
    assert shop.books() == [b"3", b"4"]


def test_an_independent_one(shop: Shop) -> None:
    tm = shop.tm
    with suppress(RefusedError), tm.transaction() as outer:
        put(outer, b"1")
        with tm.transaction(independent=True) as own:
            put(own, b"2")
            with pytest.raises(RefusedError):
                within(tx := tm.transaction(), adds(b"3"), refused)
            assert tx.gtrid == own.gtrid
        assert own.outcome is Outcome.COMMITTED
        with tm.transaction() as tx:
            assert tx.gtrid == outer.gtrid
            put(tx, b"4")
        refused()
    assert shop.books() == [b"2"]


def test_what_has_taken_too_long_is_undone(shop: Shop) -> None:
    tm = shop.tm
    wait: Callable[[Any], object] = lambda _: threading.Event().wait(0.01)  # noqa: E731
    with tm.transaction(timeout_s=60.0) as outer:
        put(outer, b"1")
        for late in ([adds(b"2"), wait], [adds(b"3"), wait, refused], [wait, adds(b"4")]):
            limited = tm.transaction(timeout_s=0.005)
            with pytest.raises(RolledBack, match=r"block in .* more than 0.005 s") as raised:
                within(limited, lambda _: outer["a"].enqueue("q", b"of outer"), *late)
            assert (raised.value.code, limited.outcome) == (Code.XA_RBTIMEOUT, Outcome.ROLLED_BACK)
        with tm.transaction(timeout_s=60.0) as tx:
            put(tx, b"5")
    assert shop.books() == [b"1", b"5"]
    with pytest.raises(RolledBack):
        within(tm.transaction(timeout_s=0.001), lambda _: within(tm.transaction(), wait, adds(b"6")))
    assert shop.books() == [b"1", b"5"]


def test_another_thread_has_its_own(shop: Shop) -> None:
    tm = shop.tm

    def work() -> None:
        with tm.transaction() as tx:
            put(tx, b"1")

    with suppress(RefusedError), tm.transaction() as outer, ThreadPoolExecutor(1) as pool:
        put(outer, b"2")
        pool.submit(work).result()
        asyncio.run(asyncio.to_thread(work))
        made = tm.transaction()
        with pytest.raises(ProtocolError, match="independent"):
            pool.submit(made.__enter__).result()
        with pytest.raises(ProtocolError, match="independent"):
            made["a"]
        refused()
    assert shop.books() == [b"1", b"1"]


def test_a_generator_that_stops_in_its_block_keeps_it_open(shop: Shop) -> None:
    tm = shop.tm

    def work() -> Generator[None, None, None]:
        with tm.transaction() as tx:
            put(tx, b"generated")
            yield

    for outer in (nullcontext(), tm.transaction()):
        with outer:
            working = work()
            next(working)
            with pytest.raises(RefusedError):
                within(tm.transaction(), adds(b"refused"), refused)
            within(tm.transaction(), adds(b"kept"))
            next(working, None)
    assert shop.books() == [b"generated", b"kept"] * 2
    with suppress(RefusedError), tm.transaction():  # over before the generator is
        working = work()
        next(working)
        refused()
    with pytest.raises(ProtocolError, match="is over"):
        next(working)
    working = work()
    with pytest.raises(RolledBack, match="block of a savepoint was not left"):
        within(tm.transaction(), lambda _: next(working))
    working.close()
    within(tm.transaction(), adds(b"last"))
    assert shop.books()[4:] == [b"last"]


def test_another_transaction_manager_has_its_own(shop: Shop, tmp_path: Path) -> None:
    parties = {name: shop.opener(name) for name in "ab"}
    with (
        TransactionManager(tmp_path / "other", parties) as other,
        suppress(RefusedError),
        shop.tm.transaction() as outer,
        other.transaction() as own,
    ):
        put(outer, b"1")
        with pytest.raises(RefusedError):
            within(tx := shop.tm.transaction(), adds(b"2"), refused)
        with other.transaction() as inner:
            put(inner, b"3")
        own.commit()
        assert (tx.gtrid, inner.gtrid) == (outer.gtrid, own.gtrid)
        refused()
    assert shop.books() == [b"3"]


def test_a_decorated_function_is_a_savepoint_of_who_calls_it(shop: Shop) -> None:
    def work(body: bytes, *, tx: Any, fails: bool = False) -> bytes:
        put(tx, body)
        if fails:
            refused()
        found: bytes = tx.gtrid
        return found

    joins, own = shop.tm.transactional("a")(work), shop.tm.transactional("a", independent=True)(work)
    with shop.tm.transaction() as outer:
        assert joins(b"1") == outer.gtrid
        with pytest.raises(RefusedError):
            joins(b"2", fails=True)
        assert own(b"3") != outer.gtrid
        assert shop.books() == [b"3"]
    assert shop.books() == [b"3", b"1"]


def test_a_participant_that_has_no_savepoints(tmp_path: Path) -> None:
    with TransactionManager(tmp_path / "log", {"a": Bank(World(), "a").connect}) as tm, tm.transaction("a") as outer:
        with pytest.raises(ProtocolError, match="no savepoints"):
            within(tm.transaction())
        outer.rollback()


# In tasks


def in_loop(shop: Shop, work: Callable[[TransactionManager], Any]) -> list[bytes]:
    async def main() -> None:
        async with TransactionManager(shop.paths["a"].parent / "tasks", {n: shop.opener(n) for n in "ab"}) as tm:
            await work(tm)

    asyncio.run(main())
    return shop.books()


async def added(tm: TransactionManager, body: bytes, error: type[Exception] | None = None, **options: Any) -> bytes:
    async with tm.transaction("a", "b", **options) as tx:
        put(tx, body)
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return tx.gtrid


def test_in_a_task(shop: Shop) -> None:
    async def work(tm: TransactionManager) -> None:
        async with tm.transaction() as outer:
            gtrid = await added(tm, b"1")
            for _ in range(2):
                with pytest.raises(RefusedError):
                    await added(tm, b"2", RefusedError)
            assert gtrid == outer.gtrid != await added(tm, b"3", independent=True)
            assert shop.books() == [b"3"]
            async with tm.transaction() as tx:
                put(tx, b"4")  # has joined
                await tx.rollback()
                with pytest.raises(ProtocolError, match="is over"):
                    tx["a"]
            async with tm.transaction() as tx:
                async with tx.savepoint():
                    put(tx, b"5")
                await tx.commit()
        with suppress(RefusedError):
            async with tm.transaction():
                await added(tm, b"6")
                raise RefusedError
        async with tm.transaction() as outer:
            inner = await tm.transaction("a", "b").__aenter__()
            put(inner, b"7")
            with pytest.raises(RolledBack, match="block of a savepoint was not left"):
                await outer.commit()
            with pytest.raises(ProtocolError, match="is over"):
                await inner.commit()

    assert in_loop(shop, work) == [b"3", b"1", b"5"]


def test_a_child_task_has_its_own(shop: Shop) -> None:
    async def child(tm: TransactionManager, body: bytes) -> bytes:
        gtrid = await added(tm, body)
        async with tm.transaction() as outer:
            assert await added(tm, body) == outer.gtrid
        return gtrid

    async def work(tm: TransactionManager) -> None:
        with suppress(RefusedError):
            async with tm.transaction() as outer:
                found = await asyncio.gather(*[child(tm, b"1") for _ in range(3)])
                async with asyncio.TaskGroup() as group:
                    group.create_task(child(tm, b"1"))
                assert len({outer.gtrid, *found}) == 4
                assert await added(tm, b"2") == outer.gtrid
                raise RefusedError

    assert in_loop(shop, work) == [b"1"] * 8


def test_tasks_that_take_turns_in_their_blocks(shop: Shop) -> None:
    """Also those of threads, begun in a task."""

    async def one(tm: TransactionManager, body: bytes) -> None:
        async with tm.transaction() as outer:
            for fails in (None, RefusedError, None):
                with suppress(RefusedError):
                    assert await added(tm, body, fails) == outer.gtrid

    async def of_threads(body: bytes) -> None:
        with shop.tm.transaction() as outer:
            for fails in (False, True, False):
                with suppress(RefusedError), shop.tm.transaction() as tx:
                    await asyncio.sleep(0)
                    assert tx.gtrid == outer.gtrid
                    put(tx, body)
                    if fails:
                        refused()

    async def work(tm: TransactionManager) -> None:
        await asyncio.gather(
            *[one(tm, b"%d" % number) for number in range(4)], *[of_threads(b"t")] * 1, of_threads(b"u")
        )

    assert sorted(in_loop(shop, work)) == sorted([b"0", b"1", b"2", b"3", b"t", b"u"] * 2)


def test_it_is_entered_as_the_outer_one(shop: Shop) -> None:
    async def work(tm: TransactionManager) -> None:
        async with tm.transaction():
            with pytest.raises(ProtocolError, match="independent"), tm.transaction():
                pass
            with pytest.raises(ProtocolError, match="independent"):
                await asyncio.create_task(tm.transaction().__aenter__())
            again = tm.transaction()
            async with again:
                pass
            with pytest.raises(ProtocolError, match="independent"):
                await again.__aenter__()
        with shop.tm.transaction(), pytest.raises(ProtocolError, match="independent"):
            await shop.tm.transaction().__aenter__()

    assert in_loop(shop, work) == []


def test_its_time_in_a_task(shop: Shop) -> None:
    async def slow(tm: TransactionManager, body: bytes, **options: Any) -> None:
        async with tm.transaction(**options) as tx:
            put(tx, body)
            await asyncio.sleep(60)

    async def work(tm: TransactionManager) -> None:
        async with tm.transaction("a", "b") as outer:
            with pytest.raises(RolledBack, match="block in") as raised:
                await slow(tm, b"1", timeout_s=0.01)
            assert raised.value.code is Code.XA_RBTIMEOUT
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await slow(tm, b"2")
            put(outer, b"3")
            await added(tm, b"4", timeout_s=60.0)

    assert in_loop(shop, work) == [b"3", b"4"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody can await its end any more
def test_a_loop_that_ends_in_its_block(shop: Shop) -> None:
    async def hangs(tm: TransactionManager) -> None:
        async with tm.transaction(), tm.transaction("a", "b") as tx:
            put(tx, b"1")
            await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    tm = loop.run_until_complete(_made(shop))
    task = loop.create_task(hangs(tm))
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()
    tm.close()
    assert shop.books() == []


async def _made(shop: Shop) -> TransactionManager:
    return TransactionManager(shop.paths["a"].parent / "ended", {name: shop.opener(name) for name in "ab"})
