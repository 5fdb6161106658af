"""What a queue would say to messages that are to come into it, for ``--dry-run``: nothing is sent, and nothing written.

Of a directory the definitions in force are read. By a URL a server tells whether a queue is there, and full already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack

from xaqueue.cli import glance
from xaqueue.cli.location import Location, check_stays, connected
from xaqueue.core.model.block import UNLIMITED, Kind, head_of, repacked
from xaqueue.core.owner.definitions_file import usable_definitions
from xaqueue.errors import QueueFull
from xaqueue.features.limits.options import limits_of
from xaqueue.message import Message
from xaqueue.offline import inspect


class Target(ExitStack):
    """The queues of one space, with what was said to come into them so far."""

    def __init__(self, location: Location) -> None:
        super().__init__()
        self._location = location
        self._definitions = None if location.url else usable_definitions(location.directory)[0]
        self._connection = self.enter_context(connected(location)) if location.url else None
        self._queues = {one.name: one for one in glance.looked(location)[0]}
        self._ids: dict[str, set[bytes]] = {}
        self._count, self._bytes = Counter[str](), Counter[str]()

    def restore(self, message: Message) -> bool:
        """Whether it would be added, and is not there. Raises what ``take`` does."""
        ids = self._ids.get(message.queue)
        if ids is None:
            self.take(message.queue)
            ids = self._ids[message.queue] = (
                set() if self._connection else inspect.message_ids(self._location.directory, message.queue)
            )
        found = message.message_id in ids or (
            self._connection is not None
            and any(self._connection.browse(message.queue, message_id=message.message_id.hex()))
        )
        if not found:
            self.take(message.queue, message, is_new=True)
            ids.add(message.message_id)
        return not found

    def restore_many(self, messages: Iterable[Message]) -> list[bool]:
        return [*map(self.restore, messages)]

    def take(self, queue: str, message: Message | None = None, *, is_new: bool = False) -> None:
        """One more, or only whether the queue is there. UnknownQueue, QueueFull; of a new one MessageTooLarge."""
        now = self._queues.get(queue)
        if self._definitions is None:
            assert self._connection is not None
            any(self._connection.browse(queue, message_id="0" * 32))
            if message is not None and now is not None and now.full:
                raise QueueFull(
                    f"queue {queue} is full by {now.full}: nothing comes into it until others have taken some"
                )
            return
        definition = self._definitions.find(queue)
        limits = limits_of(definition)
        if message is None:
            return
        if not (definition.persistent and message.persistent):
            check_stays(self._location, queue, is_tagged=not message.persistent)
        _, packed = repacked(queue, message.properties)
        limit_bytes = self._definitions.max_body_bytes if is_new else UNLIMITED
        head, _ = head_of(Kind.ENQUEUE, message.message_id, packed, message.body, 0, limit_bytes)
        self._count[queue] += 1
        self._bytes[queue] += len(head) + len(message.body)
        if limits is not None:
            count, size = (now.depth, now.size_bytes) if now is not None else (0, 0)
            lack = limits.lack(count + self._count[queue], size + self._bytes[queue])
            if lack:
                raise QueueFull(f"queue {queue} would be full: with this it had {lack}")
