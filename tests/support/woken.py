"""Who is woken by a space, and notes what it finds then."""

from __future__ import annotations

from collections.abc import Callable

from xaqueue.core.engine.memory import Wakeable


class Woken(Wakeable):
    """In the place of a chore."""

    def __init__(self, note: Callable[[], object]) -> None:
        self._note = note

    def wake(self) -> None:
        self._note()
