"""Limits of a server that are over after some time, which is waited for."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

import xaqueue
from support.limited import Start, bodies, half_a_request, starting
from support.patience import eventually
from support.raw_client import RawClient
from support.served import ServerThread
from xaqueue.errors import ConnectionLost, RolledBack, UnknownXid
from xaqueue.rpc import wire
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid

PATIENCE_S = 60.0
DEQUEUE_S = 10.0
"""Longer than it takes to begin all that is behind it; who leaves meanwhile holds what was sent until it is over."""
X, Y = Xid(1, b"x", b""), Xid(1, b"y", b"")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as begin:
        yield begin


def put(server: ServerThread, *bodies: bytes) -> None:
    with xaqueue.connect(server.url) as connection:
        for body in bodies:
            connection.enqueue("q", body)
        connection.commit()


def test_an_idle_branch_is_rolled_back_by_the_server(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(branch_idle_s=1)
    put(server, b"1", b"2")
    with xaqueue.connect(server.url) as idle:
        idle.tpc_begin(X)
        assert idle.dequeue("q") is not None
        idle.enqueue("q", b"lost")
        idle.flush()
        eventually(lambda: bodies(server) == [b"1", b"2"])
        assert "branch 1.eA. did nothing for 1 s: it is rolled back" in caplog.text
        with pytest.raises(RolledBack) as told:
            idle.dequeue("q")
        assert told.value.code is Code.XA_RBTIMEOUT
        idle.tpc_rollback()
        assert idle.outcome(X) is Outcome.ROLLED_BACK
        with pytest.raises(UnknownXid):
            idle.tpc_commit(X)
        idle.enqueue("q", b"3")
        idle.commit()
    assert bodies(server) == [b"1", b"2", b"3"]


def test_a_prepared_branch_is_never_timed_out(start: Start) -> None:
    server = start(branch_idle_s=1)
    with xaqueue.connect(server.url) as connection:
        for xid, timeout_s in ((X, None), (Y, 1.0)):
            connection.tpc_begin(xid, timeout_s=timeout_s)
            connection.enqueue("q", b"1")
            connection.tpc_prepare()
            connection._transaction.leave()  # in doubt, and nobody comes
        idle = Xid(1, b"z", b"")
        connection.tpc_begin(idle)
        connection.enqueue("q", b"lost")
        connection.flush()
        eventually(lambda: connection.outcome(idle) is Outcome.ROLLED_BACK)  # which began after them
        assert {connection.outcome(xid) for xid in (X, Y)} == {Outcome.IN_DOUBT}
        connection.tpc_rollback()


def test_a_deadline_ends_a_waiting_dequeue(start: Start) -> None:
    server = start()
    put(server, b"1")
    with xaqueue.connect(server.url) as connection:
        connection.tpc_begin(X, timeout_s=1)
        assert connection.dequeue("q") is not None
        with pytest.raises(RolledBack) as told:
            connection.dequeue("other", wait_s=10 * PATIENCE_S)
        assert told.value.code is Code.XA_RBTIMEOUT
        eventually(lambda: bodies(server) == [b"1"])
        connection.tpc_rollback()


def test_a_dequeue_may_wait_for_longer_than_a_branch_may_idle(start: Start) -> None:
    server = start(branch_idle_s=1, session_idle_s=1)
    with xaqueue.connect(server.url) as connection:
        assert connection.dequeue("q", wait_s=2.5) is None
        connection.enqueue("q", b"1")
        connection.commit()
    assert bodies(server) == [b"1"]


def test_an_idle_session_is_ended_and_its_client_connects_again(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(session_idle_s=1)
    with xaqueue.connect(server.url) as connection:
        connection.enqueue("q", b"1")
        connection.commit()
        assert isinstance(connection._manager, RemoteManager)
        stream = connection._manager._socket
        assert stream is not None
        eventually(lambda: not server.server.sessions)
        assert "is ended: it has asked for nothing for 1 s" in caplog.text
        eventually(lambda: stream.has_said(0))  # the session is over before its socket is closed
        connection.enqueue("q", b"2")
        connection.commit()
    assert bodies(server) == [b"1", b"2"]


def test_an_idle_session_gives_back_what_it_held(start: Start) -> None:
    server = start(session_idle_s=1)
    put(server, b"1")
    connection = xaqueue.connect(server.url)
    assert connection.dequeue("q") is not None
    eventually(lambda: bodies(server) == [b"1"])
    with pytest.raises((ConnectionLost, RolledBack, UnknownXid)):  # as far as the client has noticed
        connection.commit()
    connection.close()
    assert bodies(server) == [b"1"]


def test_a_session_that_asks_now_and_then_stays(start: Start) -> None:
    server = start(session_idle_s=2)
    with RawClient(server.path) as client:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert client.call("echo", 1) == 1
            time.sleep(0.05)


def test_a_peer_that_is_slow_but_goes_on_is_waited_for(start: Start) -> None:
    server = start(stalled_s=2)
    with RawClient(server.path) as client:
        packed = msgpack.packb([0, 1, "echo", [bytes(100)]])
        for place in range(0, len(packed), 4):
            client.send(packed[place : place + 4])
            time.sleep(0.1)
        assert client.answer()[3] == bytes(100)


MIB = 1024 * 1024


def a_request_that_waits(server: ServerThread, size: int) -> socket.socket:
    """A session that has sent a whole one, behind a dequeue for which there is no message."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(PATIENCE_S)
    made.connect(str(server.path))
    calls = (
        ("start", [[7, os.urandom(8), b""]]),
        ("dequeue", ["empty", {"wait_s": DEQUEUE_S}]),
        ("echo", [bytes(size)]),
    )
    with suppress(OSError):
        made.sendall(b"".join(msgpack.packb([0, number, *call]) for number, call in enumerate(calls, 1)))
    return made


@pytest.mark.parametrize("sent", [half_a_request, a_request_that_waits])
def test_requests_on_their_way_hold_so_much_together(
    start: Start, caplog: pytest.LogCaptureFixture, sent: Callable[[ServerThread, int], socket.socket]
) -> None:
    """The session that holds most is ended and told, and all others go on."""
    server = start(request_bytes=3 * MIB, request_memory_bytes=4 * MIB)
    holding = []

    def held() -> int:
        return int(server.call(lambda: sum(session.waiting_bytes for session in server.server.sessions)))

    with xaqueue.connect(server.url) as connection:
        connection.enqueue("q", b"before")
        for number in range(12):
            holding.append(sent(server, MIB + number))
            assert held() <= 4 * MIB + wire.CHUNK_BYTES
        connection.enqueue("q", b"after")
        connection.commit()
        assert len(list(connection.browse("q"))) == 2
    assert "most of it" in caplog.text
    refused: list[Any] = []
    for one in holding:
        one.settimeout(0.2)
        unpacker = msgpack.Unpacker()
        with suppress(OSError):
            while data := one.recv(65536):
                unpacker.feed(data)
        refused += [answer for answer in unpacker if answer[2] is not None]
        one.close()
    assert len(refused) >= 8
    assert {(number, error["error"], error["code"]) for _, number, error, _ in refused} == {
        (0, "RolledBack", int(Code.XA_RBTRANSIENT))
    }
    eventually(lambda: held() == 0)
