"""A savepoint of a global transaction: what its participants did since is undone together, and it goes on.

Each participant has its own: a queue a mark in its branch, a database a SAVEPOINT. One that joins inside has one from
its first moment on, so that nothing is left of what it did. Where one of them fails, the transaction can only be rolled
back.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, Self

from xaqueue.errors import ProtocolError
from xaqueue.tm.branch import EnlistedBranch
from xaqueue.tm.ending import Ending

_NUMBERS = count()


class TransactionSavepoint:
    """Made by ``Transaction.savepoint``. As a block it is released at its end, and rolled back on an exception."""

    is_block = False
    """While it is open nothing is committed."""

    def __init__(self, transaction: Ending, of: str = "") -> None:
        """of: the participant that has made one of its own. Raises what a participant raises."""
        transaction.check_active()
        self._transaction, self._of = transaction, of
        self._marks: dict[str, Any] = {}
        self._is_released = False
        with self._whole():
            for branch in list(transaction.branches.values()):
                self.join(branch)
        transaction.savepoints += (self,)

    def join(self, branch: EnlistedBranch) -> None:
        if branch.name != self._of and branch.name not in self._marks:
            self._marks[branch.name] = branch.savepoint()

    @property
    def is_over(self) -> bool:
        """It is released, one around it was rolled back or released, or its transaction has ended."""
        with suppress(ProtocolError):
            self._transaction.check_active()
            return self not in self._transaction.savepoints
        return True

    def rollback(self) -> None:
        """Undoes what all participants did since it began. It is there still, and those within it are over.

        Raises ProtocolError where it is over, and what a participant raises; then all is rolled back.
        """
        self._end_inner("rollback")
        self._transaction.savepoints += (self,)

    def release(self) -> None:
        """It is over, and so are those within it; what was done stays. Raises as ``rollback``, but what a Session's
        flush raises: then it is there still."""
        for mark in self._marks.values() if not self.is_over else ():
            if (flush := getattr(mark, "flush", None)) is not None:
                flush()
        self._end_inner("release")
        self._is_released = True

    def undo(self) -> None:
        """Rolls back to it, and releases it."""
        self.rollback()
        self.release()

    def _end_inner(self, verb: str) -> None:
        self._transaction.check_active()
        if self.is_over:
            raise ProtocolError("the savepoint is over: it was released, or one around it was rolled back or released")
        with self._whole():
            for mark in self._marks.values():
                getattr(mark, verb)()
        made = self._transaction.savepoints
        self._transaction.savepoints = made[: made.index(self)]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # or interrupted
            self._transaction.expire(
                f"a savepoint of it was not the same at all participants: {str(error) or type(error).__name__}"
            )
            raise

    def __enter__(self) -> Self:
        self.is_block = True
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        try:
            if kind is None and not self._is_released:
                self.release()
        finally:
            if not self.is_over:
                with suppress(Exception):  # then the transaction is rolled back, and says why
                    self.undo()


class Told:
    """Savepoints that a participant's user makes there by himself: the others have the same."""

    def __init__(self, transaction: Ending, name: str, run: Callable[[Callable[[], None]], Any]) -> None:
        """run: makes a call of the transaction, where its user is; what it returns is to be awaited in a task."""
        self._transaction, self._name, self._run = transaction, name, run
        self._made: list[tuple[str, TransactionSavepoint]] = []
        """Those that are open, by their names, each within the one before it."""

    def begin(self, savepoint: str, *, is_block: bool = False, is_alone: bool = False) -> Any:
        """is_alone: an earlier one of its name is not to be had any more."""
        return self._run(lambda: self._begin(savepoint, is_block=is_block, is_alone=is_alone))

    def rollback(self, savepoint: str) -> Any:
        return self._run(lambda: self._open(savepoint, TransactionSavepoint.rollback))

    def release(self, savepoint: str) -> Any:
        return self._run(lambda: self._open(savepoint, TransactionSavepoint.release))

    def undo(self, savepoint: str) -> Any:
        """Rolls back to it, and it is over."""
        return self._run(lambda: self._open(savepoint, TransactionSavepoint.undo))

    def _begin(self, savepoint: str, *, is_block: bool, is_alone: bool) -> None:
        made = TransactionSavepoint(self._transaction, self._name)
        made.is_block = is_block
        self._made = [one for one in self._made if not (is_alone and one[0] == savepoint) and not one[1].is_over]
        self._made.append((savepoint, made))

    def _open(self, savepoint: str, call: Callable[[TransactionSavepoint], None]) -> None:
        """Of the last one of that name."""
        made = next((one for name, one in reversed(self._made) if name == savepoint and not one.is_over), None)
        if made is None:
            self._transaction.expire(f"savepoint {savepoint} of participant {self._name!r} is none that all have")
        else:
            call(made)

    def nests(self, connection: Any) -> None:
        """Of psycopg, whose ``transaction`` is a savepoint in one that is open: from here on, of all."""
        nested = self._nested_async if inspect.iscoroutinefunction(connection.execute) else self._nested
        connection.transaction = partial(nested, partial(type(connection).transaction, connection))

    @contextmanager
    def _nested(
        self, own: Callable[..., Any], savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Iterator[Any]:
        name, error = f"transaction {next(_NUMBERS)}", None
        self.begin(name, is_block=True)
        try:
            with own(savepoint_name, force_rollback) as block:
                try:
                    yield block
                except BaseException as caught:  # psycopg.Rollback, too, which may go no further
                    error = caught
                    self.rollback(name)
                    raise
                if force_rollback:
                    self.rollback(name)
        except BaseException as left:
            if left is error:  # else it came in between: perhaps not all have done so
                self.release(name)
            raise
        self.release(name)

    @asynccontextmanager
    async def _nested_async(
        self, own: Callable[..., Any], savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[Any]:
        name, error = f"transaction {next(_NUMBERS)}", None
        await self.begin(name, is_block=True)
        try:
            async with own(savepoint_name, force_rollback) as block:
                try:
                    yield block
                except BaseException as caught:
                    error = caught
                    await self.rollback(name)
                    raise
                if force_rollback:
                    await self.rollback(name)
        except BaseException as left:
            if left is error:
                await self.release(name)
            raise
        await self.release(name)
