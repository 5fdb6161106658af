"""How much a queue may hold, and what becomes of an enqueue that finds it full. Values only.

Counted is what is committed, and what branches have added that are not over: so no limit is passed, whichever of them
commit. The bytes of a message are those of its file: its properties and its body.
"""

from __future__ import annotations

from dataclasses import dataclass

WAIT_S = 30.0
"""How long an enqueue waits for room, where nothing else is defined."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Of one queue. 0: there is none."""

    max_messages: int = 0
    max_bytes: int = 0
    waits: bool = False
    """An enqueue waits for room; else it is refused."""
    wait_s: float = WAIT_S
    """And is refused after so many seconds."""

    def lack(self, messages: int, size_bytes: int) -> str:
        """Which limit so many messages of so many bytes are over, in words; empty where none is."""
        if self.max_messages and messages > self.max_messages:
            return f"{messages:,} messages, and max_messages = {self.max_messages}"
        if self.max_bytes and size_bytes > self.max_bytes:
            return f"{size_bytes:,} bytes, and max_bytes = {self.max_bytes}"
        return ""

    def used(self, messages: int, size_bytes: int) -> float:
        """The share of its limits that so much is: of the one of which there is less left."""
        counted = (messages, self.max_messages), (size_bytes, self.max_bytes)
        return max(has / limit for has, limit in counted if limit)

    def reached(self, messages: int, size_bytes: int) -> str:
        """By which limit a queue is full that has so much; empty where it is not."""
        return self.lack(messages + 1, size_bytes + 1).rpartition(", and ")[2]
