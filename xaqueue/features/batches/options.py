"""What queues.toml says of batches, in [space].

sweep_after_s = 604800             # a branch of a batch that is never decided is rolled back when it is so old
forget_after_s = 2592000           # what a query has decided is forgotten when it has decided nothing for so long
"""

from __future__ import annotations

from xaqueue.core.model.options import Key, number

DAY_S = 24 * 3600
SWEEP_AFTER_S: Key[int] = number("sweep_after_s", 7 * DAY_S, "a number of seconds", 1)
"""Since it was prepared."""
FORGET_AFTER_S: Key[int] = number("forget_after_s", 30 * DAY_S, "a number of seconds", 1)
