"""One client's session on the server: its calls are carried out and answered in their order, in its own greenlet.

Bytes that are no frame, a frame over the limit, or a peer that closes either half ends the session, and only it: what
it has active is rolled back, what is prepared stays. A peer that sends faster than it is served, or does not read its
answers, is not read from meanwhile. One that may do nothing at all is told so once, and its session is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import msgpack

from xaqueue.errors import AccessDenied, Error, ResourceFailed, RolledBack
from xaqueue.rpc import methods, wire
from xaqueue.rpc.gate import Gate
from xaqueue.rpc.limits import STRANGER_BYTES
from xaqueue.rpc.methods import Peer
from xaqueue.rpc.patience import Patience
from xaqueue.rpc.wire import Call, MalformedFrame
from xaqueue.space.engine.session import Session
from xaqueue.xa import Code

if TYPE_CHECKING:
    from xaqueue.rpc.server import Server

CALLS_AHEAD = 256
"""So many calls of one session may wait; then no more are read until half of them are done."""
BYTES_AHEAD = 1024 * 1024
"""What was received may hold so much beside the calls that wait; then no more is read until none waits."""

log = logging.getLogger("xaqueue.server")


class Served(asyncio.Protocol):
    """A session and its socket. All of it runs in the loop's thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._calls: deque[tuple[Call, int]] = deque()
        """Each with the end of its frame, in bytes that were received."""
        self._unpacker = wire.CallUnpacker(server.limits.request_bytes)
        self._task = server.hub.spawn(self._run)
        self._idle = True
        """The greenlet waits for a call."""
        self._lost = False
        self._ending = False
        """No call is begun any more."""
        self._over = False
        """What it had active is rolled back."""
        self._received_bytes = self._begun_bytes = 0
        """In all, and up to the end of the last request that was begun."""
        self._paused = False
        self._writable = True
        self._failed_ride: dict[str, Any] | None = None
        self._strange_bytes = 0
        """What a peer has sent that was not let in yet."""
        self._patience = Patience(server.loop.time())
        self.name = "?"
        self.peer: Peer | None = None

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not declared as one
        self.name = self._server.name_of(transport)
        refused = self._server.refusal(self)
        if refused is not None:
            log.warning("%s is refused: %s", self.name, refused)
            self._transport.write(wire.response(0, wire.error_to(ResourceFailed(refused)), None))
            self.end()
            return
        self._server.sessions.add(self)
        session = Session(self._server.space)
        session.branch_limit = self._server.limits.branches
        doors = self._server.doors
        gate = Gate(session.space, doors.identify(transport), doors.trust)
        self.peer = Peer(session, self._server.status, gate, self._server.cut)

    def data_received(self, data: bytes) -> None:
        if self._lost or self._ending:
            return
        waiting = len(self._calls)
        try:
            self._check_stranger(len(data))
            self._unpacker.feed(data)
            self._received_bytes += len(data)
            for frame in self._unpacker:
                self._calls.append((wire.call_of(frame), self._unpacker.tell()))
        except (ValueError, MalformedFrame, msgpack.UnpackException) as error:
            log.warning("%s is ended: it sent what is no frame: %s", self.name, error or type(error).__name__)
            self._calls.clear()
            self.end()
        self._patience.hear(self._server.loop.time(), whole=len(self._calls) > waiting)
        if self._calls and not self._paused and (len(self._calls) > CALLS_AHEAD or self.waiting_bytes > BYTES_AHEAD):
            self._paused = True
            self._transport.pause_reading()
        if self._idle:
            self._task.switch()
        if self.waiting_bytes > STRANGER_BYTES:
            self._server.check_memory()

    @property
    def waiting_bytes(self) -> int:
        """Of requests that are not begun: whole ones behind another, and one that is received in part. None once the
        session is ending.
        """
        return 0 if self._transport.is_closing() else self._received_bytes - self._begun_bytes

    def refuse_memory(self, limit_bytes: int) -> None:
        """There is no room for the rest of its request: the client is told, and the session is over."""
        refused = RolledBack(
            f"requests on their way hold {limit_bytes:,} bytes of the server's memory, which is its limit, and this "
            "one most of it: what the session had active is rolled back, do it again later",
            Code.XA_RBTRANSIENT,
        )
        log.warning("%s is ended: %s", self._who, refused)
        self._calls.clear()
        self._unpacker = wire.CallUnpacker(self._server.limits.request_bytes)
        self._begun_bytes = self._received_bytes
        self._transport.write(wire.response(0, wire.error_to(refused), None))
        self.end()

    def _check_stranger(self, size: int) -> None:
        """Raises MalformedFrame: who has not shown who it is has no use for large requests."""
        if self._strange_bytes >= 0:
            assert self.peer is not None
            self._strange_bytes = -1 if self.peer.gate.admits else self._strange_bytes + size
            if self._strange_bytes > STRANGER_BYTES:
                raise MalformedFrame(f"more than {STRANGER_BYTES:,} bytes before it was let in")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._calls.clear()
        if self._over:
            self._server.ended(self)
        elif self.peer is not None:
            xid = self.peer.session.lose()
            if xid is not None:
                log.warning("%s is lost: branch %s, in which it was, is rolled back", self._who, xid)
            if self._idle or self._stuck:
                self._task.switch()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._stuck:
            self._task.switch()

    def end(self) -> None:
        """Ends the session from the server's side, once what was answered has been sent."""
        self._transport.close()

    def stop(self) -> None:
        """The server stops: the call that is being carried out is answered, those behind it are not begun."""
        assert self.peer is not None
        self._ending = True
        self._calls.clear()
        self.peer.session.lose("the server was stopped: do the work again when it runs")
        if self._idle:
            self._task.switch()

    def look(self, now: float) -> None:
        """Cuts it off where the peer was waited for long enough."""
        assert self.peer is not None
        admitted, unread = self.peer.gate.admits, self._transport.get_write_buffer_size()
        lost = self._patience.lost(now, self._server.limits, admitted=admitted, idle=self._idle, unread=unread)
        if lost is not None:
            log.warning("%s is ended: %s", self._who, lost)
            self.cut()

    def cut(self) -> None:
        """Nobody waits any more for the peer to read its answers, and what it has sent is not begun."""
        self._calls.clear()
        self._transport.abort()

    # The calls

    _stuck = False
    """The greenlet waits for the peer to read its answers."""

    def _run(self) -> None:
        hub = self._server.hub.greenlet
        assert self.peer is not None
        self._idle = False  # its first call may wait already, and nothing but what that waits for may resume it
        try:
            while not self._lost and not self._ending:
                if not self._calls:
                    self._idle = True
                    hub.switch()
                    self._idle = False
                    continue
                call, self._begun_bytes = self._calls.popleft()
                self._carry_out(call)
                few = len(self._calls) <= CALLS_AHEAD // 2 and self.waiting_bytes <= BYTES_AHEAD
                if self._paused and (few or not self._calls):
                    self._paused = False
                    if not self._lost:
                        self._transport.resume_reading()
                while not self._writable and not self._lost:
                    self._stuck = True
                    hub.switch()
                    self._stuck = False
        except Exception:
            log.exception("%s is ended: the server failed in a way that nobody foresaw", self.name)
            self._transport.abort()
        finally:
            self._idle = self._stuck = False
            self._close()

    def _close(self) -> None:
        assert self.peer is not None
        try:
            self.peer.session.close()
        except Error as error:
            log.error("%s: its branches are rolled back by the next start: %s", self.name, error)  # noqa: TRY400
        finally:
            self._over = True
            if self._lost:
                self._server.ended(self)
            else:
                self.end()

    def _carry_out(self, call: Call) -> None:
        """A failed ride is remembered, and answers the next request in place of what that would have done."""
        assert self.peer is not None
        if self._failed_ride is not None:
            if call.id is not None:
                self._answer(call.id, self._failed_ride, None)
                self._failed_ride = None
            return
        told, result = None, None
        try:
            result = methods.perform(self.peer, call)
        except Error as error:
            told = wire.error_to(error, call.method if call.id is None else None)
            self._note(error)
            if call.id is None:
                self._failed_ride = told
                self.peer.session.fail(error)
        if call.id is not None:
            self._answer(call.id, told, result)

    @property
    def _who(self) -> str:
        assert self.peer is not None
        return f"{self.name} ({self.peer.gate.identity})"

    def _note(self, error: Error) -> None:
        """What is refused for want of a right is logged, and who may do nothing at all goes."""
        assert self.peer is not None
        if isinstance(error, AccessDenied):
            self.peer.gate.tell(self._who, error)
        if not self.peer.gate.admits:
            self._ending = True
            self._calls.clear()

    def _answer(self, number: int, told: dict[str, Any] | None, result: Any) -> None:
        if not self._lost:
            self._transport.write(wire.response(number, told, result))
