"""Tests of transactions that run a second time in a task of asyncio: a face of threads on transactions that await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from support.awaited import LoopThread
from xaqueue.tm import driver
from xaqueue.tm.participant import Participant
from xaqueue.tm.transaction import Transaction

T = TypeVar("T")
PLAIN = ("xid", "cursor")
"""Methods that no driver has awaited."""


class Awaitable:
    """A connection, or a cursor, whose methods are to be awaited; each lets other tasks run before and behind it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        if hasattr(inner, "cursor"):
            self.dialect = driver.dialect_of(inner).value

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name in PLAIN:
            return found if name == "xid" else lambda: Awaitable(found())
        return _awaitable(found) if callable(found) else found


def _awaitable(call: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def called(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        try:
            return call(*arguments, **options)
        finally:
            await asyncio.sleep(0)

    return called


def in_tasks(given: Callable[[], Any] | Participant) -> Participant:
    """The participant, with async connections."""
    participant = given if isinstance(given, Participant) else Participant(given)
    connect = _awaitable(participant.connect)

    async def connected() -> Awaitable:
        return Awaitable(await connect())

    return replace(participant, connect=connected)


class TaskTransaction:
    """As ``Transaction``; each of its methods runs in a loop, and what it raises is raised here."""

    def __init__(self, thread: LoopThread, transaction: Transaction) -> None:
        self._thread = thread
        self._transaction = transaction
        self._async: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(coroutine)

    def _entered(self) -> Any:
        if self._async is None:
            self._async = self._run(self._transaction.__aenter__())
        return self._async

    def __getitem__(self, name: str) -> Any:
        return self._run(self._entered().join(name)).inner

    def commit(self) -> None:
        self._run(self._entered().commit())

    def rollback(self) -> None:
        self._run(self._entered().rollback())

    def __enter__(self) -> Self:
        self._entered()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._transaction.__aexit__(kind, error, trace))
