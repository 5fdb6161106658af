"""A server with the limits that a test says, and clients that come to them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgpack

import xaqueue
from support.served import PATIENCE_S, ServerThread
from xaqueue.features.opening import create
from xaqueue.rpc.server.peer import Limits

Start = Callable[..., ServerThread]


@contextmanager
def starting(scratch: Path) -> Iterator[Start]:
    made: list[ServerThread] = []

    def begin(**limits: float) -> ServerThread:
        create(scratch / "space", any_queue=True)
        given = Limits(**limits)  # type: ignore[arg-type]
        made.append(ServerThread(scratch / "space", scratch / "socket", sync="NONE", limits=given))
        return made[-1]

    yield begin
    for server in made:
        server.stop()


def bodies(server: ServerThread) -> list[bytes]:
    """What can be dequeued now."""
    with xaqueue.connect(server.url) as connection:
        found = []
        while message := connection.dequeue("q"):
            found.append(message.body)
        connection.rollback()
        return found


def half_a_request(server: ServerThread, size: int) -> socket.socket:
    """A session that has sent so much of a request, and not its end."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(PATIENCE_S)
    made.connect(str(server.path))
    whole: bytes = msgpack.packb([0, 1, "echo", [bytes(2 * size)]])
    with suppress(OSError):  # it was refused in the middle
        made.sendall(whole[:size])
    return made
