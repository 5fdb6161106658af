"""Participants in a task of asyncio: the code of transactions and of recovery is that of threads, see ``awaited``.

An async connection belongs to one event loop, the transaction manager's. In a transaction's task its calls are awaited;
a recovery thread has the loop make them, and waits for that. A queue whose space is open in this process has no async
connection: in a task each of its calls that the transaction manager makes is a thread's.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from xaqueue.awaited import awaited, carried, is_carried, is_cut
from xaqueue.connection import Connection
from xaqueue.errors import InterfaceError, InvalidArgument, OperationalError
from xaqueue.tm.driver import Adapter

WAITING = frozenset(("tpc_prepare", "tpc_commit", "tpc_rollback", "harden", "close"))
"""Methods of a queue's connection that wait for its disk."""
THREADS = 16
"""Of the calls of one queue that wait for its disk, at a time."""
LOOK_S = 1.0
"""A thread that waits for the loop looks so often whether that is still there."""
CLOSE_S = 5.0
"""A thread waits for so long until the loop has closed a connection."""
T = TypeVar("T")


class AsyncLoop:
    """The event loop in which the async connections of one transaction manager live. Safe for threads."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: dict[str, ThreadPoolExecutor] = {}
        """By participant; under "" those of the transaction manager's own log."""
        self._is_ended = False
        self._is_used = False
        """Whether anything is to live in it."""
        self._closing: set[asyncio.Future[Any]] = set()
        """What nobody waits for, and the loop alone would forget."""
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    def join(self) -> bool:
        """From here on it is the caller's, where there was none or where the last one is closed; whether it was so."""
        here, self._is_used = asyncio.get_running_loop(), True
        if self._loop is here:
            return False
        if self._loop is not None and not self._loop.is_closed():
            raise InterfaceError(
                "the transaction manager belongs to another event loop: its async transactions run in that one"
            )
        self._loop = here
        return True

    def check_may_block(self) -> None:
        """Raises InterfaceError in the loop, for a call that waits for what happens there."""
        if not self.may_block:
            raise InterfaceError("this call would stop the event loop that it waits for: use asyncio.to_thread")

    @property
    def may_block(self) -> bool:
        """Whether this is not the loop in which something lives."""
        return not (self._is_used and self._is_here)

    def wait(self, given: Awaitable[T]) -> T:
        """The result of what is to be awaited, in a task and in a thread."""
        waits = _coroutine(given)
        if is_carried():
            return awaited(waits)
        try:
            loop = self._running()
        except BaseException:
            waits.close()
            raise
        future = asyncio.run_coroutine_threadsafe(waits, loop)
        while True:
            try:
                return future.result(LOOK_S)
            except TimeoutError:
                if future.done():
                    raise
                if not loop.is_running():  # it ended before it came to this
                    if loop.is_closed():
                        raise self._not_running() from None
                    future.cancel()
                    self._running()

    def in_thread(
        self,
        call: Callable[[], T],
        left: Callable[[T], object] = lambda _: None,
        *,
        name: str = "",
        must_end: bool = False,
    ) -> T:
        """The result of a call that may wait for a disk: in a task, made by a thread.

        name: of the participant whose call it is. left: what is done with it, in that thread, where the task is
        cancelled meanwhile. must_end: then the loop waits until the call is over, or was never begun: what follows
        depends on what it has done.
        """
        if not is_carried() or self._is_ended:
            return call()
        if name not in self._threads:
            self._threads[name] = ThreadPoolExecutor(THREADS, thread_name_prefix="xaqueue-tm-disk")
        future = self._threads[name].submit(call)
        try:
            return awaited(_result(future))
        finally:
            if is_cut():
                if must_end:
                    wait([future])
                future.add_done_callback(partial(_leave, left))

    def pause(self, pause_s: float) -> None:
        if is_carried():
            awaited(asyncio.sleep(pause_s))
        else:
            time.sleep(pause_s)

    def side_by_side(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """In a task: all have ended when it returns, or raises what one of them has raised."""
        found: list[T] = []
        for result in awaited(_gathered([carried(call) for call in calls])):
            if isinstance(result, BaseException):
                raise result
            found.append(result)
        return found

    def adapted(self, connection: Any, name: str, *, is_async: bool) -> Any:
        """As the transaction manager uses it here. Raises InvalidArgument where it cannot be used in a task."""
        if is_async:
            return AwaitedConnection(self, connection)
        if not is_carried():
            return connection
        if isinstance(connection, Connection):
            return ThreadedConnection(self, connection, name)
        raise InvalidArgument(
            f"{type(connection).__module__} waits for its database and all tasks with it: in async transactions use an "
            "async driver, as psycopg.AsyncConnection, or an AsyncEngine"
        )

    def connected(self, connect: Callable[[], Any], name: str) -> Any:
        """A participant's connection, opened by a function or by what it returns for to be awaited."""
        opened = self.in_thread(connect, _close, name=name)
        is_async = inspect.isawaitable(opened)
        if is_async:
            self._is_used = True
            opened = self.wait(opened)
        return self.adapted(opened, name, is_async=is_async)

    def close(self, connection: Any) -> None:
        """Closes a connection of a driver, wherever the caller is."""
        loop = self._loop
        if loop is None or loop.is_closed():
            _close_at_once(connection)
            return
        if is_carried() and not is_cut():
            awaited(_coroutine(connection.close()))
        elif self._is_here:
            closing = asyncio.ensure_future(_coroutine(connection.close()))
            self._closing.add(closing)
            closing.add_done_callback(self._closed)
        elif loop.is_running():
            asyncio.run_coroutine_threadsafe(_coroutine(connection.close()), loop).result(CLOSE_S)

    def end(self) -> None:
        """What is called from here on is called where it is."""
        self._is_ended = True
        for pool in list(self._threads.values()):
            pool.shutdown(wait=False)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or not self._loop.is_running():
            raise self._not_running()
        self.check_may_block()
        return self._loop

    @staticmethod
    def _not_running() -> OperationalError:
        return OperationalError("its event loop does not run: use the transaction manager in one")

    @property
    def is_closed(self) -> bool:
        """Whether there was one, and nothing goes on in it any more."""
        return self._loop is not None and self._loop.is_closed()

    @property
    def _is_here(self) -> bool:
        with suppress(RuntimeError):
            return asyncio.get_running_loop() is self._loop
        return False

    def _closed(self, closing: asyncio.Future[Any]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled():
            closing.exception()  # whatever it says, it is closed


class _Adapter(Adapter):
    def __init__(self, loop: AsyncLoop, adapted: Any) -> None:
        self._loop = loop
        super().__init__(adapted)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.plain, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


class _Awaited(_Adapter):
    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        if inspect.isawaitable(result):
            result = self._loop.wait(result)
        return self if result is self.plain else result


class AwaitedConnection(_Awaited):
    """A driver's async connection."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return partial(self._made, found) if name in ("cursor", "savepoint") else found

    def _made(self, make: Callable[[], Any]) -> Any:
        return _Awaited(self._loop, make())

    def close(self) -> None:
        self._loop.close(self.plain)

    @property
    def lent(self) -> Any:
        found = getattr(self.plain, "lent", self.plain)
        return self._loop.wait(found) if inspect.iscoroutine(found) else found


class ThreadedConnection(_Adapter):
    """A queue's whose space is open in this process."""

    def __init__(self, loop: AsyncLoop, adapted: Any, name: str) -> None:
        super().__init__(loop, adapted)
        self._name = name

    @property
    def lent(self) -> Any:
        return self.plain

    _is_carried = False
    """A database has what it did: then only memory is left to be told."""

    def __getattr__(self, name: str) -> Any:
        waits = name in WAITING and not self._is_carried
        return super().__getattr__(name) if waits else getattr(self.plain, name)

    def tpc_carry(self, carrier: str) -> Any:
        change = self.plain.tpc_carry(carrier)
        self._is_carried = change is not None
        return change

    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if is_cut():
            return method(*arguments, **options)
        call = partial(method, *arguments, **options)
        return self._loop.in_thread(call, lambda _: self.plain.close(), name=self._name)


def plain(connection: Any) -> Any:
    """What is kept between transactions: a queue's own connection may be used in a task and in a thread."""
    return connection.plain if isinstance(connection, ThreadedConnection) else connection


def check_usable(connection: Any, name: str) -> None:
    """Raises InvalidArgument for an async connection outside of a task."""
    if isinstance(connection, AwaitedConnection) and not is_carried():
        raise InvalidArgument(f"participant {name!r} is async: begin the transaction with `async with`")


def _close(opened: Any) -> None:
    """A connection, or the coroutine that was to open it."""
    if inspect.iscoroutine(opened) or not inspect.isawaitable(opened):
        opened.close()


def _close_at_once(connection: Any) -> None:
    """As far as its close needs no event loop: that of psycopg does not."""
    closing = _coroutine(connection.close())
    with suppress(StopIteration, Exception):
        closing.send(None)
    closing.close()


def _leave(left: Callable[[T], object], future: Future[T]) -> None:
    if not future.cancelled() and future.exception() is None:
        left(future.result())


def _coroutine(waits: Awaitable[T]) -> Coroutine[Any, Any, T]:
    return waits if inspect.iscoroutine(waits) else _awaited(waits)


async def _awaited(waits: Awaitable[T]) -> T:
    return await waits


async def _result(future: Future[T]) -> T:
    return await asyncio.wrap_future(future)


async def _gathered(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    return list(await asyncio.gather(*calls, return_exceptions=True))
