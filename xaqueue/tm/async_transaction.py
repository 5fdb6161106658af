"""A global transaction in a task of asyncio, which awaits its participants and holds nobody else up.

    async with tm.transaction("ledger", "queue") as tx:
        await tx["ledger"].execute("insert ...")
        await tx["queue"].enqueue("orders", b"...")

It is a ``Transaction``, carried: same log, same votes, same recovery.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from xaqueue.awaited import carried
from xaqueue.errors import ProtocolError
from xaqueue.savepoint import AsyncSavepoint
from xaqueue.xa import Outcome

CANCELLED = "its task was cancelled"
log = logging.getLogger("xaqueue")


class Transaction(Protocol):
    """What is carried: that of ``tm.transaction``."""

    gtrid: bytes
    outcome: Outcome | None

    @property
    def pending(self) -> tuple[str, ...]: ...
    def check_active(self, name: str = "") -> None: ...
    def expire(self, why: str = "") -> None: ...
    def expired(self) -> Exception: ...
    def drop(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def __getitem__(self, name: str) -> Any: ...
    def accept(self, delivery: Any, name: str = "") -> Any: ...
    def savepoint(self) -> Any: ...
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...


class AsyncTransaction:
    """What ``async with TransactionManager.transaction(...)`` gives. For one task at a time.

    Whatever is awaited of it may be cancelled, in the block and at its end. Before it is decided it is rolled back
    then; once it is decided it goes on to its commit. It does so by itself, after CancelledError is raised:
    ``TransactionManager.outcome`` tells what it came to, and the end of the transaction manager waits for it.
    """

    def __init__(self, transaction: Transaction, names: tuple[str, ...], timeout_s: float | None) -> None:
        self._transaction = transaction
        self._names = names
        self._limit = asyncio.timeout(timeout_s)
        self.lent: dict[str, Any] = {}
        """The connections of those that have joined."""
        self._joining: set[str] = set()
        """Participants whose connection is opened just now."""
        self._ending: asyncio.Future[None] | None = None
        """Kept until it is over: the loop alone would forget it."""

    @property
    def gtrid(self) -> bytes:
        """As of ``Transaction``."""
        return self._transaction.gtrid

    @property
    def outcome(self) -> Outcome | None:
        """As of ``Transaction``; of one whose end was cancelled it is there once that has come."""
        return self._transaction.outcome

    @property
    def pending(self) -> tuple[str, ...]:
        """As of ``Transaction``."""
        return self._transaction.pending

    def __getitem__(self, name: str) -> Any:
        """The connection of a participant that has joined. Raises ProtocolError for any other."""
        self._transaction.check_active(name)
        if name not in self.lent:
            raise ProtocolError(
                f"participant {name!r} has not joined the transaction: `await tx.join({name!r})`, or name it in "
                f"`tm.transaction({name!r})`"
            )
        return self.lent[name]

    async def join(self, name: str) -> Any:
        """The participant's connection, begun for this transaction. Raises as ``Transaction[name]``."""
        if name in self._joining:
            raise ProtocolError(f"participant {name!r} is joined by two tasks at a time: a transaction is for one task")
        self._joining.add(name)
        try:
            self.lent[name] = await carried(partial(self._transaction.__getitem__, name))
        finally:
            self._joining.discard(name)
        return self.lent[name]

    async def accept(self, delivery: Any, name: str = "") -> None:
        """As ``Transaction.accept``."""
        if name:
            await self.join(name)
        accepting = self._transaction.accept(delivery, name)
        if inspect.isawaitable(accepting):
            await accepting

    def savepoint(self) -> AsyncSavepoint:
        """As ``Transaction.savepoint``, for ``async with``, or to be awaited."""
        return AsyncSavepoint(self._transaction.savepoint, carried)

    async def commit(self) -> None:
        """As ``Transaction.commit``."""
        await self._end_now(self._transaction.commit)

    async def rollback(self) -> None:
        """As ``Transaction.rollback``."""
        await self._end_now(self._transaction.rollback)

    async def begin(self) -> None:
        """Enters the block: those that were named join."""
        await self._limit.__aenter__()
        try:
            for name in self._names:
                await self.join(name)
        except BaseException as error:
            await self.end(error)
            raise

    async def end(self, error: BaseException | None) -> None:
        """Leaves the block."""
        late, before = None, self._ending
        try:
            await self._limit.__aexit__(type(error) if error else None, error, None)
        except TimeoutError as caught:  # what has cancelled the block was its time
            late = error = caught
            self._transaction.expire()
        if isinstance(error, asyncio.CancelledError):
            self._transaction.expire(CANCELLED)
        await self._end(partial(self._transaction.__exit__, None, error, None))
        if late is not None:  # it was over, or ending, before: the cancellation is nobody else's to turn back
            if before is not None:
                await asyncio.shield(before)
            raise self._transaction.expired() from late

    async def _end_now(self, end: Callable[[], None]) -> None:
        """In the block. What is decided from here on is decided in time, whatever the block does behind it."""
        if self._limit.expired():
            self._transaction.expire()
        else:
            with suppress(RuntimeError):  # it is over
                self._limit.reschedule(None)
        await self._end(end)

    async def _end(self, end: Callable[[], None]) -> None:
        """In a task of its own, which goes on where this one is cancelled."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # it was left behind by a loop that is closed, and is collected now
            self._transaction.drop()
            return
        self._ending = ending = asyncio.ensure_future(carried(end))
        ending.add_done_callback(self._ended)
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            if not ending.done():
                self._transaction.expire(CANCELLED)
                ending.add_done_callback(self._ended_alone)
            raise

    def _ended(self, ending: asyncio.Future[None]) -> None:
        if ending.cancelled():  # perhaps before its first step: then nobody has ended the transaction
            self._transaction.drop()

    def _ended_alone(self, ending: asyncio.Future[None]) -> None:
        error = None if ending.cancelled() else ending.exception()
        outcome = self.outcome.value if self.outcome is not None else "not known yet"
        outcome += f" ({error})" if error is not None else ""
        log.info("[end-cancelled] transaction %s, whose end was cancelled: %s", self.gtrid.decode(), outcome)


class AsyncNested(AsyncTransaction):
    """In the block of another one: where its end is cancelled, all is rolled back."""

    def __init__(
        self, transaction: Transaction, names: tuple[str, ...], timeout_s: float | None, outer: AsyncTransaction
    ) -> None:
        super().__init__(transaction, names, timeout_s)
        self.lent = outer.lent

    async def _end(self, end: Callable[[], None]) -> None:
        await carried(end)
