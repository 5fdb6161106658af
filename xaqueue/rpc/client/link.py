"""A client's connection to a server, and how calls go over it: asked, pipelined, or asked again.

It connects again between transactions, never within one: a branch that it was in is lost with it. An answer that was
lost is told as such.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from xaqueue.errors import AccessDenied, ConnectionLost, Error, InterfaceError, ResourceFailed, RolledBack
from xaqueue.rpc import wire
from xaqueue.rpc.client.branch import RemoteBranch
from xaqueue.rpc.client.socket import ClientSocket
from xaqueue.rpc.credentials import is_refusal
from xaqueue.storage.ids import fresh_id

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""Between two tries to connect."""
CONNECT_S = 10.0
"""For how long it is tried."""
TRIES = 3
"""How often a call is made whose answer is lost each time."""

Dial = Callable[[], ClientSocket]
"""Connects; raises ConnectionLost."""


class Link:
    """Used by one thread at a time."""

    def __init__(
        self,
        dial: Dial,
        *,
        connect_s: float = CONNECT_S,
        hello: Callable[[], dict[str, Any]] = dict,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """Connects. hello: what it says of itself there. pause: waits so many seconds before it is tried again.

        Raises ConnectionLost, and what the server refuses with.
        """
        self._dial = dial
        self._pause = pause
        self._connect_s = connect_s
        self._hello = hello
        self._socket: ClientSocket | None = None
        self._key: bytes | None = None
        """Names the session of now, or the one before, to the server."""
        self._closed = False
        self._branch = RemoteBranch()
        self.space: dict[str, Any] = {}
        """What the server said of itself and its space."""
        self._connect()

    def call(self, method: str, *params: Any) -> Any:
        """Any method of the server that does not belong to the branch; it connects again where it must."""
        if self._socket is None or self._socket.is_stale:
            self._reconnect()
        before = self._branch.why
        try:
            return self._ask(method, *params)
        except (RolledBack, ResourceFailed):
            if self._branch.why is before:
                raise
        return self._ask(method, *params)  # a pipelined call of the branch had failed, which its next call tells

    def call_with_retry(self, method: str, *params: Any) -> Any:
        """A call that may be made twice. Raises ConnectionLost where the answer is lost each time."""
        for _ in range(TRIES - 1):
            with suppress(ConnectionLost):
                return self.call(method, *params)
        return self.call(method, *params)

    @property
    def requests(self) -> int:
        """How many requests, which are round trips, the connection of now has had."""
        return self._socket.requests if self._socket is not None else 0

    def drop(self) -> bool:
        self._closed, socket, self._socket = True, self._socket, None
        if socket is None:
            return False
        had = not socket.is_stale
        socket.close()
        return had

    # Calls

    def _pipeline(self, method: str, *params: Any) -> None:
        """Sends this with the next call that is asked; it has no answer of its own."""
        socket = self._socket
        if socket is None:
            raise self._not_connected()
        try:
            socket.pipeline(method, params)
        except ConnectionLost as lost:
            self._lose(lost)
            raise

    def _ask(self, method: str, *params: Any, waits_s: float = 0.0) -> Any:
        socket = self._socket
        if socket is None:
            raise self._not_connected()
        try:
            error, result = socket.request(method, params, waits_s)
        except ConnectionLost as lost:
            self._lose(lost)
            raise
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

    # The connection

    def _reconnect(self) -> None:
        """Outside a branch a lost connection is made again; a branch that it was in is lost with it."""
        self._check_open()
        if self._socket is not None:
            self._lose(ConnectionLost("the connection to the server is lost: the server hung up"))
        self._connect()

    def _not_connected(self) -> Error:
        self._check_open()
        if self._branch.why is not None:
            return self._branch.refusal()
        return ConnectionLost("the connection to the server is lost")

    def _lose(self, lost: Error) -> None:
        self._branch.disconnect(lost)
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

    def _connect(self) -> None:
        """Tries for a while. Raises ConnectionLost, and what the server refuses with.

        A peer that TLS refuses is not asked again: that is AccessDenied.
        """
        failure: Error
        for _ in self._tries():
            try:
                self._socket, key = self._dial(), fresh_id()
                known = {"protocol": wire.PROTOCOL, "session": key, "instead_of": self._key}
                self.space = self._ask("hello", {**known, **self._hello()})
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
                return
        raise failure
