"""Which keys a queue has seen of late, and who claims one: a second message of a key comes to nothing. Pure: no clock.

A key is known from the commit of its message to the end of its window, wherever the message is by then. Before that
one branch at a time claims it, from its prepare, its vote or its commit in one phase until it is over; or several of
one batch, which is decided as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from xaqueue.core.model.branch import Branch
from xaqueue.message import MessageId


class Seen(NamedTuple):
    """A message that was committed with a key. Its record is named after these, so an open reads no file."""

    until_us: int
    """The end of its window, microseconds UTC."""
    key: bytes
    message_id: MessageId


def hash_of(dedup_key: bytes) -> bytes:
    """What stands for a key here and in names: 16 bytes."""
    return blake2b(dedup_key, digest_size=16).digest()


class Keys:
    """Those of one queue. All methods are called with the space's lock held."""

    def __init__(self) -> None:
        self.claims: dict[bytes, list[Branch]] = {}
        self._seen: dict[bytes, Seen] = {}
        self.ends: list[Seen] = []
        """Of all that have a record, as a heap."""

    def found(self, seen: Iterable[Seen]) -> None:
        """What recovery has read."""
        self.ends = list(seen)
        heapify(self.ends)
        self._seen = {one.key: one for one in sorted(self.ends)}

    def find(self, key: bytes, now_us: int) -> MessageId | None:
        """The message that was committed with it, within its window."""
        seen = self._seen.get(key)
        return seen.message_id if seen is not None and seen.until_us > now_us else None

    def add(self, seen: Seen) -> None:
        """Its record is hardened."""
        self._seen[seen.key] = seen
        heappush(self.ends, seen)

    def claim(self, key: bytes, branch: Branch) -> None:
        self.give_up(key, branch)
        self.claims.setdefault(key, []).append(branch)

    def give_up(self, key: bytes, branch: Branch) -> None:
        left = [other for other in self.claims.pop(key, ()) if other is not branch]
        if left:
            self.claims[key] = left

    def pop_over(self, now_us: int, most: int) -> list[Seen]:
        """Takes out some whose window is over."""
        found: list[Seen] = []
        while self.ends and self.ends[0].until_us <= now_us and len(found) < most:
            seen = heappop(self.ends)
            if self._seen.get(seen.key) is seen:
                del self._seen[seen.key]
            found.append(seen)
        return found
