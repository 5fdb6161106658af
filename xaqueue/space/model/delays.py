"""How many messages of a queue wait for their time, known without a look at each: they are counted by seconds.

What is due is dropped when somebody asks, a second at a time: each second is dropped once, and no message is gone
through. A clock that is put back makes the figure wrong until it is where it was.
"""

from __future__ import annotations

from heapq import heappop, heappush

SECOND_US = 1_000_000


class Delays:
    """Of one queue; times are int microseconds UTC. What is due within this second counts as due."""

    def __init__(self) -> None:
        self._by_second: dict[int, int] = {}
        self._seconds: list[int] = []
        """A heap of the same seconds."""
        self._sum = 0

    def add(self, until: int) -> None:
        """One more waits until then."""
        second = until // SECOND_US
        if second not in self._by_second:
            self._by_second[second] = 0
            heappush(self._seconds, second)
        self._by_second[second] += 1
        self._sum += 1

    def discard(self, until: int) -> None:
        """One that was added with this time is taken, or gone; it may have been due for long."""
        second = until // SECOND_US
        if second in self._by_second:
            self._by_second[second] -= 1
            self._sum -= 1

    def count(self, now: int) -> int:
        while self._seconds and self._seconds[0] <= now // SECOND_US:
            self._sum -= self._by_second.pop(heappop(self._seconds))
        return self._sum
