"""Group commit: concurrent steps share the rounds in which they are hardened.

A step is two calls. *plan* computes what is done, *publish* makes it visible; both run with the owner's lock held, and
between them the step is made durable with no lock held. The first thread to come leads a round: it takes every step
gathered so far, plans them, hardens them together, publishes them in that order, and goes on with those that gathered
meanwhile. One wake-up a waiter. How a round is hardened is the business of whoever derives from ``GroupCommit``.

A sync is never tried twice: the first failure ends group commit for good (a fence), because the kernel reports it once
and then forgets it. It is logged once, CRITICAL, by whoever ends it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import get_ident
from typing import Any, NoReturn, Protocol, cast

from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.core.storage.journal import Journal
from xaqueue.core.storage.journal_format import TIME, Entry
from xaqueue.core.storage.scheduling import THREADS, Threads, Waiter
from xaqueue.errors import Error, OutcomeUnknown, ResourceFailed, RetryLater

ROUNDS_A_LEADER = 8
"""So many rounds in a row are led by one thread, whose own step was in the first."""
MOST_DEFERRED = 1024
"""Steps that wait for the next round, at most: the next one makes a round."""

log = logging.getLogger("xaqueue")

Plan = Callable[[], Any] | Any
"""What is done, in the terms of whoever hardens it, or a call that returns it. What that raises of Error concerns this
step alone."""
Publish = Callable[[], None]


def nothing() -> None:
    """The publish of a step that shows nothing."""


class Owner(Protocol):
    """Who has the directory in which steps are hardened."""

    def lost(self) -> str:
        """Why this process has it no more, where it has not. Asked behind the syncs of every round and before its
        answers: nobody else may ever read what was hardened by then."""

    def check_owner(self) -> None:
        """Raises what ``lost`` says."""


class Unacknowledged(OutcomeUnknown, ResourceFailed):
    """A round is hardened here, and not where it is to be as well."""


class Step:
    """What waits for a round, or is in one."""

    plan: Plan
    publish: Publish
    planned: Any = None
    error: Error | None = None
    done = False
    round: list[Step] | None = None
    """The one that it is to lead, itself the first in it."""
    waiter: Waiter | None = None

    def wake(self) -> None:
        if self.waiter is not None:
            with suppress(RuntimeError):  # awake already: handed the lead, or told of a failure, before it slept
                self.waiter.release()

    def sleep(self) -> None:
        if self.waiter is not None:
            self.waiter.acquire()


class GroupCommit:
    """Gathers steps, and ends for good with the first failure. Safe for threads."""

    defers = False
    """Whether a step may be performed late though its caller does not say so; ``_is_late`` then decides."""
    deferred: Sequence[Step] = ()
    """Published, and not hardened: their records go before all others of the next round, or of this one."""

    def __init__(
        self,
        lock: threading.Lock,
        owner: Owner,
        *,
        waiting: Threads = THREADS,
        name: str = "the space",
    ) -> None:
        """lock: the owner's, held while steps are planned and published."""
        self._name = name
        self._lock = lock
        self._lost = owner.lost
        self._check_owner = owner.check_owner
        self._waiting = waiting
        self._run_rounds = self._lead if waiting is THREADS else self._lead_late
        self._mutex = threading.Lock()
        self._gathering: list[Step] = []
        self._leading = False
        self._finished: Sequence[Step] = ()
        """Those of the last round, not woken yet."""
        self._in_hand: Sequence[Step] = ()
        self.interrupts: dict[int, BaseException] = {}
        """What came while a thread waited for its round, by thread: for ``deliver_interrupt``."""
        self.failure: BaseException | None = None
        self.fenced = False
        """Whether it was a failure that ended it."""
        self._when_fenced: list[Callable[[], object]] = []
        self.rounds = 0
        self.steps = 0

    def perform(self, plan: Plan, publish: Publish = nothing, of: Any = None, *, late: bool = False) -> Any:
        """Returns what plan came to, once the step is hardened and published, in the order of the rounds; of: whose.

        Raises what plan raises of Error, RetryLater where there was no room, and ResourceFailed for all else.
        """
        if (late or self.defers) and self._is_late(of, late):
            return self.perform_late(plan, publish, of)
        step = Step()
        step.plan, step.publish = plan, publish
        try:
            with self._mutex:
                if self.failure is not None:
                    raise self._failed()  # noqa: TRY301
                if self._leading:
                    step.waiter = self._waiting.waiter()
                    self._gathering.append(step)
                else:
                    self._leading = True
                    step.round = [step]
            if step.waiter is not None:
                self._sleep(step)
            if step.round is not None:
                self._run_rounds(step.round)
        except BaseException as error:
            self._break_off(step, error)
        if step.error is not None:
            raise step.error
        if not step.done:
            raise self._failed() from self.failure
        return step.planned

    def perform_late(self, plan: Plan, publish: Publish = nothing, of: Any = None, *, is_limited: bool = True) -> Any:
        """As ``perform``, where nothing is published before it is hardened."""
        return self.perform(plan, publish)

    def _is_late(self, of: Any, late: bool) -> bool:
        return False

    def gather(self, step: Step) -> None:
        """The first half of ``perform``, for who does not wait here: the step is in the next round, which is the
        caller's to begin where it has a ``round`` by then. Its waiter is released once it is done, or has failed, or
        leads. Raises ResourceFailed."""
        with self._mutex:
            if self.failure is not None:
                raise self._failed()
            if not self._leading:
                step.round, self._leading = [step], True
            else:
                self._gathering.append(step)

    def run_rounds(self, step: Step) -> None:
        """For this one, which leads a round of all that gathered by now. Raises ResourceFailed, and then everybody was
        told."""
        assert step.round is not None
        self._lead_all(step.round)

    def _harden(self, group: Sequence[Step]) -> None:
        """Plans, hardens and publishes the steps of a round; what concerns one alone becomes its ``error``.

        Calls ``wake_finished`` before it syncs: until then those of the last round would only be in its way, since one
        thread at a time runs, and afterwards they work while the disk does.
        """
        raise NotImplementedError

    def _break_off(self, step: Step, error: BaseException) -> None:
        """It was interrupted, or its round failed: whoever hands it the lead, or waits for it, would wait for ever.

        Raises the error, unless the step was over before.
        """
        if step.round is None and step.waiter is None:
            raise error  # it never gathered
        if step.done and step.round is None and not isinstance(error, Exception):
            self.interrupts[get_ident()] = error
            return
        if self.failure is None:
            self.fail(error)
        if step.round is not None:
            for waiting in (*self._in_hand, *self._finished):
                waiting.wake()
        if isinstance(step.error, Unacknowledged) and isinstance(error, ResourceFailed):
            return  # it says more
        if not step.done or not isinstance(error, ResourceFailed):  # a later round may fail: this one did not
            raise error

    def _sleep(self, step: Step) -> None:
        """Until the step is done or leads. An interrupt waits with it: nobody knows yet what becomes of the step, and
        others are in its round. A second one does not wait, and fences.
        """
        try:
            step.sleep()
        except BaseException as error:
            self.interrupts[get_ident()] = error
            if not (step.done or step.round or step.error is not None or self.failure is not None):  # woken already
                step.sleep()

    def deliver_interrupt(self) -> None:
        """Raises what interrupted this thread while it waited; called where all is noted that its steps have done."""
        if self.interrupts:
            error = self.interrupts.pop(get_ident(), None)
            if error is not None:
                raise error

    # Failure

    def check(self) -> None:
        """ResourceFailed once anything has failed."""
        if self.failure is not None:
            raise self._failed()

    def fail(self, error: BaseException) -> None:
        """Fences: nothing is acknowledged any more, and whoever waits is woken. The first failure is logged."""
        if self._end(error, failed=True):
            log.critical("[fenced] %s", error if isinstance(error, Error) else f"{self._name} is fenced: {error!r}")
            with self._mutex:
                waiting, self._when_fenced = self._when_fenced, []
            for call in waiting:
                call()

    @contextmanager
    def _fencing(self) -> Iterator[None]:
        """What fails in it, or interrupts it, ends everything."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise self._failed() from error

    def when_fenced(self, call: Callable[[], object]) -> None:
        """Has this called once it is fenced, by whichever thread does so; at once where it is."""
        with self._mutex:
            if not self.fenced:
                self._when_fenced.append(call)
                return
        call()

    def end(self, reason: BaseException) -> None:
        """It is used no more, and this is why: closed, or for reading only. Whoever waits is woken."""
        self._end(reason, failed=False)

    def _end(self, reason: BaseException, *, failed: bool) -> bool:
        """Returns whether it was in use until now."""
        with self._mutex:
            is_first = self.failure is None
            if is_first:
                self.failure, self.fenced = reason, failed
            waiting, self._gathering = [*self._gathering, *self._in_hand], []
        for step in waiting:
            step.wake()
        return is_first

    def close(self) -> None:
        """It is ended, and what it holds beside the journal or the directories is let go."""

    def abandon(self, error: BaseException) -> None:
        """In a forked child: fails without taking locks that a thread of the parent may have held."""
        self._mutex = threading.Lock()
        self._gathering = []
        self.failure = error

    def _failed(self) -> ResourceFailed:
        if isinstance(self.failure, ResourceFailed):
            return ResourceFailed(str(self.failure))
        return ResourceFailed(
            f"the space is fenced: hardening failed with {self.failure!r}. What was being committed is uncertain; "
            "close the space, look at the disk, and open it again: recovery re-reads it"
        )

    # Rounds

    def _lead_late(self, group: list[Step]) -> None:
        """Where those who call share one thread: to hand the lead on costs little, and each has its answer at once."""
        self._waiting.yield_once()
        self._lead_all(group)

    def _lead_all(self, group: list[Step]) -> None:
        """One round of these and of all that gathered by now."""
        with self._mutex:
            self._in_hand = group = [*group, *self._gathering]
            self._gathering = []
        self._lead(group, 1)

    def _lead(self, group: list[Step], left: int = 0) -> None:
        """Performs this round, and more as long as steps gather, and then hands the lead on with the next one."""
        left = left or ROUNDS_A_LEADER
        while left:
            left -= 1
            try:
                if self.failure is not None:
                    raise self._failed()  # noqa: TRY301
                self._harden(group)
            except BaseException as error:
                self._end_round(group, error)
            self.rounds += 1
            self.steps += len(group)
            for step in group:
                step.done = True
            if group[-1].waiter is not None:  # else its leader was alone in it
                self._finished = group
            with self._mutex:
                if not self._gathering:
                    if self._finished:
                        self.wake_finished()
                    self._leading = False
                    return
                self._in_hand = group = self._gathering
                self._gathering = []
        self.wake_finished()
        group[0].round = group
        group[0].wake()

    def _end_round(self, group: Sequence[Step], error: BaseException) -> NoReturn:
        """It failed: nothing is acknowledged any more."""
        self.fail(error)
        for step in group:
            step.wake()
        self.wake_finished()
        if not isinstance(error, Exception):
            raise error  # who is interrupted wants to hear of that
        raise self._failed() from error

    def wake_finished(self) -> None:
        """Those of the last round go on; called by the leader."""
        for step in self._finished:
            step.wake()
        self._finished = ()


class Shipping(Protocol):
    """Somebody else follows the journal."""

    def written(self, lsn: int) -> None:
        """A round is written, up to this LSN, and about to be synced."""

    def hardened(self, lsn: int, shows: bool) -> None:
        """A round is synced, up to this LSN. shows: whether anything is to be seen behind it. May wait, and raise
        Unacknowledged."""


class JournalCommit(GroupCommit):
    """Hardens a round by one write of its records to a journal and one sync. A plan returns its record, or None."""

    _entry_of: Callable[[Any], Entry] = staticmethod(partial(cast, Entry))
    """The record of what a plan came to."""

    def __init__(
        self,
        lock: threading.Lock,
        journal: Journal,
        owner: Owner,
        *,
        waiting: Threads = THREADS,
        relieve: Callable[[int], None] = lambda _: None,
        name: str = "the space",
    ) -> None:
        """relieve: makes room in the journal, of whose records those below this LSN are done with; called by the
        leader."""
        super().__init__(lock, owner, waiting=waiting, name=name)
        self.journal = journal
        journal.waiting = waiting
        self._relieve = relieve
        self._shipping: Shipping | None = None
        """To whom each round is told."""
        self._written: Callable[[int], None] | None = None
        """Its call, between the write of a round and its sync."""
        self.deferred: list[Step] = []

    def perform_late(self, plan: Plan, publish: Publish = nothing, of: Any = None, *, is_limited: bool = True) -> Any:
        """As ``perform``, but the step is published at once, and its record comes with the next round; is_limited:
        not where too many are deferred already.

        A crash before that undoes it, and what followed from it: that is recorded behind it.
        """
        if is_limited and len(self.deferred) >= MOST_DEFERRED:
            return self.perform(plan, publish)
        step = Step()
        step.done, step.publish = True, nothing
        while True:
            with self._lock:
                self.check()
                if not self._is_amid(of):
                    step.plan = step.planned = plan() if callable(plan) else plan
                    publish()
                    self.deferred.append(step)
                    self._defers(step.planned)
                    return step.planned
            self.perform(lambda: None)  # the round is over then

    def _is_amid(self, of: Any) -> bool:
        """Whether the round that is under way has to be over before a step of this is planned: what is planned in it
        may come to nothing. Called with the lock held."""
        return False

    def _defers(self, planned: Any) -> None:
        """A step is published, and not hardened yet. Called with the lock held."""

    def ship(self, shipping: Shipping) -> None:
        """From here on."""
        self._shipping, self._written = shipping, shipping.written

    def harden_late(self) -> None:
        """Returns once all is hardened that was published late. Raises RetryLater where there is no room."""
        with self._lock:
            last = self.deferred[-1] if self.deferred else None
        self.perform(lambda: None)  # also waits for a round that is under way
        if last is not None and last in self.deferred:
            raise RetryLater("no room in the journal: free some and try again")

    def _harden(self, group: Sequence[Step]) -> None:
        records: list[Entry] = []
        deferred = 0
        with self._lock:
            if self.deferred:
                deferred, group = len(self.deferred), [*self.deferred, *group]
            for step in group:
                plan = step.plan
                try:
                    step.planned = planned = plan() if callable(plan) else plan
                except Error as error:
                    step.error = error
                    continue
                if planned is not None:
                    records.append(self._entry_of(planned))
        if self._finished:
            self.wake_finished()
        begin = self.journal.position
        while records:
            try:
                del records[: self.journal.write(records, self._written)]
            except OSError as error:
                self._make_room(error, begin, records, group)
                begin = 0  # once a round
        if self._shipping is not None and (recorded := _recorded(group)):
            self._ship(self._shipping, recorded)
        if self.failure is not None:
            raise self._failed()  # it may have hung until somebody fenced the space, and those who waited were told
        if self._lost():
            self._check_owner()
        with self._lock:
            if deferred:
                group = [*self._end_deferred(deferred), *group[deferred:]]
            self._publish(group)

    def _make_room(self, error: OSError, begin: int, left: list[Entry], group: Sequence[Step]) -> None:
        """For the records that are left, below where this round began; without that number their steps fail alone."""
        if error.errno not in NO_ROOM:
            raise error
        if begin:
            self._waiting.run(partial(self._relieve, begin))
            return
        for step in _recorded(group)[-len(left) :]:
            step.error = RetryLater(f"no room in the journal ({error.strerror}): free some and try again")
        left.clear()

    def _ship(self, shipping: Shipping, steps: Sequence[Step]) -> None:
        try:
            shipping.hardened(self.journal.position, any(step.planned.kind < TIME for step in steps))
        except Unacknowledged as unknown:
            for step in steps:
                step.error = Unacknowledged(str(unknown))
            raise

    def _end_deferred(self, count: int) -> list[Step]:
        """Of the first of them those that are recorded; for the others there was no room: they stay deferred. Called
        with the lock held."""
        deferred = self.deferred[:count]
        recorded = [step for step in deferred if step.error is None]
        for step in deferred:
            step.error = None
        del self.deferred[: len(recorded)]
        return recorded

    def _publish(self, group: Sequence[Step]) -> None:
        """Called with the lock held."""
        for step in group:
            if step.error is None:
                step.publish()


def _recorded(group: Sequence[Step]) -> list[Step]:
    """Those that have a record."""
    return [step for step in group if step.error is None and step.planned is not None]
