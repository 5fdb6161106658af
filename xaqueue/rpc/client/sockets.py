"""A client's socket: frames go out and come in, in one thread, and nothing of it survives its first failure.

What is pipelined is gathered and sent with the next request, or earlier where it grows large.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgpack

from xaqueue.errors import ConnectionLost
from xaqueue.rpc import wire
from xaqueue.rpc.credentials import explain
from xaqueue.rpc.wire import ID_LIMIT, NOTIFICATION, REQUEST, RESPONSE, MalformedFrame

PIPELINED_BYTES = 64 * 1024
"""What is pipelined is sent before its request when there is more of it."""
RECEIVE_BYTES = 64 * 1024
KEEPALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}
"""A silent TCP peer is asked after so many seconds, then so often, and is gone after so many questions."""
NO_LIMIT_BYTES = 2**31 - 1
"""Of an answer: the server is trusted with that."""


Request = tuple[str, Sequence[Any]]
"""A method and its parameters."""


class Refused(Exception):
    """The server has answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.error = error


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
    limit_ms: int | None = None
    poll: Callable[[int | None], object]
    """Waits so many milliseconds until there is something to be received. select() knows numbers below 1024 only."""
    recv_now = socket.socket.recv

    @classmethod
    def of(cls, connected: socket.socket) -> PlainSocket:
        """Takes its place."""
        made = cls(fileno=connected.detach())
        made.setblocking(False)
        poll = select.poll()
        poll.register(made, select.POLLIN)
        made.poll = poll.poll
        return made

    def settimeout(self, timeout_s: float | None, /) -> None:
        """None: there is none."""
        self._limit_s = timeout_s
        self.limit_ms = None if timeout_s is None else math.ceil(min(timeout_s, LONGEST_S) * 1000)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        try:
            sent = self.send(data, flags)
        except BlockingIOError:
            sent = 0
        if sent < len(data):  # it does not read as fast
            super().settimeout(self._limit_s)
            try:
                super().sendall(memoryview(data)[sent:], flags)
            finally:
                self.setblocking(False)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        if not self.poll(self.limit_ms):
            raise TimeoutError("timed out")
        return self.recv_now(size, flags)

    def close(self) -> None:
        self.limit_ms = 0  # of somebody else's socket that has its number by then
        super().close()


LONGEST_S = 1e6
"""Eleven days, as the longest time limit; poll() takes no more than 24."""


class ClientSocket:
    """One connected socket; used by one thread."""

    def __init__(self, made: Connected, timeout_s: float | None, hello_s: float | None = None, place: str = "") -> None:
        """timeout_s: how long an answer may take, beside what its request itself may wait. hello_s: the first one.
        place: where it is, for the error of a peer that has not answered yet.
        """
        self.speak_over(made)
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
        self.requests = 0
        """How many it has sent, as far as they are counted: modulo 2**32."""
        self._behind = -1
        """The number of the last that went out behind another one."""
        self._heard: list[Any] | None = None
        """The answer to that, where it came before its turn."""
        self._limit(self._timeout_s)

    def speak_over(self, made: Connected) -> None:
        """What each request calls of a plain socket is what the interpreter has."""
        self._socket = made
        self.has_said: Callable[[int], object]
        """Whether the server has hung up meanwhile, since it never speaks unasked. Called with 0: how long to wait."""
        self._send_some: Callable[[bytes], int]
        self._wait: Callable[[int | None], object]
        self._recv: Callable[[int], bytes]
        self._limit_ms: int | None = None
        if isinstance(made, PlainSocket):
            self.has_said = self._wait = made.poll
            self._send_some, self._recv, self._limit_ms = made.send, made.recv_now, made.limit_ms
        else:
            self.has_said, self._wait = partial(_has_said, made, _poll_of(made)), _is_there
            self._send_some, self._recv = partial(_send_all, made), made.recv

    def _limit(self, timeout_s: float | None) -> None:
        self._socket.settimeout(timeout_s)
        if isinstance(self._socket, PlainSocket):
            self._limit_ms = self._socket.limit_ms

    def hurry(self, answer_s: float) -> None:
        """No answer may take longer than this."""
        self._answer_s, self._timeout_s = (
            answer_s if limit_s is None else min(limit_s, answer_s) for limit_s in (self._answer_s, self._timeout_s)
        )
        self._limit(self._timeout_s)

    def greeted(self) -> None:
        """The first answer has come."""
        self._timeout_s, self._place = self._answer_s, ""
        self._limit(self._timeout_s)

    def pipeline(self, method: str, params: Sequence[Any], *, later: bool = False) -> None:
        """Sends this with the next request; it has no answer. Raises ConnectionLost.

        later: nothing is sent now, and nothing else touched; the collector may come by in the middle of another call.
        """
        if later:
            self._notifications.append(msgpack.packb((NOTIFICATION, method, params)))
            return
        self.unsent += self._pack((NOTIFICATION, method, params))
        if len(self.unsent) > PIPELINED_BYTES:
            self._send()

    def request(self, method: str, params: Sequence[Any], waits_s: float = 0.0, behind: Request | None = None) -> Any:
        """Sends a request and waits for its answer.

        behind: is asked in the same write, and ``hear`` waits for its answer.
        Raises Refused, and ConnectionLost: whether it was done is unknown.
        """
        self.requests = number = (self.requests + 1) % ID_LIMIT
        packed = self._pack((REQUEST, number, method, params))
        try:
            if self.unsent or self._notifications or len(packed) > PIPELINED_BYTES:
                packed = self._gathered(packed)
            if behind is not None:
                self.requests = self._behind = (number + 1) % ID_LIMIT
                self._heard = None
                packed += self._pack((REQUEST, self._behind, *behind))
            self.sends += 1
            try:
                left = len(packed) - self._send_some(packed)
                if left:
                    self._socket.sendall(packed[-left:])
            except OSError as error:
                self._finish_sending(packed, error)
            return self._receive(number, waits_s)
        except Refused:
            raise
        except BaseException:  # interrupted, perhaps: the answer may come yet, and is none to what is asked next
            self.close()
            raise

    def hear(self) -> Any:
        """The answer to what went out behind the last request that had such, as ``request``."""
        heard, self._heard = self._heard, None
        try:
            return self._receive(self._behind) if heard is None else _result_of(heard)
        except Refused:
            raise
        except BaseException:
            self.close()
            raise

    def let_go(self) -> None:
        """Of the room that the largest answer so far has taken, and keeps. No other answer is on its way."""
        self._unpacker = wire.unpacker(NO_LIMIT_BYTES)

    def close(self) -> None:
        self.has_said, self._limit_ms = _is_there, 0  # its number may be somebody else's from here on
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

    def _finish_sending(self, packed: bytes, error: OSError) -> None:
        """Of a request of which nothing was sent yet, or that cannot be sent."""
        if isinstance(error, BlockingIOError):
            try:
                self._socket.sendall(packed)
            except OSError as failed:
                self._check_hears(failed)
        else:
            self._check_hears(error)

    def _check_hears(self, error: OSError) -> bool:
        """Nothing more can be sent; before it hung up the server may have said why, which is read next."""
        if isinstance(error, ConnectionError) and not isinstance(self._socket, ssl.SSLSocket):
            return True
        said = self._parting(error)
        raise self._lost(explain(said, "server") if isinstance(said, ssl.SSLError) else str(said)) from said

    def _farewell(self) -> str:
        """Why the server hung up, where it said so."""
        with suppress(ConnectionLost):
            try:
                self._receive()
            except Refused as why:
                return str(why.error.get("message", ""))
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
        """The answer to the request with this number; what went out behind another one may be answered before. A server
        answers 0 where it hangs up."""
        try:
            if waits_s and self._timeout_s is not None:
                self._limit(None if math.isinf(waits_s) else self._timeout_s + waits_s)
            unpacker = self._unpacker
            while True:
                for frame in unpacker:
                    if waits_s:
                        self._limit(self._timeout_s)
                    if frame[:3] == [RESPONSE, number, None]:
                        return frame[3]
                    wire.check_answer(frame)
                    if frame[1] in (number, 0):
                        return _result_of(frame)
                    if frame[1] != self._behind:
                        raise self._lost(f"it answered request {frame[1]} instead of {number}")
                    self._heard = frame
                data = self._recv(RECEIVE_BYTES) if self._wait(self._limit_ms) else None
                if not data:
                    raise TimeoutError if data is None else self._lost("the server hung up")
                unpacker.feed(data)
        except OSError as error:
            raise self._unheard(error) from error
        except (ValueError, TypeError, MalformedFrame, msgpack.UnpackException) as error:
            raise self._silent(f"it sent what is no answer: {error}") from error

    def _unheard(self, error: OSError) -> ConnectionLost:
        if isinstance(error, TimeoutError):
            return self._silent(f"no answer within {self._timeout_s} s")
        return self._lost(explain(error, "server") if isinstance(error, ssl.SSLError) else error.strerror or str(error))

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
        if self._place.startswith("xaq:"):
            why += f". Where {self._place} speaks TLS, connect to {self._place.replace(':', 's:', 1)}"
        return ConnectionLost(f"the connection to the server is lost: {why}")


def _result_of(frame: list[Any]) -> Any:
    """Raises Refused."""
    if frame[2] is not None:
        raise Refused(frame[2])
    return frame[3]


def _is_there(_: int | None) -> bool:
    """Of a socket that waits by itself; and of one that is closed."""
    return True


def _poll_of(made: Connected) -> Callable[[int], object]:
    poll = select.poll()
    if made.fileno() >= 0:
        poll.register(made.fileno(), select.POLLIN)
    return poll.poll


def _has_said(made: Connected, poll: Callable[[int], object], wait_ms: int) -> bool:
    return made.fileno() < 0 or bool(poll(wait_ms))


def _send_all(made: Connected, data: bytes) -> int:
    made.sendall(data)
    return len(data)


def keep_alive(connected: socket.socket) -> None:
    """A TCP peer that vanished without a word is noticed, though it owes nothing."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
