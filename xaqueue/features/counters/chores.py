"""Counters are written now and then, too, where no checkpoint is."""

from __future__ import annotations

from xaqueue.core.owner.chores import NEVER, Chore, Chores
from xaqueue.features.counters.counters import file_of


class WriteCounters(Chore):
    """Where no checkpoint is ever due."""

    def left_s(self) -> float:
        return NEVER if self.space.log.follows else file_of(self.space).left_s

    def run(self, turn: Chores) -> float:
        self.space.checkpoint()
        return 0.0
