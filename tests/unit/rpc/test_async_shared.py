"""One async connection serves many tasks: who waits holds nobody up, and who is cancelled takes nobody along."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path

import pytest

import xaqueue
from support.awaited import Held, bodies
from support.contract_connection import PATIENCE_S
from support.served import ServerThread
from xaqueue.core.owner import definitions_file
from xaqueue.errors import ConnectionLost, InterfaceError, LeaseExpired, OutcomeUnknown
from xaqueue.features.opening import create
from xaqueue.rpc.client.asyncio import AsyncConnection, AsyncDelivery
from xaqueue.rpc.client.lanes import FairLock

QUEUES = """
[queues.jobs]
max_tries = 3
failure_queue = "failed"
[queues.failed]
[queues.empty]
[queues.done]
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerThread]:
    root = tmp_path / "space"
    create(root)
    definitions_file.write_definitions(root, QUEUES)
    made = ServerThread(root, tmp_path / "socket", sync="NONE")
    yield made
    made.stop()


async def put(url: str, queue: str, many: int = 1) -> None:
    async with await xaqueue.connect_async(url) as other:
        for number in range(many):
            await other.enqueue(queue, b"%d" % number)


async def waits_for(served: ServerThread, queue: str) -> None:
    """Until the server has somebody who waits for a message of this queue."""
    async with asyncio.timeout(PATIENCE_S):
        while not served.call(lambda: served.server.space.queue(queue).waiters):
            await asyncio.sleep(0.001)


async def ended(*tasks: asyncio.Task[object]) -> list[object]:
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*tasks, return_exceptions=True)


def test_one_receives_and_many_settle(served: ServerThread, runner: asyncio.Runner) -> None:
    handled: list[bytes] = []

    async def handle(delivery: AsyncDelivery) -> None:
        await asyncio.sleep(0)
        if delivery.body == b"7":
            await delivery.reject("unlucky")
        elif delivery.body == b"8" and not delivery.message.tries and delivery.body not in handled:
            handled.append(delivery.body)
            await delivery.nack(0)
        else:
            await delivery.extend(60)
            await delivery.ack()
            handled.append(delivery.body)

    async def work() -> None:
        await put(served.url, "jobs", 40)
        async with await xaqueue.connect_async(served.url) as connection, asyncio.TaskGroup() as handlers:
            for _ in range(41):
                for delivery in await connection.receive("jobs", wait_s=PATIENCE_S):
                    handlers.create_task(handle(delivery))
        async with await xaqueue.connect_async(served.url) as connection:
            assert await bodies(connection, "jobs") == []
            assert await bodies(connection, "failed") == [b"7"]

    runner.run(work())
    assert sorted(handled) == sorted([b"%d" % number for number in range(40) if number != 7] + [b"8"])


async def _enqueue(connection: AsyncConnection, _: AsyncDelivery) -> None:
    await connection.enqueue("done", b"x")
    await connection.commit()


async def _browse(connection: AsyncConnection, _: AsyncDelivery) -> None:
    assert len(await bodies(connection, "jobs")) == 2


async def _receive(connection: AsyncConnection, _: AsyncDelivery) -> None:
    assert len(await connection.receive("jobs", wait_s=PATIENCE_S)) == 1


BESIDE: list[Callable[[AsyncConnection, AsyncDelivery], Awaitable[object]]] = [
    *(lambda _, delivery: delivery.ack(), lambda _, delivery: delivery.nack(), lambda _, delivery: delivery.extend()),
    *(lambda _, delivery: delivery.reject("no"), _receive, _browse, lambda connection, _: connection.tpc_recover()),
    lambda connection, _: connection.define("another"),
]


@pytest.mark.parametrize("wait", ["receive", "dequeue"])
def test_whatever_waits_holds_nothing_up(served: ServerThread, runner: asyncio.Runner, wait: str) -> None:
    """But a transaction that waits, what would be part of it."""

    async def work() -> None:
        for call in [*BESIDE, *([_enqueue] if wait == "receive" else [])]:
            await put(served.url, "jobs", 2)
            async with await xaqueue.connect_async(served.url) as connection:
                (delivery,) = await connection.receive("jobs")
                waiting = asyncio.ensure_future(getattr(connection, wait)("empty", wait_s=PATIENCE_S))
                await waits_for(served, "empty")
                async with asyncio.timeout(PATIENCE_S / 2):
                    await call(connection, delivery)
                assert not waiting.done()
                await put(served.url, "empty")
                assert await waiting
                await connection.rollback()
            async with await xaqueue.connect_async(served.url) as connection:
                for queue in ("jobs", "empty"):
                    while await connection.dequeue(queue) is not None:
                        pass

    runner.run(work())


def test_a_transaction_is_of_the_task_that_began_it(served: ServerThread, runner: asyncio.Runner) -> None:
    async def refused(connection: AsyncConnection) -> None:
        for call in (
            *(connection.enqueue("jobs", b"theirs"), connection.dequeue("jobs"), connection.publish("t", b"")),
            *(connection.commit(), connection.rollback(), connection.remove("jobs", "00")),
        ):
            with pytest.raises(InterfaceError, match="one for each task"):
                await call

    async def child(connection: AsyncConnection) -> None:
        await connection.enqueue("jobs", b"child's")

    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            begun, over = asyncio.Event(), asyncio.Event()

            async def other() -> None:
                await begun.wait()
                await refused(connection)
                over.set()

            theirs = asyncio.create_task(other())
            await connection.enqueue("jobs", b"mine")
            begun.set()
            await over.wait()
            await theirs
            await asyncio.create_task(child(connection))  # as wait_for and shield begin one
            waiting = asyncio.ensure_future(connection.dequeue("empty", wait_s=PATIENCE_S))
            await waits_for(served, "empty")
            await refused(connection)
            with pytest.raises(InterfaceError, match="one for each task"):
                await connection.close()
            await put(served.url, "empty")
            assert await waiting
            await asyncio.shield(connection.commit())
            assert await bodies(connection, "jobs") == [b"mine", b"child's"]
            await asyncio.create_task(child(connection))
            await connection.commit()  # it has ended, and left it

    runner.run(work())


def test_who_waits_for_a_turn_keeps_nobody_from_his_own_transaction(
    served: ServerThread, runner: asyncio.Runner
) -> None:
    """Several came during a short call on the session: one of them begins a transaction, the others are refused."""

    async def pair(connection: AsyncConnection, name: bytes) -> None:
        await connection.enqueue("jobs", name)
        await connection.enqueue("jobs", name)
        await connection.commit()

    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            names = [b"first", b"second", b"third"]
            asking = connection.tpc_recover()
            _, *came = await asyncio.gather(asking, *(pair(connection, name) for name in names), return_exceptions=True)
            assert came[0] is None
            assert [type(error) for error in came[1:]] == [InterfaceError] * 2
            assert await bodies(connection, "jobs") == [b"first"] * 2

    runner.run(work())


@pytest.mark.parametrize("beside", ["ack", "receive", "browse"])
def test_a_cancelled_call_takes_no_other_along(served: ServerThread, runner: asyncio.Runner, beside: str) -> None:
    """Cancelled at each step of the loop, until it is done before; the other task is in a transaction."""

    async def settled(delivery: AsyncDelivery) -> None:
        while True:
            try:
                await delivery.ack()
            except OutcomeUnknown:
                continue
            except LeaseExpired:
                raise AssertionError("it was not cancelled before it was done") from None
            else:
                return

    async def one(connection: AsyncConnection, steps: int) -> bool:
        await put(served.url, "jobs")
        (delivery,) = await connection.receive("jobs")
        await connection.enqueue("done", b"%d" % steps)
        await connection.flush()
        calls: dict[str, Callable[[], Coroutine[object, object, object]]] = {
            "ack": delivery.ack,
            "receive": lambda: connection.receive("empty", wait_s=0.001),
            "browse": lambda: bodies(connection, "jobs"),
        }
        task = asyncio.create_task(calls[beside]())
        for _ in range(steps):
            await asyncio.sleep(0)
        was_through = not task.cancel()
        await ended(task)
        await connection.commit()
        if beside != "ack" or not delivery.delivery.is_settled:
            await settled(delivery)
        return was_through

    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            for steps in range(30):
                if await one(connection, steps):
                    break
            assert await bodies(connection, "done") == [b"%d" % number for number in range(steps + 1)]
            assert await bodies(connection, "jobs") == []

    runner.run(work())


def test_who_waits_for_a_turn_can_be_cancelled(served: ServerThread, runner: asyncio.Runner) -> None:
    """Also at the moment when it is handed on."""

    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            for steps in range(12):
                asked = [asyncio.create_task(connection.receive("empty")) for _ in range(5)]
                for _ in range(steps):
                    await asyncio.sleep(0)
                for task in asked[:4]:
                    task.cancel()
                *_, last = await ended(*asked)
                assert last == []

    runner.run(work())


def test_all_who_wait_are_told_of_a_lost_connection(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> None:
        await put(served.url, "jobs", 20)
        async with await xaqueue.connect_async(served.url) as connection:
            held = await connection.receive("jobs", 20)
            waiting = [asyncio.ensure_future(connection.receive("empty", wait_s=None)) for _ in range(3)]
            await waits_for(served, "empty")
            acks = []
            with Held(served):
                acks = [asyncio.create_task(delivery.ack()) for delivery in held]
                await asyncio.sleep(0)
                served.server.loop.call_soon_threadsafe(served.server._cut_off)
            assert all(isinstance(told, ConnectionLost) for told in await ended(*waiting))
            assert await ended(*acks) == [None] * 20  # over one connection that was made anew
            sessions = served.call(lambda: [*served.server.sessions])
            assert len(sessions) == 1
            assert await connection.receive("jobs") == []

    runner.run(work())


def test_a_server_that_is_gone_is_looked_for_once(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> None:
        connection = await xaqueue.connect_async(served.url)
        await put(served.url, "jobs", 20)
        held = await connection.receive("jobs", 20)
        manager, dials = connection._main.manager, 0
        dial, manager._connect_s = manager._dial, 0.05

        def counted() -> object:
            nonlocal dials
            dials += 1
            return dial()

        manager._dial = counted  # type: ignore[assignment]
        await asyncio.to_thread(served.stop)
        (alone,) = await ended(asyncio.create_task(held[0].ack()))
        assert type(alone) is ConnectionLost, "nothing was sent"
        one, dials = dials, 0
        told = await ended(*[asyncio.create_task(delivery.ack()) for delivery in held])
        assert {type(error) for error in told} == {ConnectionLost}
        assert dials <= one
        await connection.close()

    runner.run(work())


def test_who_waits_is_told_while_another_one_has_the_turn(runner: asyncio.Runner) -> None:
    """Whose call may hang on a server that answers nobody: that is no reason to."""

    async def scene() -> None:
        lock = FairLock()

        async def wait() -> None:
            async with lock:
                pytest.fail("it is not its turn")

        async with lock:
            waiting = [asyncio.create_task(wait()) for _ in range(2)]
            await asyncio.sleep(0)
            lock.tell(ConnectionLost("no server answers"))
            told = await ended(*waiting)
            assert [str(one) for one in told] == 2 * [
                "no server answers (this call waited for its turn: nothing was asked of it)"
            ]
        assert not lock.is_taken

    runner.run(scene())


def test_who_waits_is_told_that_the_connection_is_closed(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> None:
        connection = await xaqueue.connect_async(served.url)
        waiting = asyncio.ensure_future(connection.receive("empty", wait_s=None))
        await waits_for(served, "empty")
        await connection.close()
        (told,) = await ended(waiting)
        assert isinstance(told, ConnectionLost)
        for wait_s in (0.0, 1.0):
            with pytest.raises(InterfaceError, match="closed"):
                await connection.receive("empty", wait_s=wait_s)

    runner.run(work())


def test_what_a_cancelled_receive_was_given_is_back_once_it_is_closed(
    served: ServerThread, runner: asyncio.Runner
) -> None:
    async def work() -> None:
        await put(served.url, "jobs")
        connection = await xaqueue.connect_async(served.url)
        await connection.receive("empty", wait_s=0.001)  # it has its session
        with Held(served):
            asked = asyncio.create_task(connection.receive("jobs", lease_s=3600, wait_s=PATIENCE_S))
            for _ in range(5):
                await asyncio.sleep(0)
            asked.cancel()
            await ended(asked)
        await connection.close()
        async with await xaqueue.connect_async(served.url) as other:
            assert len(await other.receive("jobs", wait_s=PATIENCE_S)) == 1

    runner.run(work())
