"""A connection for asyncio has the names of ``Connection``, each to be awaited; it is that connection, carried.

    async with await xaqueue.connect_async("xaq+unix:///run/xaqueue.sock") as connection:
        await connection.enqueue("orders", b"...")
        await connection.commit()
        async for message in connection.browse("orders"): ...

Many tasks of the loop that made it may use a connection: what one waits for holds no other up. Its transaction is that
of one task, which began it; work, commit and rollback of another one are refused as long as it is open. Behind it are
several sessions with the server (``Lanes``): that of the transaction, and such as its tasks need beside it.

Whatever is awaited here may be cancelled: then the socket of that session is given up, since its answer would come
still. A transaction that was at work there goes on as after any lost connection: it can only be rolled back. Where it
was being committed, nobody knows its outcome, and the next call says so, once, with OutcomeUnknown and the xid.

Each session is that of threads, ``carried``: where it would block (in ``AwaitedSocket``, which is a socket to
``ClientSocket``) the task awaits. A call whose task is cancelled is cut off where it waits: there ConnectionLost is
raised.
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
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from xaqueue.awaited import awaited, carried
from xaqueue.connection import Connection
from xaqueue.core.storage.ids import fresh_id
from xaqueue.delivery import LEASE_S, Delivery
from xaqueue.endpoint import EXAMPLES, Endpoint, Scheme, is_url, parse
from xaqueue.errors import ConnectionLost, InterfaceError, InvalidArgument, OutcomeUnknown
from xaqueue.message import Message
from xaqueue.rpc.client.lanes import FairLock, Lane, Lanes, Owner, lost
from xaqueue.rpc.client.manager import RemoteManager, connect_s_of, dialer, hello_of
from xaqueue.rpc.client.sockets import keep_alive
from xaqueue.savepoint import AsyncSavepoint
from xaqueue.spans import connection
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

P = ParamSpec("P")
T = TypeVar("T")


def _carried(
    method: Callable[Concatenate[Connection, P], T], *, of_transaction: bool = True, is_own: bool = True
) -> Callable[Concatenate[AsyncConnection, P], Coroutine[Any, Any, T]]:
    """The method of this name, to be awaited. of_transaction, is_own: see ``AsyncConnection._work``."""

    @wraps(method)
    async def awaited_method(self: AsyncConnection, /, *arguments: P.args, **options: P.kwargs) -> T:
        def call(connection: Connection) -> T:
            result: T = getattr(connection, method.__name__)(*arguments, **options)  # a traced one has its own
            return result

        return await (self._work(call, is_own=is_own) if of_transaction else self._ask(call))

    return awaited_method


def _settled(
    method: Callable[Concatenate[Delivery, P], None],
) -> Callable[Concatenate[AsyncDelivery, P], Coroutine[Any, Any, None]]:
    """The same method, to be awaited, over a session that is free."""

    @wraps(method)
    async def awaited_method(self: AsyncDelivery, /, *arguments: P.args, **options: P.kwargs) -> None:
        def call(connection: Connection) -> None:
            method(self.delivery.over(connection._settle, connection._extend), *arguments, **options)  # noqa: SLF001

        await self._ask(call)

    return awaited_method


class AsyncDelivery:
    """``Delivery``, each method to be awaited, by any task."""

    def __init__(self, delivery: Delivery, ask: Callable[..., Coroutine[Any, Any, None]]) -> None:
        """ask: makes a call of the connection of a session that is free."""
        self.delivery, self.message = delivery, delivery.message
        self.body, self.headers = delivery.body, delivery.headers
        self._ask = ask

    ack = _settled(Delivery.ack)
    nack = _settled(Delivery.nack)
    reject = _settled(Delivery.reject)
    extend = _settled(Delivery.extend)


class AsyncConnection:
    """Made by ``xaqueue.connect_async``. A method without a text here is that of ``Connection``, with its errors."""

    def __init__(self, lane: Lane, make: Callable[[], Lane]) -> None:
        """lane: for its transaction. make: another session with the same server, within ``carried``."""
        self._connection = lane.connection
        self._main, self._lock = lane, FairLock()
        self._lanes = Lanes(make)
        self._loop = asyncio.get_running_loop()
        self._owner: Owner | None = None
        """Of the transaction that is open."""
        self._unknown: OutcomeUnknown | None = None
        """Of a commit that was cancelled: its next call raises it."""

    @property
    def space_id(self) -> str:
        return self._connection.space_id

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
        call = self._ask if wait_s == 0 else self._ask_alone
        found = await call(lambda connection: connection.receive(queue, max_messages, lease_s, wait_s))
        return [AsyncDelivery(delivery, self._ask) for delivery in found]

    async def accept(self, delivery: AsyncDelivery | Delivery) -> None:
        given = delivery.delivery if isinstance(delivery, AsyncDelivery) else delivery
        await self._work(lambda connection: connection.accept(given))

    move = _carried(Connection.move)
    requeue = _carried(Connection.requeue)
    remove = _carried(Connection.remove)
    restore = _carried(Connection.restore)
    restore_many = _carried(Connection.restore_many)
    request = _carried(Connection.request)
    reply = _carried(Connection.reply)
    flush = _carried(Connection.flush)
    commit = _carried(Connection.commit)
    rollback = _carried(Connection.rollback)
    xid = staticmethod(Connection.xid)
    """Not awaited."""
    tpc_begin = _carried(Connection.tpc_begin)
    tpc_end = _carried(Connection.tpc_end, is_own=False)
    tpc_prepare = _carried(Connection.tpc_prepare, is_own=False)
    tpc_recover = _carried(Connection.tpc_recover, of_transaction=False)
    harden = _carried(Connection.harden, of_transaction=False)
    tpc_carry = _carried(Connection.tpc_carry, is_own=False)
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

    async def close(self) -> None:
        await self._end(Connection.close)

    async def consume(self, queue: str, *, wait_s: float | None = None) -> AsyncGenerator[Message, None]:
        """As ``Connection.consume``, for ``async for``: not awaited itself."""
        try:
            while (message := await self._work(lambda connection: connection._next(queue, wait_s))) is not None:  # noqa: SLF001
                yield message
        finally:
            if self._main.manager.is_wanted_ahead(queue):  # else another task may be in a call for long
                async with self._lock:
                    await self._run(self._main, lambda _: self._main.manager.end_ahead(queue))

    async def browse(
        self, queue: str, limit: int | None = None, *, message_id: bytes | str | None = None
    ) -> AsyncGenerator[Message, None]:
        """As ``Connection.browse``, for ``async for``: not awaited itself, and refused at the first step."""
        async with self._lanes.one() as lane:
            found = await self._run(lane, lambda connection: connection.browse(queue, limit, message_id=message_id))
            while (message := await self._run(lane, lambda _: next(found, None))) is not None:
                yield message

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """As ``Connection.transaction``, for ``async with``."""
        block = self._connection.transaction()
        await self._work(lambda _: block.__enter__())
        try:
            yield self
        except BaseException as error:
            raised = type(error), error, error.__traceback__
            await self._work(lambda _: block.__exit__(*raised), is_own=False, tells=False)
            raise
        await self._work(lambda _: block.__exit__(None, None, None), is_own=False, tells=False)

    def savepoint(self) -> AsyncSavepoint:
        """As ``Connection.savepoint``, for ``async with``, or to be awaited."""
        return AsyncSavepoint(self._connection.savepoint, lambda call: self._work(lambda _: call()))

    async def explain_rollback(self, reason: str | BaseException) -> None:
        await self._work(lambda connection: connection.explain_rollback(reason), is_own=False, tells=False)

    async def tpc_commit(self, xid: Xid | None = None, *, late: bool = False) -> None:
        await self._work(lambda connection: connection.tpc_commit(xid, late=late), is_own=False, tells=xid is None)

    async def tpc_rollback(self, xid: Xid | None = None) -> None:
        await self._work(lambda connection: connection.tpc_rollback(xid), is_own=False, tells=xid is None)

    async def outcome(self, xid: Xid) -> Outcome:
        found = await self._ask(lambda connection: connection.outcome(xid))
        if self._unknown is not None and self._unknown.xid == xid:
            self._unknown = None  # whoever asks knows
        return found

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    async def __aenter__(self) -> Self:
        self._connection.__enter__()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """As ``Connection.__exit__``."""
        await self._end(lambda connection: connection.__exit__(kind, error, trace))

    # Within

    async def _end(self, end: Callable[[Connection], None]) -> None:
        self._check(is_own=False)
        try:
            await self._work(end, is_own=False, tells=False)
        finally:
            await self._lanes.close()

    async def _work(self, call: Callable[[Connection], T], *, is_own: bool = True, tells: bool = True) -> T:
        """A call that belongs to the transaction. is_own: only of the task whose it is. tells: it is not done while the
        last one's unknown outcome is to be raised."""
        self._check(is_own)
        async with self._lock:
            self._check_owner(is_own)  # another one may have begun meanwhile
            if tells and self._unknown is not None:
                unknown, self._unknown = self._unknown, None
                raise unknown
            self._owner = self._owner or Owner()
            try:
                return await self._run(self._main, call)
            finally:
                if not self._connection.in_transaction:
                    self._owner.is_over, self._owner = True, None

    async def _ask(self, call: Callable[[Connection], T]) -> T:
        """A short call that belongs to no transaction: on its session only where no other task's work may be lost with
        it, should this one be cancelled."""
        self._check_loop()
        async with self._lanes.lock:
            if not (self._lock.is_taken or (self._owner and self._owner.task is not asyncio.current_task())):
                async with self._lock:
                    return await self._run(self._main, call)
            return await self._ask_alone(call)

    async def _ask_alone(self, call: Callable[[Connection], T]) -> T:
        """One that may take long, on a session that nobody else uses meanwhile."""
        self._check_loop()
        async with self._lanes.one() as lane:
            return await self._run(lane, call)

    async def _run(self, lane: Lane, call: Callable[[Connection], T]) -> T:
        """On a session that is the caller's now."""
        within = lane is self._main and self._connection.in_transaction
        try:
            return await carried(lambda: call(lane.connection), lost, partial(self._cut_off, within))
        except (ConnectionLost, OutcomeUnknown) as error:
            if lane.manager.is_unreached:
                self._lock.tell(error)
                self._lanes.lock.tell(error)
            raise
        except BaseException as error:
            lane.is_cut |= not isinstance(error, Exception)
            raise

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise InterfaceError("the connection belongs to another event loop: open one in each")

    def _check(self, is_own: bool) -> None:
        self._check_loop()
        if self._lock.is_held and self._connection.in_transaction:
            raise InterfaceError(
                "another task waits for an answer in the transaction of this connection: open one for each task that "
                "has a transaction"
            )
        self._check_owner(is_own)

    def _check_owner(self, is_own: bool) -> None:
        if is_own and self._owner is not None and not self._owner.is_here:
            raise InterfaceError(
                "the connection is in a transaction of another task: open one for each task that has a transaction, or "
                "wait until that is over"
            )

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
    make = partial(_lane, endpoint)
    return AsyncConnection(await carried(make, lost), make)


def _lane(endpoint: Endpoint) -> Lane:
    manager = RemoteManager(
        dialer(endpoint, lambda *wanted: awaited(_connected(*wanted))),
        connect_s=connect_s_of(endpoint),
        hello=partial(hello_of, endpoint),
        has_alternatives=bool(endpoint.others),
        pause=lambda pause_s: awaited(asyncio.sleep(pause_s)),
    )
    return Lane(connection(manager, fresh_id), manager)


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
