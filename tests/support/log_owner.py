"""Whose log it is, where there is no space: it loses nothing, and has no room to spare."""

from __future__ import annotations

from collections.abc import Callable

from xaqueue.core.engine.features import Features
from xaqueue.core.engine.memory import Wakes
from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.queue import Queue


class LogOwner:
    """``published``: called behind each round. ``retried``: with what found no room."""

    serving, epoch = True, 1

    def __init__(self, published: Callable[[dict[str, Queue]], object]) -> None:
        self.definitions, self.features = Definitions(), Features()
        self.queues: dict[str, Queue] = {}
        self.published = published
        self.wakes = Wakes()
        self.retried: Callable[[OSError, Callable[[], object]], object] | None = None

    def lost(self) -> str:
        return ""

    def check_owner(self) -> None:
        pass

    def kept(self) -> tuple[int, int]:
        return 0, 0

    def published_locked(self, marks: dict[str, Queue]) -> None:
        self.published(marks)

    def arrived_locked(self) -> None:
        pass

    def retry(self, error: OSError, call: Callable[[], object]) -> None:
        if self.retried is None:
            raise error
        self.retried(error, call)
