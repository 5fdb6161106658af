"""A global transaction: participants join it at their first use, and all of their work commits or none does.

    with tm.transaction() as tx:
        tx["ledger"].execute("insert ...")
        tx["queue"].enqueue("orders", b"...")

``tx[name]`` is the driver's own connection, lent for the transaction: do not keep it, and leave ``commit``,
``rollback`` and ``close`` to the transaction. For one thread at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

from xaqueue.errors import (
    DecisionLogError,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicOutcome,
    InvalidArgument,
    OutcomeUnknown,
    ProtocolError,
    RetryLater,
    RolledBack,
)
from xaqueue.tm import driver, voting
from xaqueue.tm.async_transaction import AsyncTransaction
from xaqueue.tm.branch import EnlistedBranch, enlist
from xaqueue.tm.coordinator import Coordinator, TraceStep
from xaqueue.tm.deciding import CarriedRow
from xaqueue.tm.gtrid import FORMAT_ID
from xaqueue.tm.last_resource import DecisionRow, LifeOver
from xaqueue.tm.voting import DECISION, Command, ParticipantOutcome, Replies, Reply, TransactionResult, Voting, XaVerb
from xaqueue.xa import Code, Outcome
from xaqueue.xid import Xid

_VERBS: dict[XaVerb, tuple[TraceStep, Callable[[EnlistedBranch], Reply], TraceStep]] = {
    XaVerb.PREPARE: (TraceStep.PREPARE, lambda branch: branch.prepare(), TraceStep.PREPARED),
    XaVerb.COMMIT: (TraceStep.COMMIT, lambda branch: branch.commit(), TraceStep.COMMITTED),
    XaVerb.COMMIT_ONE_PHASE: (TraceStep.COMMIT, lambda branch: branch.commit_one_phase(), TraceStep.COMMITTED),
    XaVerb.ROLLBACK: (TraceStep.ROLLBACK, lambda branch: branch.rollback(), TraceStep.ROLLED_BACK),
}
"""What is done at each participant that a command names, and the steps around it."""
_UNANSWERED = (ParticipantOutcome.PENDING, ParticipantOutcome.UNKNOWN)
"""By those whose connection is not used again."""


class _Phase(Enum):
    ACTIVE = "active"
    ENDING = "being ended"
    OVER = "over"


class Transaction:
    """Made by ``TransactionManager.transaction``."""

    _async: AsyncTransaction | None = None
    """Its face in a task of asyncio."""
    _phase = _Phase.ACTIVE
    _expiry = ""
    """Why it has expired, where it is not for the time."""
    _log_error: Exception | None = None
    """Why the log did not take the decision."""
    outcome: Outcome | None = None
    """COMMITTED or ROLLED_BACK; IN_DOUBT or UNKNOWN where commit said so; None while it is active."""

    def __init__(self, coordinator: Coordinator, names: tuple[str, ...], timeout_s: float) -> None:
        """names: participants that join at once, when it is entered."""
        self._coordinator = coordinator
        self._names = names
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._mutex = threading.Lock()
        self._branches: dict[str, EnlistedBranch] = {}
        self._outcomes: dict[str, ParticipantOutcome] = {}
        self.gtrid = coordinator.enter(self)
        """Its name, in every participant and in the log."""

    def __getitem__(self, name: str) -> Any:
        """The participant's connection, begun for this transaction. Raises KeyError, RolledBack after the timeout."""
        known = self._branches.get(name)
        if self._phase is not _Phase.ACTIVE:
            self.check_active()
        if self._is_expired():
            self._run_out(None)
        if known is None:
            known = self._enlist(name)
        else:
            known.check_begun()
        return known.lend()

    def accept(self, delivery: Any, name: str = "") -> Any:
        """Settles a message on lease with this transaction: ``tx[name].accept(delivery)``.

        name: of the participant whose space it is from; where one queue has joined, it is that. Raises ProtocolError
        without a name where none has, or several have; LeaseExpired, and the transaction is as it was.
        """
        return self[name or self._queue()].accept(delivery)

    def _queue(self) -> str:
        found = [one.name for one in self._branches.values() if driver.takes_deliveries(one.connection)]
        if len(found) != 1:
            raise ProtocolError(f"{len(found)} queues have joined the transaction: name the delivery's participant")
        return found[0]

    def commit(self) -> None:
        """Commits everywhere. Once it returns the decision is durable, and who could not be told yet will be.

        Raises RolledBack where a participant could not commit (it is the cause) or the time ran out;
        HeuristicMixed, HeuristicHazard, HeuristicOutcome where a participant did otherwise by itself;
        OutcomeUnknown where nobody can tell now, and ``TransactionManager.outcome`` may later.
        """
        names, last = self._end()
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
        self._conclude(self._run(vote, said), wanted=Outcome.COMMITTED)

    def rollback(self) -> None:
        """Rolls back everywhere. Raises HeuristicOutcome where a participant has committed by itself."""
        self._conclude(self._run(voting.roll_back(*self._end())), wanted=Outcome.ROLLED_BACK)

    @property
    def pending(self) -> tuple[str, ...]:
        """Participants that could not be told what was decided yet; recovery tells them."""
        return tuple(name for name, ended in self._outcomes.items() if ended is ParticipantOutcome.PENDING)

    @property
    def is_ending(self) -> bool:
        return self._phase is _Phase.ENDING

    def interrupt_if_expired(self) -> None:
        """Interrupts what an expired transaction is waiting for; called from another thread, again and again."""
        with self._mutex:  # not while it is being ended: what is decided is never interrupted
            if self._phase is _Phase.ACTIVE and self._is_expired() and self._async is None:
                for branch in list(self._branches.values()):
                    branch.interrupt()

    def expire(self, why: str = "") -> None:
        """What is not decided yet is rolled back. why: where it is not for the time."""
        self._deadline, self._expiry = 0.0, why or self._expiry

    def check_active(self, name: str = "") -> None:
        """Raises ProtocolError once its end has begun, or that of the work of this participant."""
        if self._phase is not _Phase.ACTIVE:
            raise ProtocolError(f"the transaction is {self._phase.value}: begin another one")
        if name in self._branches:
            self._branches[name].check_begun()

    def drop(self) -> None:
        """It is rolled back, where nobody has begun to end it and nobody will."""
        with self._mutex:
            if self._phase is not _Phase.ACTIVE:
                return
            self._phase = _Phase.ENDING
        self._abandon(Outcome.ROLLED_BACK)

    def lose_loop(self) -> None:
        """The event loop that it lived in is closed: nobody goes on with it."""
        if self._async is not None:
            self.drop()
            if self.is_ending:
                self._interrupted()

    def abandon(self) -> None:
        """In a forked child: it and its connections are the parent's."""
        self._mutex = threading.Lock()
        self._phase = _Phase.OVER

    def __enter__(self) -> Self:
        try:
            for name in self._names:
                self[name]
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._phase is not _Phase.ACTIVE:
            return
        if error is None:
            self.commit()
        elif self._is_expired() and isinstance(error, Exception):
            self._run_out(error)
        else:
            for branch in self._branches.values():
                branch.explain(error)
            self.rollback()
            refused = next((one.refused for one in self._branches.values() if one.refused is not None), None)
            if refused is not None and driver.is_a(error, "DatabaseError"):  # sqlite3 says "not authorized"
                raise refused from error

    async def __aenter__(self) -> AsyncTransaction:
        try:
            self._coordinator.join_loop()
        except BaseException:
            self.rollback()  # it is live, and nobody else would end it
            raise
        self._async = AsyncTransaction(self, self._names, max(0.0, self._deadline - time.monotonic()))
        await self._async.begin()
        return self._async

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._async is not None
        await self._async.end(kind, error, trace)

    # Joining

    def _enlist(self, name: str) -> EnlistedBranch:
        coordinator = self._coordinator
        source = coordinator.sources.get(name)
        if source is None:
            raise InvalidArgument(f"{name!r} is no participant: there are {sorted(coordinator.sources)}")
        coordinator.step(TraceStep.BEGIN, self.gtrid, name)
        branch = enlist(source, self.gtrid)
        if self._phase is not _Phase.ACTIVE:  # it was ended by another task meanwhile
            branch.discard()
            self.check_active()
        self._branches[name] = branch
        if not branch.has_two_phases:
            plain = [repr(other.name) for other in self._branches.values() if not other.has_two_phases]
            if len(plain) > 1:
                raise InvalidArgument(
                    f"participants {' and '.join(plain)} have no two-phase commit: one of them at most may take "
                    "part in a transaction"
                )
            coordinator.make_ready(name)  # now: its database may be locked once there is work in it
        return branch

    def _are_parallel(self, names: Iterable[str]) -> bool:
        """Whether they are called side by side: where nobody else is at work who would only wait for the threads."""
        can_be = self._async is not None or self._coordinator.is_lone
        return can_be and all(self._branches[name].is_parallel for name in names)

    # Ending

    def _end(self) -> tuple[list[str], str | None]:
        """Nobody else may end it any more. Returns those with two phases, in the order of their keys, and the last."""
        with self._mutex:
            self.check_active()
            self._phase = _Phase.ENDING
        last = self._last()
        names = [name for name in self._branches if name != last]
        if len(names) > 1:
            names.sort(key=lambda name: (self._branches[name].sort_key, name))
        elif names and last is not None:
            self._let_carry(last, self._branches[names[0]])
        return names, last

    def _last(self) -> str | None:
        """Whose own commit decides: the one without two phases, or else the only database, where there is one."""
        may_decide = [branch for branch in self._branches.values() if branch.can.may_decide]
        if len(may_decide) > 1:
            may_decide = [branch for branch in may_decide if not branch.has_two_phases]
        return may_decide[0].name if may_decide else None

    def _let_carry(self, last: str, queue: EnlistedBranch) -> None:
        """The database takes the queue's work with its own, where it can."""
        if queue.can_be_carried and self._branches[last].can_carry:
            queue.carrier = self._coordinator.carrier_for(queue.name, last)

    def _run(self, vote: Voting, said: Iterable[Replies] = ()) -> TransactionResult:
        try:
            return voting.run(vote, self._perform if self._coordinator.tracing is None else self._traced, said)
        except BaseException:
            self._interrupted()
            raise

    # The plain case: one votes, and the other one decides

    @property
    def _is_plain(self) -> bool:
        """Whether it goes without the generator of the votes; who traces is told each of its commands."""
        return self._coordinator.tracing is None

    def _try_plain(self, voter: str, last: str) -> Sequence[Replies]:
        """Does what ``voting.commit`` would ask for. Returns nothing where all goes well.

        Otherwise what they replied, up to the first that did not do so: from there on ``voting.commit`` is in charge,
        so that all that goes wrong has one place.
        """
        try:
            vote = self._perform_at(*_VERBS[XaVerb.PREPARE], voter)
            if vote is not Reply.PREPARED:
                return [{voter: vote}]
            decided = self._commit_last(last, (voter,))
            if decided is not Reply.DONE:
                return [{voter: vote}, {last: decided}]
            done = self._perform_at(*_VERBS[XaVerb.COMMIT], voter)
        except BaseException:
            self._interrupted()
            raise
        return [] if done is Reply.DONE else [{voter: vote}, {last: decided}, {voter: done}]

    def _end_plain(self, voter: str, last: str) -> None:
        """Both have committed."""
        self._outcomes = {last: ParticipantOutcome.COMMITTED, voter: ParticipantOutcome.COMMITTED}
        deferred = (voter,) if self._branches[voter].is_deferred else ()
        try:
            self._coordinator.settle(self.gtrid, Outcome.COMMITTED, {voter: ParticipantOutcome.COMMITTED}, {}, deferred)
        except BaseException:
            self._abandon(Outcome.COMMITTED)
            raise
        self._let_go(Outcome.COMMITTED)

    def _traced(self, command: Command) -> Replies:
        assert self._coordinator.tracing is not None
        with self._coordinator.tracing.step(
            command.verb.name.lower().replace("_", " "), str(self.gtrid), command.names
        ):
            return self._perform(command)

    def _perform(self, command: Command) -> Replies:
        if command.verb is XaVerb.DECIDE:
            return {DECISION: self._decide(command)}
        if command.verb is XaVerb.COMMIT_LAST:
            return {command.last: self._commit_last(command.last, command.names)}
        if command.verb is XaVerb.ASK:
            return {name: self._branches[name].ask() for name in command.names}
        return self._perform_at_each(command)

    def _perform_at_each(self, command: Command) -> Replies:
        """Side by side where the participants allow it."""
        call = partial(self._perform_at, *_VERBS[command.verb])
        if len(command.names) == 1:
            return {command.names[0]: call(command.names[0])}
        are_parallel = self._are_parallel(command.names)
        if self._async is not None and are_parallel:
            calls = [partial(call, name) for name in command.names]
            return dict(zip(command.names, self._coordinator.loop.side_by_side(calls), strict=True))
        others = command.names[1:] if are_parallel else ()
        lent = {name: self._coordinator.lend(call, name) for name in others}
        futures = {name: future for name, future in lent.items() if future is not None}
        try:
            replies = {name: call(name) for name in command.names if name not in futures}
        finally:
            for future in futures.values():
                future.exception()  # it is over, however it ended
        return replies | {name: future.result() for name, future in futures.items()}

    def _perform_at(
        self, before: TraceStep, verb: Callable[[EnlistedBranch], Reply], after: TraceStep, name: str
    ) -> Reply:
        self._coordinator.step(before, self.gtrid, name)
        reply = verb(self._branches[name])
        self._coordinator.step(after, self.gtrid, name)
        return reply

    def _decide(self, command: Command) -> Reply:
        if self._is_expired():
            return Reply.REFUSED
        self._coordinator.step(TraceStep.DECIDE, self.gtrid, "")
        try:
            decide = partial(self._coordinator.log.decide, self.gtrid, command.names, self._spaces_of(command.names))
            self._coordinator.loop.in_thread(decide, must_end=True)  # or recovery would find no decision, and one later
        except (RetryLater, DecisionLogError) as error:
            self._log_error = error
            return Reply.REFUSED if isinstance(error, RetryLater) else Reply.LOST
        self._coordinator.step(TraceStep.DECIDED, self.gtrid, "")
        return Reply.DONE

    def _commit_last(self, name: str, prepared: Sequence[str]) -> Reply:
        coordinator, gtrid, last = self._coordinator, self.gtrid, self._branches[name]
        if self._is_expired():
            last.rollback()
            return Reply.REFUSED
        try:
            coordinator.make_ready(name)
        except Exception as error:  # of its driver, or of the log: nothing is decided
            last.refuse(error)
            return Reply.REFUSED
        coordinator.step(TraceStep.COMMIT_LAST, gtrid, name)
        coordinator.expect_row(gtrid, name, prepared)
        voter = prepared[0]
        change = self._branches[voter].carried
        if change is None:
            spaces = self._spaces_of(prepared)
        else:
            spaces = {voter: change.life.space}
            coordinator.deciding.rows[gtrid] = CarriedRow(voter, change.carrier, change.life.space, change.number)
        row = DecisionRow(gtrid, Outcome.COMMITTED, tuple(prepared), spaces=spaces)
        reply = last.commit_last(row, coordinator.log.check, change)
        if change is not None and isinstance(last.error, LifeOver):
            coordinator.deciding.refused(voter, name)
        coordinator.step(TraceStep.COMMITTED_LAST, gtrid, name)
        for other in prepared:
            self._branches[other].defer()
        if reply is not Reply.LOST:
            coordinator.take_row(row if reply is Reply.DONE else row._replace(outcome=Outcome.ROLLED_BACK), name)
        return reply

    def _spaces_of(self, names: Iterable[str]) -> dict[str, str]:
        """The ids of the spaces that have voted: another one in its place has nothing to acknowledge."""
        return {name: space for name in names if (space := driver.space_of(self._branches[name].connection))}

    def _interrupted(self) -> None:
        """Between two commands: what is decided goes on without this thread, and what is not is rolled back."""
        log = self._coordinator.log
        decided = log.decision_on(self.gtrid)
        if self._coordinator.is_undecided(self.gtrid):
            decided = Outcome.IN_DOUBT
        alone = len(self._branches) < 2 or any(branch.commits_alone for branch in self._branches.values())
        if decided is None and (alone or log.failure is not None):
            decided = Outcome.UNKNOWN
        self._abandon(decided or Outcome.ROLLED_BACK)

    def _abandon(self, outcome: Outcome) -> None:
        if self._phase is _Phase.OVER:
            return
        self.outcome = outcome
        for branch in self._branches.values():
            branch.discard()
        self._leave(outcome, self._branches)

    def _conclude(self, result: TransactionResult, wanted: Outcome) -> None:
        self._outcomes = dict(result.participants)
        is_heuristic = not voting.BY_ITSELF.isdisjoint(self._outcomes.values())
        unrecorded: Exception | None = None
        try:
            if result.outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK):
                deferred = [name for name, branch in self._branches.items() if branch.is_deferred]
                settle = partial(self._coordinator.settle, self.gtrid, result.outcome, result.participants)
                if is_heuristic:
                    details = {name: str(one.error) for name, one in self._branches.items() if one.error is not None}
                    self._coordinator.loop.in_thread(partial(settle, details, deferred), must_end=True)
                else:
                    settle({}, deferred)
        except (DecisionLogError, RetryLater) as failed:  # it is not acknowledged either, so recovery notes it again
            unrecorded = failed
        except BaseException:
            self._abandon(result.outcome)
            raise
        self._let_go(result.outcome, self.pending if unrecorded is None else self._branches)
        if is_heuristic or result.outcome is not wanted:
            self._raise_for(result, wanted, unrecorded)

    def _let_go(self, outcome: Outcome, unfinished: Collection[str] = ()) -> None:
        """Gives back the connections of those that have answered."""
        self.outcome = outcome
        left = list(self._branches.items())
        try:
            while left:
                name, branch = left.pop()
                if self._outcomes.get(name) in _UNANSWERED:
                    branch.discard()
                else:
                    branch.release()
        finally:  # where that is cut off, too: it is over
            for _, branch in left:
                branch.discard()
            self._leave(outcome, unfinished)

    def _leave(self, outcome: Outcome, unfinished: Collection[str]) -> None:
        self._phase = _Phase.OVER
        self._coordinator.leave(self.gtrid, outcome, unfinished)

    # Errors

    def _raise_for(self, result: TransactionResult, wanted: Outcome, unrecorded: Exception | None) -> None:
        """Raises what the caller has to know beside, or instead of, what was wanted: one error, which says what to do.

        unrecorded: why the log does not have a heuristic yet.
        """
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
        who = next((repr(name) for name, one in self._branches.items() if one.error is cause), "the decision log")
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
        return RolledBack(f"transaction {self.gtrid.decode()} was rolled back: {why}", Code.XA_RBTIMEOUT)

    def _run_out(self, error: Exception | None) -> NoReturn:
        """Rolls back because of the time, whatever else has happened."""
        result = self._run(voting.roll_back(*self._end()))
        self._conclude(result, wanted=result.outcome)
        raise self.expired() from error

    def _first_error(self) -> Exception | None:
        """Whatever it was that the others followed from."""
        failed = [branch for branch in self._branches.values() if branch.error is not None]
        return min(failed, key=lambda branch: branch.failed_at).error if failed else None

    def _is_expired(self) -> bool:
        return time.monotonic() >= self._deadline
