"""An event loop in a thread, a synchronous face on connections that live in it, and calls that are cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest

import xaqueue
from support.contract_connection import PATIENCE_S
from support.served import ServerThread
from xaqueue.message import Message, MessageId
from xaqueue.rpc.client.asyncio import AsyncConnection, AsyncDelivery
from xaqueue.savepoint import AsyncSavepoint
from xaqueue.snapshot import SnapshotStatus
from xaqueue.xa import Flag, Outcome
from xaqueue.xid import Xid

T = TypeVar("T")


class LoopThread:
    """Runs until ``stop``."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    @property
    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(2 * PATIENCE_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


class HeldDelivery:
    """The methods of Delivery, each by awaiting that of an AsyncDelivery."""

    def __init__(self, thread: LoopThread, delivery: AsyncDelivery) -> None:
        self._thread, self.of_tasks = thread, delivery
        self.message, self.body, self.headers = delivery.message, delivery.body, delivery.headers

    def ack(self) -> None:
        self._thread.run(self.of_tasks.ack())

    def nack(self, delay: timedelta | float | None = None, reason: str | BaseException | None = None) -> None:
        self._thread.run(self.of_tasks.nack(delay, reason))

    def reject(self, reason: str | BaseException) -> None:
        self._thread.run(self.of_tasks.reject(reason))

    def extend(self, lease_s: float = 30.0) -> None:
        self._thread.run(self.of_tasks.extend(lease_s))


class HeldSavepoint:
    """The methods of Savepoint, each by awaiting that of an AsyncSavepoint."""

    def __init__(self, thread: LoopThread, savepoint: AsyncSavepoint) -> None:
        self._thread, self._savepoint = thread, savepoint

    @property
    def is_over(self) -> bool:
        return self._savepoint.is_over

    def rollback(self) -> None:
        self._thread.run(self._savepoint.rollback())

    def release(self) -> None:
        self._thread.run(self._savepoint.release())

    def __enter__(self) -> Self:
        self._thread.run(self._savepoint.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._savepoint.__aexit__(kind, error, trace))


class Facade:
    """The methods of Connection, each by awaiting that of an AsyncConnection."""

    xid = staticmethod(AsyncConnection.xid)

    def __init__(self, thread: LoopThread, url: str) -> None:
        self._thread = thread
        self.connection = thread.run(xaqueue.connect_async(url))

    def enqueue(self, queue: str, body: bytes, **options: Any) -> MessageId:
        return self._thread.run(self.connection.enqueue(queue, body, **options))

    def dequeue(self, queue: str, **options: Any) -> Message | None:
        return self._thread.run(self.connection.dequeue(queue, **options))

    def consume(self, queue: str, *, wait_s: float | None = None) -> Iterator[Message]:
        found = self.connection.consume(queue, wait_s=wait_s)
        return iter(lambda: self._thread.run(anext(found, None)), None)

    def enqueue_many(self, queue: str, bodies: Any, **options: Any) -> list[MessageId]:
        return self._thread.run(self.connection.enqueue_many(queue, bodies, **options))

    def enqueue_to(self, queues: Any, body: bytes, **options: Any) -> MessageId:
        return self._thread.run(self.connection.enqueue_to(queues, body, **options))

    def publish(self, topic: str, body: bytes, **options: Any) -> MessageId:
        return self._thread.run(self.connection.publish(topic, body, **options))

    def define_topic(self, topic: str, **options: Any) -> None:
        self._thread.run(self.connection.define_topic(topic, **options))

    def subscribe(self, topic: str, queue: str, match: Any = None) -> None:
        self._thread.run(self.connection.subscribe(topic, queue, match))

    def unsubscribe(self, queue: str) -> None:
        self._thread.run(self.connection.unsubscribe(queue))

    def dequeue_many(self, queue: str, count: int, **options: Any) -> list[Message]:
        return self._thread.run(self.connection.dequeue_many(queue, count, **options))

    def receive(self, queue: str, max_messages: int = 1, **options: Any) -> list[HeldDelivery]:
        found = self._thread.run(self.connection.receive(queue, max_messages, **options))
        return [HeldDelivery(self._thread, delivery) for delivery in found]

    def accept(self, delivery: HeldDelivery) -> None:
        self._thread.run(self.connection.accept(delivery.of_tasks))

    def browse(self, queue: str, limit: int | None = None, **options: Any) -> Iterator[Message]:
        async def browsed() -> list[Message]:
            return [message async for message in self.connection.browse(queue, limit, **options)]

        return iter(self._thread.run(browsed()))

    def define(self, queue: str, /, **settings: Any) -> None:
        self._thread.run(self.connection.define(queue, **settings))

    def undefine(self, queue: str) -> None:
        self._thread.run(self.connection.undefine(queue))

    def snapshot(self) -> SnapshotStatus:
        return self._thread.run(self.connection.snapshot())

    def restore(self, message: Message, queue: str | None = None) -> bool:
        return self._thread.run(self.connection.restore(message, queue))

    def restore_many(self, messages: Any, queue: str | None = None) -> list[bool]:
        return self._thread.run(self.connection.restore_many(messages, queue))

    def move(self, queue: str, message_id: bytes, to: str) -> MessageId | None:
        return self._thread.run(self.connection.move(queue, message_id, to))

    def remove(self, queue: str, message_id: bytes) -> bool:
        return self._thread.run(self.connection.remove(queue, message_id))

    def requeue(self, queue: str, message_id: bytes) -> MessageId | None:
        return self._thread.run(self.connection.requeue(queue, message_id))

    def request(self, queue: str, body: bytes, **options: Any) -> Message:
        return self._thread.run(self.connection.request(queue, body, **options))

    def reply(self, message: Message, body: bytes, **options: Any) -> MessageId:
        return self._thread.run(self.connection.reply(message, body, **options))

    def flush(self) -> None:
        self._thread.run(self.connection.flush())

    def commit(self) -> None:
        self._thread.run(self.connection.commit())

    def explain_rollback(self, reason: str | BaseException) -> None:
        self._thread.run(self.connection.explain_rollback(reason))

    def rollback(self) -> None:
        self._thread.run(self.connection.rollback())

    def tpc_begin(self, xid: Xid, flags: Flag = Flag.NOFLAGS, timeout_s: float | None = None) -> None:
        self._thread.run(self.connection.tpc_begin(xid, flags, timeout_s))

    def tpc_end(self, xid: Xid | None = None, flags: Flag = Flag.SUCCESS) -> None:
        self._thread.run(self.connection.tpc_end(xid, flags))

    def tpc_prepare(self) -> bool:
        return self._thread.run(self.connection.tpc_prepare())

    def tpc_commit(self, xid: Xid | None = None, *, late: bool = False) -> None:
        self._thread.run(self.connection.tpc_commit(xid, late=late))

    def harden(self) -> None:
        self._thread.run(self.connection.harden())

    def tpc_rollback(self, xid: Xid | None = None) -> None:
        self._thread.run(self.connection.tpc_rollback(xid))

    def tpc_recover(self) -> list[Xid]:
        return self._thread.run(self.connection.tpc_recover())

    def tpc_forget(self, xid: Xid) -> None:
        self._thread.run(self.connection.tpc_forget(xid))

    def outcome(self, xid: Xid) -> Outcome:
        return self._thread.run(self.connection.outcome(xid))

    @property
    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def savepoint(self) -> HeldSavepoint:
        async def begun() -> AsyncSavepoint:
            return await self.connection.savepoint()

        return HeldSavepoint(self._thread, self._thread.run(begun()))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        block = self.connection.transaction()
        self._thread.run(block.__aenter__())
        try:
            yield self
        except BaseException as error:
            self._thread.run(block.__aexit__(type(error), error, None))
            raise
        self._thread.run(block.__aexit__(None, None, None))

    def close(self) -> None:
        self._thread.run(self.connection.close())

    def cut(self) -> None:
        """The socket is gone, and nobody said good-bye."""

        async def cut() -> None:
            stream = self.connection._connection._manager._socket  # type: ignore[attr-defined]
            if stream is not None:
                stream.close()

        self._thread.run(cut())

    def __enter__(self) -> Self:
        self._thread.run(self.connection.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self.connection.__aexit__(kind, error, trace))


class Held:
    """The server's loop stands still: what is sent to it stays unanswered."""

    def __init__(self, served: ServerThread) -> None:
        self._served = served
        self._released = threading.Event()

    def __enter__(self) -> None:
        holding = threading.Event()

        def hold() -> None:
            holding.set()
            self._released.wait(PATIENCE_S)

        self._served.server.loop.call_soon_threadsafe(hold)
        assert holding.wait(PATIENCE_S)

    def __exit__(self, *_: object) -> None:
        self._released.set()


async def cancelled(call: Coroutine[Any, Any, Any]) -> None:
    """Lets a call begin to wait, and cancels it."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def told(connection: AsyncConnection, xid: Xid, wanted: Outcome) -> None:
    """Waits until the server knows the outcome; it may be at it."""
    async with asyncio.timeout(PATIENCE_S):
        while await connection.outcome(xid) is not wanted:
            await asyncio.sleep(0.01)


async def bodies(connection: AsyncConnection, queue: str = "orders") -> list[bytes]:
    return [message.body async for message in connection.browse(queue)]


async def seconds_of(*calls: Coroutine[Any, Any, Any]) -> float:
    """How long all of them take side by side, on this machine and now."""
    begun = time.monotonic()
    await asyncio.gather(*calls)
    return time.monotonic() - begun
