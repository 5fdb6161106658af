"""A thread that sees a write, a rename or a sync take too long, or that another process has taken the space over, and
fences the space for everybody else.

Whoever waits for others to harden a step is told at once. The thread that hangs in the kernel is told when its call
returns, and so is who needs the space's lock meanwhile, where the call is one that is made with it held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from xaqueue.errors import ResourceFailed
from xaqueue.space.engine.state import Space
from xaqueue.storage.layers import OwnerFileSystem

LOOK_S = 5.0
"""It looks at least so often; where the deadline is short, four times within it."""
LOCK_S = 1.0
"""Who holds the space's lock for longer is the one that hangs."""


class Watchdog:
    """Runs until ``stop``, or until the space has failed, for whatever reason; ``told`` then hears of it, once."""

    def __init__(self, space: Space, files: OwnerFileSystem, told: Callable[[str], None] = lambda _: None) -> None:
        self._space = space
        self._files = files
        self._told = told
        self._stopped = False
        self._due = threading.Event()
        space.log.when_fenced(self._due.set)
        self._thread = threading.Thread(target=self._run, name="xaqueue-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: it may itself hang on that disk."""
        self._stopped = True
        self._due.set()

    def _run(self) -> None:
        space = self._space
        while not self._stopped:
            self._due.wait(min(LOOK_S, space.definitions.io_deadline_s / 4))
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
                    self._told(str(failure) or repr(failure))
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
