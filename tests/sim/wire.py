"""A server and its clients over a wire in memory: their own frames and sessions, without sockets, threads or a loop.

Whatever is sent is carried out at once, in the thread that sends. A request, or its answer, may get lost, and the
connection with it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from greenlet import getcurrent

from xaqueue.access import Identity
from xaqueue.core.engine.state import Space
from xaqueue.rpc.client.manager import RemoteManager
from xaqueue.rpc.client.sockets import ClientSocket
from xaqueue.rpc.server.peer import NOBODY, Limits
from xaqueue.rpc.server.scheduler import Scheduler
from xaqueue.rpc.server.session import Host, ServerSession

US = Identity(("sim",), owner=True)


class Loop:
    """As much of an event loop as sessions need."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []

    def time(self) -> float:
        return time.monotonic()

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        self._waiting.append(partial(call, *arguments))

    call_soon_threadsafe = call_soon

    def turn(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()


class Server:
    """Serves an open space until nobody asks any more."""

    def __init__(self, space: Space) -> None:
        self.loop = Loop()
        self.lose: str | None = None
        """What gets lost next: a request, or an answer."""
        self.lost = False
        self.is_dead = False
        """Its process is."""
        self.host: Host = cast(
            Host,
            SimpleNamespace(
                limits=Limits(),
                scheduler=Scheduler(cast(asyncio.AbstractEventLoop, self.loop)),
                space=space,
                listeners=SimpleNamespace(identify=lambda _: US, trust=NOBODY),
                sessions=set[ServerSession](),
                refusal=lambda: None,
                check_memory=lambda: None,
                ended=lambda session: self.host.sessions.discard(session),
                cut=self._cut,
            ),
        )

    def connect(self, **options: Any) -> RemoteManager:
        """options: see ``RemoteManager``."""
        return RemoteManager(lambda: Socket(Line(self)), connect_s=0.0, pause=lambda _: None, **options)

    def _cut(self, key: bytes) -> None:
        for session in list(self.host.sessions):
            if session.caller.key == key:
                session.cut()


class Line:
    """One connection: the client's socket, and the server's transport."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._answers = bytearray()
        self.is_open = True
        self._session = ServerSession(server.host)
        self._session.connection_made(cast(asyncio.BaseTransport, self))
        self._session.name = "session"

    # The client's half

    def settimeout(self, _: float | None, /) -> None: ...

    def sendall(self, data: bytes, /) -> None:
        server = self._server
        lost, server.lose = server.lose, None
        if lost == "request" or not self.is_open:
            server.lost = server.lost or lost == "request"
            self.hang_up()
            raise ConnectionResetError("the wire is cut")
        self._run_from_here()
        self._session.data_received(bytes(data))
        server.loop.turn()
        if lost == "answer":
            server.lost = True
            self._answers.clear()
            self.hang_up()

    def recv(self, size: int, /) -> bytes:
        data = bytes(self._answers[:size])
        del self._answers[:size]
        return data

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        if self.is_open and not self._server.is_dead:
            self.is_open = False
            self._run_from_here()
            self._session.connection_lost(None)
            self._server.loop.turn()

    def _run_from_here(self) -> None:
        """Its loop is whoever calls: a server may have been made amid a step of another one, in a greenlet of that."""
        scheduler, task, here = self._server.host.scheduler, self._session._task, getcurrent()
        if getattr(here, "scheduler", None) is not scheduler:  # else one of its own sessions hangs up
            scheduler.greenlet = scheduler._leading.parent = here
            if not task.dead:
                task.parent = here

    # The server's half

    def write(self, data: bytes) -> None:
        self._answers += data

    def get_extra_info(self, name: str) -> Any:
        return SimpleNamespace(family=socket.AF_INET) if name == "socket" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return not self.is_open

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading

    def abort(self) -> None:
        self._server.loop.call_soon(self.hang_up)


class Socket(ClientSocket):
    def __init__(self, line: Line) -> None:
        super().__init__(line, None)
        self.has_said = lambda _: not line.is_open
