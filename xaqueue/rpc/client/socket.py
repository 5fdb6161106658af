"""A client's socket: requests out, answers in, in one thread, and nothing of it survives the first failure.

What is pipelined is gathered and sent with the next request, or earlier where it grows large.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgpack

from xaqueue.errors import ConnectionLost
from xaqueue.rpc import wire
from xaqueue.rpc.credentials import explain
from xaqueue.rpc.wire import AnswerFrame, MalformedFrame

PIPELINED_BYTES = 64 * 1024
"""What is pipelined is sent before its request when there is more of it."""
RECEIVE_BYTES = 64 * 1024
KEEPALIVE_S = (60, 10, 6)
"""A silent TCP peer is asked after so many seconds, then so often, and is gone after so many questions."""
NO_LIMIT_BYTES = 2**31 - 1
"""Of an answer: the server is trusted with that."""


class Connected(Protocol):
    """What it needs of a socket."""

    def settimeout(self, timeout_s: float | None, /) -> None: ...

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class ClientSocket:
    """One connected socket; used by one thread."""

    def __init__(self, made: Connected, timeout_s: float | None) -> None:
        """timeout_s: how long an answer may take, beside what its request itself may wait."""
        self._socket = made
        self._timeout_s = timeout_s
        self._unpacker = wire.unpacker(NO_LIMIT_BYTES)
        self._pipelined: list[bytes] = []
        self._pipelined_bytes = 0
        self._number = 0

    def pipeline(self, method: str, params: Sequence[Any]) -> None:
        """Sends this with the next request; it has no answer. Raises ConnectionLost."""
        packed = msgpack.packb((wire.NOTIFICATION, method, params))
        self._pipelined.append(packed)
        self._pipelined_bytes += len(packed)
        if self._pipelined_bytes > PIPELINED_BYTES:
            self._send()

    def append(self, method: str, params: Sequence[Any]) -> None:
        """As ``pipeline``, and nothing is sent now, whatever its size."""
        packed = msgpack.packb((wire.NOTIFICATION, method, params))
        self._pipelined.append(packed)
        self._pipelined_bytes += len(packed)

    def request(self, method: str, params: Sequence[Any], waits_s: float = 0.0) -> tuple[Any, Any]:
        """Sends a request and waits for its answer: the error, a map or None, and the result.

        Raises ConnectionLost: whether it was done is unknown.
        """
        self._number = number = (self._number + 1) % wire.ID_LIMIT
        self._pipelined.append(msgpack.packb((wire.REQUEST, number, method, params)))
        try:
            self._send(hears=True)
            answered, error, result = self._receive(waits_s)
        except BaseException:  # interrupted, perhaps: the answer may come yet, and is none to what is asked next
            self.close()
            raise
        if answered not in (number, 0):
            raise self._lost(f"it answered request {answered} instead of {number}")
        return error, result

    @property
    def requests(self) -> int:
        """How many it has sent, as far as they are counted: modulo 2**32."""
        return self._number

    @property
    def is_stale(self) -> bool:
        """Whether the server has hung up meanwhile."""
        asked = select.poll()  # select() knows numbers below 1024 only
        try:
            asked.register(self._socket, select.POLLIN)
        except (OSError, ValueError):
            return True
        return bool(asked.poll(0))  # it never speaks unasked

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _send(self, *, hears: bool = False) -> None:
        """hears: an answer is read next."""
        try:
            packed, self._pipelined, self._pipelined_bytes = b"".join(self._pipelined), [], 0
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(packed)
        except OSError as error:
            if isinstance(error, ConnectionError) and not isinstance(self._socket, ssl.SSLSocket):
                if hears:
                    return  # it may have said why before it hung up: that is read next
                raise self._lost(self._farewell() or str(error)) from error
            said = self._parting(error)
            raise self._lost(explain(said, "server") if isinstance(said, ssl.SSLError) else str(said)) from said
        except BaseException:  # interrupted: what was pipelined may be lost in part, and nothing may follow it
            self.close()
            raise

    def _farewell(self) -> str:
        """Why the server hung up, where it said so."""
        try:
            error = self._receive(0.0).error
        except ConnectionLost:
            return ""
        return str(error.get("message", "")) if error is not None else ""

    def _parting(self, error: OSError) -> OSError:
        """What the server said before it hung up: with TLS 1.3 it refuses a certificate behind the handshake."""
        if isinstance(self._socket, ssl.SSLSocket):
            try:
                self._socket.recv(1)
            except OSError as said:
                return said
        return error

    def _receive(self, waits_s: float) -> AnswerFrame:
        try:
            if waits_s and self._timeout_s is not None:
                self._socket.settimeout(None if math.isinf(waits_s) else self._timeout_s + waits_s)
            while True:
                for frame in self._unpacker:
                    return wire.answer_of(frame)
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise self._lost("the server hung up")
                self._unpacker.feed(data)
        except TimeoutError as error:
            raise self._lost(f"no answer within {self._timeout_s} s") from error
        except ssl.SSLError as error:
            raise self._lost(explain(error, "server")) from error
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error
        except (ValueError, MalformedFrame, msgpack.UnpackException) as error:
            raise self._lost(f"it sent what is no answer: {error}") from error

    def _lost(self, why: str) -> ConnectionLost:
        self.close()
        return ConnectionLost(f"the connection to the server is lost: {why}")


def keep_alive(connected: socket.socket) -> None:
    """A TCP peer that vanished without a word is noticed, though it owes nothing."""
    idle_s, interval_s, probes = KEEPALIVE_S
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
