"""A client of several addresses goes on with whichever answers, in threads and in asyncio."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import xaqueue
from support.pair import free_ports
from support.served import ServerThread
from xaqueue.errors import ConnectionLost, RolledBack
from xaqueue.features.opening import create
from xaqueue.rpc.client import manager
from xaqueue.rpc.client.manager import remote_manager
from xaqueue.rpc.server.listeners import ListenConfig
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

X = Xid(1, b"g", b"")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "HELLO_S", 0.2)
    monkeypatch.setattr(manager, "PAIR_LEAST_S", 1.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create(tmp_path / "s", any_queue=True)
    return tmp_path / "s"


@pytest.fixture
def ports() -> list[int]:
    return free_ports(2)


@pytest.fixture
def url(ports: list[int]) -> str:
    return f"xaq://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"


def serve(root: Path, port: int) -> ServerThread:
    listen = ListenConfig(tcp=(f"127.0.0.1:{port}",), insecure=True)
    return ServerThread(root, root.with_name(f"{port}"), sync="JOURNAL", listen=listen)


@pytest.fixture
def stopped(ports: list[int]) -> Iterator[None]:
    """At the first address a server whose process is stopped: the kernel takes connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", ports[0])):
        yield


@pytest.mark.parametrize("which", [0, 1])
def test_the_one_that_answers(root: Path, ports: list[int], url: str, which: int) -> None:
    server = serve(root, ports[which])
    with xaqueue.connect(url) as connection:
        connection.enqueue("q", b"x")
    server.stop()


@pytest.mark.usefixtures("stopped")
def test_one_that_is_stopped_is_passed_over(root: Path, ports: list[int], url: str) -> None:
    server = serve(root, ports[1])
    with xaqueue.connect(url) as connection:
        connection.enqueue("q", b"x")

    async def later() -> None:
        async with await xaqueue.connect_async(url) as again:
            message = await again.dequeue("q")
            assert message is not None
            assert message.body == b"x"
            await again.commit()

    asyncio.run(later())
    server.stop()


def test_nobody_answers(url: str) -> None:
    with pytest.raises(ConnectionLost, match="no server answers"):
        remote_manager(url, connect_s=0)


def test_what_is_prepared_is_finished_at_the_other_one(root: Path, ports: list[int], url: str) -> None:
    """EMS-02: what the two share; a client comes to it by itself."""
    first = serve(root, ports[0])
    connection, active = xaqueue.connect(url), xaqueue.connect(url)
    connection.tpc_begin(X)
    connection.enqueue("q", b"x")
    connection.tpc_prepare()
    active.enqueue("q", b"y")
    active.flush()
    first.kill()
    second = serve(root, ports[1])
    assert connection.outcome(X) is Outcome.IN_DOUBT
    connection.tpc_commit()
    with pytest.raises(RolledBack):
        active.commit()
    active.rollback()
    message = active.dequeue("q")
    assert message is not None
    assert message.body == b"x"
    active.commit()
    for each in (connection, active):
        each.close()
    second.stop()
