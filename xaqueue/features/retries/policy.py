"""When a message whose delivery has failed is tried again. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

from xaqueue.core.model.entry import Retry
from xaqueue.message import MessageId


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and when. ``max_tries`` 0: for ever. ``jitter``: the share by which a delay is longer or shorter."""

    max_tries: int = 0
    delay_s: float = 0.0
    multiplier: float = 2.0
    max_s: float = 3600.0
    jitter: float = 0.0

    def failed(self, before: Retry, message_id: MessageId, now_us: int, reason: str) -> Retry:
        """One more try has failed now. The first delay is ``delay_s``, each further one longer by the multiplier."""
        tries = before.tries + 1
        delay_us = self._delay_us(tries, message_id)
        return Retry(tries, now_us + delay_us if delay_us else None, before.first or now_us, now_us, reason)

    def put_off(self, before: Retry, message_id: MessageId, now_us: int, delay_us: int | None) -> Retry:
        """It is handed back now, which is no try, for so long; None: as long as if this try had failed."""
        delay_us = self._delay_us(before.tries + 1, message_id) if delay_us is None else delay_us
        return replace(before, not_before=now_us + delay_us if delay_us else None)

    def _delay_us(self, tries: int, message_id: MessageId) -> int:
        """Messages that failed together come apart, and one and the same is put off likewise whoever counts."""
        if not self.delay_s:
            return 0
        delay_s = min(self.delay_s * self.multiplier ** min(tries - 1, 64), self.max_s)
        share = crc32(message_id + tries.to_bytes(8, "little")) / 2**32
        return int(delay_s * (1 + self.jitter * (2 * share - 1)) * 1_000_000)
