"""The server and its client at their edges: interrupted calls, a full server, a vanished peer, a new token."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from opcode import opmap
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import xaqueue
from support.certificates import Authority
from support.patience import eventually
from support.served import PATIENCE_S, ServerThread
from xaqueue.access import Identity
from xaqueue.connection import Connection
from xaqueue.core.engine import memory
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.recovery.recover import _Recovery
from xaqueue.endpoint import parse
from xaqueue.errors import InvalidArgument, ResourceFailed, RetryLater, RolledBack
from xaqueue.features.opening import create
from xaqueue.features.session import Session
from xaqueue.rpc.client import link
from xaqueue.rpc.client.manager import RemoteManager, dial
from xaqueue.rpc.client.sockets import ClientSocket
from xaqueue.rpc.credentials import server_context
from xaqueue.rpc.methods import messages
from xaqueue.rpc.methods.messages import CURSORS
from xaqueue.rpc.server.listeners import ListenConfig
from xaqueue.rpc.server.peer import Limits
from xaqueue.rpc.server.tls import TlsLayer
from xaqueue.xa import Outcome
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

EVERY_DOOR = ("embedded", "served")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerThread]:
    create(tmp_path / "space", sync="NONE", any_queue=True)
    made = ServerThread(
        tmp_path / "space", tmp_path / "socket", listen=ListenConfig(tcp=("127.0.0.1:0",), insecure=True)
    )
    yield made
    made.stop()


@pytest.fixture(params=EVERY_DOOR)
def connection(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Connection]:
    if request.param == "embedded":
        with xaqueue.connect(tmp_path / "space", create=True, sync="NONE") as made:
            yield made
    else:
        with xaqueue.connect(request.getfixturevalue("served").url) as made:
            yield made


def test_an_empty_id_asks_for_no_other_message(connection: Connection) -> None:
    """Left out of the request it stood for any message."""
    connection.enqueue("q", b"of nobody")
    connection.commit()
    assert connection.dequeue("q", correlation_id=b"") is None
    assert connection.dequeue("q", correlation_id="") is None
    with pytest.raises(InvalidArgument, match="16 bytes"):
        connection.dequeue("q", message_id=b"")
    connection.rollback()
    connection.enqueue("q", b"of the empty one", correlation_id=b"")
    connection.commit()
    found = connection.dequeue("q", correlation_id=b"")
    assert found is not None
    assert found.body == b"of the empty one"
    connection.rollback()


class Struck(Exception):
    """What the handler of an alarm raises, anywhere."""


class StruckSocket:
    """Where something is sent, an alarm strikes after so many bytes of it."""

    def __init__(self, made: Any, sent: int) -> None:
        self._made = made
        self._sent = sent

    def sendall(self, data: bytes) -> None:
        self._made.sendall(data[: self._sent])
        raise Struck

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


@pytest.mark.parametrize("sent", [0, 30_000])
def test_an_enqueue_that_is_interrupted_takes_none_of_those_before_it_along(served: ServerThread, sent: int) -> None:
    """They rode with it and were accepted: a commit without them would lose them silently."""
    with xaqueue.connect(served.url) as connection:
        body = b"x" * 40_000
        for _ in range(3):  # the second is over what rides, so that the branch has begun
            connection.enqueue("q", body)
        manager = connection._manager
        assert isinstance(manager, RemoteManager)
        stream = manager._socket
        assert stream is not None
        real = stream._socket
        stream.speak_over(StruckSocket(real, sent))
        with pytest.raises(Struck):
            connection.enqueue("q", body)
        stream.speak_over(real)
        with pytest.raises(RolledBack):
            connection.commit()
        connection.enqueue("q", b"again")
        connection.commit()
        assert [message.body for message in connection.browse("q")] == [b"again"]


def struck_at(number: int, call: Callable[[], object], *others: ModuleType) -> bool:
    """Whether an alarm has struck the call: at the line of this number that it came to in the client's modules, or in
    those beside others."""
    left, parents = [number], {Path(str(module.__file__)).parent for module in (link, *others)}

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if Path(frame.f_code.co_filename).parent not in parents:
            return None
        left[0] -= event == "line" and frame.f_code.co_code[frame.f_lasti] != opmap["NOP"]  # which nothing interrupts
        if not left[0]:
            raise Struck
        return trace

    sys.settrace(trace)
    try:
        call()
    except Struck:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize(
    ("call", "least"),
    [(lambda connection: connection.dequeue("other"), 20), (Connection.commit, 10)],
    ids=["another call", "its commit"],
)
def test_what_is_interrupted_on_its_way_is_not_left_out_of_a_commit(
    served: ServerThread, call: Callable[[Connection], object], least: int
) -> None:
    """It is sent with what is asked next, of which each line may be the last; behind that the branch is not left in a
    state in which neither a commit nor a rollback is to be had."""
    number, struck, committed = 0, True, 0
    while struck:
        number += 1
        with xaqueue.connect(served.url) as connection:
            connection.dequeue("other")  # the branch has begun
            connection.enqueue("q", b"x")
            struck = struck_at(number, partial(call, connection))
            with suppress(RolledBack):
                connection.commit()
                committed += 1
            assert len(list(connection.browse("q"))) == committed
    assert number > least


def test_a_message_whose_dequeue_was_interrupted_is_not_consumed(served: ServerThread) -> None:
    """Its answer has come, perhaps, and nobody has got it."""
    with xaqueue.connect(served.url) as connection:
        connection.enqueue("q", b"1")
        connection.commit()
    number, struck = 0, True
    while struck:
        number += 1
        with xaqueue.connect(served.url) as connection:
            connection.dequeue("other")
            struck = struck_at(number, partial(connection.dequeue, "q"), messages)
            with suppress(RolledBack):
                connection.commit()
            assert len(list(connection.browse("q"))) == struck, number
    assert number > 20


def test_a_dequeue_that_is_interrupted_consumes_nothing(served: ServerThread) -> None:
    """Its message is on its way, and nobody has seen it: a commit would remove it."""
    with xaqueue.connect(served.url) as connection:
        connection.enqueue("q", b"1")
        connection.commit()
        manager = connection._manager
        assert isinstance(manager, RemoteManager)
        connection.dequeue("other")
        stream = manager._socket
        assert stream is not None
        real = stream._socket
        stream.speak_over(StruckSocket(real, 1000))
        with pytest.raises(Struck):
            connection.dequeue("q")
        stream.speak_over(real)
        with pytest.raises(RolledBack):
            connection.commit()
        found = connection.dequeue("q", wait_s=PATIENCE_S)
        assert found is not None
        assert found.body == b"1"
        connection.rollback()


def test_a_server_that_is_full_says_so_to_a_client_that_is_late(tmp_path: Path) -> None:
    """It has hung up before anything is sent: what it said is there to be read."""
    create(tmp_path / "space", sync="NONE")
    server = ServerThread(tmp_path / "space", tmp_path / "socket", limits=Limits(sessions=1))

    def late() -> ClientSocket:
        stream = dial(parse(server.url))
        below = stream._socket
        assert isinstance(below, socket.socket)
        eventually(lambda: is_hung_up(below))
        return stream

    try:
        with xaqueue.connect(server.url), pytest.raises(ResourceFailed, match="1 sessions are open"):
            RemoteManager(late, connect_s=0)
    finally:
        server.stop()


def is_hung_up(made: socket.socket) -> bool:
    asked = select.poll()
    asked.register(made, select.POLLHUP)
    return bool(asked.poll(0))


def test_a_server_asks_a_tcp_peer_that_vanished(served: ServerThread) -> None:
    """One that waits for a message is idle for as long as it likes, and would keep what it holds for ever."""
    (url,) = (url for url in served.server.listeners.urls if url.startswith("xaq://"))
    with xaqueue.connect(url):
        (session,) = served.server.sessions
        made = session._transport.get_extra_info("socket")
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_local_transactions_do_not_crowd_out_the_outcomes_of_others(
    served: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "FINISHED_LIMIT", 10)
    other = Xid(1, b"global", b"")
    with xaqueue.connect(served.url) as connection:
        connection.tpc_begin(other)
        connection.enqueue("q", b"1")
        connection.tpc_commit()
        for number in range(100):
            served.call(partial(remember, served.space, Xid(LOCAL_FORMAT_ID, b"%d" % number, b"")))
        assert connection.outcome(other) is Outcome.COMMITTED
        assert connection.outcome(Xid(LOCAL_FORMAT_ID, b"99", b"")) is Outcome.COMMITTED
        assert connection.outcome(Xid(LOCAL_FORMAT_ID, b"89", b"")) is Outcome.UNKNOWN


def remember(space: Space, xid: Xid) -> None:
    with space.lock:
        space.outcomes.remember(xid, Outcome.COMMITTED)


@pytest.mark.parametrize("sync", ["NONE", "FDATASYNC;DSYNC", "JOURNAL"])
def test_what_is_committed_as_an_opening_ends_is_below_the_watermark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """Between the last step of recovery and the end of the opening, nobody published: readers waited for the next."""
    xid = Xid(1, b"doubt", b"")
    with xaqueue.connect(tmp_path / "space", create=True, sync=sync) as connection:
        connection.enqueue("q", b"1")
        connection.commit()
        connection.tpc_begin(xid)
        connection.enqueue("q", b"2")
        connection.tpc_prepare()
    run = _Recovery.run

    def and_commit(recovery: _Recovery, progress: Any, answer: Callable[[], object]) -> None:
        run(recovery, progress, answer)
        Session(recovery.space).commit(xid)

    monkeypatch.setattr(_Recovery, "run", and_commit)
    with xaqueue.connect(tmp_path / "space") as connection:
        manager = connection._manager
        assert isinstance(manager, Session)
        watermark = layout.parse_watermark(manager.space.fs.read(layout.watermark_path("q")))
        assert watermark is not None
        assert watermark.published == 2


def test_a_token_takes_the_place_of_the_one_before() -> None:
    """A session that showed thousands of them kept the server busy with comparing them."""
    shown = Identity(("user:www",))
    for number in range(100):
        shown = shown.with_token(f"{number:032d}", trusted=False)
    assert shown.names == ("user:www", Identity().with_token(f"{99:032d}", trusted=False).names[0])


def test_a_browse_that_cannot_go_on_is_no_open_browse(served: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client never heard its number, and after 16 of them the session could browse no more."""
    with xaqueue.connect(served.url) as connection:
        connection.enqueue("q", b"1")
        connection.commit()
        with monkeypatch.context() as patched:
            patched.setattr(served.space.fs, "read", refuse)
            for _ in range(CURSORS + 1):
                with pytest.raises(RetryLater, match="try again"):
                    connection.browse("q")
        assert [message.body for message in connection.browse("q")] == [b"1"]


def refuse(path: str, limit: int | None = None) -> bytes:
    raise OSError(errno.ENOSPC, "no room")


@pytest.mark.parametrize("made", [False, True])
def test_a_handshake_that_has_not_begun_gives_way_too(tmp_path: Path, made: bool) -> None:
    """It stayed on the list for ever, at its head, and nobody behind it had to give way any more."""
    certificate = Authority(tmp_path, "a").issue("localhost")
    context = server_context(str(certificate.cert), str(certificate.key))
    over: list[TlsLayer] = []

    async def give_way() -> bool:
        layer = TlsLayer(context, asyncio.Protocol, over.append, PATIENCE_S)
        transport = ClosedTransport()
        if made:
            layer.connection_made(transport)
        layer.give_way()
        if not made:
            layer.connection_made(transport)
        layer.connection_lost(None)
        return transport.closed

    assert asyncio.run(give_way())
    assert len(over) == 1


class ClosedTransport(asyncio.Transport):
    """Knows whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True
