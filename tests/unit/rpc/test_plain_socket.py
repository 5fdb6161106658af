"""A client's socket without TLS keeps every time limit, and sends all it is given."""

from __future__ import annotations

import math
import signal
import socket
import threading
from collections.abc import Iterator

import msgpack
import pytest

from xaqueue.errors import ConnectionLost
from xaqueue.rpc.client import manager
from xaqueue.rpc.client.sockets import PIPELINED_BYTES, ClientSocket, PlainSocket

LIMIT_S = 0.05
LARGE = bytes(range(256)) * 16 * 1024
"""More than two sockets take without being read."""
Pair = tuple[PlainSocket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    one.settimeout(1.0)  # as it is while it connects
    made = PlainSocket.of(one)
    yield made, other
    made.close()
    other.close()


def test_an_answer_is_waited_for_so_long(pair: Pair) -> None:
    made, other = pair
    made.settimeout(LIMIT_S)
    with pytest.raises(TimeoutError):
        made.recv(10)
    other.send(b"late")
    assert made.recv(10) == b"late"


@pytest.mark.parametrize("without", [None, 1e300, math.inf])
def test_a_limit_is_taken_back(pair: Pair, without: float | None) -> None:
    made, other = pair
    made.settimeout(LIMIT_S)
    made.settimeout(without)
    begun, found = threading.Event(), list[bytes]()

    def wait() -> None:
        begun.set()
        found.append(made.recv(10))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert begun.wait(60)
    waiting.join(3 * LIMIT_S)
    assert waiting.is_alive()
    other.send(b"at last")
    waiting.join(60)
    assert found == [b"at last"]


def test_signals_do_not_prolong_a_limit(pair: Pair) -> None:
    """Each of them ends the system call that waits."""
    made, _ = pair
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S / 5, LIMIT_S / 5)
    try:
        made.settimeout(LIMIT_S)
        with pytest.raises(TimeoutError):
            made.recv(10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert came


def test_the_smallest_limit_is_none_that_waits_for_ever(pair: Pair) -> None:
    made, _ = pair
    made.settimeout(1e-9)
    with pytest.raises(TimeoutError):
        made.recv(10)


def test_a_peer_that_reads_nothing_is_not_waited_for_without_end(pair: Pair) -> None:
    made, other = pair
    made.settimeout(LIMIT_S)
    with pytest.raises(TimeoutError):
        made.sendall(LARGE)
    other.send(b"and yet")
    assert made.recv(10) == b"and yet"  # it waits as before


def test_all_is_sent_to_a_peer_that_reads_slowly(pair: Pair) -> None:
    made, other = pair
    made.settimeout(60.0)
    found = bytearray()

    def read() -> None:
        while len(found) < 2 * len(LARGE):
            found.extend(other.recv(65536))

    reading = threading.Thread(target=read)
    reading.start()
    made.sendall(LARGE)
    made.sendall(LARGE)
    reading.join(60)
    assert bytes(found) == 2 * LARGE


def test_what_cannot_be_packed_takes_nothing_with_it(pair: Pair) -> None:
    """What is pipelined before and behind it is sent, whole; what comes late is, too, and touches nothing."""
    made, other = pair
    client = ClientSocket(made, 60.0)
    client.pipeline("start", [1])
    with pytest.raises(TypeError):
        client.pipeline("enqueue", [b"x" * 100, object()])
    client.pipeline("browse_end", [7], later=True)
    client.pipeline("end", [2])
    other.send(msgpack.packb([1, 1, None, "ok"]))
    assert client.request("prepare", [3]) == "ok"
    unpacker = msgpack.Unpacker()
    unpacker.feed(other.recv(65536))
    assert list(unpacker) == [[2, "browse_end", [7]], [2, "start", [1]], [2, "end", [2]], [0, 1, "prepare", [3]]]


def test_much_that_is_pipelined_goes_before_its_request(pair: Pair) -> None:
    made, other = pair
    client = ClientSocket(made, LIMIT_S)
    client.pipeline("enqueue", [bytes(PIPELINED_BYTES + 1)])
    assert len(other.recv(2 * PIPELINED_BYTES)) > PIPELINED_BYTES
    client.pipeline("end", [])
    with pytest.raises(ConnectionLost, match=f"no answer within {LIMIT_S} s"):
        client.request("prepare", [])
    unpacker = msgpack.Unpacker()
    unpacker.feed(other.recv(65536))
    assert [frame[-2] for frame in unpacker] == ["end", "prepare"]


@pytest.mark.parametrize(
    ("said", "why"), [(b"", f"no answer within {LIMIT_S} s"), (b"SSH-2.0-OpenSSH_9.2\r\n", "it sent what is no answer")]
)
def test_a_port_of_something_else_is_told_by_its_place(monkeypatch: pytest.MonkeyPatch, said: bytes, why: str) -> None:
    """The first answer has a limit of its own, as short as that of a connect."""
    monkeypatch.setattr(manager, "DIAL_S", LIMIT_S if not said else 60.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def speak() -> None:
            with listening.accept()[0] as other:
                other.sendall(said)
                other.recv(65536)
                other.recv(65536)  # until the client gives up

        speaking = threading.Thread(target=speak)
        speaking.start()
        with pytest.raises(ConnectionLost) as lost:
            manager.remote_manager(f"xaq://127.0.0.1:{port}", connect_s=0.0)
        speaking.join(60)
    assert f"xaq://127.0.0.1:{port} takes connections, and does not answer as `xaqueue serve` does ({why}" in str(
        lost.value
    )


def test_who_has_answered_once_is_a_server(pair: Pair) -> None:
    made, other = pair
    client = ClientSocket(made, 60.0, LIMIT_S, "xaq://host:1")
    other.send(msgpack.packb([1, 1, None, "hello"]))
    client.request("hello", [])
    client.greeted()
    other.close()
    with pytest.raises(ConnectionLost, match=r"^the connection to the server is lost"):
        client.request("status", [])
