"""A connection for asyncio has the names of ``Connection``, each to be awaited; it is that connection, carried.

    async with await xaqueue.connect_async("xaq+unix:///run/xaqueue.sock") as connection:
        await connection.enqueue("orders", b"...")
        await connection.commit()
        async for message in connection.browse("orders"): ...

One task uses a connection at a time, in the loop that made it; a waiting dequeue holds nobody else up. Whatever is
awaited here may be cancelled: then the connection to the server is given up, since its answer would come still. The
transaction it was in goes on as after any lost connection: it can only be rolled back. Where it was being committed,
nobody knows its outcome, and the next call says so, once, with OutcomeUnknown and the xid.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from xaqueue.connection import Connection
from xaqueue.errors import InterfaceError, OutcomeUnknown
from xaqueue.message import EnqueueOptions, Message, MessageId
from xaqueue.rpc.awaiting import carried
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

P = ParamSpec("P")
T = TypeVar("T")


class AsyncConnection:
    """Made by ``xaqueue.connect_async``. A method without a text here is that of ``Connection``, with its errors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._busy = False
        self._unknown: OutcomeUnknown | None = None
        """Of a commit that was cancelled, to be told."""

    # Messages

    async def enqueue(
        self, queue: str, body: bytes | bytearray | memoryview, **options: Unpack[EnqueueOptions]
    ) -> MessageId:
        """As ``Connection.enqueue``. It rides: there is something to wait for only where a lot rides already."""
        return await self._work(self._connection.enqueue, queue, body, **options)

    async def dequeue(
        self,
        queue: str,
        *,
        wait_s: float | None = 0.0,
        message_id: bytes | str | None = None,
        correlation_id: bytes | str | None = None,
    ) -> Message | None:
        find = self._connection.dequeue
        return await self._work(find, queue, wait_s=wait_s, message_id=message_id, correlation_id=correlation_id)

    async def browse(self, queue: str, limit: int | None = None) -> AsyncGenerator[Message, None]:
        """As ``Connection.browse``, for ``async for``: not awaited itself, and refused at the first step."""
        found = await self._ask(self._connection.browse, queue, limit)
        while (message := await self._ask(partial(next, found, None))) is not None:
            yield message

    async def flush(self) -> None:
        await self._work(self._connection.flush)

    # One phase

    async def commit(self) -> None:
        await self._work(self._connection.commit)

    async def rollback(self) -> None:
        await self._work(self._connection.rollback)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """As ``Connection.transaction``, for ``async with``."""
        block = self._connection.transaction()
        await self._work(block.__enter__)
        try:
            yield self
        except BaseException as error:
            await self._ask(block.__exit__, type(error), error, error.__traceback__)
            raise
        await self._ask(block.__exit__, None, None, None)

    # Two phases

    @staticmethod
    def xid(format_id: int, gtrid: bytes | str, bqual: bytes | str) -> Xid:
        """As ``Connection.xid``; not awaited."""
        return Connection.xid(format_id, gtrid, bqual)

    async def tpc_begin(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        await self._work(self._connection.tpc_begin, xid, flags, timeout_s)

    async def tpc_end(self, xid: Xid | None = None, flags: Flag = Flag.SUCCESS) -> None:
        await self._work(self._connection.tpc_end, xid, flags)

    async def tpc_prepare(self) -> bool:
        return await self._work(self._connection.tpc_prepare)

    async def tpc_commit(self, xid: Xid | None = None) -> None:
        await self._finish(self._connection.tpc_commit, xid)

    async def tpc_rollback(self, xid: Xid | None = None) -> None:
        await self._finish(self._connection.tpc_rollback, xid)

    async def tpc_recover(self) -> list[Xid]:
        return await self._ask(self._connection.tpc_recover)

    async def tpc_forget(self, xid: Xid) -> None:
        await self._ask(self._connection.tpc_forget, xid)

    async def outcome(self, xid: Xid) -> Outcome:
        found = await self._ask(self._connection.outcome, xid)
        if self._unknown is not None and self._unknown.xid == xid:
            self._unknown = None  # whoever asks knows
        return found

    # The connection

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    async def close(self) -> None:
        await self._ask(self._connection.close)

    async def __aenter__(self) -> Self:
        self._connection.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As ``Connection.__exit__``."""
        await self._ask(self._connection.__exit__, kind, error, trace)

    # Within

    async def _finish(self, finish: Callable[[Xid | None], None], xid: Xid | None) -> None:
        await (self._work(finish, None) if xid is None else self._ask(finish, xid))

    def _work(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
        """A call that belongs to a transaction: it is not done while the last one's outcome is to be told."""
        if self._unknown is not None:
            unknown, self._unknown = self._unknown, None
            raise unknown
        return self._ask(call, *arguments, **options)

    async def _ask(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        if asyncio.get_running_loop() is not self._loop:
            raise InterfaceError("the connection belongs to another event loop: open one in each")
        if self._busy:
            raise InterfaceError("another task waits for an answer on this connection: open one for each task")
        self._busy, within = True, self._connection.in_transaction
        try:
            return await carried(partial(call, *arguments, **options), partial(self._cut_off, within))
        finally:
            self._busy = False

    def _cut_off(self, within: bool, error: Exception) -> None:
        """A call was cancelled, and ended with this error; within: it was made in a transaction."""
        if isinstance(error, OutcomeUnknown) and within and not self._connection.in_transaction:
            self._unknown = error
