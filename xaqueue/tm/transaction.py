"""A global transaction: participants join it at their first use, and all of their work commits or none does.

    with tm.transaction() as tx:
        tx["ledger"].execute("insert ...")
        tx["queue"].enqueue("orders", b"...")

``tx[name]`` is the driver's own connection, lent for the transaction: do not keep it, and leave ``commit``,
``rollback`` and ``close`` to the transaction. For one thread at a time.
"""

from __future__ import annotations

import time
from asyncio import _get_running_loop, current_task
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from math import inf
from threading import get_ident
from typing import Any, NoReturn, Self, cast

from xaqueue.awaited import carried
from xaqueue.errors import (
    HeuristicHazard,
    HeuristicMixed,
    HeuristicOutcome,
    InvalidArgument,
    OutcomeUnknown,
    ProtocolError,
    RolledBack,
)
from xaqueue.tm import driver, voting
from xaqueue.tm.async_transaction import AsyncNested, AsyncTransaction
from xaqueue.tm.branch import EnlistedBranch, enlist
from xaqueue.tm.coordinator import Coordinator, TraceStep, unwatched
from xaqueue.tm.ending import Ending, Phase
from xaqueue.tm.gtrid import FORMAT_ID
from xaqueue.tm.savepoints import Told, TransactionSavepoint
from xaqueue.tm.voting import ParticipantOutcome, Replies, TransactionResult
from xaqueue.transaction import OPEN_BLOCK
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid

_NO_BLOCK: list[Any] = []
ENTERED: ContextVar[list[Any]] = ContextVar("xaqueue_entered", default=_NO_BLOCK)
"""Of the block that was entered last, also by a parent of this task: its transaction; the task that has entered it, or
the thread where it runs none; the same of the block around it, of any transaction manager, in whose place it is once it
is over.
"""


def around(coordinator: Coordinator) -> Transaction | None:
    """The transaction in whose block the caller is. A child task has its parent's context, as has a thread of
    ``asyncio.to_thread``, and is not in it."""
    block = ENTERED.get()
    while block:
        found, place, block = block
        if found.is_of(coordinator) and place == _here():
            return cast(Transaction, found)
    return None


def _here() -> object:
    return (_get_running_loop() and current_task()) or get_ident()


class Transaction(Ending):
    """Made by ``TransactionManager.transaction``."""

    _called = "transaction"
    in_task: AsyncTransaction | None = None
    """Its face in a task of asyncio."""
    _block = _NO_BLOCK
    """See ``ENTERED``."""

    def __getitem__(self, name: str) -> Any:
        """The participant's connection, begun for this transaction. Raises KeyError, RolledBack after the timeout."""
        known = self.branches.get(name)
        if self._phase is not Phase.ACTIVE:
            self.check_active()
        if time.monotonic() >= self._deadline:
            self._run_out(None)
        if known is None:
            if (within := self._coordinator.within.get(name)) is not None:
                return within.lends(self[within.name])
            known = self._enlist(name)
        else:
            known.check_begun()
        lent = known.lend()
        if self.savepoints:
            for savepoint in self.savepoints:
                savepoint.join(known)
        return lent

    def savepoint(self) -> TransactionSavepoint:
        """A savepoint at all participants: ``with tx.savepoint():`` undoes rows and messages where an exception leaves
        the block, and the transaction goes on. They nest.

        Raises ProtocolError where the transaction is over, or a participant has none; what a driver raises.
        """
        return TransactionSavepoint(self)

    def accept(self, delivery: Any, name: str = "") -> Any:
        """Settles a message on lease with this transaction: ``tx[name].accept(delivery)``.

        name: of the participant whose space it is from; where one queue has joined, it is that. Raises ProtocolError
        without a name where none has, or several have; LeaseExpired, and the transaction is as it was.
        """
        return self[name or self._queue()].accept(delivery)

    def _queue(self) -> str:
        found = [one.name for one in self.branches.values() if driver.takes_deliveries(one.connection)]
        if len(found) != 1:
            raise ProtocolError(f"{len(found)} queues have joined the transaction: name the delivery's participant")
        return found[0]

    def commit(self) -> None:
        """Commits everywhere. Once it returns the decision is durable, and who could not be told yet will be.

        Raises RolledBack where a participant could not commit (it is the cause) or the time ran out;
        HeuristicMixed, HeuristicHazard, HeuristicOutcome where a participant did otherwise by itself;
        OutcomeUnknown where nobody can tell now, and ``TransactionManager.outcome`` may later.
        """
        ender, block = object(), self._block
        block[:] = (block and block[2]) or ()
        try:
            decides = self._coordinator.log.decides
            if decides and len(self.branches) > 1 and decides not in self.branches:
                self._let_decide(decides)
            if self.savepoints and any(one.is_block for one in self.savepoints):
                self.expire(OPEN_BLOCK)
            names, last = self._end(ender)
            said: Sequence[Replies] = ()
            if self._is_expired() or self._coordinator.log.failure is not None:
                vote = voting.roll_back(names, last)
            else:
                if last is not None and len(names) == 1 and self._is_plain:
                    said = self._try_plain(names[0], last)
                    if not said:
                        self._end_plain(names[0], last)
                        return
                vote = voting.commit(names, last, is_parallel=len(names) > 1 and self._are_parallel(names))
            self._tell(self._run(vote, said), wanted=Outcome.COMMITTED)
        except BaseException:
            self._cut_off(ender)
            raise

    def rollback(self) -> None:
        """Rolls back everywhere. Raises HeuristicOutcome where a participant has committed by itself."""
        self._roll_back(Outcome.ROLLED_BACK)

    def _roll_back(self, wanted: Outcome | None = None) -> None:
        """wanted: None where nobody is told of another outcome."""
        ender, block = object(), self._block
        block[:] = (block and block[2]) or ()
        try:
            result = self._run(voting.roll_back(*self._end(ender)))
            self._tell(result, wanted or result.outcome)
        except BaseException:
            self._cut_off(ender)
            raise

    def is_of(self, coordinator: Coordinator) -> bool:
        return self._coordinator is coordinator and self._phase is Phase.ACTIVE

    def __enter__(self) -> Self:
        try:
            self._block = block = [self, get_ident() if _get_running_loop() is None else _here(), ENTERED.get()]
            ENTERED.set(block)
            for name in self._names:
                self[name]
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._phase is not Phase.ACTIVE:
            return
        if error is None:
            self.commit()
        elif self._is_expired() and isinstance(error, Exception):
            self._run_out(error)
        else:
            for branch in self.branches.values():
                branch.explain(error)
            self.rollback()
            refused = next((one.refused for one in self.branches.values() if one.refused is not None), None)
            if refused is not None and driver.is_a(error, "DatabaseError"):  # sqlite3 says "not authorized"
                raise refused from error

    async def __aenter__(self) -> AsyncTransaction:
        try:
            self._coordinator.join_loop()
            self._block = [self, _here(), ENTERED.get()]
            ENTERED.set(self._block)
        except BaseException:
            self.rollback()  # it is live, and nobody else would end it
            raise
        self.is_async = True
        self.in_task = AsyncTransaction(self, self._names, max(0.0, self._deadline - time.monotonic()))
        await self.in_task.begin()
        return self.in_task

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self.in_task is not None
        await self.in_task.end(error)

    # Joining

    def _enlist(self, name: str) -> EnlistedBranch:
        coordinator = self._coordinator
        if name not in coordinator.sources:
            raise InvalidArgument(f"{name!r} is no participant: there are {sorted(coordinator.sources)}")
        if coordinator.step is not unwatched:
            coordinator.step(TraceStep.BEGIN, self.gtrid, name)
        if name in coordinator.pooled:
            coordinator.make_ready_ahead(name)
        branch = enlist(coordinator.sources[name], self.gtrid)
        if coordinator.log.decides and branch.has_two_phases and name != coordinator.log.decides:
            try:
                coordinator.log.meet(branch)
            except BaseException:
                branch.discard()
                raise
        if self._phase is not Phase.ACTIVE:  # it was ended by another task meanwhile
            branch.discard()
            self.check_active()
        self.branches[name] = branch
        if branch.can.takes_sql:
            connection = branch.connection
            if (tell := getattr(connection, "tell_savepoints", None)) is not None:
                tell(Told(self, name, carried if self.is_async else _at_once))
            elif hasattr(connection, "pgconn"):
                Told(self, name, carried if self.is_async else _at_once).nests(driver.driver_of(connection))
        if not branch.has_two_phases:
            self._check_alone()
            if name not in coordinator.ready:
                coordinator.make_ready(name)  # now: its database may be locked once there is work in it
        return branch

    def _check_alone(self) -> None:
        plain = [one.name for one in self.branches.values() if not one.has_two_phases]
        if len(plain) > 1:
            raise InvalidArgument(
                f"participants {' and '.join(map(repr, plain))} have no two-phase commit: one of them at most may "
                "take part in a transaction"
            )

    def _let_decide(self, name: str) -> None:
        """Its database keeps the decision, though nothing else is done there."""
        try:
            self[name]
        except Exception as error:
            if self._phase is not Phase.ACTIVE:  # its time was over
                raise
            self._roll_back()
            raise RolledBack(
                f"transaction {self.gtrid.decode()} was rolled back because of {name!r}: {error}"
            ) from error

    # What its user is told

    def _tell(self, result: TransactionResult, wanted: Outcome) -> None:
        """Raises what the caller has to know beside, or instead of, what was wanted: one error, saying what to do."""
        unrecorded = self._conclude(result)
        cause, name = self._log_error or self._first_error(), self.gtrid.decode()
        code = voting.heuristic_code(result.outcome, result.participants)
        if code is not None:
            raise self._heuristic(result, code, unrecorded) from cause
        if result.outcome is Outcome.IN_DOUBT:
            raise OutcomeUnknown(
                f"transaction {name} is in doubt until its decision can be read ({cause}); recovery goes on trying, "
                "and TransactionManager.outcome tells",
                Xid(FORMAT_ID, self.gtrid, b""),
            ) from cause
        if result.outcome is Outcome.UNKNOWN:
            who = next(name for name, ended in self._outcomes.items() if ended is ParticipantOutcome.UNKNOWN)
            raise OutcomeUnknown(
                f"the answer of participant {who!r} to the commit of {name} was lost, and nobody else has work in it: "
                "ask that participant what it has",
                Xid(FORMAT_ID, self.gtrid, who.encode("ascii")),
            ) from cause
        if result.outcome is wanted:
            return  # it did by itself what was decided
        if cause is None and self._is_expired():
            raise self.expired()
        cause = cause or self._coordinator.log.failure
        code = cause.code if isinstance(cause, RolledBack) else Code.XA_RBROLLBACK
        who = next((repr(name) for name, one in self.branches.items() if one.error is cause), "the decision log")
        raise RolledBack(f"transaction {name} was rolled back because of {who}: {cause}", code) from cause

    def _heuristic(self, result: TransactionResult, code: Code, unrecorded: Exception | None) -> HeuristicOutcome:
        did = {name: ended.value for name, ended in result.participants.items()}
        message = (
            f"transaction {self.gtrid.decode()} was to be {result.outcome.value}, and a participant did not do so "
            f"({', '.join(f'{name}: {what}' for name, what in did.items())}). Set right what it did; the record is "
            "kept until TransactionManager.forget"
        )
        if unrecorded is not None:
            message += f". It could not be recorded yet: {unrecorded}"
        if code is Code.XA_HEURHAZ:
            return HeuristicHazard(message, did)
        return HeuristicMixed(message, did) if code is Code.XA_HEURMIX else HeuristicOutcome(message, code)

    def expired(self) -> RolledBack:
        """What its user is told whose time was over."""
        why = self._expiry or f"it took more than {self._timeout_s:g} s"
        return RolledBack(f"{self._called} {self.gtrid.decode()} was rolled back: {why}", Code.XA_RBTIMEOUT)

    def _run_out(self, error: Exception | None) -> NoReturn:
        """Rolls back because of the time, whatever else has happened."""
        self._roll_back()
        raise self.expired() from error

    def _first_error(self) -> Exception | None:
        """Whatever it was that the others followed from."""
        failed = [branch for branch in self.branches.values() if branch.error is not None]
        return min(failed, key=lambda branch: branch.failed_at).error if failed else None


class NestedTransaction(Transaction):
    """Made in the block of another one: a savepoint of that, which alone commits."""

    _called = "a block in transaction"
    _is_new = True
    _savepoint: TransactionSavepoint

    def __init__(
        self, coordinator: Coordinator, outer: Transaction, names: tuple[str, ...], timeout_s: float | None
    ) -> None:
        self._coordinator, self._outer, self._names, self._limit_s = coordinator, outer, names, timeout_s
        self.branches, self.gtrid = outer.branches, outer.gtrid
        self._timeout_s = inf if timeout_s is None else timeout_s
        self._deadline = time.monotonic() + self._timeout_s

    def check_active(self, name: str = "") -> None:
        """The outer one's end is its own."""
        if self._is_new:
            self._refuse()
        super().check_active()
        self._outer.check_active(name)

    def __getitem__(self, name: str) -> Any:
        self._check_time()
        return self._outer[name]

    def savepoint(self) -> TransactionSavepoint:
        self._check_time()
        return self._outer.savepoint()

    def _check_time(self) -> None:
        self.check_active()
        if self._is_expired():
            self._run_out(None)

    def commit(self) -> None:
        """It is over; what was done in it stays, for the outer one to end. Raises RolledBack where its time was over,
        and what a participant raises: then that is undone."""
        self._check_time()
        self._phase, self.outcome = Phase.OVER, Outcome.ROLLED_BACK
        self._savepoint.__exit__(None, None, None)
        self.outcome = None

    def _roll_back(self, wanted: Outcome | None = None) -> None:
        self.check_active()
        self._phase, self.outcome = Phase.OVER, Outcome.ROLLED_BACK
        self._savepoint.undo()

    def __enter__(self) -> Self:
        if self._outer.in_task is not None or not self._may_enter:
            self._refuse()
        self._savepoint, self._is_new = self._outer.savepoint().__enter__(), False
        try:
            for name in self._names:
                self[name]
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._phase is not Phase.ACTIVE:
            return
        if error is None:
            self.commit()
            return
        with suppress(Exception):  # then the outer one is rolled back, and says why
            self._roll_back()
        if self._is_expired() and isinstance(error, Exception):
            raise self.expired() from error

    async def __aenter__(self) -> AsyncTransaction:
        outer = self._outer.in_task
        if outer is None or not self._may_enter:
            self._refuse()
        self._savepoint, self._is_new = (await carried(self._outer.savepoint)).__enter__(), False
        self.in_task = AsyncNested(self, self._names, self._limit_s, outer)
        await self.in_task.begin()
        return self.in_task

    @property
    def _may_enter(self) -> bool:
        return self._is_new and around(self._coordinator) is self._outer

    def _refuse(self) -> NoReturn:
        raise ProtocolError(
            "a transaction made in the block of another one is entered once, there, and as that was: by `with`, or by "
            "`async with`. With independent=True it is one of its own"
        )


def _at_once(call: Callable[[], None]) -> None:
    call()
