"""A queue that a stream consumes is reserved for it, so that a batch that is read again is the same batch."""

from __future__ import annotations

from dataclasses import dataclass

from xaqueue.errors import InvalidArgument

STREAM_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Reservation:
    """Which stream consumes a queue, and how far it is. All numbers are commit sequence numbers of the queue."""

    queue: str
    stream: str
    """Its identity, ``name#uuid``: another stream of the same name is another one."""
    consumed: int = 0
    """All messages up to this one are consumed; their files may be there for a moment longer."""
    in_flight: tuple[int, int] | None = None
    """The range (after, upto] that the stream reads now, as far as this owner of the space was told."""
    latest: int = 0
    """The highest number that was published when this was answered."""
    since: int = 0
    """Int microseconds UTC."""
    archive: bool = False
    """What is consumed is kept in ``archive/``."""
    released: bool = False
    """An operator has ended it."""

    @property
    def lag(self) -> int:
        """Numbers that were published and not consumed yet."""
        return max(0, self.latest - self.consumed)


def check_stream(stream: str) -> str:
    """The stream's identity itself. Raises InvalidArgument."""
    if not isinstance(stream, str) or not 0 < len(stream) <= STREAM_LIMIT or not stream.isprintable():
        raise InvalidArgument(
            f"stream {str(stream)[:60]!r} is refused: a line of 1 to {STREAM_LIMIT} characters is wanted"
        )
    return stream
