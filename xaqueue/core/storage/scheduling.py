"""How work waits: a thread sleeps. Whoever serves many sessions in one thread gives a way of its own.

The engine waits in three places only: for a round of group commit, on a condition beside the owner's lock, and in a
call that may be slow. All three ask here, so that the code around them is the same for threads and for an event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


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
