"""Transactions in tasks of asyncio: what is theirs alone. Those of all others run in tasks, too."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

import xaqueue
from support.patience import eventually
from support.tm_tasks import Awaitable
from support.tm_world import COMMITTED, PREPARED, ROLLED_BACK, Bank, World
from xaqueue import TransactionManager
from xaqueue.errors import InterfaceError, InvalidArgument, OutcomeUnknown, ProtocolError, RolledBack
from xaqueue.tm.async_transaction import AsyncTransaction
from xaqueue.xa import Code, Outcome

STEPS, ROUNDS = 120, 10
"""More turns of the loop than a transaction of two banks takes."""


def awaitable(bank: Bank) -> Callable[[], Any]:
    async def connect() -> Awaitable:
        await asyncio.sleep(0)
        return Awaitable(bank.connect())

    return connect


class Scene:
    """A transaction manager over two banks whose connections are async."""

    def __init__(self, log_dir: Path) -> None:
        self.world = World()
        self.a, self.b = (Bank(self.world, name) for name in "ab")
        self.tm = TransactionManager(log_dir, {"a": awaitable(self.a), "b": awaitable(self.b)})

    def states(self) -> set[str]:
        return {*self.a.branches.values(), *self.b.branches.values()}

    async def recovered(self) -> None:
        """After the end of what goes on alone. A round of recovery may have been cancelled with everything else."""
        async with asyncio.timeout(60):
            while self.tm._coordinator.live():
                await asyncio.sleep(0)
            while not (await asyncio.to_thread(self.tm.recover)).complete:
                pass


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return tmp_path / "log"


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def transfer(scene: Scene, begun: list[AsyncTransaction]) -> None:
    async with scene.tm.transaction("a") as tx:
        begun.append(tx)
        await tx["a"].work()
        await (await tx.join("b")).work()


def cancel_all() -> None:
    """As a program does that is to end."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("again", [0, 1, 7])
def test_cancelled_anywhere_it_is_committed_or_rolled_back(log_dir: Path, again: int, together: bool) -> None:
    """again: it is cancelled a second time so many turns later. together: with the task that ends it.

    In which turn the disk has answered is chance, so that all is done again until each end was seen.
    """
    wanted, seen = {(True, ROLLED_BACK), (True, COMMITTED), (False, COMMITTED)}, set[tuple[object, ...]]()

    async def main() -> None:
        scene = Scene(log_dir)
        async with scene.tm:
            await scene.recovered()
            for count in islice(cycle(range(STEPS)), ROUNDS * STEPS):
                if not count and wanted <= seen:
                    break
                begun: list[AsyncTransaction] = []
                task = asyncio.ensure_future(transfer(scene, begun))
                await turns(count)
                for pause in (0, again) if again else (0,):
                    await turns(pause)
                    if together:
                        cancel_all()
                    else:
                        task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await scene.recovered()
                if together:  # the closing of a connection is cancelled, too: it ends when it is collected
                    scene.a.lose_sessions()
                    scene.b.lose_sessions()
                states = scene.states()
                assert len(states) < 2
                assert PREPARED not in states
                if begun:
                    outcome = scene.tm.outcome(begun[0].gtrid)
                    assert states == {COMMITTED if outcome is Outcome.COMMITTED else ROLLED_BACK}
                seen.add((task.cancelled(), *states))
                scene.a.branches.clear()
                scene.b.branches.clear()

    asyncio.run(main())
    assert wanted <= seen


def test_the_end_goes_on_alone_and_says_what_it_came_to(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        scene = Scene(log_dir)
        goes_on = asyncio.Event()
        async with scene.tm:
            await scene.recovered()
            with caplog.at_level(logging.INFO, logger="xaqueue"):
                tx = scene.tm.transaction("a", "b")
                entered = await tx.__aenter__()

                async def slow() -> Any:
                    await goes_on.wait()
                    return preparing()

                preparing = entered["a"].inner.tpc_prepare
                entered["a"].__dict__["tpc_prepare"] = slow
                ending = asyncio.ensure_future(tx.__aexit__(None, None, None))
                await turns(10)
                ending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await ending
                assert scene.tm.outcome(entered.gtrid) is Outcome.IN_DOUBT
                goes_on.set()
                await turns(50)
            assert entered.outcome is Outcome.ROLLED_BACK
            assert "whose end was cancelled: rolled back" in caplog.text
            assert "its task was cancelled" in caplog.text
            assert scene.states() == {ROLLED_BACK}

    asyncio.run(main())


def test_the_end_of_its_loop_leaves_it_to_recovery(log_dir: Path) -> None:
    """The end goes on alone when its loop is over: all its tasks are cancelled then."""
    found: list[Scene] = []

    async def main() -> None:
        scene = Scene(log_dir)
        found.append(scene)
        await scene.recovered()
        tx = scene.tm.transaction("a", "b")
        entered = await tx.__aenter__()

        async def for_ever() -> None:
            await asyncio.sleep(3600)

        entered["b"].__dict__["tpc_prepare"] = for_ever
        ending = asyncio.ensure_future(tx.__aexit__(None, None, None))
        await turns(20)
        ending.cancel()
        assert scene.a.branches[next(iter(scene.a.branches))] == PREPARED

    asyncio.run(main())

    async def after() -> None:
        async with found[0].tm:
            await found[0].recovered()
            assert found[0].states() == {ROLLED_BACK}

    asyncio.run(after())


def test_a_decision_that_is_on_its_way_is_waited_for(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks are cancelled, the one that ends it too: recovery must not look for a decision before it is there."""
    begun: list[AsyncTransaction] = []
    goes_on = threading.Event()

    async def main() -> None:
        scene = Scene(log_dir)
        async with scene.tm:
            await scene.recovered()
            decides, decide = threading.Event(), scene.tm._log.decide

            def slow(*arguments: Any) -> None:
                decides.set()
                assert goes_on.wait(60)
                decide(*arguments)

            monkeypatch.setattr(scene.tm._log, "decide", slow)
            ending = asyncio.ensure_future(transfer(scene, begun))
            while not decides.is_set():
                await asyncio.sleep(0.001)
            threading.Timer(0.3, goes_on.set).start()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
            await scene.recovered()
            assert begun[0].outcome is scene.tm.outcome(begun[0].gtrid) is Outcome.COMMITTED
            assert scene.states() == {COMMITTED}

    asyncio.run(main())


def test_its_time_cancels_what_it_awaits(log_dir: Path) -> None:
    async def main() -> None:
        scene = Scene(log_dir)
        async with scene.tm:
            with pytest.raises(RolledBack, match=r"it took more than 0\.05 s") as raised:
                async with scene.tm.transaction("a", "b", timeout_s=0.05):
                    await asyncio.sleep(60)
            assert raised.value.code is Code.XA_RBTIMEOUT
            assert scene.states() == {ROLLED_BACK}

    asyncio.run(main())


def test_a_participant_that_hangs_holds_up_nobody_else(log_dir: Path) -> None:
    """In each verb of a transaction; another one of the same participants goes through meanwhile."""

    async def main() -> None:
        scene = Scene(log_dir)
        async with scene.tm:
            await scene.recovered()
            for verb in ("work", "tpc_prepare", "tpc_commit"):
                goes_on = asyncio.Event()
                tx = scene.tm.transaction("a", "b")
                entered = await tx.__aenter__()
                hangs = getattr(entered["a"], verb)

                async def hanging(wait: Any = goes_on.wait, call: Any = hangs, **options: Any) -> Any:
                    await wait()
                    return await call(**options)

                entered["a"].__dict__[verb] = hanging
                ending = asyncio.ensure_future(_worked(tx, entered))
                await turns(10)
                async with asyncio.timeout(10), scene.tm.transaction("a", "b", independent=True) as other:
                    await other["a"].work()
                assert other.outcome is Outcome.COMMITTED
                assert not ending.done()
                goes_on.set()
                await ending
                assert entered.outcome is Outcome.COMMITTED

    asyncio.run(main())


async def _worked(tx: Any, entered: AsyncTransaction) -> None:
    await entered["a"].work()
    await tx.__aexit__(None, None, None)


def test_an_answer_that_is_lost_raises_as_in_a_thread(log_dir: Path) -> None:
    async def main() -> None:
        scene = Scene(log_dir)
        async with scene.tm:
            scene.a.faults = {"commit": ["answer lost"]}
            with pytest.raises(OutcomeUnknown):
                async with scene.tm.transaction("a"):
                    pass

    asyncio.run(main())


def test_whoever_uses_it_otherwise_is_told_how(log_dir: Path) -> None:
    async def main() -> None:
        scene = Scene(log_dir)
        tm = scene.tm
        async with tm:
            async with tm.transaction() as tx:
                with pytest.raises(ProtocolError, match=r"await tx\.join\('a'\)"):
                    tx["a"]
                with pytest.raises(InvalidArgument, match="is no participant"):
                    await tx.join("c")
            with pytest.raises(ProtocolError, match="the transaction is over"):
                tx["a"]
            with pytest.raises(InterfaceError, match=r"use asyncio\.to_thread"):
                tm.recover()
            with pytest.raises(InterfaceError, match=r"use asyncio\.to_thread"):
                tm.close()
            with pytest.raises(InvalidArgument, match="begin the transaction with `async with`"):
                await asyncio.to_thread(lambda: tm.transaction("a").__enter__())
            with pytest.raises(InterfaceError, match="belongs to another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(transfer(scene, [])))
            assert tm._coordinator.live() == []

    asyncio.run(main())


def test_a_driver_that_blocks_is_refused(log_dir: Path, tmp_path: Path) -> None:
    world = World()
    bank = Bank(world, "a")

    async def main() -> None:
        async with TransactionManager(log_dir, {"a": bank.connect}) as tm:
            with pytest.raises(InvalidArgument, match="use an async driver"):
                async with tm.transaction("a"):
                    pass

    asyncio.run(main())
    assert not bank.branches


def test_a_space_of_this_process_takes_part(log_dir: Path, tmp_path: Path) -> None:
    """Its own calls are made at once; those that wait for its disk are a thread's."""
    space = tmp_path / "space"
    at: list[str] = []

    async def main() -> None:
        bank = Bank(World(), "a")
        with xaqueue.connect(space, create=True) as kept:
            parties: dict[str, Any] = {"a": awaitable(bank), "q": lambda: xaqueue.connect(space)}
            tm = TransactionManager(log_dir, parties, on_step=lambda *_: at.append(threading.current_thread().name))
            async with tm:

                @tm.transactional("a", "q")
                async def put(body: bytes, tx: AsyncTransaction, *, fails: bool = False) -> AsyncTransaction:
                    await tx["a"].work()
                    tx["q"].enqueue("orders", body)
                    if fails:
                        raise ZeroDivisionError
                    return tx

                for body in (b"one", b"two"):
                    done = await put(body)
                    assert done.outcome is Outcome.COMMITTED
                with pytest.raises(ZeroDivisionError):
                    await put(b"none", fails=True)
            assert [message.body for message in kept.browse("orders")] == [b"one", b"two"]
            assert set(bank.branches.values()) == {COMMITTED, ROLLED_BACK}

    asyncio.run(main())
    assert threading.current_thread().name in at


def test_the_transaction_manager_may_be_older_than_its_loop(log_dir: Path) -> None:
    scene = Scene(log_dir)
    eventually(lambda: "its event loop does not run" in scene.tm._recoveries["a"].report.error)

    async def main() -> None:
        async with scene.tm:
            await scene.recovered()
            await transfer(scene, [])

    asyncio.run(main())
    assert scene.states() == {COMMITTED}


def test_a_connection_that_was_kept_is_closed_where_its_begin_is_cancelled(log_dir: Path) -> None:
    async def main() -> None:
        scene = Scene(log_dir)
        async with scene.tm:
            await scene.recovered()
            await transfer(scene, [])
            ((_, kept, *_),) = scene.tm._coordinator.sources["a"]._idle
            kept.plain.__dict__["tpc_begin"] = lambda _: asyncio.sleep(3600)
            joining = asyncio.ensure_future(transfer(scene, []))
            await turns(5)
            joining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joining
            await turns(5)
            assert kept.plain.inner.closed

    asyncio.run(main())


def test_time_that_is_over_while_it_joins_is_told_as_such(log_dir: Path) -> None:
    """The rollback that follows is cancelled by the same time; nobody else may hear of that."""

    async def late(scene: Scene) -> None:
        async with scene.tm.transaction("a", timeout_s=0.3) as tx:
            time.sleep(0.4)  # work that takes the processor
            await tx.join("b")

    async def main() -> None:
        scene = Scene(log_dir)
        async with scene.tm:
            task = asyncio.ensure_future(late(scene))
            with pytest.raises(RolledBack, match=r"it took more than 0\.3 s"):
                await task
            assert task.cancelling() == 0
            await scene.recovered()
            assert scene.states() <= {ROLLED_BACK}

    asyncio.run(main())


def test_once_it_is_being_committed_its_time_does_not_count(log_dir: Path) -> None:
    async def main() -> None:
        scene = Scene(log_dir)
        async with scene.tm:
            await scene.recovered()
            async with scene.tm.transaction("a", "b", timeout_s=60) as tx:
                limits = [tx._limit.when()]
                commit = tx["a"].tpc_commit

                async def noting(**options: Any) -> Any:
                    limits.append(tx._limit.when())
                    return await commit(**options)

                tx["a"].__dict__["tpc_commit"] = noting
                await tx.commit()
                limits.append(tx._limit.when())
            assert tx.outcome is Outcome.COMMITTED
            assert scene.states() == {COMMITTED}
            assert limits[0] is not None
            assert limits[1:] == [None, None]

    asyncio.run(main())


def test_a_commit_that_comes_too_late_is_refused(log_dir: Path) -> None:
    async def ended(scene: Scene) -> None:
        async with scene.tm.transaction("a", "b", timeout_s=0.05) as tx:
            time.sleep(0.1)
            await tx.commit()

    async def main() -> None:
        scene = Scene(log_dir)
        async with scene.tm:
            with pytest.raises(RolledBack, match=r"it took more than 0\.05 s"):
                await ended(scene)
            await scene.recovered()
            assert scene.states() <= {ROLLED_BACK}

    asyncio.run(main())


def test_two_tasks_that_join_at_a_time_do_not_lose_the_work_of_one(log_dir: Path) -> None:
    async def main() -> None:
        scene = Scene(log_dir)
        async with scene.tm:
            async with scene.tm.transaction() as tx:
                found = await asyncio.gather(tx.join("a"), tx.join("a"), tx.join("b"), return_exceptions=True)
                (refused,) = [one for one in found if isinstance(one, Exception)]
                assert isinstance(refused, ProtocolError)
                assert "by two tasks" in str(refused)
            assert tx.outcome is Outcome.COMMITTED
            assert sorted(scene.a.branches.values()) == [COMMITTED]

    asyncio.run(main())


def test_who_joins_behind_the_end_leaves_nothing_open(log_dir: Path) -> None:
    async def main() -> None:
        scene = Scene(log_dir)
        goes_on = asyncio.Event()

        async def slow() -> Awaitable:
            await goes_on.wait()
            return Awaitable(scene.a.connect())

        async with TransactionManager(log_dir.with_name("other"), {"a": slow}) as tm:
            async with tm.transaction() as tx:
                joining = asyncio.ensure_future(tx.join("a"))
                await turns(3)
            goes_on.set()
            with pytest.raises(ProtocolError, match="the transaction is over"):
                await joining
            await turns(10)
            assert set(scene.a.branches.values()) == {ROLLED_BACK}
        scene.tm._log.close()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["block", "decided"])
@pytest.mark.parametrize("after", ["second loop", "close"])
def test_a_loop_that_is_closed_under_it_ends_it(
    log_dir: Path, where: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, loop = Scene(log_dir), asyncio.new_event_loop()
    begun: list[AsyncTransaction] = []
    kept: list[asyncio.Task[None]] = []

    async def first() -> None:
        async with scene.tm.transaction("a", "b") as tx:
            begun.append(tx)

            async def stops() -> None:
                loop.stop()
                await asyncio.Event().wait()

            if where == "block":
                await stops()
            tx["a"].__dict__["tpc_commit"] = stops

    async def start() -> None:
        await transfer(scene, [])
        await scene.recovered()
        scene.a.branches.clear()
        scene.b.branches.clear()
        kept.append(asyncio.ensure_future(first()))

    loop.create_task(start())
    loop.run_forever()
    assert set(scene.a.branches.values()) == {"active" if where == "block" else PREPARED}
    loop.close()

    async def second() -> None:
        async with scene.tm:
            await scene.recovered()
            await transfer(scene, [])

    if after == "second loop":
        asyncio.run(second())
    began = time.monotonic()
    scene.tm.close()
    assert time.monotonic() - began < 5
    assert scene.tm._coordinator.live() == []
    if after == "second loop":
        first_states = {next(iter(bank.branches.values())) for bank in (scene.a, scene.b)}
        assert first_states == {ROLLED_BACK if where == "block" else COMMITTED}
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # its task cannot end without its loop
    kept.clear()
    begun.clear()
    gc.collect()  # here, and not in the middle of a later test


def test_connections_of_a_loop_that_is_over_are_not_used_in_the_next(log_dir: Path) -> None:
    scene = Scene(log_dir)

    async def main() -> int:
        await transfer(scene, [])
        await scene.recovered()
        opened = scene.a.opened
        await transfer(scene, [])
        return scene.a.opened - opened

    assert asyncio.run(main()) == 0
    opened = scene.a.opened
    assert asyncio.run(main()) == 0
    assert scene.a.opened > opened
    scene.tm.close()


def test_what_a_closed_manager_leaves_gives_its_messages_back(log_dir: Path, tmp_path: Path) -> None:
    space = tmp_path / "space"

    async def main() -> None:
        with xaqueue.connect(space, create=True) as kept:
            kept.enqueue("orders", b"one")
            kept.commit()
            parties: dict[str, Any] = {
                "a": awaitable(Bank(World(), "a")),
                "q": lambda: xaqueue.connect(space),
            }
            tm, has_begun, goes_on = TransactionManager(log_dir, parties), asyncio.Event(), asyncio.Event()

            async def work() -> None:
                async with tm.transaction("a", "q") as tx:
                    assert tx["q"].dequeue("orders") is not None
                    has_begun.set()
                    await goes_on.wait()
                    raise ZeroDivisionError

            working = asyncio.ensure_future(work())
            await has_begun.wait()
            await asyncio.to_thread(tm.close)
            goes_on.set()
            with pytest.raises(ZeroDivisionError):
                await working
            assert kept.dequeue("orders", wait_s=60) is not None

    asyncio.run(main())


def test_a_queue_that_hangs_holds_up_no_other_queue(
    log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xaqueue.tm.awaiting.THREADS", 1)
    goes_on = threading.Event()

    def far() -> xaqueue.Connection:
        assert goes_on.wait(60)
        return xaqueue.connect(tmp_path / "far", create=True)

    async def main() -> None:
        parties: dict[str, Any] = {"far": far, "near": lambda: xaqueue.connect(tmp_path / "near", create=True)}
        async with TransactionManager(log_dir, parties) as tm:

            async def put(name: str) -> None:
                async with tm.transaction(name) as tx:
                    tx[name].enqueue("orders", b"")

            hangs = asyncio.ensure_future(put("far"))
            await asyncio.sleep(0.1)
            async with asyncio.timeout(30):
                await put("near")
            assert not hangs.done()
            goes_on.set()
            await hangs

    asyncio.run(main())
