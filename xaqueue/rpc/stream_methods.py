"""The methods for streams that consume queues, and the wire form of a reservation.

reservation  {"queue": text, "stream": text, "consumed": number, "in_flight": [after, upto] or nil,
              "latest": number, "since": int microseconds UTC, "archive": bool, "released": bool}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from xaqueue.reservation import Reservation
from xaqueue.rpc.wire import MalformedFrame

if TYPE_CHECKING:
    from xaqueue.rpc.methods import Peer


def reserve(peer: Peer, queue: Any, stream: Any, after: Any, upto: Any) -> dict[str, Any]:
    return asdict(peer.session.reserve(queue, stream, after, upto))


def consume(peer: Peer, queue: Any, stream: Any, upto: Any, archive: Any = False) -> dict[str, Any]:
    return asdict(peer.session.consume(queue, stream, upto, archive))


def release(peer: Peer, queue: Any) -> dict[str, Any] | None:
    """Ends a reservation, by hand."""
    ended = peer.session.release(queue)
    return None if ended is None else asdict(ended)


def reservations(peer: Peer) -> list[dict[str, Any]]:
    return [asdict(reservation) for reservation in peer.session.reservations()]


def reservation_of(value: Any) -> Reservation:
    """Raises MalformedFrame."""
    try:
        in_flight = value["in_flight"]
        return Reservation(
            str(value["queue"]),
            str(value["stream"]),
            int(value["consumed"]),
            None if in_flight is None else (int(in_flight[0]), int(in_flight[1])),
            int(value["latest"]),
            int(value["since"]),
            bool(value["archive"]),
            bool(value["released"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MalformedFrame(f"{str(value)[:60]} is no reservation: {error!r}") from None


STREAM_METHODS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "reserve": (reserve, 4, 4),
    "consume": (consume, 3, 4),
    "release": (release, 1, 1),
    "reservations": (reservations, 0, 0),
}
"""By name: the method, and how many parameters it takes at least and at most."""
