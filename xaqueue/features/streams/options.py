"""What queues.toml says of what leaves a queue, in [space].

cleanup_interval_s = 1800          # what has expired is looked for so often
"""

from __future__ import annotations

from xaqueue.core.model.options import Key, number

CLEANUP_INTERVAL_S: Key[int] = number("cleanup_interval_s", 1800, "a number of seconds", 1)
