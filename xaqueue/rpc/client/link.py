"""A client's connection to a server: its socket, and how calls go over it: asked, pipelined, or asked again.

Requests go out and answers come in, in one thread, and nothing of a socket survives its first failure. What is
pipelined is gathered and sent with the next request, or earlier where it grows large. What a branch begins, adds and
ends with is deferred, since all of it makes one frame mostly; where something else is asked before, it is pipelined. It
connects again between
transactions, and within one only as long as no server has heard of it: any other branch that it was in is lost with
it. An answer that was lost is told as such.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgpack

from xaqueue.core.storage.ids import fresh_id
from xaqueue.errors import (
    AccessDenied,
    ConnectionLost,
    Error,
    InterfaceError,
    InvalidArgument,
    MessageTooLarge,
    ProtocolError,
    ResourceFailed,
    RolledBack,
)
from xaqueue.rpc import wire
from xaqueue.rpc.client.branch import Ahead, RemoteBranch, Work
from xaqueue.rpc.credentials import explain, is_refusal
from xaqueue.rpc.wire import MalformedFrame, enqueue_of
from xaqueue.xa import Flag
from xaqueue.xid import LOCAL_FORMAT_ID, Xid

PIPELINED_BYTES = 64 * 1024
"""What is pipelined is sent before its request when there is more of it."""
RECEIVE_BYTES = 64 * 1024
KEEPALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}
"""A silent TCP peer is asked after so many seconds, then so often, and is gone after so many questions."""
NO_LIMIT_BYTES = 2**31 - 1
"""Of an answer: the server is trusted with that."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.25
"""Between two tries to connect."""
CONNECT_S = 10.0
"""For how long it is tried."""
AFTER_OTHERS = 15
"""So many commits of a consumer do not ask ahead, where that was not wanted."""
MOST_WORKS = 1000
"""Deferred ones of a branch; a server takes no longer lists than 1024."""


Request = tuple[str, Sequence[Any]]
"""A method and its parameters."""


class Connected(Protocol):
    """What it needs of a socket."""

    def settimeout(self, timeout_s: float | None, /) -> None: ...

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class PlainSocket(socket.socket):
    """A socket without TLS that waits nowhere but in a poll, and polls nowhere but where it has to wait.

    So a request is sent by one system call; with a time limit, the base class polls before each.
    """

    _limit_s: float | None = None
    _limit_ms: int | None = None
    _poll: select.poll
    """select() knows numbers below 1024 only."""

    @classmethod
    def of(cls, connected: socket.socket) -> PlainSocket:
        """Takes its place."""
        made = cls(fileno=connected.detach())
        made.setblocking(False)
        made._poll = select.poll()
        made._poll.register(made, select.POLLIN)
        return made

    def settimeout(self, timeout_s: float | None, /) -> None:
        """None: there is none."""
        self._limit_s = timeout_s
        self._limit_ms = None if timeout_s is None else math.ceil(min(timeout_s, LONGEST_S) * 1000)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        try:
            sent = self.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):  # it does not read as fast
            super().settimeout(self._limit_s)
            try:
                super().sendall(memoryview(data)[sent:], flags)
            finally:
                self.setblocking(False)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        if not self._poll.poll(self._limit_ms):
            raise TimeoutError("timed out")
        return super().recv(size, flags)

    def close(self) -> None:
        self._limit_ms = 0  # of somebody else's socket that has its number by then
        super().close()


LONGEST_S = 1e6
"""Eleven days, as the longest time limit; poll() takes no more than 24."""


class ClientSocket:
    """One connected socket; used by one thread."""

    def __init__(self, made: Connected, timeout_s: float | None, hello_s: float | None = None, place: str = "") -> None:
        """timeout_s: how long an answer may take, beside what its request itself may wait. hello_s: the first one.
        place: where it is, for the error of a peer that has not answered yet.
        """
        self._socket = made
        self._answer_s = timeout_s
        self._place = place
        self._timeout_s = timeout_s if hello_s is None else hello_s
        self._unpacker = wire.unpacker(NO_LIMIT_BYTES)
        self._pack = msgpack.Packer().pack  # a new one for each frame takes twice as long
        self.unsent = bytearray()
        """What is pipelined: all of a branch, up to its next request."""
        self.sends = 0
        """How often anything was sent."""
        self._notifications: list[bytes] = []
        poll = select.poll()  # select() knows numbers below 1024 only
        if made.fileno() >= 0:
            poll.register(made.fileno(), select.POLLIN)
        self._poll = poll.poll
        self.requests = 0
        """How many it has sent, as far as they are counted: modulo 2**32."""
        self._behind = -1
        """The number of the last that went out behind another one."""
        self._heard: Any = None
        """The answer to that, where it came before its turn."""
        made.settimeout(self._timeout_s)

    def hurry(self, answer_s: float) -> None:
        """No answer may take longer than this."""
        self._answer_s, self._timeout_s = (
            answer_s if limit_s is None else min(limit_s, answer_s) for limit_s in (self._answer_s, self._timeout_s)
        )
        self._socket.settimeout(self._timeout_s)

    def greeted(self) -> None:
        """The first answer has come."""
        self._timeout_s, self._place = self._answer_s, ""
        self._socket.settimeout(self._timeout_s)

    def pipeline(self, method: str, params: Sequence[Any], *, later: bool = False) -> None:
        """Sends this with the next request; it has no answer. Raises ConnectionLost.

        later: nothing is sent now, and nothing else touched; the collector may come by in the middle of another call.
        """
        if later:
            self._notifications.append(msgpack.packb((wire.NOTIFICATION, method, params)))
            return
        self.unsent += self._pack((wire.NOTIFICATION, method, params))
        if len(self.unsent) > PIPELINED_BYTES:
            self._send()

    def request(
        self, method: str, params: Sequence[Any], waits_s: float = 0.0, behind: Request | None = None
    ) -> tuple[Any, Any]:
        """Sends a request and waits for its answer: the error, a map or None, and the result.

        behind: is asked in the same write, and ``hear`` waits for its answer.
        Raises ConnectionLost: whether it was done is unknown.
        """
        self.requests = number = (self.requests + 1) % wire.ID_LIMIT
        packed = self._pack((wire.REQUEST, number, method, params))
        try:
            if self.unsent or self._notifications or len(packed) > PIPELINED_BYTES:
                packed = self._gathered(packed)
            if behind is not None:
                self.requests = self._behind = (number + 1) % wire.ID_LIMIT
                self._heard = None
                packed += self._pack((wire.REQUEST, self._behind, *behind))
            self.sends += 1
            try:
                self._socket.sendall(packed)
            except OSError as error:
                self._check_hears(error)
            frame = self._receive(number, waits_s)
            if frame[1] != number:
                frame = self._answer_to(number, frame)
        except BaseException:  # interrupted, perhaps: the answer may come yet, and is none to what is asked next
            self.close()
            raise
        return frame[2], frame[3]

    def hear(self) -> tuple[Any, Any]:
        """The answer to what went out behind the last request that had such, as ``request``."""
        frame, self._heard = self._heard, None
        try:
            if frame is None:
                frame = self._answer_to(self._behind, self._receive(self._behind))
        except BaseException:
            self.close()
            raise
        return frame[2], frame[3]

    def _answer_to(self, number: int, frame: Any) -> Any:
        """One that was to come before it is kept for who asks for that."""
        if frame[1] == self._behind != number:
            self._heard = frame
            frame = self._receive(number)
        if frame[1] not in (number, 0):
            raise self._lost(f"it answered request {frame[1]} instead of {number}")
        return frame

    @property
    def is_stale(self) -> bool:
        """Whether the server has hung up meanwhile."""
        return self._socket.fileno() < 0 or bool(self._poll(0))  # it never speaks unasked

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _gathered(self, packed: bytes) -> bytes:
        """What goes out before a request, and this."""
        gathered, self.unsent = self.unsent, bytearray()
        while self._notifications:
            gathered[:0] = self._notifications.pop()
        gathered += packed
        if len(gathered) > PIPELINED_BYTES:
            self._pack = msgpack.Packer().pack  # the other one keeps room for the largest that it has seen
        return bytes(gathered)

    def _send(self) -> None:
        """What is pipelined, of which no answer is read next."""
        try:
            self.sends += 1
            self._socket.sendall(self._gathered(b""))
        except OSError as error:
            if self._check_hears(error):
                raise self._lost(self._farewell() or str(error)) from error
        except BaseException:  # interrupted: what was pipelined may be lost in part, and nothing may follow it
            self.close()
            raise

    def _check_hears(self, error: OSError) -> bool:
        """Nothing more can be sent; before it hung up the server may have said why, which is read next."""
        if isinstance(error, ConnectionError) and not isinstance(self._socket, ssl.SSLSocket):
            return True
        said = self._parting(error)
        raise self._lost(explain(said, "server") if isinstance(said, ssl.SSLError) else str(said)) from said

    def _farewell(self) -> str:
        """Why the server hung up, where it said so."""
        with suppress(ConnectionLost):
            return str((wire.answer_of(self._receive()).error or {}).get("message", ""))
        return ""

    def _parting(self, error: OSError) -> OSError:
        """What the server said before it hung up: with TLS 1.3 it refuses a certificate behind the handshake."""
        if isinstance(self._socket, ssl.SSLSocket):
            try:
                self._socket.recv(1)
            except OSError as said:
                return said
        return error

    def _receive(self, number: int = 0, waits_s: float = 0.0) -> Any:
        """What ``wire.answer_of`` takes. number: of the request whose answer is most likely."""
        try:
            if waits_s and self._timeout_s is not None:
                self._socket.settimeout(None if math.isinf(waits_s) else self._timeout_s + waits_s)
            while True:
                for frame in self._unpacker:
                    if waits_s:
                        self._socket.settimeout(self._timeout_s)
                    if frame[:3] != [wire.RESPONSE, number, None]:
                        wire.check_answer(frame)
                    return frame
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise self._lost("the server hung up")
                self._unpacker.feed(data)
        except TimeoutError as error:
            raise self._silent(f"no answer within {self._timeout_s} s") from error
        except ssl.SSLError as error:
            raise self._lost(explain(error, "server")) from error
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error
        except (ValueError, TypeError, MalformedFrame, msgpack.UnpackException) as error:
            raise self._silent(f"it sent what is no answer: {error}") from error

    def _silent(self, why: str) -> ConnectionLost:
        """Of a peer that took the connection, and may be no server of a space."""
        lost = self._lost(why)
        if not self._place:
            return lost
        return ConnectionLost(
            f"{self._place} takes connections, and does not answer as `xaqueue serve` does ({why}): check whether that "
            "is its place, and whether it hangs"
        )

    def _lost(self, why: str) -> ConnectionLost:
        self.close()
        return ConnectionLost(f"the connection to the server is lost: {why}")


def keep_alive(connected: socket.socket) -> None:
    """A TCP peer that vanished without a word is noticed, though it owes nothing."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


class Link:
    """Used by one thread at a time."""

    def __init__(
        self,
        dial: Callable[[], ClientSocket],
        *,
        connect_s: float = CONNECT_S,
        hello: Callable[[], dict[str, Any]] = dict,
        pause: Callable[[float], object] = time.sleep,
        has_alternatives: bool = False,
    ) -> None:
        """Connects. hello: what it says of itself there. pause: waits so many seconds before it is tried again.
        has_alternatives: ``dial`` may reach one that another one has replaced.

        Raises ConnectionLost, as ``dial`` does, and what the server refuses with.
        """
        self._dial = dial
        self._pause = pause
        self._connect_s = connect_s
        self._hello = hello
        self._has_alternatives = has_alternatives
        self._socket: ClientSocket | None = None
        self._key: bytes | None = None
        """Names the session of now, or the one before, to the server."""
        self._closed = False
        self.is_unreached = False
        """The last time that it was to connect, no server took it."""
        self._branch = RemoteBranch()
        self._ahead: Ahead | None = None
        self._ahead_later = 0
        """So many commits go without asking ahead."""
        self._committed = -math.inf
        """When the last commit of a consumer was answered."""
        self.has_received = False
        """There may be messages on lease to be given back when it is closed."""
        self.space: dict[str, Any] = {}
        """What the server said of itself and its space."""
        self.takes_work = False
        """It knows ``work``, and ``return``; an older one takes each call in a frame of its own."""
        self._connect()

    def call(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        """Any method of the server that does not belong to the branch; it connects again where it must.

        waits_s: how long it may wait there.
        """
        if not self._is_live():
            self._reconnect()
        before = self._branch.why
        try:
            return self._ask(method, *params, waits_s=waits_s)
        except (RolledBack, ResourceFailed):
            if self._branch.why is before:
                raise
        # a pipelined call of the branch had failed, which its next call tells
        return self._ask(method, *params, waits_s=waits_s)

    def call_with_retry(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        """A call that may be made twice. Raises ConnectionLost where the answer is lost each time."""
        for _ in range(wire.TRIES - 1):
            with suppress(ConnectionLost):
                return self.call(method, *params, waits_s=waits_s)
        return self.call(method, *params, waits_s=waits_s)

    def work(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        """A call that belongs to the branch."""
        self._check_working()
        return self._ask(method, *params, waits_s=waits_s)

    @property
    def space_id(self) -> str:
        return str(self.space.get("space", ""))

    @property
    def requests(self) -> int:
        """How many requests the connection of now has had."""
        return self._socket.requests if self._socket is not None else 0

    def drop(self) -> bool:
        self._closed, socket, self._socket = True, self._socket, None
        if socket is None:
            return False
        had = not socket.is_stale
        socket.close()
        return had

    # Calls

    def _defer(self, branch: RemoteBranch, work: Work, size_bytes: int) -> None:
        """Adds this to the branch: it has no answer of its own, and is sent with what is asked next."""
        if branch.ends:
            self._pipeline_deferred(branch)  # it is out of order, as the server says
        branch.is_deferred = True
        branch.works.append(work)
        branch.size_bytes += size_bytes
        if branch.size_bytes > PIPELINED_BYTES or len(branch.works) == MOST_WORKS:
            self._pipeline_deferred(branch)

    def _pipeline_deferred(self, branch: RemoteBranch) -> None:
        """As calls of their own, before another one."""
        try:
            begins, works, ends = branch.take_deferred()
            if begins:
                self._pipeline("start", branch.xid)
            for work in works:
                self._pipeline("enqueue", *enqueue_of(work))
            if ends:
                self._pipeline("end", branch.xid)
        except BaseException as error:  # interrupted, perhaps: the rest is nowhere, and nobody commits without it
            self._lose(error if isinstance(error, Error) else ConnectionLost("a call was interrupted"))
            raise

    def _work(self, branch: RemoteBranch, *last: Any) -> Any:
        """What is deferred and this, in one frame. last: a dequeue's queue; or, behind its end, how the branch ends."""
        if not self.takes_work:
            endings = {"prepare": (branch.xid,), "commit": (branch.xid, Flag.ONEPHASE)}
            return self._ask(last[0], *endings[last[0]]) if branch.ends else self._ask("dequeue", *last)
        begins, works, ends = branch.take_deferred()
        if not ends:
            works.append(last)
            return self._request("work", (branch.xid, begins, works))
        whole = branch.xid, begins, works, *last
        if not branch.next_queue:
            return self._request("work", whole)
        answer = self._request("work", whole, behind=self._next_of(branch.next_queue))
        self._committed = time.monotonic()
        return answer

    def _next_of(self, queue: str) -> Request | None:
        """What asks ahead, behind the commit."""
        if self._ahead_later:
            self._ahead_later -= 1
            return None
        self._ahead = Ahead(Xid(LOCAL_FORMAT_ID, fresh_id(), b""), queue)
        return "work", (self._ahead.xid, True, [(queue,)])

    def _give_back(self) -> None:
        """What was asked for ahead, at once. Where the server cannot say that it is done, the session ends, and so does
        what it has taken."""
        ahead, self._ahead, self._ahead_later = self._ahead, None, AFTER_OTHERS
        try:
            if ahead is not None:
                self._request("return", (ahead.xid,))
        except ProtocolError:
            pass  # it never began
        except Error as lost:
            self._lose(lost)

    def _pipeline(self, method: str, *params: Any) -> None:
        """Sends this with the next call that is asked; it has no answer of its own."""
        if self._branch.is_deferred:
            self._pipeline_deferred(self._branch)
        socket = self._socket
        if socket is None:
            raise self._not_connected()
        try:
            socket.pipeline(method, params)
        except ConnectionLost as lost:
            self._lose(lost)
            raise

    def _ask(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        if self._branch.is_deferred:
            self._pipeline_deferred(self._branch)
        return self._request(method, params, waits_s)

    def _request(self, method: str, params: Sequence[Any], waits_s: float = 0.0, behind: Request | None = None) -> Any:
        socket = self._socket
        if socket is None:
            raise self._not_connected()
        try:
            error, result = socket.request(method, params, waits_s, behind)
        except ConnectionLost as lost:
            self._lose(lost)
            raise
        except UnicodeEncodeError as wrong:  # nothing was sent
            raise InvalidArgument(
                f"{method}: {wrong.object[wrong.start : wrong.end]!r} is refused: it has no UTF-8"
            ) from None
        if error is not None:
            raise self._error_of(error)
        return result

    def _error_of(self, answered: dict[str, Any]) -> Error:
        """What a request is answered with, or what refuses the branch where a call before it has failed."""
        error, pipelined = wire.error_of(answered), answered.get("ride")
        if pipelined is None:
            return error
        self._branch.fail(error, pipelined)
        return self._branch.refusal()

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the session is closed")

    def _check_working(self) -> None:
        self._check_open()
        if self._branch.why is not None:
            raise self._branch.refusal()

    def _is_known(self, queue: str) -> bool:
        """Whether nothing is wrong with the name that keeps it from being sent."""
        return queue in self.space["queues"] or (self.space["any_queue"] and queue.isascii())

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.space["max_body_bytes"]:
            raise MessageTooLarge(
                f"body of {size_bytes:,} bytes is over the limit of {self.space['max_body_bytes']:,}: "
                "raise [space] max_body_bytes in queues.toml, or send a reference to the content"
            )

    # The connection

    def _is_live(self) -> bool:
        """Whether the server has not hung up, for what belongs to no branch on its way, or ends one."""
        if self._ahead is not None:
            self._give_back()
        socket = self._socket
        return socket is not None and not socket.is_stale

    def _reconnect(self) -> None:
        """Outside a branch a lost connection is made again; a branch that it was in is lost with it."""
        self._check_open()
        if self._socket is not None:
            self._lose(ConnectionLost("the connection to the server is lost: the server hung up"))
        self._connect()

    def _not_connected(self) -> Error:
        self._check_working()
        return ConnectionLost("the connection to the server is lost")

    def _lose(self, lost: Error) -> None:
        self._branch.disconnect(lost)
        self._ahead = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tries(self) -> Iterator[None]:
        """Tries for a while, with growing pauses."""
        deadline, pause = time.monotonic() + self._connect_s, FIRST_PAUSE_S
        while True:
            yield
            if time.monotonic() + pause > deadline:
                return
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _check_epoch(self, said: dict[str, Any]) -> None:
        """Of several, one that was replaced does not know so yet."""
        if self._has_alternatives and said["epoch"] < self.space.get("epoch", 0):
            raise ResourceFailed(
                f"epoch {said['epoch']} of the space answers, and {self.space['epoch']} was there before: it was "
                "replaced by another one of its addresses"
            )

    def _connect(self) -> None:
        """Tries for a while. Raises ConnectionLost, and what the server refuses with.

        A peer that TLS refuses is not asked again: that is AccessDenied.
        """
        failure: Error
        for _ in self._tries():
            try:
                self._socket, key = self._dial(), fresh_id()
                known = {"protocol": wire.PROTOCOL, "session": key, "instead_of": self._key}
                said = self._request("hello", [{**known, **self._hello()}])
                self._check_epoch(said)
                self.space, self.takes_work = said, said["protocol"] > 1
            except (ConnectionLost, ResourceFailed) as error:  # not there, or it takes no sessions now
                self._lose(error)
                if is_refusal(error.__cause__):
                    raise AccessDenied(str(error)) from error
                failure = error
            except Error as error:
                self._lose(error)
                raise
            else:
                self._key = key
                self._socket.greeted()
                self.is_unreached = False
                return
        self.is_unreached = True
        raise failure
