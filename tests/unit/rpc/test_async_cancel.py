"""A call of an async connection that is cancelled leaves no doubt in silence: what is unknown is told by the next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import xaqueue
from support.awaited import Held, bodies, cancelled, told
from support.contract_connection import PATIENCE_S, QUEUES
from support.served import ServerThread
from xaqueue.core.owner import definitions_file
from xaqueue.errors import ConnectionLost, OutcomeUnknown, RolledBack
from xaqueue.features.opening import create
from xaqueue.xa import Code, Outcome


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "space"
    create(made)
    definitions_file.write_definitions(made, QUEUES)
    return made


@pytest.fixture
def served(root: Path, tmp_path: Path) -> Iterator[ServerThread]:
    made = ServerThread(root, tmp_path / "socket", sync="NONE")
    yield made
    made.stop()


def test_a_cancelled_dequeue_loses_the_transaction_and_no_message(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> None:
        async with (
            await xaqueue.connect_async(served.url) as connection,
            await xaqueue.connect_async(served.url) as other,
        ):
            await connection.enqueue("replies", b"lost")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await connection.dequeue("orders", wait_s=PATIENCE_S)
            assert connection.in_transaction
            for refused in (connection.enqueue("orders", b""), connection.dequeue("orders")):
                with pytest.raises(RolledBack, match="cancelled") as raised:
                    await refused
                assert raised.value.code is Code.XA_RBCOMMFAIL
                assert isinstance(raised.value.__cause__, ConnectionLost)
            await connection.rollback()
            await other.enqueue("orders", b"x")
            await other.commit()
            message = await connection.dequeue("orders", wait_s=PATIENCE_S)
            assert message is not None
            await connection.commit()
            assert await bodies(connection, "replies") == []

    runner.run(work())


def test_the_outcome_of_a_cancelled_commit_is_told_as_unknown_by_the_next_call(
    served: ServerThread, runner: asyncio.Runner
) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            await connection.enqueue("orders", b"x")
            await connection.flush()
            with Held(served):
                await cancelled(connection.commit())
            assert not connection.in_transaction
            with pytest.raises(OutcomeUnknown, match="cancelled") as raised:
                await connection.rollback()
            assert raised.value.xid is not None
            await told(connection, raised.value.xid, Outcome.COMMITTED)
            await connection.enqueue("orders", b"y")
            await connection.commit()
            assert await bodies(connection) == [b"x", b"y"]

    runner.run(work())


def test_who_asks_for_the_outcome_is_not_told_again(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            xid = connection.xid(1, "one phase", "")
            await connection.tpc_begin(xid)
            await connection.enqueue("orders", b"x")
            await connection.flush()
            with Held(served):
                await cancelled(connection.tpc_commit())
            await told(connection, xid, Outcome.COMMITTED)
            await connection.enqueue("orders", b"y")
            await connection.commit()
            assert await bodies(connection) == [b"x", b"y"]

    runner.run(work())


@pytest.mark.parametrize("commit", [True, False])
def test_a_cancelled_prepare_can_be_finished_either_way(
    served: ServerThread, runner: asyncio.Runner, commit: bool
) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            xid = connection.xid(1, "x", "")
            await connection.tpc_begin(xid)
            await connection.enqueue("orders", b"x")
            await connection.flush()
            with Held(served):
                await cancelled(connection.tpc_prepare())
            within = connection.in_transaction
            assert within
            await told(connection, xid, Outcome.IN_DOUBT)
            if commit:
                await connection.tpc_commit()
            else:
                await connection.tpc_rollback()
            assert not connection.in_transaction
            assert await bodies(connection) == ([b"x"] if commit else [])

    runner.run(work())


def test_a_cancelled_prepare_that_is_called_again_says_what_is_true(
    served: ServerThread, runner: asyncio.Runner
) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            for name, somebody in ((b"1", False), (b"2", True)):
                xid = connection.xid(1, name, "")
                await connection.tpc_begin(xid)
                await connection.enqueue("orders", name)
                await connection.flush()
                with Held(served):
                    await cancelled(connection.tpc_prepare())
                if somebody:  # committed it meanwhile: that it was prepared is still true
                    await told(connection, xid, Outcome.IN_DOUBT)
                    async with await xaqueue.connect_async(served.url) as other:
                        await other.tpc_commit(xid)
                assert await connection.tpc_prepare() is True
                if somebody:
                    with pytest.raises(xaqueue.UnknownXid):
                        await connection.tpc_commit()
                else:
                    await connection.tpc_commit()
            assert await bodies(connection) == [b"1", b"2"]

    runner.run(work())


@pytest.mark.parametrize("prepared", [True, False])
def test_a_cancelled_second_phase_is_called_again(served: ServerThread, runner: asyncio.Runner, prepared: bool) -> None:
    """By the connection that prepared, or by one that was given the xid."""

    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as one, await xaqueue.connect_async(served.url) as other:
            xid = one.xid(1, "x", "")
            await one.tpc_begin(xid)
            await one.enqueue("orders", b"x")
            await one.tpc_prepare()
            connection = one if prepared else other
            given = None if prepared else xid
            with Held(served):
                await cancelled(connection.tpc_commit(given))
            await told(connection, xid, Outcome.COMMITTED)
            with pytest.raises(xaqueue.UnknownXid):
                await connection.tpc_commit(given)
            await connection.enqueue("orders", b"y")
            await connection.commit()
            assert await bodies(connection) == [b"x", b"y"]

    runner.run(work())


def test_a_task_that_is_dropped_ends_its_call(served: ServerThread, runner: asyncio.Runner) -> None:
    """As a loop that is closed does with tasks that nobody awaited."""

    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            waiting = connection.dequeue("orders", wait_s=PATIENCE_S)
            waiting.send(None)
            waiting.close()
            with pytest.raises(RolledBack, match="cancelled"):
                await connection.dequeue("orders")
            await connection.rollback()
            assert await connection.dequeue("orders") is None

    runner.run(work())


def test_waiting_for_a_server_that_is_not_there_can_be_cancelled(tmp_path: Path, runner: asyncio.Runner) -> None:
    async def work() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.001)
                turns += 1

        turning = asyncio.ensure_future(turn())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await xaqueue.connect_async(f"xaq+unix://{tmp_path}/nobody")
        turning.cancel()
        return turns

    assert runner.run(work()) > 1
