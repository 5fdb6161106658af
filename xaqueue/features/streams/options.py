"""What queues.toml says of what leaves a queue.

cleanup_interval_s = 1800          # in [space]: what has expired is looked for so often
archive = "parquet"                # of a queue: it is kept in archive/; "none" without it
"""

from __future__ import annotations

from xaqueue.core.model import layout
from xaqueue.core.model.options import Key, choice, number
from xaqueue.core.model.queue import Queue

CLEANUP_INTERVAL_S: Key[int] = number("cleanup_interval_s", 1800, "a number of seconds", 1)
ARCHIVE = choice("archive", "none", "parquet")


def act(queue: Queue) -> None:
    """What was kept of a block is in it until all of it is kept: where there is such, an open decides."""
    if ARCHIVE.of(queue.definition) != "none":
        queue.kept_in = layout.ARCHIVE
    elif not any(block.gone for blocks in queue.blocks.values() for block in blocks):
        queue.kept_in = ""
