"""How work waits: a thread sleeps. Whoever serves many sessions in one thread gives a way of its own.

The engine waits in three places only: for a round of group commit, on a condition beside the owner's lock, and in a
call that may be slow. All three ask here, so that the code around them is the same for threads and for an event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

T = TypeVar("T")

PATIENCE_S = 0.05
"""How long a thread waits for its turn at most."""


class Waiter(Protocol):
    """What one waits for and another hands over, once."""

    def acquire(self, *, timeout: float = -1) -> bool:
        """Whether it was handed over, in so many seconds where that is not negative."""

    def release(self) -> None:
        """Hands it over, from any thread. Raises RuntimeError the second time."""


class Condition(Protocol):
    """As ``threading.Condition``; wait and notify are called with its lock held."""

    def wait(self, timeout: float | None = None) -> bool:
        """Releases the lock until notified, or for so many seconds; it may return for no reason."""

    def notify_all(self) -> None:
        """Wakes all who wait."""


class Threads:
    """Every waiting caller is a thread."""

    is_served = False
    """Whether a server has the space, and sees to some of its chores."""
    turn: threading.RLock | None = None
    """See ``Turns``."""

    def waiter(self) -> Waiter:
        lock = threading.Lock()
        lock.acquire()
        return lock

    def condition(self, lock: threading.Lock) -> Condition:
        return threading.Condition(lock)

    def yield_once(self) -> None:
        """Before rounds are run: others who are about to come may come first. Threads come while the round syncs."""

    def let_others(self) -> None:
        """Those that were woken just now do what they were woken for first, where they share a thread."""

    def run(self, call: Callable[[], T]) -> T:
        """The result of a call that may be slow."""
        return call()


THREADS = Threads()


class Turns(Threads):
    """Threads of which one at a time is in a call of the engine, where that never syncs.

    Each call of the system hands the interpreter's lock to another thread, and several that do so at once spend more
    on that than on their work. The turn is for speed alone, nobody relies on it: whoever waits gives it up and goes on
    without, and so does whoever has not got it within ``PATIENCE_S``. So it has no place in the order of locks, and a
    thread whose call hangs keeps others only for that long.
    """

    def __init__(self) -> None:
        self.turn = self._turn = threading.RLock()

    def condition(self, lock: threading.Lock) -> Condition:
        return _Giving(lock, self)

    def run(self, call: Callable[[], T]) -> T:
        self.give_up()
        return call()

    def give_up(self) -> None:
        """Also where this thread has none, or has it several times."""
        with suppress(RuntimeError):
            while True:
                self._turn.release()


class _Giving(threading.Condition):
    """Whoever waits gives up its turn."""

    def __init__(self, lock: threading.Lock, turns: Turns) -> None:
        super().__init__(lock)
        self._turns = turns

    def wait(self, timeout: float | None = None) -> bool:
        self._turns.give_up()
        return super().wait(timeout)
