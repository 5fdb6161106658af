"""The methods for streams that consume queues; a reservation is a map of its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xaqueue.reservation import Reservation
from xaqueue.rpc.client.link import Link
from xaqueue.rpc.wire import decode, encode

if TYPE_CHECKING:
    from xaqueue.rpc.server.authorizer import Caller

# On the server


def reserve(caller: Caller, queue: Any, stream: Any, after: Any, upto: Any) -> Any:
    return encode(caller.session.reserve(queue, stream, after, upto))


def consume(caller: Caller, queue: Any, stream: Any, upto: Any, archive: Any = False) -> Any:
    return encode(caller.session.consume(queue, stream, upto, archive))


def release(caller: Caller, queue: Any) -> Any:
    """Ends a reservation, by hand."""
    return encode(caller.session.release(queue))


def reservations(caller: Caller) -> Any:
    return encode(caller.session.reservations())


STREAM_METHODS = (reserve, consume, release, reservations)

# On the client


class StreamCalls(Link):
    """The part of a RemoteManager that is ``Streams``. To reserve and to consume may be asked twice, to release not."""

    def reserve(self, queue: str, stream: str, after: int, upto: int) -> Reservation:
        return decode(Reservation, self.call_with_retry("reserve", queue, stream, after, upto))

    def consume(self, queue: str, stream: str, upto: int, archive: bool = False) -> Reservation:
        return decode(Reservation, self.call_with_retry("consume", queue, stream, upto, archive))

    def release(self, queue: str) -> Reservation | None:
        """Raises ConnectionLost where the answer is lost: then ``reservations`` tells."""
        answer = self.call("release", queue)
        return None if answer is None else decode(Reservation, answer)

    def reservations(self) -> list[Reservation]:
        return [decode(Reservation, value) for value in self.call_with_retry("reservations")]
