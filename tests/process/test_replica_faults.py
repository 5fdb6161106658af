"""What goes wrong with a replica, its source or their operator: nothing is lost by it, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

import xaqueue
from support.replicas import ReplicaThread, made, text, until
from support.served import ServerThread
from xaqueue.connection import Connection
from xaqueue.errors import Error, OutcomeUnknown
from xaqueue.rpc.server import server as server_room
from xaqueue.rpc.server.peer import Limits
from xaqueue.space.engine.shipping import Shipping
from xaqueue.space.owner.open import write_definitions
from xaqueue.space.recovery import recover

Serve = Callable[..., ServerThread]
Follow = Callable[..., ReplicaThread]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[ServerThread] = []

    def begin(root: Path, *, opens: bool = True, limits: Limits | None = None, socket: str = "") -> ServerThread:
        path = tmp_path / f"{socket or root.name}.socket"
        servers.append(ServerThread(root, path, opens=opens, limits=limits))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture
def follow() -> Iterator[Follow]:
    replicas: list[ReplicaThread] = []

    def begin(root: Path, url: str) -> ReplicaThread:
        replicas.append(ReplicaThread(root, url))
        return replicas[-1]

    yield begin
    for replica in replicas:
        replica.failure = None
        replica.stop()


def bodies(connection: Connection, queue: str = "orders") -> list[bytes]:
    return [message.body for message in connection.browse(queue)]


def put(url: str, *new: bytes, queue: str = "orders") -> None:
    with xaqueue.connect(url) as connection:
        for body in new:
            connection.enqueue(queue, body)
        connection.commit()


def begin_put(url: str) -> threading.Thread:
    def run() -> None:
        with suppress(Error):
            put(url, b"waits")

    thread = threading.Thread(target=run)
    thread.start()
    return thread


# Who waits for a replica


def test_it_stops_while_it_waits_at_its_open(tmp_path: Path, serve: Serve) -> None:
    source = serve(made(tmp_path / "source", "replica"), opens=False)
    source.stop()
    assert source._failure is None
    assert not source.space.loaded


def test_it_stops_while_a_commit_waits(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    root = made(tmp_path / "source", "replica", timeout_s=3600)
    source = serve(root, opens=False, limits=Limits(stop_s=0.2))
    replica = follow(tmp_path / "replica", source.url)
    until(lambda: source.space.loaded)
    replica.stop()
    waiting = begin_put(source.url)
    until(lambda: source.space.log._in_hand)
    source.stop()
    waiting.join(60)
    assert not waiting.is_alive()
    assert source.server.is_told, "it would be opened anew"


def test_a_stop_acknowledges_by_the_replica(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """Whose session goes last; and a message that is handed back at the end waits for nobody."""
    source = serve(made(tmp_path / "source", "replica", timeout_s=3600), opens=False)
    follow(tmp_path / "replica", source.url)
    until(lambda: source.space.loaded)
    put(source.url, *(b"taken" for _ in range(8)))
    with ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(closing(xaqueue.connect(source.url)))
            assert connection.dequeue("orders") is not None
        source.stop()
    assert source._failure is None
    assert not source.space.log.fenced


def test_a_server_that_is_opened_anew_is_not_ended(
    tmp_path: Path, serve: Serve, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_room, "HANG_S", 0.2)
    source = serve(made(tmp_path / "source", "replica", timeout_s=0.1), opens=False, limits=Limits(stop_s=0.1))
    ended: list[int] = []
    source.server.give_up_late = lambda: ended.append(1)
    replica = follow(tmp_path / "replica", source.url)
    until(lambda: source.space.loaded)
    replica.stop()
    with pytest.raises(OutcomeUnknown):
        put(source.url, b"unknown")
    source._thread.join(60)
    time.sleep(0.6)
    assert not ended, "the process would have ended, with whom it has opened since"


def test_what_recovery_does_waits_for_nobody(tmp_path: Path, serve: Serve, follow: Follow) -> None:
    """It has a try to count, and the replica comes later than acknowledge_timeout_s."""
    root, there = made(tmp_path / "source", "replica", timeout_s=0.2), tmp_path / "replica"
    source = serve(root, opens=False)
    replica = follow(there, source.url)
    until(lambda: source.space.loaded)
    put(source.url, b"taken")
    log = source.space.journal_log
    assert log is not None
    assert log.register is not None
    with closing(xaqueue.connect(source.url)) as connection:
        assert connection.dequeue("orders") is not None
        log.register.make()
        source.kill()
    replica.stop()
    source = serve(root, opens=False)
    time.sleep(0.5)
    assert source._thread.is_alive()
    follow(there, source.url)
    until(lambda: source.space.loaded)
    with xaqueue.connect(source.url) as connection:
        assert bodies(connection) == [b"taken"]


def test_nobody_is_told_an_outcome_before_the_replica_has_it(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while the messages are loaded either, when those in doubt may be finished already."""
    refused: list[str] = []
    rest = recover.Load.rest

    def look(load: recover.Load, progress: object) -> None:
        shipping = load._space.shipping
        refused.append(shipping.refusal if isinstance(shipping, Shipping) else "")
        rest(load, progress)  # type: ignore[arg-type]

    monkeypatch.setattr(recover.Load, "rest", look)
    root = made(tmp_path / "source", "replica")
    source = serve(root, opens=False)
    until(lambda: bool(refused))
    assert "waits for its replica" in refused[0]
    write_definitions(root, text("local"))
    until(lambda: source.space.loaded)
