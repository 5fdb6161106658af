"""What queues.toml says of scrubs.

scrub_days = 30                    # of a space: so often every message is read while it is open; 0 without it: never
"""

from __future__ import annotations

from xaqueue.core.model.options import Key, number

DAYS: Key[int] = number("scrub_days", 0, "a number of days", 0)
"""What is damaged is set aside."""
