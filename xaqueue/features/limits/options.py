"""What queues.toml says of limits, and that a queue has those of its definition.

max_messages = 100000              # a queue holds so many at most, and so many bytes; without them it has no limit
max_bytes = 1000000000
when_full = "wait"                 # an enqueue waits for room; or "refuse", as without it
full_wait_s = 30                   # it is refused after so many seconds
"""

from __future__ import annotations

from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.model.options import LONGEST_S, all_of, choice, number
from xaqueue.core.model.queue import Queue
from xaqueue.errors import InvalidArgument
from xaqueue.features.limits.limits import WAIT_S, QueueLimits

MOST = (
    number("max_messages", 0, "a number of messages", 1, 10**12),
    number("max_bytes", 0, "a number of bytes", 1, 10**18),
)
FULL_WAIT_S = number("full_wait_s", WAIT_S, "seconds", 0, LONGEST_S)
WHEN_FULL = choice("when_full", "refuse", "wait")
KEYS = (*MOST, FULL_WAIT_S, WHEN_FULL)


def limits_of(queue: QueueDefinition) -> QueueLimits | None:
    messages, size_bytes = all_of(MOST, queue.options)
    if not messages and not size_bytes:
        return None
    return QueueLimits(messages, size_bytes, WHEN_FULL.of(queue) == "wait", FULL_WAIT_S.of(queue))


def check(definitions: Definitions) -> None:
    for where, queue in definitions.listed():
        for key in (WHEN_FULL, FULL_WAIT_S):
            if key.name in queue.options and limits_of(queue) is None:
                raise InvalidArgument(
                    f"queues.toml: {where} {key.name} needs max_messages or max_bytes: else it is never full"
                )


def act(queue: Queue) -> None:
    limits = limits_of(queue.definition)
    if limits is None and queue.room is None:
        return
    from xaqueue.features.limits import queue_room  # with the engine, which who only reads a file does not need

    queue_room.act(queue, limits)
