"""What is over a limit is refused or ended, alone, with a line in the log, and everybody else goes on."""

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
from support.raw_client import HungUp, RawClient, Refused
from support.served import ServerThread
from typer.testing import CliRunner

import xaqueue
from xaqueue.cli.exits import ExitCode
from xaqueue.cli.main import app
from xaqueue.endpoint import parse
from xaqueue.errors import ConnectionLost, InvalidArgument, ResourceFailed, RolledBack, UnknownXid
from xaqueue.rpc import dial, wire
from xaqueue.rpc.client import RemoteManager
from xaqueue.rpc.limits import FRAME_OVERHEAD_BYTES, LEAST, Limits
from xaqueue.rpc.patience import Patience
from xaqueue.space.owner import open as attach_room
from xaqueue.xa import Code, Flag, Outcome
from xaqueue.xid import Xid

PATIENCE_S = 60.0
X, Y = Xid(1, b"x", b""), Xid(1, b"y", b"")
Start = Callable[..., ServerThread]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[ServerThread] = []

    def begin(**limits: float) -> ServerThread:
        root = tmp_path / "space"
        attach_room.create(root, any_queue=True)
        given = Limits(**limits)  # type: ignore[arg-type]
        made.append(ServerThread(root, tmp_path / "socket", sync="NONE", limits=given))
        return made[-1]

    yield begin
    for server in made:
        server.stop()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def logged(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def put(server: ServerThread, *bodies: bytes) -> None:
    with xaqueue.connect(server.url) as connection:
        for body in bodies:
            connection.enqueue("q", body)
        connection.commit()


def bodies(server: ServerThread) -> list[bytes]:
    """What can be dequeued now."""
    with xaqueue.connect(server.url) as connection:
        found = []
        while message := connection.dequeue("q"):
            found.append(message.body)
        connection.rollback()
        return found


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize("value", [0, -1, None, "1", float("nan"), float("inf"), True])
def test_a_limit_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"limit {name} = .* are wanted"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_every_limit_has_its_least() -> None:
    assert set(LEAST) == set(Limits.__dataclass_fields__)


# Branches


def test_an_idle_branch_is_rolled_back_by_the_server(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(branch_idle_s=1)
    put(server, b"1", b"2")
    with xaqueue.connect(server.url) as idle:
        idle.tpc_begin(X)
        assert idle.dequeue("q") is not None
        idle.enqueue("q", b"lost")
        idle.flush()
        until(lambda: bodies(server) == [b"1", b"2"])
        assert "branch 1.eA. did nothing for 1 s: it is rolled back" in logged(caplog)
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
            connection._leave()  # in doubt, and nobody comes
        idle = Xid(1, b"z", b"")
        connection.tpc_begin(idle)
        connection.enqueue("q", b"lost")
        connection.flush()
        until(lambda: connection.outcome(idle) is Outcome.ROLLED_BACK)  # which began after them
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
        until(lambda: bodies(server) == [b"1"])
        connection.tpc_rollback()


def test_a_dequeue_may_wait_for_longer_than_a_branch_may_idle(start: Start) -> None:
    server = start(branch_idle_s=1, session_idle_s=1)
    with xaqueue.connect(server.url) as connection:
        assert connection.dequeue("q", wait_s=2.5) is None
        connection.enqueue("q", b"1")
        connection.commit()
    assert bodies(server) == [b"1"]


def test_a_session_begins_so_many_branches(start: Start) -> None:
    server = start(branches=3)
    with RawClient(server.path) as client:
        for number in range(3):
            client.call("start", (1, b"%d" % number, b""))
            client.call("enqueue", "q", b"%d" % number)
            client.call("end", (1, b"%d" % number, b""))
        with pytest.raises(Refused, match="3 of this session are neither prepared nor over") as told:
            client.call("start", (1, b"3", b""))
        assert told.value.name == "XA_RETRY"
        with RawClient(server.path) as other:
            other.call("start", (1, b"4", b""))
        client.call("prepare", (1, b"0", b""))
        client.call("start", (1, b"3", b""))
        client.call("end", (1, b"3", b""))
        for number in (1, 2, 3):
            client.call("commit", (1, b"%d" % number, b""), int(Flag.ONEPHASE))
        for number in range(10):
            client.call("start", (1, b"more %d" % number, b""))
            client.call("end", (1, b"more %d" % number, b""))
            client.call("rollback", (1, b"more %d" % number, b""))


def test_of_local_transactions_there_is_no_end(start: Start) -> None:
    server = start(branches=2)
    with xaqueue.connect(server.url) as connection:
        for number in range(20):
            connection.enqueue("q", b"%d" % number)
            connection.commit()
    assert len(bodies(server)) == 20


# Sessions


def test_so_many_sessions_are_taken(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(sessions=2)
    first, second = xaqueue.connect(server.url), xaqueue.connect(server.url)
    with pytest.raises(ResourceFailed, match="2 sessions are open, which is the limit: try again later"):
        RemoteManager(lambda: dial.dial(parse(server.url)), connect_s=0)
    assert "is refused: 2 sessions are open" in logged(caplog)
    first.close()
    xaqueue.connect(server.url).close()
    second.close()


def test_an_idle_session_is_ended_and_its_client_connects_again(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(session_idle_s=1)
    with xaqueue.connect(server.url) as connection:
        connection.enqueue("q", b"1")
        connection.commit()
        until(lambda: not server.server.sessions)
        assert "is ended: it has asked for nothing for 1 s" in logged(caplog)
        connection.enqueue("q", b"2")
        connection.commit()
    assert bodies(server) == [b"1", b"2"]


def test_an_idle_session_gives_back_what_it_held(start: Start) -> None:
    server = start(session_idle_s=1)
    put(server, b"1")
    connection = xaqueue.connect(server.url)
    assert connection.dequeue("q") is not None
    until(lambda: bodies(server) == [b"1"])
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


def test_a_peer_that_stops_in_the_middle_of_a_request_is_cut_off(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(stalled_s=0.2)
    with RawClient(server.path) as client, RawClient(server.path) as other:
        packed = msgpack.packb([0, 1, "echo", [bytes(1000)]])
        client.send(packed[:500])
        with pytest.raises((HungUp, OSError)):
            client.answer()
        assert "it stopped in the middle of a request for 0.2 s" in logged(caplog)
        assert other.call("echo", 1) == 1


def test_a_peer_that_is_slow_but_goes_on_is_waited_for(start: Start) -> None:
    server = start(stalled_s=2)
    with RawClient(server.path) as client:
        packed = msgpack.packb([0, 1, "echo", [bytes(100)]])
        for place in range(0, len(packed), 4):
            client.send(packed[place : place + 4])
            time.sleep(0.1)
        assert client.answer()[3] == bytes(100)


def test_a_peer_that_does_not_read_its_answers_is_cut_off(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(stalled_s=0.3)
    with RawClient(server.path) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = msgpack.packb([0, 1, "echo", [bytes(4 * 1024 * 1024)]])
        client.socket.settimeout(0.5)
        with suppress(OSError):
            for _ in range(4):
                client.send(request)
        until(lambda: "it has not read its answers for 0.3 s" in logged(caplog))
        until(lambda: not server.server.sessions)
    assert bodies(server) == []


def test_a_request_over_the_limit_ends_its_session_alone(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(request_bytes=FRAME_OVERHEAD_BYTES)
    with RawClient(server.path) as client, RawClient(server.path) as other:
        with suppress(OSError):
            client.send(msgpack.packb([0, 1, "echo", [bytes(2 * FRAME_OVERHEAD_BYTES)]]))
        with pytest.raises((HungUp, OSError)):
            client.answer()
        assert "is ended: it sent what is no frame" in logged(caplog)
        assert other.call("echo", 1) == 1


# Patience itself


LIMITS = Limits(login_s=10, stalled_s=60, session_idle_s=3600)


def lost(patience: Patience, now: float, *, admitted: bool = True, idle: bool = True, unread: int = 0) -> bool:
    return patience.lost(now, LIMITS, admitted=admitted, idle=idle, unread=unread) is not None


def test_patience_with_the_time_of_each_thing() -> None:
    assert not lost(Patience(0.0), 10, admitted=False)
    assert lost(Patience(0.0), 11, admitted=False)
    assert not lost(Patience(0.0), 3600)
    assert lost(Patience(0.0), 3601)
    patience = Patience(0.0)
    patience.hear(50, whole=False)
    assert not lost(patience, 110)
    assert lost(patience, 111)
    patience.hear(111, whole=True)
    assert not lost(patience, 1000)
    assert not lost(patience, 100_000, idle=False)
    assert not lost(patience, 103_600)
    assert lost(patience, 103_601)


def test_patience_with_answers_that_are_read_slowly() -> None:
    patience = Patience(0.0)
    for now, unread in ((0, 1000), (50, 900), (100, 800), (150, 800), (160, 900)):
        assert not lost(patience, now, unread=unread)
    assert lost(patience, 161, unread=900)
    assert not lost(patience, 162, unread=0)


def test_the_largest_request_grows_with_the_largest_body_unless_it_was_given() -> None:
    usual = Limits()
    assert usual.for_bodies(1024) is usual
    assert usual.for_bodies(1 << 30).request_bytes > 1 << 30
    assert Limits(request_bytes=200_000).for_bodies(1 << 30).request_bytes == 200_000


def test_a_server_ends_by_itself_once_nobody_was_connected_for_long_enough(start: Start) -> None:
    server = start(idle_exit_s=0.2)
    with xaqueue.connect(server.url) as connection:
        connection.enqueue("orders", b"1")
        connection.commit()
        begun = server.server.loop.time()
        until(lambda: server.server.loop.time() > begun + 0.5)
        assert connection.dequeue("orders") is not None  # as long as somebody is there, it stays
        connection.rollback()
    until(lambda: not attach_room.is_owned(server.root))
    assert not server.path.exists()


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_an_idle_exit_that_makes_no_sense_is_refused(tmp_path: Path, seconds: str) -> None:
    attach_room.create(tmp_path / "space", any_queue=True)
    done = CliRunner().invoke(app, ["serve", "--space", str(tmp_path / "space"), "--idle-exit", seconds])
    assert done.exit_code == ExitCode.USAGE
    assert "idle" in done.stderr


# The memory of all together

MIB = 1024 * 1024


def half_a_request(server: ServerThread, size: int) -> socket.socket:
    """A session that has sent so much of a request, and not its end."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(PATIENCE_S)
    made.connect(str(server.path))
    whole: bytes = msgpack.packb([0, 1, "echo", [bytes(2 * size)]])
    with suppress(OSError):  # it was refused in the middle
        made.sendall(whole[:size])
    return made


def a_request_that_waits(server: ServerThread, size: int) -> socket.socket:
    """A session that has sent a whole one, behind a dequeue for which there is no message."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(PATIENCE_S)
    made.connect(str(server.path))
    calls = (
        ("start", [[7, os.urandom(8), b""]]),
        ("dequeue", ["empty", {"wait_s": PATIENCE_S}]),
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
    assert "most of it" in logged(caplog)
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
    until(lambda: held() == 0)


@pytest.mark.parametrize("verb", ["enqueue", "commit"])
def test_a_client_without_room_for_its_request_is_told_and_goes_on(start: Start, verb: str) -> None:
    server = start(request_bytes=4 * MIB, request_memory_bytes=4 * MIB)
    held = [half_a_request(server, MIB) for _ in range(3)]
    until(lambda: int(server.call(lambda: sum(s.waiting_bytes for s in server.server.sessions))) == 3 * MIB)
    with xaqueue.connect(server.url) as connection:
        with pytest.raises((RolledBack, ConnectionLost), match="most of it"):  # noqa: PT012
            if verb == "enqueue":
                connection.enqueue("q", bytes(3 * MIB))
                connection.flush()
            else:
                connection.enqueue("q", bytes(3 * MIB), message_id=bytes(16))
        connection.rollback()
        for one in held:
            one.close()
        until(lambda: len(server.server.sessions) == 1)
        connection.enqueue("q", bytes(3 * MIB))
        connection.commit()
        assert len(list(connection.browse("q"))) == 1


def test_one_request_of_the_largest_size_always_finds_room(start: Start) -> None:
    server = start(request_bytes=4 * MIB, request_memory_bytes=FRAME_OVERHEAD_BYTES)
    with xaqueue.connect(server.url) as connection:
        connection.enqueue("q", bytes(3 * MIB))
