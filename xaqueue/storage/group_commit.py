"""All hardening goes through one barrier, and concurrent steps share its rounds: group commit.

A step is handed to the barrier as what it does. The first to come leads a round: it takes every step gathered so far,
applies each under the owner's lock, syncs each file and directory once, publishes the steps in their order, and goes
on with those that gathered meanwhile. One wake-up a waiter, and no lock is held while it syncs.

With a journal, a step that has an entry is first recorded, and applied only once its record is hardened: what is seen
in the directories can then always be done again.

Directories that only gain names are synced first and those that only lose them last, so that no crash can lose a
block between two directories. A sync is never tried twice: the first failure ends the barrier for good, because the
kernel reports it once and then forgets it. It is logged once, CRITICAL, by whoever ends it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident

from xaqueue.errors import Error, ResourceFailed, RetryLater
from xaqueue.storage.fs import NO_ROOM, FileSystem
from xaqueue.storage.hardening import Hardening
from xaqueue.storage.journal import Journal
from xaqueue.storage.journal_format import Entry
from xaqueue.storage.scheduling import THREADS, Threads, Waiter

PARALLEL_SYNCS = 8
"""Files of one step that are synced at a time; more does not help one disk."""
ROUNDS_A_LEADER = 8
"""So many rounds in a row are led by one thread, whose own step was in the first."""

log = logging.getLogger("xaqueue")


@dataclass(slots=True)
class Touched:
    """What a step changed and must have synced before it is published.

    files: content changed in place. targets, sources: directories that gained, and that lost, a name.
    """

    files: dict[str, None] = field(default_factory=dict)
    targets: dict[str, None] = field(default_factory=dict)
    sources: dict[str, None] = field(default_factory=dict)


def touched(targets: Iterable[str] = (), sources: Iterable[str] = ()) -> Touched:
    return Touched(targets=dict.fromkeys(targets), sources=dict.fromkeys(sources))


Apply = Callable[[], Touched]
"""Changes the directories, with the owner's lock held. What it raises of Error concerns this step alone."""


class Step:
    """What waits for a round, or is in one."""

    __slots__ = ("_woken", "apply", "done", "entry", "error", "lead", "publish", "record", "touched")

    def __init__(
        self, apply: Apply, entry: Callable[[], Entry | None] | None, publish: Callable[[], None] | None
    ) -> None:
        self.apply = apply
        self.entry = entry
        self.publish = publish
        self.record: Entry | None = None
        self.touched: Touched | None = None
        self.error: Error | None = None
        self.done = False
        self.lead = False
        self._woken: Waiter | None = None

    def expect(self, waiter: Waiter) -> None:
        self._woken = waiter

    def wake(self) -> None:
        if self._woken is not None:
            with suppress(RuntimeError):  # awake already: handed the lead, or told of a failure, before it slept
                self._woken.release()

    def sleep(self) -> None:
        if self._woken is not None:
            self._woken.acquire()


class Barrier:
    """The one place where syncs are called. ``published`` is called behind each group, with the lock held."""

    def __init__(
        self,
        fs: FileSystem,
        hardening: Hardening,
        lock: threading.Lock,
        published: Callable[[], None] = lambda: None,
        waiting: Threads = THREADS,
        name: str = "the space",
    ) -> None:
        self.hardening = hardening
        self._name = name
        self._lock = lock
        self._published = published
        self._waiting = waiting
        self.journal: Journal | None = None
        """Where steps are recorded; None until it is ready, and at every other level."""
        self.relieve: Callable[[int], None] = lambda _: None
        """Makes room in the journal, of whose records those below this LSN are applied; called by the leader."""
        self.check_owner: Callable[[], None] = lambda: None
        """Called behind the syncs of every round and before its answers: raises where this process is not the owner of
        the directory any more. What was hardened is uncertain then, since nobody else may ever read it."""
        self.use(fs)
        self._never_syncs = not hardening.content and not hardening.directories
        self._mutex = threading.Lock()
        self._gathering: list[Step] = []
        self._leading = False
        self._finished: list[Step] = []
        """Those of the last round, not woken yet."""
        self._in_hand: list[Step] = []
        self._interrupts: dict[int, BaseException] = {}
        """By thread."""
        self._pool: ThreadPoolExecutor | None = None
        self.failure: BaseException | None = None
        self.fenced = False
        """Whether it was a failure that ended it."""
        self._when_fenced: list[Callable[[], object]] = []
        self.rounds = 0
        self.steps = 0

    def use(self, fs: FileSystem) -> None:
        """From here on, files and directories are synced through this port."""
        self._fs = fs
        self._sync_content = fs.sync_file if self.hardening.content == "FSYNC" else fs.sync_data

    def harden_content(self, paths: Sequence[str]) -> None:
        """Syncs the content of these files, several at a time. Raises ResourceFailed, and from then on always.

        RetryLater: there is no room for them, and nothing has failed.
        """
        if self.hardening.content and paths:
            self.check()
            self._waiting.run(partial(self._harden_content, paths))

    def _harden_content(self, paths: Sequence[str]) -> None:
        try:
            if len(paths) < PARALLEL_SYNCS or not threading.main_thread().is_alive():  # then no pool takes work
                for path in paths:
                    self._sync_content(path)
            else:
                list(self._threads().map(self._sync_content, paths))
        except RetryLater:
            raise
        except BaseException as error:
            self.fail(error)
            raise self._failed() from error

    def perform(
        self,
        apply: Apply,
        *,
        entry: Callable[[], Entry | None] | None = None,
        publish: Callable[[], None] | None = None,
    ) -> None:
        """Returns once the step is applied, hardened and published, in that order or as its entry asks for.

        All three are called with the lock held. entry: what the journal records of the step, before it is applied; at
        a level without journal it is not called. Raises what they raise of Error, and ResourceFailed for all else.
        """
        if self._never_syncs:
            self._perform_alone(apply, publish)
            return
        step = Step(apply, entry, publish)
        with self._mutex:
            if self.failure is not None:
                raise self._failed()
            if self._leading:
                step.expect(self._waiting.waiter())
            else:
                step.lead = self._leading = True
            self._gathering.append(step)
        try:
            self._sleep(step)
            if step.lead and not step.done:
                self._waiting.yield_once()
                self._waiting.run_rounds(self._lead)
        except BaseException as error:
            self._break_off(step, error)
        if step.error is not None:
            raise step.error
        if not step.done:
            raise self._failed() from self.failure

    def _break_off(self, step: Step, error: BaseException) -> None:
        """It was interrupted, or its round failed: whoever hands it the lead, or waits for it, would wait for ever.

        Raises the error, unless the step was over before.
        """
        if step.done and not step.lead and not isinstance(error, Exception):
            self._interrupts[get_ident()] = error
            return
        if self.failure is None:
            self.fail(error)
        if step.lead:
            for waiting in (*self._in_hand, *self._finished):
                waiting.wake()
        if not step.done or not isinstance(error, ResourceFailed):  # a later round may fail: this one did not
            raise error

    def _sleep(self, step: Step) -> None:
        """Until the step is done or leads. An interrupt waits with it: nobody knows yet what becomes of the step, and
        others are in its round. A second one does not wait, and fences.
        """
        try:
            step.sleep()
        except BaseException as error:
            self._interrupts[get_ident()] = error
            if not (step.done or step.lead or step.error is not None or self.failure is not None):  # woken already
                step.sleep()

    def deliver_interrupt(self) -> None:
        """Raises what interrupted this thread while it waited; called where all is noted that its steps have done."""
        if self._interrupts:
            error = self._interrupts.pop(get_ident(), None)
            if error is not None:
                raise error

    def check(self) -> None:
        """ResourceFailed once anything has failed."""
        if self.failure is not None:
            raise self._failed()

    def fail(self, error: BaseException) -> None:
        """Fences: nothing is acknowledged any more, and whoever waits is told. The first failure is logged."""
        if self._end(error, failed=True):
            log.critical("%s", error if isinstance(error, Error) else f"{self._name} is fenced: {error!r}")
            with self._mutex:
                waiting, self._when_fenced = self._when_fenced, []
            for told in waiting:
                told()

    def when_fenced(self, told: Callable[[], object]) -> None:
        """Has this called once it is fenced, by whichever thread does so; at once where it is."""
        with self._mutex:
            if not self.fenced:
                self._when_fenced.append(told)
                return
        told()

    def end(self, reason: BaseException) -> None:
        """It is used no more, and this is why: closed, or for reading only. Whoever waits is told."""
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

    def abandon(self, error: BaseException) -> None:
        """In a forked child: fails without taking locks that a thread of the parent may have held."""
        self._mutex = threading.Lock()
        self._gathering = []
        self._pool = None
        self.failure = error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _perform_alone(self, apply: Apply, publish: Callable[[], None] | None) -> None:
        """Nothing is ever synced: the caller does it itself, and nobody waits for anybody."""
        with self._lock:
            self.check()
            self.steps += 1
            try:
                apply()
                self.check_owner()
                if publish is not None:
                    publish()
                self._published()
            except Error:
                raise
            except BaseException as error:
                self.fail(error)
                raise self._failed() from error

    def _lead(self) -> None:
        """Performs rounds as long as steps gather, and then hands the lead on.

        Those whose round is over are woken when the next one is about to sync: until then they would only be in its
        way, since one thread at a time runs, and afterwards they work while the disk does.
        """
        for _ in range(ROUNDS_A_LEADER):
            with self._mutex:
                group = self._in_hand = self._gathering
                self._gathering = []
                if not group:
                    self.wake_finished()
                    self._leading = False
                    return
            self._perform_round(group)
        with self._mutex:
            self.wake_finished()
            self._leading = bool(self._gathering)
            if self._leading:
                self._gathering[0].lead = True
                self._gathering[0].wake()

    def _perform_round(self, group: list[Step]) -> None:
        try:
            self.check()
            self._harden(group)
        except BaseException as error:
            self.fail(error)
            for step in group:
                step.wake()
            self.wake_finished()
            if not isinstance(error, Exception):
                raise  # who is interrupted wants to hear of that
            raise self._failed() from error
        self.rounds += 1
        self.steps += len(group)
        self.wake_finished()  # where it had nothing to sync
        for step in group:
            step.done = True
        self._finished = group

    def wake_finished(self) -> None:
        """Those of the last round go on; called by the leader."""
        for step in self._finished:
            step.wake()
        self._finished = []

    def _harden(self, group: Sequence[Step]) -> None:
        recorded: list[Step] = []
        with self._lock:
            for step in group:
                self._begin(step, recorded)
        if recorded:
            self._record(recorded)
        if len(recorded) < len(group):
            self._sync_all([step for step in group if step.touched is not None])
        self.check()  # it may have hung until somebody fenced the space, and those who waited were told
        self.check_owner()
        with self._lock:
            for step in recorded:
                if step.error is None:
                    self._apply(step)
            for step in group:
                if step.error is None and step.publish is not None:
                    step.publish()
            self._published()

    def _begin(self, step: Step, recorded: list[Step]) -> None:
        """Records the step where it has an entry, and applies it where it has none."""
        try:
            if self.journal is not None and step.entry is not None:
                step.record = step.entry()
                if step.record is not None:
                    recorded.append(step)
                    return
            step.touched = self._apply(step)
        except Error as error:
            step.error = error

    def _apply(self, step: Step) -> Touched | None:
        try:
            return step.apply()
        except Error as error:
            step.error = error
            return None

    def _record(self, steps: Sequence[Step]) -> None:
        """Hardens the records; those for which there is no room fail alone."""
        assert self.journal is not None
        records = [step.record for step in steps if step.record is not None]
        relieved, begin = False, self.journal.position
        while records:
            try:
                records = records[self.journal.write(records) :]
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                if relieved:
                    for step in steps[-len(records) :]:
                        step.error = RetryLater(f"no room in the journal ({error.strerror}): free some and try again")
                    return
                relieved = True
                self.relieve(begin)

    def _sync_all(self, steps: Sequence[Step]) -> None:
        try:
            self._sync([step.touched for step in steps if step.touched is not None])
        except RetryLater as full:
            for step in steps:
                step.error = full

    def _sync(self, changes: Sequence[Touched]) -> None:
        self.wake_finished()
        if self.hardening.content:
            for path in dict.fromkeys(path for change in changes for path in change.files):
                self._sync_content(path)
        if not self.hardening.directories:
            return
        targets = dict.fromkeys(path for change in changes for path in change.targets)
        sources = dict.fromkeys(path for change in changes for path in change.sources)
        gaining = [path for path in targets if path not in sources]
        both = [path for path in targets if path in sources]
        losing = [path for path in sources if path not in targets]
        for path in (*gaining, *both, *losing):
            self._fs.sync_dir(path)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(PARALLEL_SYNCS, thread_name_prefix="xaqueue-sync")
        return self._pool

    def _failed(self) -> ResourceFailed:
        if isinstance(self.failure, ResourceFailed):
            return ResourceFailed(str(self.failure))
        return ResourceFailed(
            f"the space is fenced: hardening failed with {self.failure!r}. What was being committed is uncertain; "
            "close the space, look at the disk, and open it again: recovery re-reads it"
        )
