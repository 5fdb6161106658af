"""A client's socket: requests out, answers in, in one thread, and nothing of it survives the first failure.

What rides is gathered and sent with the next request, or earlier where it grows large.
"""

from __future__ import annotations

import math
import select
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgpack

from xaqueue.errors import ConnectionLost
from xaqueue.rpc import wire
from xaqueue.rpc.tls import explain
from xaqueue.rpc.wire import Answer, MalformedFrame

RIDING_BYTES = 64 * 1024
"""What rides is sent before its request when there is more of it."""
RECEIVE_BYTES = 64 * 1024
NO_LIMIT_BYTES = 2**31 - 1
"""Of an answer: the server is trusted with that."""


class Connected(Protocol):
    """What a stream needs of a socket."""

    def settimeout(self, timeout_s: float | None, /) -> None: ...

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Stream:
    """One connected socket; used by one thread."""

    def __init__(self, made: Connected, timeout_s: float | None) -> None:
        """timeout_s: how long an answer may take, beside what its request itself may wait."""
        self._socket = made
        self._timeout_s = timeout_s
        self._unpacker = wire.unpacker(NO_LIMIT_BYTES)
        self._riding: list[bytes] = []
        self._riding_bytes = 0
        self._number = 0

    def ride(self, method: str, params: Sequence[Any]) -> None:
        """Sends this with the next request; it has no answer. Raises ConnectionLost."""
        self.append(method, params)
        if self._riding_bytes > RIDING_BYTES:
            self._send()

    def append(self, method: str, params: Sequence[Any]) -> None:
        """As ``ride``, and nothing is sent now."""
        packed = wire.notification(method, params)
        self._riding.append(packed)
        self._riding_bytes += len(packed)

    def request(self, method: str, params: Sequence[Any], waits_s: float = 0.0) -> Answer:
        """Sends a request and waits for its answer. Raises ConnectionLost: whether it was done is unknown."""
        self._number = (self._number + 1) % wire.ID_LIMIT
        self._riding.append(wire.request(self._number, method, params))
        try:
            self._send(hears=True)
            answer = self._receive(waits_s)
        except BaseException:  # interrupted, perhaps: the answer may come yet, and is none to what is asked next
            self.close()
            raise
        if answer.id not in (self._number, 0):
            raise self._lost(f"it answered request {answer.id} instead of {self._number}")
        return answer

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
            packed, self._riding, self._riding_bytes = b"".join(self._riding), [], 0
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(packed)
        except OSError as error:
            if isinstance(error, ConnectionError) and not isinstance(self._socket, ssl.SSLSocket):
                if hears:
                    return  # it may have said why before it hung up: that is read next
                raise self._lost(self._farewell() or str(error)) from error
            said = self._parting(error)
            raise self._lost(explain(said, "server") if isinstance(said, ssl.SSLError) else str(said)) from said
        except BaseException:  # interrupted: what rode may be lost in part, and nothing may follow it
            self.close()
            raise

    def _farewell(self) -> str:
        """Why the server hung up, where it said so."""
        try:
            told = self._receive(0.0).error
        except ConnectionLost:
            return ""
        return str(told.get("message", "")) if told is not None else ""

    def _parting(self, error: OSError) -> OSError:
        """What the server said before it hung up: with TLS 1.3 it refuses a certificate behind the handshake."""
        if isinstance(self._socket, ssl.SSLSocket):
            try:
                self._socket.recv(1)
            except OSError as said:
                return said
        return error

    def _receive(self, waits_s: float) -> Answer:
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
