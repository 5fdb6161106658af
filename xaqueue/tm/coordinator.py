"""What all transactions of a transaction manager share: the log, the live ones, the participants, and no thread.

A transaction is live from its name until its outcome is settled or handed to recovery. Recovery asks here before it
touches a branch, so that it never meets one that somebody is working on.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xaqueue.errors import DecisionLogError, InterfaceError
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.log import DecisionLog
from xaqueue.tm.participants import Source
from xaqueue.tm.standing import Heuristic, InDoubt, State
from xaqueue.tm.steps import OnStep, Step, unwatched
from xaqueue.tm.voting import Answer, Known, Party
from xaqueue.xa import Outcome

if TYPE_CHECKING:
    from xaqueue.tm.records import Decision
    from xaqueue.tm.transaction import Transaction

FINISHED_LIMIT = 10_000
"""Finished transactions whose outcome is remembered, at most."""
PARALLEL_CALLS = 32
"""Calls of one participant that are made beside those of their transactions' own threads, at most: each may hang."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What was so before a participant was asked for its list."""

    counter: int
    live: frozenset[bytes]
    outstanding: Mapping[bytes, Outcome]
    """Decisions on others that this participant has not acknowledged, and that it can be told."""


class Coordinator:
    """Safe for threads."""

    def __init__(
        self,
        log: DecisionLog,
        sources: Mapping[str, Source],
        last_resource: str | None = None,
        on_step: OnStep | None = None,
    ) -> None:
        self.log = log
        self.sources = sources
        self.last_resource = last_resource
        self.step: OnStep = on_step or unwatched
        self.wake: Callable[[Iterable[str]], None] = lambda _: None
        """Tells recovery that these participants have something to finish."""
        self.has_table = False
        """Whether the last resource is known to have the table of decisions."""
        self.trouble: dict[str, str] = {}
        """Why a participant could not be recovered at last, by name."""
        self._mutex = threading.Lock()
        self._counter = 0
        self._live: dict[bytes, Transaction] = {}
        self._finished: OrderedDict[bytes, Outcome] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._lent: Counter[str] = Counter()
        self._quiet = threading.Condition(self._mutex)
        self._closing = False

    # Live transactions

    def enter(self, transaction: Transaction) -> bytes:
        """Its name; it is live from here on. Raises InterfaceError once closed, DecisionLogError."""
        with self._mutex:
            if self._closing:
                raise InterfaceError("the transaction manager is closed: open it again")
            self.log.check()
            self._counter += 1
            gtrid = bytes(Gtrid(self.log.node, self.log.epoch, self._counter))
            self._live[gtrid] = transaction
            return gtrid

    def leave(self, gtrid: bytes, outcome: Outcome, told_later: Iterable[str]) -> None:
        """It is over for its thread; participants that are to be told later are recovery's from here on."""
        with self._mutex:
            self._live.pop(gtrid, None)
            self._remember(gtrid, outcome)
            self._quiet.notify_all()
        self.wake(told_later)

    def live(self) -> list[Transaction]:
        with self._mutex:
            return list(self._live.values())

    @property
    def is_closing(self) -> bool:
        return self._closing

    def close(self, patience_s: float) -> None:
        """No new transactions; waits for those that are ending, and for no others."""
        with self._mutex:
            self._closing = True
            self._quiet.wait_for(lambda: not any(one.is_ending for one in self._live.values()), patience_s)
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def abandon(self) -> None:
        """In a forked child: nothing goes on here."""
        self._mutex = threading.Lock()
        self._quiet = threading.Condition(self._mutex)
        self._closing = True
        for transaction in self._live.values():
            transaction.abandon()
        self._live = {}
        self._pool = None

    def lend(self, call: Callable[[str], Answer], name: str) -> Future[Answer] | None:
        """Makes the call in another thread; None where none is free, or the end is near: then the caller makes it."""

        def counted() -> Answer:
            try:
                return call(name)
            finally:
                with self._mutex:
                    self._lent[name] -= 1

        with self._mutex:
            if self._closing or self._lent[name] >= PARALLEL_CALLS or not threading.main_thread().is_alive():
                return None
            if self._pool is None:
                self._pool = ThreadPoolExecutor(PARALLEL_CALLS * len(self.sources), thread_name_prefix="xaqueue-tm")
            future = self._pool.submit(counted)
            self._lent[name] += 1
            return future

    # What became of it

    def settle(
        self, gtrid: bytes, outcome: Outcome, parties: Mapping[str, Party], details: Mapping[str, str]
    ) -> list[Heuristic]:
        """Records what these participants did, and that it is done once all have; returns the heuristics.

        details: in the participants' words. Raises DecisionLogError where a heuristic could not be recorded.
        """
        noted = [
            Heuristic(gtrid, name, outcome, party, self.log.now_us(), details.get(name, ""))
            for name, party in parties.items()
            if party.is_heuristic
        ]
        for heuristic in noted:
            self.log.note(heuristic)
        for name, party in parties.items():
            if party is not Party.PENDING and self.log.acknowledged(gtrid, name):
                with self._mutex:
                    self._remember(gtrid, outcome)
                self.step(Step.DONE, gtrid, "")
        return noted

    def outcome(self, gtrid: bytes) -> Outcome:
        """UNKNOWN: of somebody else, or finished too long ago; live ones are IN_DOUBT."""
        with self.log.lock:
            decided = self.log.table.decision_on(gtrid)
        with self._mutex:
            if gtrid in self._live:
                return decided or Outcome.IN_DOUBT
            return decided or self._finished.get(gtrid, Outcome.UNKNOWN)

    def outcome_in_log(self, gtrid: bytes) -> Outcome | None:
        """None without a decision."""
        with self.log.lock:
            return self.log.table.decision_on(gtrid)

    # For recovery

    def mark(self, participant: str) -> Mark:
        """To be taken before the participant is asked for its list."""
        with self._mutex:
            counter, live = self._counter, frozenset(self._live)
        outstanding = {
            made.gtrid: made.outcome
            for made in self._left(counter, live)
            if participant in made.outstanding and made.outcome is not Outcome.IN_DOUBT
        }
        return Mark(counter, live, outstanding)

    def _left(self, counter: int, live: Collection[bytes]) -> list[Decision]:
        """Open decisions on transactions that were over when there were so many, and these were live."""
        newest = bytes(Gtrid(self.log.node, self.log.epoch, counter))
        with self.log.lock:
            return [made for gtrid, made in self.log.table.open.items() if gtrid <= newest and gtrid not in live]

    def known(self, gtrid: Gtrid, participant: str, before: Mark) -> Known:
        """What is known of a branch that was listed after ``before`` was taken."""
        name, own = bytes(gtrid), gtrid.node == self.log.node
        here = gtrid.epoch == self.log.epoch and gtrid.counter <= before.counter and name not in before.live
        with self.log.lock:
            noted = self.log.table.heuristics.get((name, participant))
            decided = self.log.table.decision_on(name)
        over = own and (gtrid.epoch < self.log.epoch or here)
        return Known(own, over, decided, noted.party if noted is not None else None)

    def may_presume(self) -> bool:
        """Whether the absence of a decision proves anything: not once the log has failed."""
        return self.trouble_of_log() is None

    def trouble_of_log(self) -> DecisionLogError | None:
        """Why nothing can be decided."""
        try:
            self.log.check()
        except DecisionLogError as error:
            return error
        return None

    def undecided(self) -> list[bytes]:
        """Transactions whose decision stands in the last resource and was not read yet; no live ones."""
        with self._mutex:
            counter, live = self._counter, frozenset(self._live)
        found = [made for made in self._left(counter, live) if made.outcome is Outcome.IN_DOUBT]
        return [made.gtrid for made in found if made.last == self.last_resource]

    def over(self, gtrids: Iterable[bytes]) -> list[bytes]:
        """Those of these that were named here, are not live and not open."""
        with self._mutex:
            live, counter = set(self._live), self._counter
        with self.log.lock:
            opened = set(self.log.table.open)
        newest = (self.log.epoch, counter)
        named = [(gtrid, Gtrid.parse(gtrid)) for gtrid in gtrids]
        return [
            gtrid
            for gtrid, parsed in named
            if parsed is not None
            and parsed.node == self.log.node
            and (parsed.epoch, parsed.counter) <= newest
            and gtrid not in live
            and gtrid not in opened
        ]

    # Standing

    def in_doubt(self) -> list[InDoubt]:
        """What is not over, without live ones, oldest first."""
        with self._mutex:
            counter, live = self._counter, frozenset(self._live)
        left = self._left(counter, live)
        with self.log.lock:
            heuristics = list(self.log.table.heuristics.values())
        return standing(left, heuristics, self._why)

    def _why(self, name: str) -> str:
        if name not in self.sources:
            return "no participant of this name is configured: give it to the transaction manager again"
        return self.trouble.get(name, "")

    def _remember(self, gtrid: bytes, outcome: Outcome) -> None:
        self._finished[gtrid] = outcome
        self._finished.move_to_end(gtrid)
        while len(self._finished) > FINISHED_LIMIT:
            self._finished.popitem(last=False)


_STATES = {
    Outcome.COMMITTED: State.COMMITTING,
    Outcome.ROLLED_BACK: State.ROLLING_BACK,
    Outcome.IN_DOUBT: State.UNDECIDED,
}


def standing(
    decisions: Iterable[Decision], heuristics: Iterable[Heuristic], why: Callable[[str], str] = lambda _: ""
) -> list[InDoubt]:
    """What a log's table says, for people, oldest first. why: what is the matter with a participant."""
    notes: dict[bytes, list[Heuristic]] = {}
    for noted in heuristics:
        notes.setdefault(noted.gtrid, []).append(noted)
    found = []
    for made in decisions:
        waiting = tuple(sorted(made.outstanding))
        asked = (made.last,) if made.outcome is Outcome.IN_DOUBT and made.last else waiting
        trouble = {name: told for name in asked if (told := why(name))}
        noted_here = tuple(notes.pop(made.gtrid, ()))
        state = _STATES[made.outcome]
        found.append(
            InDoubt(made.gtrid, state, made.participants, waiting, made.when_us, made.last, noted_here, trouble)
        )
    for gtrid, some in notes.items():
        names, since = tuple(noted.participant for noted in some), min(noted.when_us for noted in some)
        found.append(InDoubt(gtrid, State.HEURISTIC, names, (), since, None, tuple(some)))
    return sorted(found, key=lambda one: (one.decided_us, one.gtrid))
