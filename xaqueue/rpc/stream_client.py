"""What a client asks of a served space for a stream that consumes a queue.

To reserve and to consume may be asked twice: so where an answer is lost it is asked for again, over a new connection.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from xaqueue.errors import ConnectionLost
from xaqueue.reservation import Reservation
from xaqueue.rpc.stream_methods import reservation_of

ASKED = 3
"""How often a call is made whose answer is lost each time."""


class StreamCalls:
    """The part of a RemoteManager that is ``Streams``."""

    def call(self, method: str, *params: Any) -> Any:
        raise NotImplementedError

    def reserve(self, queue: str, stream: str, after: int, upto: int) -> Reservation:
        return reservation_of(self._call_again("reserve", queue, stream, after, upto))

    def consume(self, queue: str, stream: str, upto: int, archive: bool = False) -> Reservation:
        return reservation_of(self._call_again("consume", queue, stream, upto, archive))

    def release(self, queue: str) -> Reservation | None:
        """Raises ConnectionLost where the answer is lost: then ``reservations`` tells."""
        answer = self.call("release", queue)
        return None if answer is None else reservation_of(answer)

    def reservations(self) -> list[Reservation]:
        return [reservation_of(value) for value in self._call_again("reservations")]

    def _call_again(self, method: str, *params: Any) -> Any:
        for _ in range(ASKED - 1):
            with suppress(ConnectionLost):
                return self.call(method, *params)
        return self.call(method, *params)
