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
from collections.abc import Iterable, Mapping
from enum import Enum
from types import TracebackType
from typing import Any, NoReturn, Self

from xaqueue.errors import (
    DecisionLogError,
    InvalidArgument,
    ProtocolError,
    RetryLater,
)
from xaqueue.tm import marker, telling, voting
from xaqueue.tm.coordinator import Coordinator
from xaqueue.tm.drive import Drive
from xaqueue.tm.enlisted import Enlisted, LastResource, enlist
from xaqueue.tm.participants import close
from xaqueue.tm.steps import Step
from xaqueue.tm.voting import Party, Verdict, Voting
from xaqueue.xa import Outcome


class _Phase(Enum):
    ACTIVE = "active"
    ENDING = "being ended"
    OVER = "over"


class Transaction:
    """Made by ``TransactionManager.transaction``."""

    def __init__(self, coordinator: Coordinator, names: Iterable[str], timeout_s: float) -> None:
        """names: participants that join at once, when it is entered."""
        self._coordinator = coordinator
        self._names = tuple(names)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._mutex = threading.Lock()
        self._phase = _Phase.ACTIVE
        self._enlisted: dict[str, Enlisted] = {}
        self._parties: dict[str, Party] = {}
        self.outcome: Outcome | None = None
        """COMMITTED or ROLLED_BACK; IN_DOUBT or UNKNOWN where commit said so; None while it is active."""
        self.gtrid = coordinator.enter(self)
        """Its name, in every participant and in the log."""

    def __getitem__(self, name: str) -> Any:
        """The participant's connection, begun for this transaction. Raises KeyError, RolledBack after the timeout."""
        known = self._enlisted.get(name)
        if self._phase is not _Phase.ACTIVE:
            raise ProtocolError(f"the transaction is {self._phase.value}: begin another one")
        if self._is_expired():
            self._run_out(None)
        if known is None:
            known = self._enlist(name)
        return known.connection

    def commit(self) -> None:
        """Commits everywhere. Once it returns the decision is durable, and who could not be told yet will be.

        Raises RolledBack where a participant could not commit (it is the cause) or the time ran out;
        HeuristicMixed, HeuristicHazard, HeuristicOutcome where a participant did otherwise by itself;
        OutcomeUnknown where nobody can tell now, and ``TransactionManager.outcome`` may later.
        """
        self._end()
        names, last = self._order()
        together = len(names) > 1 and all(self._enlisted[name].is_parallel for name in names)
        if self._is_expired() or not self._coordinator.may_presume():
            self._conclude(self._drive(voting.roll_back(names, last)), wanted=Outcome.COMMITTED)
        else:
            self._conclude(self._drive(voting.commit(names, last, together=together)), wanted=Outcome.COMMITTED)

    def rollback(self) -> None:
        """Rolls back everywhere. Raises HeuristicOutcome where a participant has committed by itself."""
        self._end()
        self._conclude(self._drive(voting.roll_back(*self._order())), wanted=Outcome.ROLLED_BACK)

    @property
    def pending(self) -> tuple[str, ...]:
        """Participants that could not be told what was decided yet; recovery tells them."""
        return tuple(name for name, party in self._parties.items() if party is Party.PENDING)

    @property
    def is_ending(self) -> bool:
        return self._phase is _Phase.ENDING

    def interrupt_if_expired(self) -> None:
        """Interrupts what an expired transaction is waiting for; called from another thread, again and again."""
        with self._mutex:  # not while it is being ended: what is decided is never interrupted
            if self._phase is _Phase.ACTIVE and self._is_expired():
                for enlisted in list(self._enlisted.values()):
                    enlisted.interrupt()

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
            self.rollback()

    # Joining

    def _enlist(self, name: str) -> Enlisted:
        source = self._coordinator.sources.get(name)
        if source is None:
            raise InvalidArgument(f"{name!r} is no participant: there are {sorted(self._coordinator.sources)}")
        self._coordinator.step(Step.BEGIN, self.gtrid, name)
        if source.is_last:
            self._make_table()
            self._enlisted[name] = LastResource(source, source.open(), self.gtrid)
        else:
            self._enlisted[name] = enlist(source, self.gtrid)
        return self._enlisted[name]

    def _make_table(self) -> None:
        coordinator = self._coordinator
        if coordinator.has_table or coordinator.undecided():  # then it was made in an earlier life
            return
        assert coordinator.last_resource is not None
        connection = coordinator.sources[coordinator.last_resource].open()
        try:
            marker.create(connection)
        finally:
            close(connection)
        coordinator.has_table = True

    def _order(self) -> tuple[list[str], str | None]:
        """Those with two phases, in the order of their keys, and the last resource, if it joined."""
        two_phase = [one for one in self._enlisted.values() if not one.source.is_last]
        last = next((one.name for one in self._enlisted.values() if one.source.is_last), None)
        return [one.name for one in sorted(two_phase, key=lambda one: (one.sort_key, one.name))], last

    # Ending

    def _end(self) -> None:
        with self._mutex:
            if self._phase is not _Phase.ACTIVE:
                raise ProtocolError(f"the transaction is {self._phase.value}: begin another one")
            self._phase = _Phase.ENDING

    def _drive(self, vote: Voting) -> tuple[Verdict, Drive]:
        drive = Drive(self._coordinator, self.gtrid, self._enlisted, self._is_expired)
        try:
            return drive.run(vote), drive
        except BaseException:
            self._interrupted()
            raise

    def _interrupted(self) -> None:
        """Between two commands: what is decided goes on without this thread, and what is not is rolled back."""
        decided = self._coordinator.outcome_in_log(self.gtrid)
        alone = len(self._enlisted) < 2 or any(one.commits_alone for one in self._enlisted.values())
        if decided is None and (alone or not self._coordinator.may_presume()):
            decided = Outcome.UNKNOWN
        self._abandon(decided or Outcome.ROLLED_BACK)

    def _abandon(self, outcome: Outcome) -> None:
        self.outcome = outcome
        for enlisted in self._enlisted.values():
            enlisted.discard()
        self._leave(outcome, self._enlisted)

    def _conclude(self, driven: tuple[Verdict, Drive], wanted: Outcome) -> None:
        verdict, drive = driven
        self._parties = dict(verdict.parties)
        unrecorded: Exception | None = None
        try:
            if verdict.outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK):
                self._coordinator.settle(self.gtrid, verdict.outcome, verdict.parties, self._details())
        except (DecisionLogError, RetryLater) as failed:  # it is not acknowledged either, so recovery notes it again
            unrecorded = failed
        except BaseException:
            self._abandon(verdict.outcome)
            raise
        self.outcome = verdict.outcome
        for name, enlisted in self._enlisted.items():
            if self._parties.get(name) in (Party.PENDING, Party.UNKNOWN):
                enlisted.discard()
            else:
                enlisted.release()
        self._leave(verdict.outcome, self.pending if unrecorded is None else self._enlisted)
        self._tell(verdict, wanted, drive.error, unrecorded)

    def _leave(self, outcome: Outcome, pending: Iterable[str]) -> None:
        self._phase = _Phase.OVER
        last = self._coordinator.last_resource
        undecided = outcome is Outcome.IN_DOUBT and last is not None
        self._coordinator.leave(self.gtrid, outcome, [*pending, last] if undecided and last else list(pending))

    def _details(self) -> Mapping[str, str]:
        return {name: str(one.error) for name, one in self._enlisted.items() if one.error is not None}

    # Telling

    def _tell(
        self, verdict: Verdict, wanted: Outcome, log_error: Exception | None, unrecorded: Exception | None
    ) -> None:
        """Raises what the caller has to know beside, or instead of, what was wanted."""
        cause = log_error or self._first_error()
        code = voting.heuristic_code(verdict.outcome, verdict.parties)
        if code is not None:
            raise telling.heuristic(self.gtrid, code, verdict.outcome, verdict.parties, unrecorded) from cause
        if verdict.outcome is Outcome.IN_DOUBT:
            raise telling.in_doubt(self.gtrid, cause) from cause
        if verdict.outcome is Outcome.UNKNOWN:
            name = next(name for name, party in verdict.parties.items() if party is Party.UNKNOWN)
            raise telling.unanswered(self.gtrid, name) from cause
        if verdict.outcome is not wanted:
            self._raise_rolled_back(cause)

    def _raise_rolled_back(self, cause: Exception | None) -> NoReturn:
        if cause is None and self._is_expired():
            raise telling.expired(self.gtrid, self._timeout_s)
        cause = cause or self._coordinator.trouble_of_log()
        who = next((repr(name) for name, one in self._enlisted.items() if one.error is cause), "the decision log")
        raise telling.rolled_back(self.gtrid, who, cause) from cause

    def _run_out(self, error: Exception | None) -> NoReturn:
        """Rolls back because of the time, whatever else has happened."""
        self._end()
        verdict, _ = driven = self._drive(voting.roll_back(*self._order()))
        self._conclude(driven, wanted=verdict.outcome)
        raise telling.expired(self.gtrid, self._timeout_s) from error

    def _first_error(self) -> Exception | None:
        """Whatever it was that the others followed from."""
        failed = [one for one in self._enlisted.values() if one.error is not None]
        return min(failed, key=lambda one: one.failed_at).error if failed else None

    def _is_expired(self) -> bool:
        return time.monotonic() >= self._deadline
