"""Two threads of which one runs at a time: the second begins in the middle of a call of the first, and goes on to its
end, or until it needs what the first one holds.

So what two threads may do to each other is played the same way every time. The locks and conditions that are made
while ``Lockstep`` is entered belong to it: whoever finds one taken hands the turn back, and gets it again when that
lock is free. Nothing sleeps, and a deadlock is told at once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from unittest import mock

from support.forgetful import Crashed

PATIENCE_S = 60.0
"""For a turn to come back. No test waits so long, but for one that fails."""


class Lockstep:
    """The second thread, and whose turn it is."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._turns: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._patches = mock.patch.multiple(threading, Lock=partial(_Lock, self), Condition=partial(_Condition, self))
        self._wanted: object = None
        """What the second one waits for."""
        self._abandoned = False
        self.raised: BaseException | None = None
        """By the last call of the second thread."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Lockstep:
        self._patches.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._patches.stop()
        if self._wanted is not None:
            self._abandoned = True
            self._resume()
        self._calls.put(None)
        self._thread.join(PATIENCE_S)

    @property
    def is_second(self) -> bool:
        """Whether this is the second thread."""
        return threading.current_thread() is self._thread

    @property
    def is_parked(self) -> bool:
        """Whether the second one waits for something that the first one has."""
        return self._wanted is not None

    def second(self, call: Callable[[], object]) -> None:
        """Lets the second one do this, as far as it comes. Called by the first."""
        assert self._wanted is None
        self.raised = None
        self._calls.put(call)
        self._turns.get(timeout=PATIENCE_S)

    def park(self, wanted: object) -> None:
        """The turn goes to the other one until this is free."""
        assert self.is_second, "a deadlock: the second one waits, and has what the first one waits for"
        self._wanted = wanted
        self._turns.put(None)
        self._calls.get()
        if self._abandoned:
            raise Crashed("nobody is there to free it")

    def freed(self, wanted: object) -> None:
        """Whoever waits for this goes on at once."""
        if self._wanted is wanted and not self.is_second:
            self._resume()

    def notified(self, condition: object, lock: object) -> None:
        """Whoever waits at the condition waits for its lock now."""
        if self._wanted is condition:
            self._wanted = lock

    def _resume(self) -> None:
        self._wanted = None
        self._calls.put(None)
        self._turns.get(timeout=PATIENCE_S)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException as error:
                self.raised = error
            self._turns.put(None)


class _Lock:
    def __init__(self, steps: Lockstep) -> None:
        self._steps = steps
        self._taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._taken:
            if not blocking:
                return False
            self._steps.park(self)
        self._taken = True
        return True

    def release(self) -> None:
        if not self._taken:
            raise RuntimeError("released twice")
        self._taken = False
        self._steps.freed(self)

    def locked(self) -> bool:
        return self._taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition:
    def __init__(self, steps: Lockstep, lock: _Lock | None = None) -> None:
        self._steps = steps
        self._lock = lock or _Lock(steps)
        self._notified = 0
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        before = self._notified
        self.release()
        while self._notified == before:
            self._steps.park(self)
        self.acquire()
        return True

    def notify_all(self) -> None:
        self._notified += 1
        self._steps.notified(self, self._lock)

    def notify(self, n: int = 1) -> None:
        self.notify_all()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
