"""What a client asks of a served space for a stream that consumes a queue.

To reserve and to consume may be asked twice, to release may not.
"""

from __future__ import annotations

from xaqueue.reservation import Reservation
from xaqueue.rpc.again import CallsAgain
from xaqueue.rpc.stream_methods import reservation_of


class StreamCalls(CallsAgain):
    """The part of a RemoteManager that is ``Streams``."""

    def reserve(self, queue: str, stream: str, after: int, upto: int) -> Reservation:
        return reservation_of(self.call_again("reserve", queue, stream, after, upto))

    def consume(self, queue: str, stream: str, upto: int, archive: bool = False) -> Reservation:
        return reservation_of(self.call_again("consume", queue, stream, upto, archive))

    def release(self, queue: str) -> Reservation | None:
        """Raises ConnectionLost where the answer is lost: then ``reservations`` tells."""
        answer = self.call("release", queue)
        return None if answer is None else reservation_of(answer)

    def reservations(self) -> list[Reservation]:
        return [reservation_of(value) for value in self.call_again("reservations")]
