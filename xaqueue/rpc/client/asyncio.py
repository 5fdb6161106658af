"""A connection for asyncio has the names of ``Connection``, each to be awaited; it is that connection, carried.

    async with await xaqueue.connect_async("xaq+unix:///run/xaqueue.sock") as connection:
        await connection.enqueue("orders", b"...")
        await connection.commit()
        async for message in connection.browse("orders"): ...

One task uses a connection at a time, in the loop that made it; a waiting dequeue holds nobody else up. Whatever is
awaited here may be cancelled: then the connection to the server is given up, since its answer would come still. The
transaction it was in goes on as after any lost connection: it can only be rolled back. Where it was being committed,
nobody knows its outcome, and the next call says so, once, with OutcomeUnknown and the xid.

It is that of threads, ``carried``: where it would block (in ``AwaitedSocket``, which is a socket to ``ClientSocket``)
the task awaits. A call whose task is cancelled is cut off where it waits: there ConnectionLost is raised.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from xaqueue.awaited import awaited, carried
from xaqueue.connection import Connection
from xaqueue.delivery import LEASE_S, Delivery
from xaqueue.endpoint import EXAMPLES, Endpoint, Scheme, is_url, parse
from xaqueue.errors import ConnectionLost, InterfaceError, InvalidArgument, OutcomeUnknown
from xaqueue.message import Message
from xaqueue.rpc.client.link import keep_alive
from xaqueue.rpc.client.manager import RemoteManager, connect_s_of, dialer, hello_of
from xaqueue.spans import connection
from xaqueue.storage.ids import fresh_id
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

P = ParamSpec("P")
T = TypeVar("T")


def _carried(
    method: Callable[Concatenate[Connection, P], T], *, of_transaction: bool = True
) -> Callable[Concatenate[AsyncConnection, P], Coroutine[Any, Any, T]]:
    """The same method, to be awaited. of_transaction: the last one's unknown outcome is raised before it."""

    @wraps(method)
    async def awaited_method(self: AsyncConnection, /, *arguments: P.args, **options: P.kwargs) -> T:
        call = self._work if of_transaction else self._ask
        return await call(method, self._connection, *arguments, **options)

    return awaited_method


class AsyncDelivery:
    """``Delivery``, each method to be awaited."""

    def __init__(self, delivery: Delivery, ask: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self.delivery, self.message = delivery, delivery.message
        self.body, self.headers = delivery.body, delivery.headers
        self.ack = partial(ask, delivery.ack)
        self.nack = partial(ask, delivery.nack)
        self.reject = partial(ask, delivery.reject)
        self.extend = partial(ask, delivery.extend)


class AsyncConnection:
    """Made by ``xaqueue.connect_async``. A method without a text here is that of ``Connection``, with its errors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._busy = False
        self._unknown: OutcomeUnknown | None = None
        """Of a commit that was cancelled: its next call raises it."""

    enqueue = _carried(Connection.enqueue)
    """Pipelined: there is something to wait for only where a lot is on its way already."""
    dequeue = _carried(Connection.dequeue)
    enqueue_many = _carried(Connection.enqueue_many)
    enqueue_to = _carried(Connection.enqueue_to)
    publish = _carried(Connection.publish)
    dequeue_many = _carried(Connection.dequeue_many)

    async def receive(
        self, queue: str, max_messages: int = 1, lease_s: float = LEASE_S, wait_s: float | None = 0.0
    ) -> list[AsyncDelivery]:
        found = await self._ask(self._connection.receive, queue, max_messages, lease_s, wait_s)
        return [AsyncDelivery(delivery, self._ask) for delivery in found]

    async def accept(self, delivery: AsyncDelivery | Delivery) -> None:
        given = delivery.delivery if isinstance(delivery, AsyncDelivery) else delivery
        await self._work(self._connection.accept, given)

    move = _carried(Connection.move)
    requeue = _carried(Connection.requeue)
    remove = _carried(Connection.remove)
    restore = _carried(Connection.restore)
    request = _carried(Connection.request)
    reply = _carried(Connection.reply)
    flush = _carried(Connection.flush)
    commit = _carried(Connection.commit)
    rollback = _carried(Connection.rollback)
    xid = staticmethod(Connection.xid)
    """Not awaited."""
    tpc_begin = _carried(Connection.tpc_begin)
    tpc_end = _carried(Connection.tpc_end)
    tpc_prepare = _carried(Connection.tpc_prepare)
    tpc_recover = _carried(Connection.tpc_recover, of_transaction=False)
    harden = _carried(Connection.harden, of_transaction=False)
    tpc_carry = _carried(Connection.tpc_carry)
    """Refused: the space is behind a server."""
    carriers = _carried(Connection.carriers, of_transaction=False)
    deliver = _carried(Connection.deliver, of_transaction=False)
    release_carrier = _carried(Connection.release_carrier, of_transaction=False)
    define = _carried(Connection.define, of_transaction=False)
    define_topic = _carried(Connection.define_topic, of_transaction=False)
    subscribe = _carried(Connection.subscribe, of_transaction=False)
    unsubscribe = _carried(Connection.unsubscribe, of_transaction=False)
    undefine = _carried(Connection.undefine, of_transaction=False)
    snapshot = _carried(Connection.snapshot, of_transaction=False)
    tpc_forget = _carried(Connection.tpc_forget, of_transaction=False)
    close = _carried(Connection.close, of_transaction=False)

    async def consume(self, queue: str, *, wait_s: float | None = None) -> AsyncGenerator[Message, None]:
        """As ``Connection.consume``, for ``async for``: not awaited itself."""
        while (message := await self.dequeue(queue, wait_s=wait_s)) is not None:
            yield message

    async def browse(
        self, queue: str, limit: int | None = None, *, message_id: bytes | str | None = None
    ) -> AsyncGenerator[Message, None]:
        """As ``Connection.browse``, for ``async for``: not awaited itself, and refused at the first step."""
        found = await self._ask(partial(self._connection.browse, queue, limit, message_id=message_id))
        while (message := await self._ask(partial(next, found, None))) is not None:
            yield message

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

    async def tpc_commit(self, xid: Xid | None = None, *, late: bool = False) -> None:
        await self._finish(partial(self._connection.tpc_commit, late=late), xid)

    async def tpc_rollback(self, xid: Xid | None = None) -> None:
        await self._finish(self._connection.tpc_rollback, xid)

    async def outcome(self, xid: Xid) -> Outcome:
        found = await self._ask(self._connection.outcome, xid)
        if self._unknown is not None and self._unknown.xid == xid:
            self._unknown = None  # whoever asks knows
        return found

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

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
        """A call that belongs to a transaction: it is not done while the last one's unknown outcome is to be raised."""
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
            return await carried(partial(call, *arguments, **options), _lost, partial(self._cut_off, within))
        finally:
            self._busy = False

    def _cut_off(self, within: bool, error: Exception) -> None:
        """A call was cancelled, and ended with this error; within: it was made in a transaction."""
        if isinstance(error, OutcomeUnknown) and within and not self._connection.in_transaction:
            self._unknown = error


# Connecting


async def connect(url: str) -> AsyncConnection:
    """See ``xaqueue.connect_async``."""
    if not is_url(url):
        raise InvalidArgument(
            f"{url!r} is no URL of a server: {EXAMPLES}. A directory is opened with xaqueue.connect, and has no async "
            "connections: serve it with `xaqueue serve`"
        )
    endpoint = parse(url)
    return AsyncConnection(await carried(partial(_connection, endpoint), _lost))


def _lost(_: BaseException) -> Exception:
    return ConnectionLost("the connection to the server is lost: the call that waited for an answer was cancelled")


def _connection(endpoint: Endpoint) -> Connection:
    manager = RemoteManager(
        dialer(endpoint, lambda *wanted: awaited(_connected(*wanted))),
        connect_s=connect_s_of(endpoint),
        hello=partial(hello_of, endpoint),
        is_one_of_several=bool(endpoint.others),
        pause=lambda pause_s: awaited(asyncio.sleep(pause_s)),
    )
    return connection(manager, fresh_id)


async def _connected(endpoint: Endpoint, context: ssl.SSLContext | None, limit_s: float) -> AwaitedSocket:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(limit_s):
        if endpoint.scheme is Scheme.UNIX:
            _, made = await loop.create_unix_connection(AwaitedSocket, endpoint.path)
            return made
        transport, made = await loop.create_connection(AwaitedSocket, endpoint.host, endpoint.port, ssl=context)
    number = transport.get_extra_info("socket").fileno()
    with suppress(OSError), socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as same:  # or it is closed again
        keep_alive(same)
    return made


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

    # What ClientSocket asks

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
