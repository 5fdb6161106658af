"""A batch is planned from the numbers of the range directories alone, so its cost does not grow with the messages.

A span ``(after, upto]`` is two commit sequence numbers. Everything here is arithmetic on spans: no disk, no Spark.
A batch that is planned again after messages were consumed may be cut up differently, but covers the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xaqueue.space.layout import RANGE_BITS, RANGE_SIZE


class Span(NamedTuple):
    """The sequence numbers with after < seq <= upto."""

    after: int
    upto: int

    @property
    def size(self) -> int:
        return self.upto - self.after


def spans(ranges: Iterable[int], after: int, upto: int) -> list[Span]:
    """The parts of (after, upto] that the range directories with these ascending numbers can hold messages of."""
    clipped = (
        Span(max(after, (number << RANGE_BITS) - 1), min(upto, (number << RANGE_BITS) + RANGE_SIZE - 1))
        for number in ranges
    )
    return [span for span in clipped if span.size > 0]


def limited(held: Sequence[Span], upto: int, most: int) -> int:
    """The end of a batch of at most ``most`` messages: numbers in missing directories are passed over, not counted.

    ``held``: the spans up to ``upto``. A gap inside a directory counts, so a batch may hold fewer than ``most``.
    """
    for span in held:
        if span.size > most:
            return span.after + most
        most -= span.size
    return upto


def cut(held: Sequence[Span], after: int, upto: int, pieces: int) -> list[Span]:
    """(after, upto] in at most ``pieces`` spans, none empty, that share what the directories hold evenly.

    The spans meet: what lies between directories goes with its neighbour. Always at least one span.
    """
    total = sum(span.size for span in held)
    pieces = max(1, min(pieces, total))
    ends = [limited(held, upto, total * number // pieces) for number in range(1, pieces)] + [upto]
    starts = [after, *ends[:-1]]
    return [Span(start, end) for start, end in zip(starts, ends, strict=True)]
