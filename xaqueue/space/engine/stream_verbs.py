"""The verbs of a session for streams; see ``xaqueue.resource_manager.Streams``. They belong to no branch."""

from __future__ import annotations

from xaqueue.reservation import Reservation
from xaqueue.space.engine import streams
from xaqueue.space.engine.state import Space


class StreamVerbs:
    """A part of ``Session``."""

    space: Space

    def _check_open(self) -> None:
        raise NotImplementedError

    def reserve(self, queue: str, stream: str, after: int, upto: int) -> Reservation:
        self._check_open()
        return streams.reserve(self.space, queue, stream, after, upto)

    def consume(self, queue: str, stream: str, upto: int, archive: bool = False) -> Reservation:
        self._check_open()
        return streams.consume(self.space, queue, stream, upto, archive)

    def release(self, queue: str) -> Reservation | None:
        self._check_open()
        return streams.release(self.space, queue)

    def reservations(self) -> list[Reservation]:
        self._check_open()
        return streams.reservations(self.space)
