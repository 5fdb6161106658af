"""A savepoint: what the transaction of a connection did since is undone, and the transaction goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self

from xaqueue.errors import ConnectionLost, ProtocolError, ResourceFailed, RolledBack
from xaqueue.transaction import WORKING, Transaction


class Savepoint:
    """Made by ``Connection.savepoint``. As a block it is released at its end, and rolled back on an exception."""

    is_block = False
    """While it is open nothing is committed."""

    def __init__(self, transaction: Transaction, within: Callable[[Callable[[], None]], None]) -> None:
        """Begins. within: makes a call alone. Raises as work does."""
        self._transaction, self._within = transaction, within
        transaction.work()
        self.xid, self._uncommitted = transaction.xid, transaction.uncommitted
        self._mark = transaction.manager.mark()
        self._is_released = False
        own = [one for one in transaction.savepoints if isinstance(one, Savepoint) and one.xid is self.xid]
        transaction.savepoints = [*own, self]

    @property
    def is_over(self) -> bool:
        """It is released, one around it was rolled back or released, or its transaction has ended."""
        transaction = self._transaction
        is_there = transaction.xid is self.xid and transaction.phase in WORKING
        return not is_there or self not in transaction.savepoints

    def rollback(self) -> None:
        """Undoes what the transaction did since it began. It is there still, and those within it are over.

        Messages that were taken are back in their queues, and count no try. Raises ProtocolError where it is over,
        RolledBack where the transaction can only be rolled back, ConnectionLost.
        """
        self._within(self._roll_back)

    def release(self) -> None:
        """It is over, and so are those within it; what was done stays, for the transaction, or a savepoint around it,
        to end. Raises ProtocolError where it is over."""
        self._within(self._release)

    def _roll_back(self) -> None:
        self._check()
        transaction = self._transaction
        transaction.manager.cut(self._mark)
        transaction.uncommitted = self._uncommitted
        del transaction.savepoints[transaction.savepoints.index(self) + 1 :]

    def _release(self) -> None:
        self._check()
        savepoints = self._transaction.savepoints
        del savepoints[savepoints.index(self) :]
        self._is_released = True

    def _check(self) -> None:
        self._transaction.check_open()
        if self.is_over:
            raise ProtocolError(
                "the savepoint is over: it was released, one around it was rolled back or released, or its transaction "
                "has ended"
            )
        self._transaction.work()  # which is its thread's

    def __enter__(self) -> Self:
        self.is_block = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is None:
            if not self._is_released:
                self.release()
        elif not self.is_over:
            with suppress(RolledBack, ResourceFailed, ConnectionLost):  # of which the transaction's next call tells
                self.rollback()
                self.release()


class _Synchronous(Protocol):
    is_block: bool

    @property
    def is_over(self) -> bool: ...
    def rollback(self) -> None: ...
    def release(self) -> None: ...
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...


class AsyncSavepoint:
    """``Savepoint``, for ``async with``; awaited itself, it begins without a block."""

    def __init__(self, begin: Callable[[], _Synchronous], carry: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        """carry: makes a call, to be awaited."""
        self._begin, self._carry, self._is_begun = begin, carry, False

    @property
    def is_over(self) -> bool:
        return self._savepoint.is_over

    async def rollback(self) -> None:
        await self._carry(self._savepoint.rollback)

    async def release(self) -> None:
        await self._carry(self._savepoint.release)

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._made().__await__()

    async def _made(self) -> Self:
        if not self._is_begun:
            self._savepoint: _Synchronous = await self._carry(self._begin)
            self._is_begun = True
        return self

    async def __aenter__(self) -> Self:
        await self._made()
        self._savepoint.is_block = True
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._carry(partial(self._savepoint.__exit__, kind, error, trace))
