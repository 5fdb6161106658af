"""The end of a global transaction: participants vote, it is decided, they are told, and their connections go back.

What is asked of whom and in which order, ``voting`` says, and so what a reply leads to; here it is done. The plain
case, in which one votes and the other one decides, has a way of its own for as long as nothing goes wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any

from xaqueue.carried import CarriedChange
from xaqueue.errors import DecisionLogError, ProtocolError, RetryLater
from xaqueue.tm import driver, voting
from xaqueue.tm.branch import EnlistedBranch
from xaqueue.tm.coordinator import Coordinator, TraceStep, unwatched
from xaqueue.tm.deciding import CarriedRow
from xaqueue.tm.last_resource import DecisionRow, LifeOver
from xaqueue.tm.voting import DECISION, Command, ParticipantOutcome, Replies, Reply, TransactionResult, Voting, XaVerb
from xaqueue.xa import Outcome

_VERBS: dict[XaVerb, tuple[TraceStep, Callable[[EnlistedBranch], Reply], TraceStep]] = {
    XaVerb.PREPARE: (TraceStep.PREPARE, lambda branch: branch.prepare(), TraceStep.PREPARED),
    XaVerb.COMMIT: (TraceStep.COMMIT, lambda branch: branch.commit(), TraceStep.COMMITTED),
    XaVerb.COMMIT_ONE_PHASE: (TraceStep.COMMIT, lambda branch: branch.commit_one_phase(), TraceStep.COMMITTED),
    XaVerb.ROLLBACK: (TraceStep.ROLLBACK, lambda branch: branch.rollback(), TraceStep.ROLLED_BACK),
}
"""What is done at each participant that a command names, and the steps around it."""
_UNANSWERED = (ParticipantOutcome.PENDING, ParticipantOutcome.UNKNOWN)
"""By those whose connection is not used again."""


class Phase(Enum):
    ACTIVE = "active"
    ENDING = "being ended"
    OVER = "over"


class Ending:
    """A transaction, as far as its end needs it. Does what is asked for, and tells nobody how that went."""

    savepoints: tuple[Any, ...] = ()
    """Those that are open, each within the one before it."""
    is_async = False
    """Whether it is one of a task of asyncio."""
    _phase = Phase.ACTIVE
    _expiry = ""
    """Why it has expired, where it is not for the time."""
    _log_error: Exception | None = None
    """Why the log did not take the decision."""
    _deciding: tuple[str, Sequence[str]] | None = None
    """Whose commit decides, and for whom, while it may have committed and nobody has said so."""
    _is_decided = False
    """Whether a row says commit."""
    _outcomes: Mapping[str, ParticipantOutcome] = MappingProxyType({})
    _ender: object = None
    """Of the call that ends it."""
    outcome: Outcome | None = None
    """COMMITTED or ROLLED_BACK; IN_DOUBT or UNKNOWN where commit said so; None while it is active."""

    def __init__(self, coordinator: Coordinator, names: tuple[str, ...], timeout_s: float) -> None:
        """names: participants that join at once, when it is entered."""
        self._coordinator = coordinator
        self._names = names
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._mutex = threading.Lock()
        self.branches: dict[str, EnlistedBranch] = {}
        self.gtrid = coordinator.enter(self)
        """Its name, in every participant and in the log."""

    @property
    def pending(self) -> tuple[str, ...]:
        """Participants that could not be told what was decided yet; recovery tells them."""
        return tuple(name for name, ended in self._outcomes.items() if ended is ParticipantOutcome.PENDING)

    @property
    def is_ending(self) -> bool:
        return self._phase is Phase.ENDING

    def interrupt_if_expired(self) -> None:
        """Interrupts what an expired transaction is waiting for; called from another thread, again and again."""
        with self._mutex:  # not while it is being ended: what is decided is never interrupted
            if self._phase is Phase.ACTIVE and self._is_expired() and not self.is_async:
                for branch in list(self.branches.values()):
                    branch.interrupt()

    def expire(self, why: str = "") -> None:
        """What is not decided yet is rolled back. why: where it is not for the time."""
        self._deadline, self._expiry = 0.0, why or self._expiry

    def check_active(self, name: str = "") -> None:
        """Raises ProtocolError once its end has begun, or that of the work of this participant."""
        if self._phase is not Phase.ACTIVE:
            raise ProtocolError(f"the transaction is {self._phase.value}: begin another one")
        if name in self.branches:
            self.branches[name].check_begun()

    def drop(self) -> None:
        """It is rolled back, where nobody has begun to end it and nobody will."""
        with self._mutex:
            if self._phase is not Phase.ACTIVE:
                return
            self._phase = Phase.ENDING
        self._abandon(Outcome.ROLLED_BACK)

    def lose_loop(self) -> None:
        """The event loop that it lived in is closed: nobody goes on with it."""
        if self.is_async:
            self.drop()
            if self.is_ending:
                self._interrupted()

    def abandon(self) -> None:
        """In a forked child: it and its connections are the parent's."""
        self._mutex = threading.Lock()
        self._phase = Phase.OVER

    def _is_expired(self) -> bool:
        return time.monotonic() >= self._deadline

    def _are_parallel(self, names: Iterable[str]) -> bool:
        """Whether they are called side by side: where nobody else is at work who would only wait for the threads."""
        can_be = self.is_async or self._coordinator.is_lone
        return can_be and all(self.branches[name].is_parallel for name in names)

    def _end(self, ender: object) -> tuple[list[str], str | None]:
        """Nobody else may end it any more. Returns those with two phases, in the order of their keys, and the last.

        ender: of the call that ends it, which tells ``_cut_off`` whatever comes between.
        """
        with self._mutex:
            if self._phase is not Phase.ACTIVE:
                self.check_active()
            self._ender, self._phase = ender, Phase.ENDING
        names, last = list(self.branches), self._last()
        if last is not None:
            names.remove(last)
            if len(names) == 1:
                self._let_carry(last, self.branches[names[0]])
                return names, last
        names.sort(key=lambda name: (self.branches[name].sort_key, name))
        return names, last

    def _last(self) -> str | None:
        """Whose own commit decides: the one without two phases, or else the only database, where there is one."""
        last, is_alone = None, True
        for name, branch in self.branches.items():
            if branch.can.may_decide:
                if not branch.has_two_phases:
                    return name
                last, is_alone = name, last is None
        return last if is_alone else None

    def _let_carry(self, last: str, queue: EnlistedBranch) -> None:
        """The database takes the queue's work with its own, where it can."""
        if self.branches[last].can.may_carry and getattr(queue.connection, "can_carry", False) is True:
            deciding = self._coordinator.deciding
            if deciding.is_ready(queue.name, last, self._coordinator.wake):
                queue.carrier = self._coordinator.log.carrier(last)

    def _run(self, vote: Voting, said: Iterable[Replies] = ()) -> TransactionResult:
        return voting.run(vote, self._perform if self._coordinator.tracing is None else self._traced, said)

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
        branch, is_watched = self.branches[voter], self._coordinator.step is not unwatched
        vote = self._perform_at(*_VERBS[XaVerb.PREPARE], voter) if is_watched else branch.prepare()
        if vote is not Reply.PREPARED:
            return [{voter: vote}]
        decided = self._commit_last(last, (voter,))
        if decided is not Reply.DONE:
            return [{voter: vote}, {last: decided}]
        done = self._perform_at(*_VERBS[XaVerb.COMMIT], voter) if is_watched else branch.commit()
        return [] if done is Reply.DONE else [{voter: vote}, {last: decided}, {voter: done}]

    def _end_plain(self, voter: str, last: str) -> None:
        """Both have committed."""
        self.outcome = Outcome.COMMITTED
        voted, decided = self.branches[voter], self.branches[last]
        self._coordinator.note_done(self.gtrid, Outcome.COMMITTED, voter, voted.is_deferred)
        voted.release()
        decided.release()
        self._coordinator.leave(self.gtrid, Outcome.COMMITTED, ())
        self._phase = Phase.OVER

    # What the votes ask for

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
            return {name: self._ask(name) for name in command.names}
        return self._perform_at_each(command)

    def _ask(self, name: str) -> Reply:
        branch = self.branches[name]
        reply = branch.ask()
        if reply is Reply.UNKNOWN and self._is_decided and branch.identity:
            return self._coordinator.log.ask(self.gtrid, branch.identity)
        return reply

    def _perform_at_each(self, command: Command) -> Replies:
        """Side by side where the participants allow it."""
        call = partial(self._perform_at, *_VERBS[command.verb])
        if len(command.names) == 1:
            return {command.names[0]: call(command.names[0])}
        are_parallel = self._are_parallel(command.names)
        if self.is_async and are_parallel:
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
        reply = verb(self.branches[name])
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
        coordinator, gtrid, last = self._coordinator, self.gtrid, self.branches[name]
        if time.monotonic() >= self._deadline:
            last.rollback()
            return Reply.REFUSED
        is_watched = coordinator.step is not unwatched
        try:
            if name not in coordinator.ready:
                coordinator.make_ready(name)
        except Exception as error:  # of its driver, or of the log: nothing is decided
            last.refuse(error)
            return Reply.REFUSED
        if is_watched:
            coordinator.step(TraceStep.COMMIT_LAST, gtrid, name)
        change = self.branches[prepared[0]].carried
        self._deciding = name, prepared
        row = self._row_of(prepared, change)
        reply = last.commit_last(row, coordinator.log.rows, coordinator.log.check, change and change.life)
        if is_watched:
            coordinator.step(TraceStep.COMMITTED_LAST, gtrid, name)
        if reply is Reply.UNKNOWN:
            reply = self._ask_those_told(prepared)
        if reply is Reply.DONE:
            for other in prepared:
                branch = self.branches[other]
                branch.is_deferred = branch.can.hardens
            coordinator.log.add_row(gtrid, row.participants, name, row.spaces)
            self._deciding, self._is_decided = None, True
            return reply
        if last.error is not None:
            coordinator.log.may_be_ended()
        if isinstance(last.error, LifeOver):
            coordinator.deciding.refused(prepared[0], name)
        if reply is Reply.LOST:
            coordinator.expect_row(gtrid, name, prepared)
        else:
            coordinator.take_row(row._replace(outcome=Outcome.ROLLED_BACK), name)
        self._deciding = None
        return reply

    def _ask_those_told(self, prepared: Sequence[str]) -> Reply:
        """Others have done what the decision said, and removed it; or it never was, and they will roll back."""
        answers = {self.branches[name].ask() for name in prepared}
        if Reply.COMMITTED in answers:
            return Reply.DONE
        return Reply.REFUSED if Reply.ROLLED_BACK in answers else Reply.LOST

    def _row_of(self, prepared: Sequence[str], change: CarriedChange | None) -> DecisionRow:
        """Which decides for these. change: of the only one, that it carries."""
        if change is None:
            return DecisionRow(self.gtrid, Outcome.COMMITTED, tuple(prepared), b"", self._spaces_of(prepared))
        queue, space = prepared[0], change.life.space
        self._coordinator.deciding.rows[self.gtrid] = CarriedRow(queue, change.carrier, space, change.number)
        return DecisionRow(self.gtrid, Outcome.COMMITTED, (queue,), change.encode(), {queue: space})

    def _spaces_of(self, names: Iterable[str]) -> dict[str, str]:
        """What those that have voted say of themselves: another one in its place has nothing to acknowledge."""
        branches = [self.branches[name] for name in names]
        return {one.name: place for one in branches if (place := one.identity or driver.space_of(one.connection))}

    # Behind the last reply

    def _conclude(self, result: TransactionResult) -> Exception | None:
        """What they did is recorded. Returns why a heuristic is not."""
        self.outcome, self._outcomes = result.outcome, dict(result.participants)
        is_heuristic = not voting.BY_ITSELF.isdisjoint(self._outcomes.values())
        unrecorded: Exception | None = None
        try:
            if result.outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK):
                deferred = [name for name, branch in self.branches.items() if branch.is_deferred]
                settle = partial(self._coordinator.settle, self.gtrid, result.outcome, result.participants)
                if is_heuristic:
                    details = {name: str(one.error) for name, one in self.branches.items() if one.error is not None}
                    self._coordinator.loop.in_thread(partial(settle, details, deferred), must_end=True)
                else:
                    settle({}, deferred)
        except (DecisionLogError, RetryLater) as failed:  # it is not acknowledged either, so recovery notes it again
            unrecorded = failed
        self._let_go(result.outcome, self.pending if unrecorded is None else self.branches)
        return unrecorded

    def _cut_off(self, ender: object) -> None:
        """The call that ends it was left by an exception: where it is not over, by one that came between."""
        if self._ender is ender and self._phase is Phase.ENDING:
            self._interrupted()

    def _interrupted(self) -> None:
        """What is decided goes on without this thread, and what is not is rolled back."""
        if self.outcome is not None:
            self._abandon(self.outcome)
            return
        log = self._coordinator.log
        decided = log.decision_on(self.gtrid)
        if decided is None and self._deciding is not None:
            self._coordinator.expect_row(self.gtrid, *self._deciding)
        if self._coordinator.is_undecided(self.gtrid):
            decided = Outcome.IN_DOUBT
        alone = len(self.branches) < 2 or any(branch.commits_alone for branch in self.branches.values())
        if decided is None and (alone or log.failure is not None):
            decided = Outcome.UNKNOWN
        self._abandon(decided or Outcome.ROLLED_BACK)

    def _abandon(self, outcome: Outcome) -> None:
        if self._phase is Phase.OVER:
            return
        self.outcome = outcome
        for branch in self.branches.values():
            branch.discard()
        self._coordinator.log.is_unclean = True
        self._coordinator.leave(self.gtrid, outcome, self.branches)
        self._phase = Phase.OVER

    def _let_go(self, outcome: Outcome, unfinished: Collection[str] = ()) -> None:
        """Gives back the connections of those that have answered."""
        for name, branch in self.branches.items():
            if branch.is_unanswered:
                self._coordinator.log.is_unclean = True
            if self._outcomes.get(name) in _UNANSWERED:
                branch.discard()
            else:
                branch.release()
        self._coordinator.leave(self.gtrid, outcome, unfinished)
        self._phase = Phase.OVER  # behind it: what is cut off in it is left once more
