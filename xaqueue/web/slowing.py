"""Who shows wrong tokens is answered ever later, by the address that they come from; the right one is answered at once.

So nobody behind the same proxy is locked out, but while as many as WAITING answers to wrong ones are held back there.
"""

from __future__ import annotations

import time
from asyncio import sleep
from collections import Counter
from ipaddress import ip_network

FREE = 10
"""Wrong tokens of an address that cost nothing; each further one waits twice as long as the one before."""
FIRST_S, LONGEST_S = 0.1, 2.0
FORGET_S = 60.0
"""After so long without a wrong one an address begins again."""
WAITING = 8
ADDRESSES = 1024
"""That are remembered; the one whose last failure is oldest is forgotten."""


class Slowing:
    """Of one front. Used by its loop alone."""

    def __init__(self) -> None:
        self._failed: dict[str, tuple[int, float]] = {}
        self._waiting = Counter[str]()

    def is_full(self, address: str) -> bool:
        return self._waiting[address] >= WAITING

    async def failed(self, address: str) -> None:
        """Returns when the answer may go."""
        now, (count, last) = time.monotonic(), self._failed.pop(address, (0, 0.0))
        count = count + 1 if now - last < FORGET_S else 1
        self._failed[address] = count, now
        if len(self._failed) > ADDRESSES:
            del self._failed[next(iter(self._failed))]
        if count > FREE:
            self._waiting[address] += 1
            try:
                await sleep(min(FIRST_S * 2 ** min(count - FREE - 1, 16), LONGEST_S))
            finally:
                self._waiting[address] -= 1
                self._waiting += Counter()  # without those at 0


def address_of(host: str) -> str:
    """Whose failures are counted together: an IPv4 address, the network of an IPv6 one, or a Unix socket's users."""
    return str(ip_network((host.partition("%")[0], 64), strict=False)) if ":" in host else host
