"""What queues.toml says of how old a message may become, and that a queue has that of its definition.

max_age_s = 86400                  # so long after its commit a message of the queue expires; 0 without it: never
"""

from __future__ import annotations

from dataclasses import replace

from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.model.options import LONGEST_S, Key, number
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import FileSystem
from xaqueue.message import Message

MAX_AGE_S: Key[int] = number("max_age_s", 0, "a number of seconds", 0, 100 * LONGEST_S)
"""0: it has no limit, also where that of [default] has one."""


def max_age_us(queue: QueueDefinition) -> int:
    return MAX_AGE_S.of(queue) * 1_000_000


def stand_in(found: Definitions) -> tuple[Definitions, str]:
    """Nothing is removed by what a copy says: the edit that is refused may have been to take that away."""
    if not any(max_age_us(queue) or not queue.persistent for _, queue in found.listed()):
        return found, ""

    def kept(queue: QueueDefinition) -> QueueDefinition:
        return replace(queue, options={**queue.options, MAX_AGE_S.name: 0}, persistent=True)

    default = kept(found.default) if found.default is not None else None
    cut = replace(found, queues={name: kept(queue) for name, queue in found.queues.items()}, default=default)
    return cut, f", but for {MAX_AGE_S.name} and persistent: nothing is removed by these until then"


def ends_at(fs: FileSystem, path: str, message: Message, queue: QueueDefinition) -> float:
    """When the message of this file expires, for whoever reads the directory; infinite: never. Raises OSError."""
    own, limit_us = message.properties.expires_at, max_age_us(queue)
    ends = own if own is not None else float("inf")
    return min(ends, max(fs.modified_ns(path) // 1000, message.enqueued_at) + limit_us) if limit_us else ends


def act(queue: Queue) -> None:
    """It is defined so now. What was found too old by another limit is looked at again, also where it is held."""
    limit_us = max_age_us(queue.definition)
    if limit_us == (queue.index.clock.limit_us if queue.index.clock is not None else 0):
        return
    from xaqueue.features.ages.ages import Ages  # with the engine, which who only reads a file does not need

    queue.index.clock = Ages(limit_us) if limit_us else None
    queue.index.expire_as_named()
