"""What is over a limit is refused or ended, alone, with a line in the log, and everybody else goes on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
from typer.testing import CliRunner

import xaqueue
from support.limited import Start, bodies, half_a_request, starting
from support.patience import eventually
from support.raw_client import HungUp, RawClient, Refused
from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.core.owner import open as attach_room
from xaqueue.endpoint import parse
from xaqueue.errors import ConnectionLost, InvalidArgument, ResourceFailed, RolledBack
from xaqueue.rpc.client.manager import RemoteManager, dial
from xaqueue.rpc.server.peer import FRAME_OVERHEAD_BYTES, LEAST, Limits, PeerTimeouts
from xaqueue.xa import Flag

PATIENCE_S = 60.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as begin:
        yield begin


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize("value", [0, -1, None, "1", float("nan"), float("inf"), True])
def test_a_limit_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"limit {name} = .* are wanted"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_every_limit_has_its_least() -> None:
    assert set(LEAST) == set(Limits.__dataclass_fields__)


# Branches


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
        RemoteManager(lambda: dial(parse(server.url)), connect_s=0)
    assert "is refused: 2 sessions are open" in caplog.text
    first.close()
    xaqueue.connect(server.url).close()
    second.close()


def test_a_peer_that_stops_in_the_middle_of_a_request_is_cut_off(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(stalled_s=0.2)
    with RawClient(server.path) as client, RawClient(server.path) as other:
        packed = msgpack.packb([0, 1, "echo", [bytes(1000)]])
        client.send(packed[:500])
        with pytest.raises((HungUp, OSError)):
            client.answer()
        assert "it stopped in the middle of a request for 0.2 s" in caplog.text
        assert other.call("echo", 1) == 1


def test_a_peer_that_does_not_read_its_answers_is_cut_off(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(stalled_s=0.3)
    with RawClient(server.path) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = msgpack.packb([0, 1, "echo", [bytes(4 * 1024 * 1024)]])
        client.socket.settimeout(0.5)
        with suppress(OSError):
            for _ in range(4):
                client.send(request)
        eventually(lambda: "it has not read its answers for 0.3 s" in caplog.text)
        eventually(lambda: not server.server.sessions)
    assert bodies(server) == []


def test_a_request_over_the_limit_ends_its_session_alone(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(request_bytes=FRAME_OVERHEAD_BYTES)
    with RawClient(server.path) as client, RawClient(server.path) as other:
        with suppress(OSError):
            client.send(msgpack.packb([0, 1, "echo", [bytes(2 * FRAME_OVERHEAD_BYTES)]]))
        with pytest.raises((HungUp, OSError)):
            client.answer()
        assert "is ended: it sent no frame" in caplog.text
        assert other.call("echo", 1) == 1


# The timeouts themselves


LIMITS = Limits(login_s=10, stalled_s=60, session_idle_s=3600)


def lost(timeouts: PeerTimeouts, now: float, *, admitted: bool = True, idle: bool = True, unread: int = 0) -> bool:
    return timeouts.exceeded(now, LIMITS, admitted=admitted, idle=idle, unread=unread) is not None


def test_patience_with_the_time_of_each_thing() -> None:
    assert not lost(PeerTimeouts(0.0), 10, admitted=False)
    assert lost(PeerTimeouts(0.0), 11, admitted=False)
    assert not lost(PeerTimeouts(0.0), 3600)
    assert lost(PeerTimeouts(0.0), 3601)
    timeouts = PeerTimeouts(0.0)
    timeouts.hear(50, whole=False)
    assert not lost(timeouts, 110)
    assert lost(timeouts, 111)
    timeouts.hear(111, whole=True)
    assert not lost(timeouts, 1000)
    assert not lost(timeouts, 100_000, idle=False)
    assert not lost(timeouts, 103_600)
    assert lost(timeouts, 103_601)


def test_patience_with_answers_that_are_read_slowly() -> None:
    timeouts = PeerTimeouts(0.0)
    for now, unread in ((0, 1000), (50, 900), (100, 800), (150, 800), (160, 900)):
        assert not lost(timeouts, now, unread=unread)
    assert lost(timeouts, 161, unread=900)
    assert not lost(timeouts, 162, unread=0)


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
        eventually(lambda: server.server.loop.time() > begun + 0.5)
        assert connection.dequeue("orders") is not None  # as long as somebody is there, it stays
        connection.rollback()
    eventually(lambda: not attach_room.is_owned(server.root))
    assert not server.path.exists()


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_an_idle_exit_that_makes_no_sense_is_refused(tmp_path: Path, seconds: str) -> None:
    attach_room.create(tmp_path / "space", any_queue=True)
    done = CliRunner().invoke(app, ["serve", "--space", str(tmp_path / "space"), "--idle-exit", seconds])
    assert done.exit_code == ExitCode.USAGE
    assert "idle" in done.stderr


# The memory of all together

MIB = 1024 * 1024


@pytest.mark.parametrize("verb", ["enqueue", "commit"])
def test_a_client_without_room_for_its_request_is_told_and_goes_on(start: Start, verb: str) -> None:
    server = start(request_bytes=4 * MIB, request_memory_bytes=4 * MIB)
    held = [half_a_request(server, MIB) for _ in range(3)]
    eventually(lambda: int(server.call(lambda: sum(s.waiting_bytes for s in server.server.sessions))) == 3 * MIB)
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
        eventually(lambda: len(server.server.sessions) == 1)
        connection.enqueue("q", bytes(3 * MIB))
        connection.commit()
        assert len(list(connection.browse("q"))) == 1


def test_one_request_of_the_largest_size_always_finds_room(start: Start) -> None:
    server = start(request_bytes=4 * MIB, request_memory_bytes=FRAME_OVERHEAD_BYTES)
    with xaqueue.connect(server.url) as connection:
        connection.enqueue("q", bytes(3 * MIB))
