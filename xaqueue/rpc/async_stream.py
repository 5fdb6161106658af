"""A client's socket for asyncio: what ``Stream`` asks of a socket, and where that would block the task awaits."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import cast

from xaqueue.rpc.awaiting import awaited


class AwaitedSocket(asyncio.Protocol):
    """Used within ``carried``, by one call at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._timeout_s: float | None = None
        self._received: list[bytes] = []
        self._ended = False
        """Nothing more comes."""
        self._failure: OSError | None = None
        self._writable = True
        self._waiter: asyncio.Future[None] | None = None

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not declared as one

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        if isinstance(error, OSError):
            self._failure = error
        self._wake()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._wake()

    # What the stream asks

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def sendall(self, data: bytes) -> None:
        if self._ended:
            raise self._failure or ConnectionResetError("the server hung up")
        self._transport.write(data)
        while not self._writable and not self._ended:
            awaited(self._wait())

    def recv(self, size: int) -> bytes:
        """All that has come; nothing at the end."""
        while not self._received and not self._ended:
            awaited(self._wait())
        data, self._received = b"".join(self._received), []
        if not data and self._failure is not None:
            raise self._failure
        return data

    def fileno(self) -> int:
        """Negative where there is something to be read already, if only the end."""
        if self._ended or self._received or self._transport.is_closing():
            return -1
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    def close(self) -> None:
        """From any thread, since the collector comes in any. A forked child would disturb its parent's loop."""
        if self._pid == os.getpid() and not self._loop.is_closed():
            if self._thread == threading.get_ident():
                self._transport.abort()
            else:
                self._loop.call_soon_threadsafe(self._transport.abort)

    # Within

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
