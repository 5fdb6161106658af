"""The file of counters, as a look finds it."""

from __future__ import annotations

from xaqueue.core.model import layout
from xaqueue.core.model.layout import COUNTERS
from xaqueue.core.model.record_kinds import Looking, RecordKind
from xaqueue.core.recovery.prepared import message_names
from xaqueue.features.counters import counters
from xaqueue.features.counters.values import Counting


class CounterKind(RecordKind):
    def check_space(self, look: Looking) -> None:
        counted = counters.read(look.fs)
        if counted is None:
            if look.fs.exists(COUNTERS):
                look.leftover(COUNTERS, "cannot be read: the next open begins to count anew")
        elif not look.live:
            self._gone(look, counted[0])

    def _gone(self, look: Looking, counting: Counting) -> None:
        """What was there when the space was closed, where nobody had it open since."""
        for queue, there in counting.messages.items() if counting.closed and counting.epoch == look.epoch else ():
            gone = there - len(message_names(look.fs, queue))
            if gone > 0:
                problem = f"{gone:,} of {there:,} messages that were here when the space was closed are gone"
                look.broken(layout.queue_path(queue), problem)
