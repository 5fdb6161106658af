"""Many tasks of one loop have connections, each one of its own; test_async_shared.py is of one for many tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import xaqueue
from support.awaited import Held, bodies
from support.certificates import Authority
from support.contract_connection import PATIENCE_S, QUEUES
from support.served import ServerThread
from xaqueue.core.owner import definitions_file
from xaqueue.errors import ConnectionLost, InterfaceError, InvalidArgument, UnknownQueue
from xaqueue.features.opening import create
from xaqueue.message import Message
from xaqueue.rpc.server.listeners import ListenConfig


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


def test_many_connections_of_one_loop_work_at_once(served: ServerThread, runner: asyncio.Runner) -> None:
    async def produce(number: int) -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            for count in range(5):
                await connection.enqueue("orders", b"%d.%d" % (number, count))
                await connection.commit()

    async def consume(found: list[bytes], wanted: int) -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            while len(found) < wanted:
                message = await connection.dequeue("orders", wait_s=0.05)
                if message is not None:
                    found.append(message.body)
                await connection.commit()

    async def work() -> list[bytes]:
        found: list[bytes] = []
        consumers = [consume(found, 200) for _ in range(8)]
        await asyncio.gather(*[produce(number) for number in range(40)], *consumers)
        return found

    found = runner.run(work())
    assert sorted(found) == sorted(b"%d.%d" % (number, count) for number in range(40) for count in range(5))


def test_who_waits_for_a_message_holds_nobody_up(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> Message | None:
        consumers = [await xaqueue.connect_async(served.url) for _ in range(10)]
        waiting = [asyncio.ensure_future(one.dequeue("orders", wait_s=PATIENCE_S)) for one in consumers]
        async with await xaqueue.connect_async(served.url) as other:
            for number in range(20):
                await other.enqueue("replies", b"%d" % number)
                await other.commit()
            assert not any(task.done() for task in waiting)
            await other.enqueue("orders", b"x")
            await other.commit()
            done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
        for one in consumers:
            await one.close()
        assert len(done) == 1
        return done.pop().result()

    message = runner.run(work())
    assert message is not None
    assert message.body == b"x"


def test_one_task_at_a_time(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            waiting = asyncio.ensure_future(connection.dequeue("orders", wait_s=PATIENCE_S))
            await asyncio.sleep(0)
            for refused in (connection.commit, connection.close):
                with pytest.raises(InterfaceError, match="one for each task"):
                    await refused()
            async with await xaqueue.connect_async(served.url) as other:
                await other.enqueue("orders", b"x")
                await other.commit()
            message = await waiting
            assert message is not None
            await connection.commit()

    runner.run(work())


def test_a_connection_stays_in_its_loop(served: ServerThread, runner: asyncio.Runner) -> None:
    connection = runner.run(xaqueue.connect_async(served.url))
    with asyncio.Runner() as other, pytest.raises(InterfaceError, match="another event loop"):
        other.run(connection.commit())
    with pytest.raises(InterfaceError, match="await"):
        connection._connection.dequeue("orders")
    runner.run(connection.close())


def test_a_browse_can_be_broken_off(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            for number in range(1500):
                await connection.enqueue("orders", b"%d" % number)
            await connection.commit()
            browsing = connection.browse("orders")
            assert [(await anext(browsing)).body for _ in range(3)] == [b"0", b"1", b"2"]
            message = await connection.dequeue("orders")
            assert message is not None
            assert len([one async for one in browsing]) == 1497
            with pytest.raises(UnknownQueue):
                await anext(connection.browse("nowhere"))
            await connection.commit()

    runner.run(work())


def test_browses_that_were_broken_off_are_closed(served: ServerThread, runner: asyncio.Runner) -> None:
    """A session may have sixteen of them open."""

    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            for number in range(1001):
                await connection.enqueue("orders", b"%d" % number)
            await connection.commit()
            for _ in range(40):
                browsing = connection.browse("orders")
                assert (await anext(browsing)).body == b"0"
                await browsing.aclose()
            sessions = served.call(lambda: [*served.server.sessions])
            assert sum(len(session.caller.browses) for session in sessions) <= 1

    runner.run(work())


def test_much_more_rides_than_a_socket_takes(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> int:
        async with await xaqueue.connect_async(served.url) as connection:
            for _ in range(200):
                await connection.enqueue("orders", b"x" * 100_000)
            await connection.commit()
            return len(await bodies(connection))

    assert runner.run(work()) == 200


def test_it_connects_again_between_transactions(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            await connection.enqueue("orders", b"x")
            await connection.commit()
            served.call(served.server._cut_off)
            await asyncio.sleep(0.01)
            await connection.enqueue("orders", b"y")
            await connection.commit()
            assert await bodies(connection) == [b"x", b"y"]

    runner.run(work())


@pytest.mark.parametrize("scheme", ["xaq", "xaqs"])
def test_over_a_network_one_connection_is_kept(root: Path, tmp_path: Path, runner: asyncio.Runner, scheme: str) -> None:
    """What TLS sends by itself is not taken for the end of it."""
    authority = Authority(tmp_path, "ours")
    certificate = authority.issue("127.0.0.1")
    place = ("127.0.0.1:0",)
    listen = ListenConfig(cert=str(certificate.cert), key=str(certificate.key), tls=place, tcp=place, insecure=True)
    served = ServerThread(root, tmp_path / "socket", sync="NONE", listen=listen)
    (url,) = [url for url in served.server.listeners.urls if url.startswith(f"{scheme}:")]

    async def work() -> None:
        async with await xaqueue.connect_async(url + (f"?ca={authority.ca}" if scheme == "xaqs" else "")) as connection:
            first = served.call(lambda: [*served.server.sessions])
            assert len(first) == 1
            for number in range(20):
                await connection.enqueue("orders", bytes(5000 * number))
                await connection.commit()
                await asyncio.sleep(0)
            assert served.call(lambda: [*served.server.sessions]) == first
            for _ in range(3):
                assert len(await bodies(connection)) == 20
            sessions = served.call(lambda: [*served.server.sessions])
            assert len(sessions) == 2  # one for what it browses
            assert set(first) < set(sessions)

    try:
        runner.run(work())
    finally:
        served.stop()


def test_an_answer_that_takes_too_long_loses_the_connection(served: ServerThread, runner: asyncio.Runner) -> None:
    async def work() -> None:
        async with await xaqueue.connect_async(served.url) as connection:
            await connection.enqueue("orders", b"x")
            connection._connection._manager._socket.hurry(0.05)  # type: ignore[attr-defined]
            with Held(served), pytest.raises(ConnectionLost, match="no answer within"):
                await connection.dequeue("orders")
            await connection.rollback()

    runner.run(work())


@pytest.mark.parametrize("given", ["/some/directory", "http://host:1", "xaq+unix://", Path("/some/directory")])
def test_what_is_no_url_of_a_server_is_refused(given: str | Path, runner: asyncio.Runner) -> None:
    with pytest.raises(InvalidArgument):
        runner.run(xaqueue.connect_async(given))  # type: ignore[arg-type]
