"""The threads of an owner that look after its space: one follows the journal, one makes checkpoints, one ends branches
that are late, and one fences the space where the disk hangs.

Without the first two a space is just as durable, and its journal grows until the space is closed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from xaqueue.core.engine import timeouts
from xaqueue.core.engine.journal_log import LAG_S, RETRY_S, JournalLog
from xaqueue.core.engine.state import Space
from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.errors import Error, ResourceFailed, RetryLater
from xaqueue.features.scrub import scrub
from xaqueue.features.snapshots import store

log = logging.getLogger("xaqueue")

LOOK_S = 1.0
"""How often the checkpointer looks whether there is something to do."""
NEW_FILES = 16 * 1024
"""With more since the last checkpoint, the next one is due."""
WATCH_S = 5.0
"""The watchdog looks at least so often; where the deadline is short, four times within it."""
SWEEP_S = 60.0
"""Between two looks of one thread for what dead queries left."""
RETRY_SNAPSHOT_S = 600.0
"""After a snapshot that could not be taken."""
SCRUB_LOOK_S = 60.0
"""A scrub looks at least so often whether it is due."""
PAUSE = 9
"""Who reads all that is there waits so many times as long as it worked."""
DAY_S = 86_400
LOCK_S = 1.0
"""Who holds the space's lock for longer is the one that hangs."""


class _BackgroundThread:
    """A thread that runs until ``stop``, or until the space fails; it begins behind all that it needs."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"xaqueue-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self._stopped.set()
        self._due.set()
        self._thread.join()


class _ReadingThread(_BackgroundThread):
    """One that reads what the space has, for a tenth of its time."""

    def __init__(self, space: Space, name: str) -> None:
        self._space = space
        self._paused_at = time.monotonic()
        super().__init__(name)

    def _is_over(self) -> bool:
        """Waits, so that others have the disk and the processor meanwhile."""
        is_stopped = self._stopped.wait((time.monotonic() - self._paused_at) * PAUSE)
        self._paused_at = time.monotonic()
        return is_stopped or self._space.closed


class Follower(_BackgroundThread):
    """Has the directories follow the journal, a moment behind it; ``failed`` is called with an error that ends it."""

    def __init__(self, log: JournalLog, failed: Callable[[BaseException], object]) -> None:
        self._log = log
        self._failed = failed
        super().__init__("follow")
        log.notify = self._due.set
        if log.pending:
            self._due.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._due.wait()
            self._due.clear()
            while self._log.pending:
                if self._stopped.wait(LAG_S):
                    return  # who closes the space follows what is left, and who abandons it does not want that
                try:
                    self._log.follow()
                except ResourceFailed:
                    return  # whoever raised it has fenced the space
                except BaseException as error:
                    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
                        self._failed(error)
                        return
                    self._stopped.wait(RETRY_S)


class Checkpointer(_BackgroundThread):
    """Makes one when a segment of the journal is full, when the directories have so many new files that an open after
    a kill would take long to make them anew, and now and then while there is work.
    """

    def __init__(self, space: Space, log: JournalLog) -> None:
        self._space = space
        self._log = log
        self.checkpoints = 0
        self.seconds = 0.0
        """The last checkpoint took so long."""
        super().__init__("checkpoint")
        log.journal.switched = self._due.set

    def _run(self) -> None:
        journal_log, journal = self._log, self._log.journal
        covered, made, last = journal.position, journal_log.made, time.monotonic()
        while True:
            due = self._due.wait(LOOK_S)
            self._due.clear()
            if self._stopped.is_set():
                return
            started = time.monotonic()
            due = due or started > last + self._space.definitions.checkpoint_s or journal_log.made > made + NEW_FILES
            if not due or journal.position == covered:
                continue
            try:
                self._space.checkpoint()
                if self._space.shipping is not None and not self._space.shipping.copying:
                    store.prune_for(self._space.fs, self._space.definitions)
            except ResourceFailed:
                return  # which is logged
            except OSError as error:
                log.warning("[archive-unread] the journal that is kept for replicas is not looked through: %s", error)
            covered, made, last = journal.position, journal_log.made, time.monotonic()
            self.checkpoints += 1
            self.seconds = last - started


class Snapshotter(_ReadingThread):
    """Takes a snapshot when the newest is as old as ``[snapshots] interval_min`` says, and reads it, for a tenth of its
    time; the log has what is damaged there, as ``snapshot list`` does."""

    def __init__(self, space: Space) -> None:
        super().__init__(space, "snapshot")

    def _run(self) -> None:
        while not self._stopped.wait(self._left_s()):
            try:
                taken = self._space.take_snapshot(True)
                self._check(taken.number)
            except ResourceFailed:
                return  # which is logged
            except (Error, OSError) as error:
                log.warning("[snapshot-failed] no snapshot was taken: %s", error)
                if self._stopped.wait(RETRY_SNAPSHOT_S):
                    return

    def _check(self, number: int) -> None:
        self._paused_at = time.monotonic()
        next_at = self._paused_at + self._left_s()

        def pause() -> None:
            if self._is_over() or time.monotonic() > next_at:
                raise RetryLater("the next one is due")

        try:
            problems = store.check(self._space.fs, number, self._space.now_us(), pause)
        except (RetryLater, OSError) as error:
            if not self._is_over():
                log.warning("[snapshot-unread] snapshot %d was not read to its end: %s", number, error)
        else:
            if problems:
                text = "[snapshot-damaged] snapshot %d has %d problems, the first: %s"
                log.error(text, number, len(problems), problems[0])

    def _left_s(self) -> float:
        """Until the next one is due; much of it, since the clock may be set."""
        interval_s = self._space.definitions.snapshots.interval_min * 60
        if not interval_s:
            return threading.TIMEOUT_MAX
        last_us = max((one.taken_at for one in store.listed(self._space.fs)), default=0)
        return max(last_us / 1e6 + interval_s - self._space.now_us() / 1e6, 0.0)


class Scrubber(_ReadingThread):
    """Reads every message once in ``scrub_days``, for a tenth of its time; status and the log have what it found."""

    def __init__(self, space: Space) -> None:
        super().__init__(space, "scrub")

    def _run(self) -> None:
        while not self._stopped.wait(self._wait_s()):
            if self._wait_s():
                continue
            self._paused_at = time.monotonic()
            try:
                scrub.scrub(self._space, self._is_over)
            except ResourceFailed:
                return  # the space says so itself
            except (RetryLater, OSError) as error:
                log.warning("[scrub-broken-off] the scrub was broken off, and begins anew: %s", error)
                self._stopped.wait(SCRUB_LOOK_S)

    def _wait_s(self) -> float:
        """Until the next one, but not longer than what may be changed meanwhile is to wait."""
        days, last = self._space.definitions.scrub_days, scrub.last_scrub(self._space.fs)
        if not days:
            return SCRUB_LOOK_S
        left_s = (last[0] - self._space.now_us()) / 1e6 + days * DAY_S if last is not None else 0
        return min(max(left_s, 0), SCRUB_LOOK_S)


class Timekeeper:
    """Ends branches that are late, in a space that no server looks after; see ``timeouts``.

    Its thread begins with the first branch that may become late, and sleeps until one is.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._stopped = False
        self._due = threading.Event()
        self._thread: threading.Thread | None = None
        with space.lock:  # under which alone the thread begins
            space.has_late = self._wake
            space.look_by(timeouts.next_look(space, time.monotonic(), self._idle_s))

    def stop(self) -> None:
        with self._space.lock:
            self._stopped = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def _idle_s(self) -> float:
        return self._space.definitions.branch_idle_s or float("inf")

    def _wake(self) -> None:
        self._due.set()
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._run, name="xaqueue-timeouts", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        space, swept_at = self._space, float("-inf")
        while not self._stopped:
            self._due.clear()
            try:
                now = time.monotonic()
                timeouts.expire(space, now, self._idle_s, timeouts.LEFT_S)
                if now - swept_at > SWEEP_S:
                    swept_at = now
                    timeouts.sweep(space)
            except ResourceFailed:
                return  # the space says so itself
            now = time.monotonic()
            with space.lock:
                space.looks_at = at = timeouts.next_look(space, now, self._idle_s)
            if at > now:
                self._due.wait(None if at == float("inf") else at - now)


class Watchdog(_BackgroundThread):
    """Sees a write, a rename or a sync take too long, or that another process has taken the space over, and fences the
    space for everybody else. It ends where the space has failed, for whatever reason; ``told`` then hears of it, once.

    Whoever waits for others to harden a step is told at once. The thread that hangs in the kernel is told when its
    call returns, and so is who needs the space's lock meanwhile, where the call is one that is made with it held.
    """

    def __init__(
        self, space: Space, files: OwnerFileSystem, when_failed: Callable[[str], None] = lambda _: None
    ) -> None:
        self._space = space
        self._files = files
        self._when_failed = when_failed
        super().__init__("watchdog")
        space.log.when_fenced(self._due.set)

    def stop(self) -> None:
        """Does not wait: it may itself hang on that disk."""
        self._stopped.set()
        self._due.set()

    def _run(self) -> None:
        space = self._space
        while not self._stopped.is_set():
            self._due.wait(min(WATCH_S, space.definitions.io_deadline_s / 4))
            limit_s = space.definitions.io_deadline_s
            slow = self._files.slow(limit_s)
            if slow and space.failure is None:
                space.fence(TimeoutError(f"{slow}, and io_deadline_s is {limit_s:g}"))
                self._wake()
            if space.failure is None:
                with suppress(ResourceFailed):  # who only waits looks at nothing
                    space.check_owner()
                    if space.journal_log is None and space.counter_file.is_due:
                        space.has_consumed()  # who clears writes the counters, too
                    continue
                self._wake()
            failure = space.failure
            if failure is not None:
                if space.log.fenced:
                    self._when_failed(str(failure) or repr(failure))
                return

    def _wake(self) -> None:
        """Those who wait for a branch or a message look again, and find the space fenced."""
        space = self._space
        if not space.lock.acquire(timeout=LOCK_S):
            return  # the call that hangs holds it
        try:
            space.settled.notify_all()
            for queue in space.queues.values():
                queue.arrived.notify_all()
        finally:
            space.lock.release()
