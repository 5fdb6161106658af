"""A message that was received on lease: whoever has it settles it before the lease ends, in any order with others.

The lease, 16 bytes, is the receipt by which any connection to the space knows the delivery. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Self

from xaqueue.errors import InvalidArgument, ProtocolError
from xaqueue.message import Message, checked_reason
from xaqueue.times import check_seconds, span_us

ACK, NACK, REJECT = "ack", "nack", "reject"
"""How a delivery is settled."""
LEASE_S = 30.0
LONGEST_S = 86_400.0
MOST_MESSAGES = 1000
"""Of one call."""
Detail = int | str | tuple[int | None, str] | None
"""Of how it is settled: see the verb ``settle``."""
Settle = Callable[["Delivery", str, Detail], None]
Extend = Callable[["Delivery", float], None]


class Delivery:
    """Made by ``Connection.receive``. Each method raises LeaseExpired once the lease has ended: then nothing is done,
    and the message is in its queue with one more try, or somebody else's. ProtocolError: it was settled before.
    """

    __slots__ = ("_extend", "_settle", "is_settled", "lease", "message")

    def __init__(
        self,
        lease: bytes,
        message: Message,
        settle: Settle,
        extend: Extend,
    ) -> None:
        """settle, extend: methods of its connection, which lets in one thread at a time."""
        self.lease, self.message, self.is_settled = lease, message, False
        self._settle, self._extend = settle, extend

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def headers(self) -> Mapping[str, str]:
        return self.message.headers

    def over(self, settle: Settle, extend: Extend) -> Self:
        """From here on it is settled by these methods of another connection to the same space."""
        self._settle, self._extend = settle, extend
        return self

    def ack(self) -> None:
        """It is handled: the message is gone for good once this returns."""
        self._settle(self, ACK, None)

    def nack(self, delay: timedelta | float | None = None, reason: str | BaseException | None = None) -> None:
        """Gives it back, durably put off by this timedelta, or seconds; None: as the queue's ``retry_delay_s`` says.

        reason: what its ``origin`` says once it is a dead letter, unless a later try fails for another reason. It is no
        try. Raises RetryLater where there is no room to record that; then it is held still.
        """
        delay_us = None if delay is None else span_us("delay", delay)
        self._settle(self, NACK, delay_us if reason is None else (delay_us, checked_reason(reason)))

    def reject(self, reason: str | BaseException) -> None:
        """It cannot be handled: it moves to the failure queue at once, and its ``origin`` says why.

        Raises InvalidArgument where the queue has none; then, and where there is no room, it is held still.
        """
        self._settle(self, REJECT, checked_reason(reason))

    def extend(self, lease_s: float = LEASE_S) -> None:
        """The lease ends so many seconds from now."""
        self._extend(self, lease_s)

    def check_held(self) -> None:
        """Raises ProtocolError."""
        if self.is_settled:
            raise ProtocolError(f"message {self.message.message_id.hex()} of this delivery is settled already")

    def __repr__(self) -> str:
        return f"<xaqueue.Delivery of {self.message.queue} {self.message.message_id.hex()}>"


def checked_count(max_messages: Any) -> int:
    """Raises InvalidArgument."""
    if type(max_messages) is not int or not 1 <= max_messages <= MOST_MESSAGES:
        raise InvalidArgument(f"max_messages {max_messages!r} is refused: 1 to {MOST_MESSAGES} are wanted")
    return max_messages


def checked_lease_s(lease_s: Any) -> float:
    """Raises InvalidArgument."""
    if type(lease_s) is float and 0 < lease_s <= LONGEST_S:
        return lease_s
    seconds = check_seconds("lease_s", lease_s)
    if not 0 < seconds <= LONGEST_S:
        raise InvalidArgument(f"lease_s {lease_s!r} is refused: seconds above 0, and a day at most, are wanted")
    return seconds
