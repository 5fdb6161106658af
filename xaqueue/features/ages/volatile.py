"""Messages that need not outlive the owner of their space (``persistent = false``) expire when it has another one.

Nothing is removed for it: when all messages are loaded, and before anybody may take one, those are found expired, in
memory. They leave as whatever expires does, and what a crash has left is found so at the next open. What branches in
doubt add is not a message yet: it comes when they are committed, and goes with the next owner.
"""

from __future__ import annotations

from xaqueue.core.model.message_name import VOLATILE
from xaqueue.core.model.record_kinds import Opening, RecordKind


class VolatileKind(RecordKind):
    """It has no records: the names of messages, and queues.toml, say it."""

    def finish(self, opening: Opening) -> None:
        space = opening.space
        with space.lock:
            for queue in space.queues.values() if space.read_only is None else ():
                queue.index.lose(tagged=VOLATILE if queue.definition.persistent else "")
