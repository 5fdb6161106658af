"""How many messages of a queue wait for their time, known without a look at each: they are counted by seconds.

What is due is dropped when somebody asks, a second at a time: each second is dropped once, and no message is gone
through. A second that nobody waits for any more goes by itself, for it may be that nobody ever asks. A clock that is
put back makes the figure wrong until it is where it was.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

SECOND_US = 1_000_000
SPARE = 64
"""So many seconds that nobody waits for any more are kept in any case."""


class Delays:
    """Of one queue; times are int microseconds UTC. What is due within this second counts as due."""

    def __init__(self) -> None:
        self._by_second: dict[int, int] = {}
        self._seconds: list[int] = []
        """A heap of the same seconds, and of some that are gone, or there twice."""
        self._sum = 0

    def add(self, until: int) -> None:
        """One more waits until then."""
        second = until // SECOND_US
        if second not in self._by_second:
            self._by_second[second] = 0
            heappush(self._seconds, second)
            if len(self._seconds) > 2 * len(self._by_second) + SPARE:
                self._seconds = [*self._by_second]
                heapify(self._seconds)
        self._by_second[second] += 1
        self._sum += 1

    def discard(self, until: int) -> None:
        """One that was added with this time is taken, or gone; it may have been due for long."""
        second = until // SECOND_US
        if second in self._by_second:
            self._by_second[second] -= 1
            self._sum -= 1
            if not self._by_second[second]:
                del self._by_second[second]

    def count(self, now: int) -> int:
        while self._seconds and self._seconds[0] <= now // SECOND_US:
            self._sum -= self._by_second.pop(heappop(self._seconds), 0)
        return self._sum
