"""What is done in an open space now and then: chores, each a way to say when it is due and what to do then.

Chores of one thread wait for each other. Who shares one is decided by what a call of the disk may do to the others:

- ``xaqueue-chores``: checkpoints, what leaves the queues, what dead queries left, the journal that is kept. They work
  on the disk in pieces. One that finds much to do is broken off when another one is due, once it had its slice, and
  goes on behind that. Where the disk hangs none of them could do anything, in whatever thread; the watchdog sees it.
- ``xaqueue-timeouts``: a branch that is late ends while a checkpoint syncs, and while a call of the disk hangs, as far
  as it has no file. So it waits for nobody; its thread begins with the first branch that may be late.
- A thread each: who reads all that is there, for hours, and rests nine times as long as it works. A read may hang on a
  bad sector for a minute, and the watchdog sees no read.

The follower (``threads.Follower``) is none of them: it works all the time, and its backlog is in memory. Nor is the
watchdog, which makes no call of the disk that may hang. A thread sleeps until one of its chores is due, or wakes it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable

from xaqueue.core.engine.memory import Wakeable
from xaqueue.core.engine.state import Space
from xaqueue.errors import ResourceFailed

SLICE_S = 1.0
"""A chore goes on for so long, whoever else is due in its thread."""
REST = 9
"""Who reads all that is there rests so many times as long as it worked."""
NEVER = float("inf")


class Chore(Wakeable):
    """One of them. Its thread alone asks and runs it."""

    thread = "chores"
    """Those of one name share a thread."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.thread_of: Chores | None = None

    def wake(self) -> None:
        """It may be due sooner than it said. Costs little; the space's lock may be held."""
        if self.thread_of is not None:
            self.thread_of.wake()

    def left_s(self) -> float:
        """Seconds until it is to be asked again; 0 or less: it is due. NEVER: not before it is woken. Makes no call of
        the disk: whether it is due by what is there, ``run`` finds out, and returns for how long it is not."""
        return 0.0

    def run(self, turn: Chores) -> float:
        """Does it, and looks at ``turn.is_over`` between two pieces. Returns for how many seconds it is not run again,
        whatever is due. After ResourceFailed, which the space has logged, its thread runs nothing any more.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """The space is being closed; it is run no more."""


class Chores:
    """A thread that runs some until ``stop``, or until the space fails."""

    def __init__(self, space: Space, chores: Iterable[Chore]) -> None:
        self._space = space
        self._chores = list(chores)
        self._held = dict.fromkeys(self._chores, 0.0)
        """Until then, by the monotonic clock, each is not run again."""
        self.began = 0.0
        """When what is rested for began."""
        self._current: Chore | None = None
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        for chore in self._chores:
            chore.thread_of = self
        if any(chore.left_s() < NEVER for chore in self._chores):
            self.wake()

    def wake(self) -> None:
        """One may be due. Begins the thread where there is none."""
        self._woken.set()
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._stopped.is_set():
                    name = f"xaqueue-{self._chores[0].thread}"
                    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                    self._thread.start()

    def stop(self) -> None:
        """Returns when what is being done has come to the end of its piece."""
        with self._starting:
            self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        for chore in self._chores:
            chore.finish()

    # For a chore that is being run

    def is_over(self) -> bool:
        """Whether it is to break off: the space is closed, or another one is due and has waited for a while."""
        if self._stopped.is_set() or self._space.closed:
            return True
        if len(self._chores) == 1 or time.monotonic() - self.began < SLICE_S:
            return False
        return any(self._left_s(chore) <= 0 for chore in self._chores if chore is not self._current)

    def rest(self) -> bool:
        """As ``is_over``, behind a rest for what was done since the last one: others have the disk meanwhile."""
        self._stopped.wait((time.monotonic() - self.began) * REST)
        self.began = time.monotonic()
        return self.is_over()

    # Its thread

    def _left_s(self, chore: Chore) -> float:
        return max(chore.left_s(), self._held[chore] - time.monotonic())

    def _run(self) -> None:
        while not self._stopped.is_set() and not self._space.closed:
            left_s = min(self._left_s(chore) for chore in self._chores)
            if left_s > 0:
                self._woken.wait(min(left_s, threading.TIMEOUT_MAX))
            self._woken.clear()
            try:
                for chore in self._chores:
                    if self._left_s(chore) <= 0 and not self._stopped.is_set():
                        self._do(chore)
            except ResourceFailed:
                return  # the space says so itself

    def _do(self, chore: Chore) -> None:
        self._current, self.began = chore, time.monotonic()
        try:
            self._held[chore] = chore.run(self) + time.monotonic()
        except ResourceFailed:
            raise
        except Exception:  # a fault in it: it is logged as of a thread that ends so, and the others go on
            self._held[chore] = NEVER
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def begin(space: Space, chores: Iterable[Chore]) -> list[Chores]:
    """Runs all of them, in as many threads as they name."""
    found = list(chores)
    names = dict.fromkeys(chore.thread for chore in found)
    return [Chores(space, [chore for chore in found if chore.thread == name]) for name in names]
