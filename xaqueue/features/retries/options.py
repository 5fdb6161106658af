"""What queues.toml says of a message whose delivery has failed, or that has expired.

max_tries = 5                      # then it moves to the failure queue; without it, it is tried for ever
retry_delay_s = 1                  # a delivery that has failed is put off; 0 without it
retry_multiplier = 2               # each time so many times as long
retry_max_s = 3600                 # and not longer
retry_jitter = 0.1                 # by up to this share longer or shorter
failure_queue = "orders.failed"
expiry_queue = "orders.expired"    # where messages go that expire; without it they go away
"""

from __future__ import annotations

from xaqueue.core.model.definitions import Definitions, QueueDefinition
from xaqueue.core.model.options import LONGEST_S, all_of, name_of_another, number
from xaqueue.core.model.queue import Queue
from xaqueue.errors import InvalidArgument
from xaqueue.features.retries.policy import RetryPolicy

MAX_TRIES = number("max_tries", 0, "a number of tries", 1, 1_000_000)
POLICY = (
    MAX_TRIES,
    number("retry_delay_s", 0.0, "seconds", 0, LONGEST_S),
    number("retry_multiplier", 2.0, "a number", 1, 100),
    number("retry_max_s", 3600.0, "seconds", 0, LONGEST_S),
    number("retry_jitter", 0.0, "a share", 0, 1),
)
FAILURE_QUEUE = name_of_another("failure_queue")
EXPIRY_QUEUE = name_of_another("expiry_queue")
KEYS = (*POLICY, FAILURE_QUEUE, EXPIRY_QUEUE)


def policy_of(definition: QueueDefinition) -> RetryPolicy:
    return RetryPolicy(*all_of(POLICY, definition.options))


def limit_of(name: str, definition: QueueDefinition) -> int:
    """So many tries a message has at most. 0: there is no limit, as in a queue that is its own failure queue."""
    return MAX_TRIES.of(definition) if FAILURE_QUEUE.of(definition) != name else 0


def check(definitions: Definitions) -> None:
    for where, queue in definitions.listed():
        for key in (FAILURE_QUEUE, EXPIRY_QUEUE):
            other = definitions.of(key.of(queue)) if key.of(queue) else None
            if other is not None and queue.persistent and not other.persistent:
                raise InvalidArgument(
                    f"queues.toml: {where} {key.name} = {key.of(queue)!r}, which has persistent = false: what moves "
                    "there would be gone with the next owner of the space. Name a queue that is persistent"
                )
        if MAX_TRIES.name in queue.options and FAILURE_QUEUE.name not in queue.options:
            raise InvalidArgument(
                f"queues.toml: {where} max_tries needs failure_queue, where a message goes that had so many tries"
            )


def act(queue: Queue) -> None:
    queue.index.limit_tries(limit_of(queue.name, queue.definition))
