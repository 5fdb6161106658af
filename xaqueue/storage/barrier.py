"""All hardening goes through one barrier, and concurrent steps share its rounds: group commit.

A step changes the directories under its owner's lock, submits a ticket there, and waits for it outside. The first to
wait leads: it takes every ticket gathered so far, syncs each file and directory once, publishes the tickets in the
order of their submission, and hands the lead to the next group, which gathered meanwhile. One wake-up a waiter.

While a round syncs directories, steps wait at a gate before they change any: a directory that is changed again between
two syncs of a round costs another commit of the file system's journal. The leader lets those who stand at the gate
pass first, so that they are in its round.

Directories that only gain names are synced first and those that only lose them last, so that no crash can lose a
block between two directories. A sync is never tried twice: the first failure ends the barrier for good, because the
kernel reports it once and then forgets it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from xaqueue.errors import ResourceFailed
from xaqueue.storage.flags import Hardening
from xaqueue.storage.fs import FileSystem

PARALLEL_SYNCS = 8
"""Files of one step that are synced at a time; more does not help one disk."""
PASSING_S = 0.01
"""How long a leader waits, at most, for the steps at the gate, which are on their way unless they were interrupted."""


class Ticket:
    """What a step must have hardened before it may be published, and how to publish it."""

    __slots__ = ("_woken", "done", "files", "lead", "publish", "sources", "targets", "waited")

    def __init__(
        self, files: Iterable[str], targets: Iterable[str], sources: Iterable[str], publish: Callable[[], None] | None
    ) -> None:
        self.files = files
        self.targets = targets
        self.sources = sources
        self.publish = publish
        self.done = False
        self.lead = False
        self.waited = False
        """Whether its hardening takes a round, so that the lock is not held when it is published."""
        self._woken: threading.Lock | None = None

    def expect(self) -> None:
        self.waited = True
        self._woken = threading.Lock()
        self._woken.acquire()

    def wake(self) -> None:
        if self._woken is not None:
            with suppress(RuntimeError):  # awake already: handed the lead, or told of a failure, before it slept
                self._woken.release()

    def sleep(self) -> None:
        if self._woken is not None:
            self._woken.acquire()


class Barrier:
    """The one place where syncs are called. ``publish`` is given each hardened group, in order."""

    def __init__(
        self, fs: FileSystem, hardening: Hardening, publish: Callable[[Sequence[Ticket]], None] = lambda _: None
    ) -> None:
        self._fs = fs
        self.hardening = hardening
        self._publish = publish
        self._sync_content = fs.sync_file if hardening.content == "FSYNC" else fs.sync_data
        self._never_syncs = not hardening.content and not hardening.directories
        self._done = Ticket((), (), (), None)
        self._done.done = True
        self._mutex = threading.Lock()
        self._gate = threading.Lock()
        self._passed = threading.Condition(self._mutex)
        self._coming = 0
        """Steps that stand at the gate."""
        self._gathering: list[Ticket] = []
        self._leading = False
        self._pool: ThreadPoolExecutor | None = None
        self.failure: BaseException | None = None
        self.rounds = 0
        self.tickets = 0

    def harden_content(self, paths: Sequence[str]) -> None:
        """Syncs the content of these files, several at a time. Raises ResourceFailed, and from then on always."""
        if not self.hardening.content or not paths:
            return
        self.check()
        try:
            if len(paths) < PARALLEL_SYNCS or not threading.main_thread().is_alive():  # then no pool takes work
                for path in paths:
                    self._sync_content(path)
            else:
                list(self._threads().map(self._sync_content, paths))
        except BaseException as error:
            self.fail(error)
            raise self._failed() from error

    def enter(self) -> None:
        """Before a step changes directories, and before its owner's lock: waits for a round that is syncing them."""
        if not self.hardening.directories:
            return
        with self._mutex:
            self._coming += 1
        try:
            self._gate.acquire()
        finally:
            with self._mutex:
                self._coming -= 1
                if not self._coming:
                    self._passed.notify()

    def leave(self) -> None:
        """The step has changed what it changes, and submitted its ticket."""
        if self.hardening.directories:
            self._gate.release()

    def submit(
        self,
        *,
        files: Iterable[str] = (),
        targets: Iterable[str] = (),
        sources: Iterable[str] = (),
        publish: Callable[[], None] | None = None,
    ) -> Ticket:
        """Queues a step's syncs; called under the owner's lock, whose order is the order of publication.

        files: content changed in place. targets, sources: directories that gained, and that lost, a name. Where the
        flags ask for none of it and nothing is queued before it, the step is published at once.
        """
        if self._never_syncs and self.failure is None:
            self.tickets += 1
            if publish is not None:
                self._publish([Ticket((), (), (), publish)])
            return self._done
        if not self.hardening.content:
            files = ()
        if not self.hardening.directories:
            targets = sources = ()
        ticket = Ticket(files, targets, sources, publish)
        with self._mutex:
            if self.failure is not None:
                raise self._failed()
            self.tickets += 1
            if files or targets or sources or self._gathering or self._leading:
                ticket.expect()
                self._gathering.append(ticket)
                return ticket
        self._publish([ticket])
        ticket.done = True
        return ticket

    def wait(self, ticket: Ticket) -> None:
        """Returns once the ticket's step is hardened and published. Raises ResourceFailed when that failed."""
        if ticket.done:
            return
        with self._mutex:
            if not self._leading and self.failure is None and not ticket.done:
                ticket.lead = self._leading = True
        try:
            if not ticket.lead:
                ticket.sleep()
            if ticket.lead and not ticket.done:
                self._lead()
        except (
            BaseException
        ) as error:  # interrupted: whoever hands it the lead, or awaits its round, would wait for ever
            self.fail(error)
            raise
        if not ticket.done:
            raise self._failed() from self.failure

    def check(self) -> None:
        """ResourceFailed once anything has failed."""
        if self.failure is not None:
            raise self._failed()

    def fail(self, error: BaseException) -> None:
        """Fences: nothing is acknowledged any more, and whoever waits is told."""
        with self._mutex:
            if self.failure is None:
                self.failure = error
            waiting, self._gathering = self._gathering, []
        for ticket in waiting:
            ticket.wake()

    def abandon(self, error: BaseException) -> None:
        """In a forked child: fails without taking locks that a thread of the parent may have held."""
        self._mutex = threading.Lock()
        self._gate = threading.Lock()
        self._passed = threading.Condition(self._mutex)
        self._gathering = []
        self._pool = None
        self.failure = error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _lead(self) -> None:
        with self._mutex:
            self._passed.wait_for(lambda: not self._coming, PASSING_S)
        with self._gate:
            self._perform_round()

    def _perform_round(self) -> None:
        with self._mutex:
            group, self._gathering = self._gathering, []
        try:
            self.check()
            self._sync(group)
            self._publish(group)
        except BaseException as error:
            self.fail(error)
            for ticket in group:
                ticket.wake()
            raise self._failed() from error
        self.rounds += 1
        with self._mutex:
            for ticket in group:
                ticket.done = True
            self._leading = bool(self._gathering) and self.failure is None
            if self._leading:
                self._gathering[0].lead = True
                self._gathering[0].wake()
        for ticket in group:
            ticket.wake()

    def _sync(self, group: Sequence[Ticket]) -> None:
        for path in dict.fromkeys(path for ticket in group for path in ticket.files):
            self._sync_content(path)
        targets = dict.fromkeys(path for ticket in group for path in ticket.targets)
        sources = dict.fromkeys(path for ticket in group for path in ticket.sources)
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
        return ResourceFailed(
            f"the space is fenced: hardening failed with {self.failure!r}. What was being committed is uncertain; "
            "close the space, look at the disk, and open it again: recovery re-reads it"
        )
