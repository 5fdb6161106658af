"""What is remembered of a message whose delivery has failed. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """What is remembered of a message whose delivery has failed. Times are int microseconds UTC, 0 if not known."""

    tries: int
    not_before: int | None = None
    """Until then it is put off."""
    first: int = 0
    """When a delivery failed first, and last."""
    last: int = 0
    reason: str = ""
    """Of the last failure."""
