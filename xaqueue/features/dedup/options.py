"""What queues.toml says of deduplication.

dedup_window_s = 3600              # of a queue: so long a second one of a dedup_key comes to nothing; 0 without it
"""

from __future__ import annotations

from xaqueue.core.model.options import LONGEST_S, Key, number

WINDOW_S: Key[float] = number("dedup_window_s", 0.0, "seconds", 0, LONGEST_S)
"""From the commit of a message on."""
