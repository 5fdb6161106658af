"""What all transactions of a transaction manager share: the log, the live ones, the participants, and no thread.

A transaction is live from its name until its outcome is settled or handed to recovery. Recovery asks here before it
touches a branch, so that it never meets one that somebody is working on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from xaqueue.carried import Carriers
from xaqueue.errors import InterfaceError
from xaqueue.spans import Tracing
from xaqueue.tm.awaiting import AsyncLoop
from xaqueue.tm.deciding import DecidingDatabases
from xaqueue.tm.decisions import Decisions
from xaqueue.tm.gtrid import COUNTED, ListedBranch
from xaqueue.tm.last_resource import DecisionRow
from xaqueue.tm.participant import ConnectionSource, Within
from xaqueue.tm.records import Heuristic, InDoubtTransaction, OpenDecision, TransactionState, in_doubt_transactions
from xaqueue.tm.voting import BY_ITSELF, ParticipantOutcome, Reply, recovery_action
from xaqueue.xa import Outcome

FINISHED_LIMIT = 10_000
"""Finished transactions whose outcome is remembered, at most."""
PARALLEL_CALLS = 32
"""Calls of one participant that are made beside those of their transactions' own threads, at most: each may hang."""


class TraceStep(StrEnum):
    """The named steps of a transaction, in their order, at which a test may kill and an operator's trace may look.

    Each but DECIDED, DONE and those in the past tense comes before what it names.
    """

    BEGIN = "begin"
    PREPARE = "prepare"
    PREPARED = "prepared"
    DECIDE = "decide"
    DECIDED = "decided"
    COMMIT_LAST = "commit-last"
    COMMITTED_LAST = "committed-last"
    COMMIT = "commit"
    COMMITTED = "committed"
    ROLLBACK = "rollback"
    ROLLED_BACK = "rolled-back"
    DONE = "done"


OnStep = Callable[[TraceStep, bytes, str], None]
"""Called with the step, the gtrid and the participant's name ("" where it is about all of them). What is raised there
is raised out of the step."""


Hear = Callable[[str, Collection[ListedBranch], Carriers | None], None]
"""Called with a participant's name, its whole list, and who carries for it."""


def unwatched(step: TraceStep, gtrid: bytes, participant: str) -> None:
    """Where nobody is told of the steps."""


class LiveTransaction(Protocol):
    """What is asked of a transaction by others than its own thread."""

    @property
    def is_ending(self) -> bool: ...
    def interrupt_if_expired(self) -> None: ...
    def lose_loop(self) -> None: ...
    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """Who was at work at one moment: before a participant was asked for its list."""

    newest: bytes
    """The name that was given last, or would have been before the first."""
    live: frozenset[bytes]

    def is_over(self, gtrid: bytes) -> bool:
        """Whether it was begun by this log's transaction manager, and nobody was working on it any more."""
        is_own = gtrid.startswith(self.newest[:-COUNTED])
        return is_own and gtrid <= self.newest and gtrid not in self.live


@dataclass(slots=True)
class Undecided:
    """A transaction whose decision may stand in a participant's database."""

    unasked: set[str]
    """Those that may have decided, and were not asked yet."""
    participants: set[str]
    """Those that are known to have prepared."""
    since_us: int

    def as_in_doubt(self, gtrid: bytes, trouble_of: Callable[[str], str]) -> InDoubtTransaction:
        names, unasked = tuple(sorted(self.participants)), sorted(self.unasked)
        trouble = {name: why for name in unasked if (why := trouble_of(name))}
        last = " ".join(unasked)
        return InDoubtTransaction(gtrid, TransactionState.UNDECIDED, names, names, self.since_us, last, trouble=trouble)


class Coordinator:
    """Safe for threads."""

    def __init__(
        self,
        log: Decisions,
        sources: Mapping[str, ConnectionSource],
        on_step: OnStep | None = None,
        loop: AsyncLoop | None = None,
    ) -> None:
        self.log = log
        self.loop = loop or AsyncLoop()
        self.sources = sources
        self.within: Mapping[str, Within] = {}
        """Who works in the transaction of a participant, by name."""
        self.step: OnStep = on_step or unwatched
        self.wake: Callable[[Iterable[str]], None] = lambda _: None
        """Tells recovery that these participants have something to finish."""
        self.hear: Hear = lambda *_: None
        """Told of what participants list."""
        self.deciding = DecidingDatabases(log)
        self.tracing = Tracing.of_process()
        self.ready: set[str] = set()
        """Participants whose databases may decide in this life: they have the table, and the log says so."""
        borrow = [name for name, one in sources.items() if one.may_decide and not one.participant.idle]
        self.pooled = set(borrow if not log.gives_signs else ())
        """Those that may, and borrow of a pool, in which who has a connection may wait for a second one for ever: they
        are made ready before a transaction takes the first."""
        self._undecided: dict[bytes, Undecided] = {}
        self._deferred: set[str] = set()
        """Participants that have committed something which they have not hardened yet."""
        self.trouble: dict[str, str] = {}
        """Why a participant could not be recovered at last, by name."""
        self._mutex = threading.Lock()
        self._counter = 0
        self._live: dict[bytes, LiveTransaction] = {}
        self._finished: OrderedDict[bytes, Outcome] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._parallel = {name: threading.BoundedSemaphore(PARALLEL_CALLS) for name in sources}
        self._quiet = threading.Condition(self._mutex)
        self.is_closing = False

    # Live transactions

    def enter(self, transaction: LiveTransaction) -> bytes:
        """Its name; it is live from here on. Raises InterfaceError once closed, DecisionLogError."""
        if self.log.gives_signs and not self.log.is_fresh:
            self.log.freshen(may_wait=self.loop.may_block)
        with self._mutex:
            if self.is_closing:
                raise InterfaceError("the transaction manager is closed: open it again")
            self.log.check()
            self._counter += 1
            gtrid = f"{self.log.named}{self._counter:016x}".encode("ascii")
            self._live[gtrid] = transaction
            return gtrid

    def leave(self, gtrid: bytes, outcome: Outcome, unfinished: Collection[str]) -> None:
        """It is over for its thread; participants that did not finish are recovery's from here on."""
        with self._mutex:
            self._live.pop(gtrid, None)
            if self._finished.get(gtrid) is not outcome:
                self._remember(gtrid, outcome)
            if self.is_closing:
                self._quiet.notify_all()
            asked = sorted(self._undecided[gtrid].unasked) if gtrid in self._undecided else ()
        if asked or unfinished:
            self.log.is_unclean = True
            self.wake([*unfinished, *asked])

    @property
    def is_lone(self) -> bool:
        """Whether at most one transaction is live: more keep the processor busy without handing calls to threads."""
        return len(self._live) < 2

    def live(self) -> list[LiveTransaction]:
        with self._mutex:
            return list(self._live.values())

    def close(self, patience_s: float) -> None:
        """No new transactions; waits for those that are ending, and for no others."""
        if self.loop.is_closed:
            self._lose_loop()
        with self._mutex:
            self.is_closing = True
            self._quiet.wait_for(lambda: not any(one.is_ending for one in self._live.values()), patience_s)
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def abandon(self) -> None:
        """In a forked child: nothing goes on here."""
        self._mutex = threading.Lock()
        self._quiet = threading.Condition(self._mutex)
        self.is_closing = True
        for transaction in self._live.values():
            transaction.abandon()
        self._live = {}
        self._pool = None

    def lend(self, call: Callable[[str], Reply], name: str) -> Future[Reply] | None:
        """Makes the call in another thread; None where none is free, or the end is near: then the caller makes it."""
        with self._mutex:
            can_lend = not self.is_closing and threading.main_thread().is_alive()
            if not can_lend or not self._parallel[name].acquire(blocking=False):
                return None
            if self._pool is None:
                self._pool = ThreadPoolExecutor(PARALLEL_CALLS * len(self.sources), thread_name_prefix="xaqueue-tm")
            future = self._pool.submit(call, name)
        future.add_done_callback(lambda _: self._parallel[name].release())
        return future

    # What became of it

    def settle(
        self,
        gtrid: bytes,
        decision: Outcome,
        participants: Mapping[str, ParticipantOutcome],
        details: Mapping[str, str],
        deferred: Collection[str] = (),
    ) -> list[Heuristic]:
        """Records what these participants did, and that it is done once all have; returns the heuristics.

        details: in the participants' words. deferred: those that have not hardened it. Raises DecisionLogError where a
        heuristic could not be recorded.
        """
        noted: list[Heuristic] = []
        for name, outcome in participants.items():
            if outcome in BY_ITSELF:
                noted.append(Heuristic(gtrid, name, decision, outcome, self.log.now_us(), details.get(name, "")))
                self.log.note(noted[-1])
        for name, outcome in participants.items():
            if outcome is not ParticipantOutcome.PENDING:
                is_deferred = name in deferred and outcome is ParticipantOutcome.COMMITTED
                self.note_done(gtrid, decision, name, is_deferred)
        return noted

    def note_done(self, gtrid: bytes, decision: Outcome, name: str, is_deferred: bool) -> None:
        """That participant has done what was decided. is_deferred: and has not hardened that."""
        if is_deferred:
            self.log.committed_deferred(gtrid, name)
            if name not in self._deferred:  # else it is hardened behind this, by who takes them
                with self._mutex:
                    self._deferred.add(name)
        elif self.log.acknowledged(gtrid, name):
            with self._mutex:
                self._remember(gtrid, decision)
            self.step(TraceStep.DONE, gtrid, "")

    def outcome(self, gtrid: bytes) -> Outcome:
        """UNKNOWN: of somebody else, or finished too long ago; live ones are IN_DOUBT."""
        decided = self.log.decision_on(gtrid)
        with self._mutex:
            if gtrid in self._live or gtrid in self._undecided:
                return decided or Outcome.IN_DOUBT
            return decided or self._finished.get(gtrid, Outcome.UNKNOWN)

    # Decisions that stand in a participant's database

    def make_ready(self, name: str) -> None:
        """From here on this participant's database may decide. Raises what the driver raises, DecisionLogError."""
        if name not in self.ready:
            with self.sources[name].opened() as connection:
                self._make_ready(name, connection)

    def _make_ready(self, name: str, connection: Any) -> None:
        self.check_database(name, connection)
        self.loop.in_thread(partial(self.log.note_last, name))
        self.ready.add(name)

    def make_ready_ahead(self, name: str) -> None:
        """Of one that is pooled. What fails is tried again, and raised, where the database is to decide."""
        with suppress(Exception), self.sources[name].opened() as connection:
            connection.rollback()  # it borrows with its first call: where the database is away, the next one tries
            try:
                self._make_ready(name, connection)
            finally:
                self.pooled.discard(name)

    def check_database(self, name: str, connection: Any) -> None:
        """It is the one that has this log's decisions, if there are any. Raises what ``make_ready`` there raises."""
        self.log.rows.make_ready(connection, self.log.node, is_known=name in self.log.table.lasts)

    def join_loop(self) -> None:
        """Async participants live in the caller's event loop. Raises InterfaceError where they do in another one."""
        if self.loop.join():
            self._lose_loop()
            self.wake(self.sources)

    def _lose_loop(self) -> None:
        """What lived in an event loop that is closed now is over."""
        for source in self.sources.values():
            source.drop_idle()
        for transaction in self.live():
            transaction.lose_loop()

    def expect_row(self, gtrid: bytes, name: str, participants: Sequence[str]) -> None:
        """That participant is about to decide for these."""
        with self._mutex:
            self._undecided[gtrid] = Undecided({name}, set(participants), self.log.now_us())

    def is_undecided(self, gtrid: bytes) -> bool:
        """Whether a participant's database has to be asked."""
        return gtrid in self._undecided

    def take_row(self, row: DecisionRow, name: str) -> None:
        """This is what stands in that participant's database, for good."""
        is_committed = row.outcome is Outcome.COMMITTED
        if is_committed:
            self.deciding.add_row(row)
            self.log.add_row(row.gtrid, row.participants, name, row.spaces)
        else:
            self.deciding.rows.pop(row.gtrid, None)
        undecided = self._undecided.get(row.gtrid)
        if undecided is None:
            return
        with self._mutex:
            undecided.unasked.discard(name)
            if is_committed or not undecided.unasked:
                self._undecided.pop(row.gtrid, None)
                self._remember(row.gtrid, row.outcome)

    def undecided(self, name: str | None = None) -> list[bytes]:
        """Transactions on which a participant's database has to be asked, perhaps this one; no live ones."""
        snapshot = self.snapshot()
        with self._mutex:
            for gtrid in [gtrid for gtrid in self._undecided if self._finished.get(gtrid) is Outcome.COMMITTED]:
                del self._undecided[gtrid]  # who took the row was interrupted
            found = [(gtrid, one) for gtrid, one in self._undecided.items() if name is None or name in one.unasked]
        return [gtrid for gtrid, _ in found if snapshot.is_over(gtrid) and self.log.decision_on(gtrid) is None]

    def take_deferred(self) -> set[str]:
        """Participants that are to harden what they have committed; taken once."""
        with self._mutex:
            deferred, self._deferred = self._deferred, set()
        return deferred

    def _remember(self, gtrid: bytes, outcome: Outcome) -> None:
        finished = self._finished
        finished.pop(gtrid, None)
        finished[gtrid] = outcome
        if len(finished) > FINISHED_LIMIT:
            finished.popitem(last=False)

    # For recovery

    def snapshot(self) -> LogSnapshot:
        """To be taken before a participant is asked for its list."""
        with self._mutex:
            return LogSnapshot(f"{self.log.named}{self._counter:016x}".encode("ascii"), frozenset(self._live))

    def unfinished(self, snapshot: LogSnapshot) -> list[OpenDecision]:
        """Decisions that are open, on transactions that were over."""
        with self.log.lock:
            return [made for gtrid, made in self.log.table.open.items() if snapshot.is_over(gtrid)]

    def outstanding(self, participant: str, snapshot: LogSnapshot) -> dict[bytes, bool]:
        """Decisions that this participant has not acknowledged, and whether it has committed, and not hardened that."""
        return {
            made.gtrid: participant in made.deferred
            for made in self.unfinished(snapshot)
            if participant in made.outstanding
        }

    def action_for(self, gtrid: bytes, participant: str, snapshot: LogSnapshot) -> Outcome | None:
        """What a branch is told that was listed after the snapshot was taken; see ``recovery_action``.

        Once the log has failed, the absence of a decision proves nothing. Nor does it where the decision may stand in a
        participant's database: that is asked first.
        """
        with self.log.lock:
            noted = self.log.table.heuristics.get((gtrid, participant))
            decision = self.log.table.decision_on(gtrid)
            lasts = self.log.table.lasts_of(gtrid)
        if decision is None and lasts and snapshot.is_over(gtrid):
            decision = self._known_or_asked(gtrid, participant, lasts)
        action = recovery_action(snapshot.is_over(gtrid), decision, noted.outcome if noted is not None else None)
        return None if action is Outcome.ROLLED_BACK and self.log.failure is not None else action

    def _known_or_asked(self, gtrid: bytes, participant: str, lasts: set[str]) -> Outcome:
        with self._mutex:
            if gtrid not in self._undecided:
                known = self._finished.get(gtrid)
                if known in (Outcome.COMMITTED, Outcome.ROLLED_BACK):
                    return known
                self._undecided[gtrid] = Undecided(set(lasts), set(), self.log.now_us())
            undecided = self._undecided[gtrid]
            undecided.participants.add(participant)
            asked = sorted(undecided.unasked)
        self.wake(asked)
        return Outcome.IN_DOUBT

    def in_doubt(self) -> list[InDoubtTransaction]:
        """What is not over, without live ones, oldest first."""
        unfinished = [made for made in self.unfinished(self.snapshot()) if made.outstanding != made.deferred]
        undecided = self.undecided()
        with self.log.lock:
            heuristics = list(self.log.table.heuristics.values())
        found = in_doubt_transactions(unfinished, heuristics, self._trouble_of)
        with self._mutex:
            waiting = [(gtrid, one) for gtrid in undecided if (one := self._undecided.get(gtrid))]
        found += [one.as_in_doubt(gtrid, self._trouble_of) for gtrid, one in waiting]
        return sorted(found, key=lambda one: (one.decided_us, one.gtrid))

    def _trouble_of(self, name: str) -> str:
        if name not in self.sources:
            return "no participant of this name is configured: give it to the transaction manager again"
        return self.trouble.get(name, "")
