"""What an owner does in the background: one thread follows the journal, one fences the space where the disk hangs; of
the chores (``chores``) those that are the core's.

Without the follower and checkpoints a space is just as durable, and its journal grows until the space is closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from xaqueue.core.engine import timeouts
from xaqueue.core.engine.journal_log import LAG_S, RETRY_S
from xaqueue.core.engine.log import Log
from xaqueue.core.engine.memory import Wakeable
from xaqueue.core.engine.state import Space
from xaqueue.core.owner.chores import NEVER, Chore, Chores
from xaqueue.core.storage.fs import NO_ROOM
from xaqueue.core.storage.layers import OwnerFileSystem
from xaqueue.errors import ResourceFailed

NO_ROOM_S = 10.0
"""After a checkpoint that found no room."""
WATCH_S = 5.0
"""The watchdog looks at least so often; where the deadline is short, four times within it."""
LOCK_S = 1.0
"""Who holds the space's lock for longer is the one that hangs."""


class _BackgroundThread(Wakeable):
    """A thread that runs until ``stop``, or until the space fails; it begins behind all that it needs."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"xaqueue-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        self._due.set()

    def stop(self) -> None:
        self._stopped.set()
        self._due.set()
        self._thread.join()


class Follower(_BackgroundThread):
    """Has the directories follow the journal, a moment behind it; ``failed`` is called with an error that ends it."""

    def __init__(self, log: Log, failed: Callable[[BaseException], object]) -> None:
        self._log = log
        self._failed = failed
        super().__init__("follow")
        self.wake()

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


class Checkpoints(Chore):
    """One is made when the log says so."""

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        space.wakes.full = self

    def left_s(self) -> float:
        return self.space.log.checkpoint_in(self.space.definitions.checkpoint_s)

    def run(self, turn: Chores) -> float:
        return 0.0 if self.space.checkpoint() else NO_ROOM_S


class TimeLimits(Chore):
    """Ends branches that are late, in a space that no server looks after; see ``timeouts``."""

    thread = "timeouts"

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        with space.lock:
            space.wakes.late = self
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        self.space.looks_at = timeouts.next_look(self.space, now, self._idle_s)

    @property
    def _idle_s(self) -> float:
        return self.space.definitions.branch_idle_s or NEVER

    def left_s(self) -> float:
        return self.space.looks_at - time.monotonic()

    def run(self, turn: Chores) -> float:
        timeouts.expire(self.space, time.monotonic(), self._idle_s, timeouts.LEFT_S)
        now = time.monotonic()
        with self.space.lock:
            self._look(now)
        return 0.0


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
