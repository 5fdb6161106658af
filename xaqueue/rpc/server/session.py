"""One client's session on the server: its calls are carried out and answered in their order, in its own greenlet.

Those that are plain (``rpc.server.calls``) are in none.

Bytes that are no frame, a frame over the limit, or a peer that closes either half ends the session, and only it: what
it has active is rolled back, what is prepared stays. A peer that sends faster than it is served, or does not read its
answers, is not read from meanwhile. One that may do nothing at all is told so once, and its session is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

import msgpack

from xaqueue.access import Identity
from xaqueue.core.engine.state import Space
from xaqueue.errors import AccessDenied, Error, ResourceFailed, RolledBack
from xaqueue.features.session import Session
from xaqueue.rpc import wire
from xaqueue.rpc.methods.replication import give_up_copy
from xaqueue.rpc.methods.sessions import SessionStatus
from xaqueue.rpc.methods.work import PLAIN, NamedCall, begins_plain
from xaqueue.rpc.server.calls import PlainCalls, perform
from xaqueue.rpc.server.listeners import Listeners, unix_pid
from xaqueue.rpc.server.peer import UNAUTHENTICATED_BYTES, Caller, Limits, PeerTimeouts, ServerCalls
from xaqueue.rpc.server.scheduler import Scheduler
from xaqueue.rpc.wire import FRAME_VALUES, REQUEST, CallFrame, MalformedFrame, unpacked
from xaqueue.xa import Code

MAX_PIPELINED_CALLS = 256
"""So many calls of one session may wait; then no more are read until half of them are done."""
MAX_PIPELINED_BYTES = 1024 * 1024
"""What was received may hold so much beside the calls that wait; then no more is read until none waits."""

log = logging.getLogger("xaqueue.server")


class Host(ServerCalls, Protocol):
    """What a session, and who keeps house, needs of the server."""

    limits: Limits
    scheduler: Scheduler
    space: Space
    listeners: Listeners
    sessions: set[ServerSession]
    """Those that were taken, until they are over."""

    def refusal(self) -> str | None:
        """Why a new session is not taken."""

    def check_memory(self) -> None:
        """Where requests on their way hold too much, the session that holds most is ended."""

    def ended(self, session: ServerSession) -> None: ...


class ServerSession(PlainCalls, asyncio.Protocol):
    """A session and its socket. All of it runs in the loop's thread."""

    def __init__(self, host: Host, guest: Identity | None = None) -> None:
        """guest: who it is, where this process itself asks for somebody; such a one keeps no server from ending."""
        super().__init__(host.scheduler, host.space)
        self._host = host
        self.guest = guest
        self._loop = host.scheduler.loop
        self._calls: deque[tuple[CallFrame, int]] = deque()
        """Each with the size of its frame."""
        self._undone: tuple[int, Callable[[], Any]] | None = None
        """A plain one whose round has failed: the greenlet answers it, whoever is lost."""
        self._is_beginning = False
        self._unpacker = wire.CallUnpacker(host.limits.request_bytes)
        self._task = host.scheduler.spawn(self._run)
        self._stuck = False
        """The greenlet waits for the peer to read its answers."""
        self._lost = False
        self._ending = False
        """No call is begun any more."""
        self._over = False
        """What it had active is rolled back."""
        self._waiting_bytes = 0
        """Received, and of no request that was begun."""
        self._is_clear = False
        """Nothing stands between a request and its answer: the peer was let in and reads its answers, of no request a
        part has come, and nothing that was pipelined has failed."""
        self._paused = False
        self._writable = True
        self._pipelined_error: dict[str, Any] | None = None
        self._unauthenticated_bytes = 0
        """What a peer has sent that was not let in yet; negative once it was."""
        self._timeouts = PeerTimeouts(self._loop.time())
        self.name = "?"
        self._since = time.time_ns() // 1000
        self._pid = 0
        self._answered = 0
        """Calls, and those that want no answer."""

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not declared as one
        address = transport.get_extra_info("peername")
        self.name = f"session {address[0]}:{address[1]}" if isinstance(address, tuple) else "session"
        if self.guest is not None:
            self.name = "session by HTTP"
        host, refused = self._host, self._host.refusal()
        if refused is not None:
            log.warning("[session-refused] %s is refused: %s", self.name, refused)
            self._transport.write(wire.response(0, wire.error_to(ResourceFailed(refused)), None))
            self._ending = True
            self._transport.close()
            return
        host.sessions.add(self)
        self.session = session = Session(host.space)
        session.branch_limit = host.limits.branches
        listeners = host.listeners
        identity = self.guest or listeners.identify(transport)
        self.caller = Caller(session, host, identity, listeners.trust, name=self.name if self.guest is None else "")
        self.caller.log_admission()
        self._pid = unix_pid(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if self._idle and self._is_clear and len(data) <= FRAME_VALUES:
            try:
                frame = unpacked(data)
            except (ValueError, msgpack.UnpackException):
                pass
            else:  # one request and nothing else, most often
                self._timeouts.heard = self._loop.time()
                if not (begins_plain(data) and self.begin_plain(frame)):
                    self._begin_alone(frame)
                return
        if self._lost or self._ending:
            return
        calls = self._calls
        waiting = len(calls)
        try:
            if self._unauthenticated_bytes >= 0:
                self._check_unauthenticated(len(data))
            self._waiting_bytes += len(data)
            for frame, size in self._unpacker.frames(data):
                calls.append((wire.call_of(frame), size))
        except (ValueError, MalformedFrame, msgpack.UnpackException) as error:
            self._end_malformed(error)
        self._timeouts.hear(self._loop.time(), whole=len(calls) > waiting)
        if self._idle and calls:
            self._begin()
        if calls and not self._paused and not self._few(MAX_PIPELINED_CALLS):
            self._paused = True
            self._transport.pause_reading()
        if self._waiting_bytes > UNAUTHENTICATED_BYTES:
            self._host.check_memory()
        is_let_in, has_failed = self._unauthenticated_bytes < 0, self._pipelined_error is not None
        self._is_clear = is_let_in and self._writable and not has_failed and not self._unpacker.has_part

    def _begin_alone(self, frame: Any) -> None:
        """In the greenlet, which waits for it."""
        try:
            self._calls.append((wire.call_of(frame), 0))
        except MalformedFrame as error:
            self._end_malformed(error)
        else:
            self._task.switch()

    def _end_malformed(self, error: Exception) -> None:
        log.warning("[bad-frame] %s is ended: it sent no frame: %s", self.name, error or type(error).__name__)
        self._calls.clear()
        self._transport.close()

    def status_for(self, asks: Caller) -> SessionStatus:
        """Without what its branches tell."""
        caller, address = self.caller, self.name.partition(" ")[2]
        is_tls = self._transport.get_extra_info("ssl_object") is not None
        return SessionStatus(
            str(caller.identity),
            address,
            ("tls" if is_tls else "tcp") if address else "unix",
            caller.protocol,
            self._since,
            calls=self._answered,
            number=caller.session.number,
            pid=self._pid,
            heard=time.time_ns() // 1000 - int(self._timeouts.silent_s(self._loop.time()) * 1e6 if self._idle else 0),
            asks=caller is asks,
        )

    @property
    def waiting_bytes(self) -> int:
        """Of requests that are not begun: whole ones behind another, and one that is received in part. None once the
        session is ending.
        """
        return 0 if self._transport.is_closing() else self._waiting_bytes

    def _few(self, calls: int) -> bool:
        return len(self._calls) <= calls and self._waiting_bytes <= MAX_PIPELINED_BYTES

    def refuse_memory(self, limit_bytes: int) -> None:
        """There is no room for the rest of its request: the client is told, and the session is over."""
        refused = RolledBack(
            f"requests on their way hold {limit_bytes:,} bytes of the server's memory, which is its limit, and this "
            "one most of it: what the session had active is rolled back, do it again later",
            Code.XA_RBTRANSIENT,
        )
        log.warning("[request-memory] %s is ended: %s", self.caller.who, refused)
        self._calls.clear()
        self._unpacker = wire.CallUnpacker(self._host.limits.request_bytes)
        self._waiting_bytes = 0
        self._transport.write(wire.response(0, wire.error_to(refused), None))
        self._transport.close()

    def _check_unauthenticated(self, size: int) -> None:
        """Raises MalformedFrame: who has not shown who it is has no use for large requests."""
        admitted = self.caller.is_admitted
        self._unauthenticated_bytes = -1 if admitted else self._unauthenticated_bytes + size
        if self._unauthenticated_bytes > UNAUTHENTICATED_BYTES:
            raise MalformedFrame(f"more than {UNAUTHENTICATED_BYTES:,} bytes before it was let in")

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._calls.clear()
        if self._over:
            self._host.ended(self)
        elif self in self._host.sessions:
            xid = self.caller.session.lose()
            if xid is not None:
                log.warning(
                    "[session-lost] %s is lost: branch %s, in which it was, is rolled back", self.caller.who, xid
                )
            if self._idle or self._stuck:
                self._task.switch()

    def pause_writing(self) -> None:
        self._writable = self._is_clear = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._stuck:
            self._task.switch()

    def stop(self) -> None:
        """The server stops: the call that is being carried out is answered, those behind it are not begun."""
        self._ending = True
        self._calls.clear()
        self.caller.session.lose("the server was stopped: do the work again when it runs")
        if self._idle:
            self._task.switch()

    def check_timeouts(self, now: float) -> None:
        """Cuts it off where the peer was waited for long enough."""
        admitted, unread = self.caller.is_admitted, self._transport.get_write_buffer_size()
        why = self._timeouts.exceeded(now, self._host.limits, admitted=admitted, idle=self._idle, unread=unread)
        if why is not None:
            log.warning("[session-timeout] %s is ended: %s", self.caller.who, why)
            self.cut()

    def cut(self) -> None:
        """Nobody waits any more for the peer to read its answers, and what it has sent is not begun."""
        self._calls.clear()
        self._transport.abort()

    # Plain calls: in the loop

    def _begin(self) -> None:
        """What waits: plain calls up to one that is not done at once, or up to another one, which the greenlet does."""
        if self._is_beginning:
            return
        self._is_beginning = True
        while self._idle and self._calls and not self._lost and not self._ending:
            (number, method, params), size = call = self._calls[0]
            if number is None or method not in PLAIN or self._paused or not self._writable:
                break
            self._calls.popleft()
            if self._pipelined_error is not None or not self.begin_plain((REQUEST, number, method, params)):
                self._calls.appendleft(call)
                break
            self._waiting_bytes -= size
        self._is_beginning = False
        if self._idle and (self._calls or self._lost or self._ending):
            self._task.switch()

    def answered(self, frame: bytes) -> None:
        self._answered += 1
        self._idle = True
        if not self._lost:
            self._transport.write(frame)
        if self._calls or self._lost or self._ending:
            self._begin()

    def refused(self, error: Error, number: int, method: str) -> None:
        refused = self._refuse(error, *((None, "enqueue") if method == "work" else (number, method)))
        self.answered(wire.response(number, refused, None))

    def carry_out(self, number: int, call: Callable[[], Any]) -> None:
        self._undone = number, call
        self._task.switch()

    def break_off(self) -> None:
        log.exception("[internal-error] %s is ended: the server failed in a way that nobody foresaw", self.name)
        self._idle = self._ending = True  # the greenlet does nothing more but to end it
        self._transport.abort()

    # The calls

    def _run(self) -> None:
        """An error of a pipelined call is remembered, and answers the next request in place of what it would do."""
        loop = self._host.scheduler.greenlet
        self._idle = False  # its first call may wait already, and nothing but what that waits for may resume it
        try:
            while self._undone is not None or not (self._lost or self._ending):
                if self._undone is not None:
                    (undone, call), self._undone = self._undone, None
                    self._carry_out(undone, "commit", call)
                    continue
                if not self._calls:
                    self._idle = True
                    loop.switch()
                    self._idle = False
                    continue
                (number, method, params), size = self._calls.popleft()
                self._waiting_bytes -= size
                self._carry_out(number, method, partial(perform, self.caller, method, params))
                if self._paused and (not self._calls or self._few(MAX_PIPELINED_CALLS // 2)):
                    self._paused = False
                    if not self._lost:
                        self._transport.resume_reading()
                while not self._writable and not self._lost:
                    self._stuck = True
                    loop.switch()
                    self._stuck = False
        except Exception:
            self.break_off()
        finally:
            self._idle = self._stuck = False
            try:
                self.caller.session.close()
            except Error as error:
                log.error("[rollback-at-start] %s: branches wait for the next start: %s", self.name, error)  # noqa: TRY400
            finally:
                give_up_copy(self.caller)
                self._over = True
                if self._lost:
                    self._host.ended(self)
                else:
                    self._transport.close()  # once what was answered has been sent

    def _carry_out(self, number: int | None, method: str, call: Callable[[], Any]) -> None:
        failed: dict[str, Any] | None = self._pipelined_error
        result: Any = None
        if failed is None:
            try:
                result = call()
            except Error as error:
                failed = self._refuse(error, number, method)
            else:
                if method == "work":
                    self._put_before(number, result)
                    return
        self._answered += 1
        self._pipelined_error = failed if number is None else None
        if number is None:
            self._is_clear = False
        elif not self._lost:
            self._transport.write(wire.response(number, failed, result))

    def _put_before(self, number: int | None, calls: list[NamedCall]) -> None:
        """Those that one frame stands for; the last of them has its answer."""
        (method, params), rest = calls[-1], calls[-2::-1]
        self._calls.appendleft(((number, method, params), 0))
        self._calls.extendleft(((None, method, params), 0) for method, params in rest)

    def _refuse(self, error: Error, number: int | None, method: str) -> dict[str, Any]:
        """What is answered. Who lacks a right is logged, and who may do nothing at all goes."""
        if isinstance(error, AccessDenied) and self.guest is None:  # whose session is one request: who asks for it logs
            self.caller.log_refusal(error)
        if not self.caller.is_admitted:
            self._ending = True
            self._calls.clear()
        if number is not None:
            return wire.error_to(error)
        self.caller.session.fail(error)
        return wire.error_to(error, method)
