"""What queues.toml says of deduplication.

dedup_window_s = 3600              # of a queue: so long a second one of a dedup_key comes to nothing; 0 without it
"""

from __future__ import annotations

from xaqueue.core.model.definitions import Definitions
from xaqueue.core.model.options import LONGEST_S, Key, number
from xaqueue.errors import InvalidArgument

WINDOW_S: Key[float] = number("dedup_window_s", 0.0, "seconds", 0, LONGEST_S)
"""From the commit of a message on."""


def check(found: Definitions) -> None:
    """A key outlives the owner of the space: what came behind would come to nothing, and so would what it came to."""
    for where, queue in found.listed():
        if not queue.persistent and WINDOW_S.of(queue):
            raise InvalidArgument(
                f"queues.toml: {where} persistent = false and dedup_window_s = {WINDOW_S.of(queue)}: a key would "
                "outlive its message, and later ones of it come to nothing. Take one of the two away"
            )
