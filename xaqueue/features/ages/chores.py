"""Whoever has a space open looks when the time of the oldest message of a queue comes: nobody need ask for one."""

from __future__ import annotations

from xaqueue.core.engine.state import Space
from xaqueue.core.model.queue import Queue
from xaqueue.core.owner.chores import NEVER, Chore, Chores
from xaqueue.features.ages.options import max_age_us

REST_S = 0.2
"""What expires within it leaves together."""


class Expire(Chore):
    """Has messages expire when the time of the oldest comes, where queues have a limit."""

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        self._looked_by: object = None
        """The definitions as they were when it looked last."""
        self._due: float = 0
        self._kept: list[Queue] = []
        """Those of which something may be too old, and which a stream had when it looked."""

    def left_s(self) -> float:
        if self._looked_by is not self.space.definitions or any(queue.keeper is None for queue in self._kept):
            return 0.0
        return (self._due - self.space.now_us()) / 1e6

    def run(self, turn: Chores) -> float:
        space = self.space
        self._looked_by = space.definitions
        with space.lock:
            self._due, self._kept = self._first_of_new(), []
            queues = [queue for queue in space.queues.values() if queue.index.clock is not None]
        for queue in queues:
            while not self._look(queue):
                if turn.is_over():
                    self._due = 0
                    return 0.0
        return REST_S

    def _first_of_new(self) -> float:
        """When a message may be too old of a queue that has had none until now."""
        known, now = self.space.definitions, self.space.now_us()
        limits = {max_age_us(one) for one in (*known.queues.values(), known.default) if one is not None} - {0}
        return min((now + limit_us for limit_us in limits), default=NEVER)

    def _look(self, queue: Queue) -> bool:
        """Whether it has come to the end of what is too old there."""
        with self.space.lock:
            self.space.check()
            clock, now = queue.index.clock, self.space.now_us()
            if clock is None:
                return True
            if clock.due <= now and queue.keeper is not None:
                self._kept.append(queue)
                return True
            if clock.due <= now and not clock.strike(self.space, queue, now):
                return False
            self._due = min(self._due, clock.due if clock.due > now else now + clock.limit_us)
            return True
