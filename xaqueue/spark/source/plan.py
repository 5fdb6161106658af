"""A batch is planned from the numbers of the range directories alone, so its cost does not grow with the messages.

A span ``(after, upto]`` is two commit sequence numbers of a queue. Everything here is arithmetic: no disk, no Spark.
A batch that is planned again after messages were consumed may be cut up differently, but covers the same numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil
from typing import Generic, NamedTuple, TypeVar

from xaqueue.space.model.layout import RANGE_BITS, RANGE_SIZE

Key = TypeVar("Key")

LEAST_MESSAGES = 5_000
"""Of a task: it costs as much as reading some 7,000, so one a core is best where that is not too few."""
MOST_MESSAGES = 20_000
"""Where there may be more cores than are known."""
MOST_ON_ALL_CORES = 100_000
"""Where all cores are known: a retry reads so many again at most."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """How many tasks share a batch. Spark's planning process is told nothing of the cluster, so the session tells."""

    cores: int | None = None
    """At least so many; None: as many as this machine has."""
    most_messages: int = MOST_MESSAGES

    def of(self, messages: int) -> int:
        cores = self.cores or os.cpu_count() or 1
        return max(min(cores, ceil(messages / LEAST_MESSAGES)), ceil(messages / self.most_messages))


class Span(NamedTuple):
    """The sequence numbers with after < seq <= upto."""

    after: int
    upto: int

    @property
    def size(self) -> int:
        return self.upto - self.after


class QueueSpan(NamedTuple, Generic[Key]):
    """What is to be read of one queue: (after, upto], and the parts of it that there are directories for."""

    key: Key
    after: int
    upto: int
    held: Sequence[Span]

    @property
    def size(self) -> int:
        return sum(span.size for span in self.held)

    def end(self, most: int) -> int:
        """Where a batch of at most ``most`` of its messages ends: numbers in missing directories are passed over, not
        counted. A gap inside a directory counts, so a batch may hold fewer.
        """
        if not most and self.held:
            return self.after
        for span in self.held:
            if span.size > most:
                return span.after + most
            most -= span.size
        return self.upto


def spans(ranges: Iterable[int], after: int, upto: int) -> list[Span]:
    """The parts of (after, upto] that the range directories with these ascending numbers can hold messages of."""
    clipped = (
        Span(max(after, (number << RANGE_BITS) - 1), min(upto, (number << RANGE_BITS) + RANGE_SIZE - 1))
        for number in ranges
    )
    return [span for span in clipped if span.size > 0]


def fair_shares(sizes: Sequence[int], most: int, turn: int = 0) -> list[int]:
    """How much each may have of ``most``: the same for all, and what small ones leave goes to the larger ones.

    What cannot be shared out evenly goes to those from ``turn`` on, so that by turns none is passed over.
    """
    shares = [0] * len(sizes)
    left = min(most, sum(sizes))
    wanting = sorted((number for number, size in enumerate(sizes) if size), key=sizes.__getitem__)
    while wanting and sizes[wanting[0]] <= left // len(wanting):
        number = wanting.pop(0)
        shares[number] = sizes[number]
        left -= sizes[number]
    if wanting:
        each, rest = divmod(left, len(wanting))
        wanting.sort()
        first = turn % len(wanting)
        for place, number in enumerate(wanting[first:] + wanting[:first]):
            shares[number] = each + (place < rest)
    return shares


def within_bytes(
    queues: Mapping[Key, tuple[Iterator[tuple[int, int]], int, int]], most_bytes: int, most: int, turn: int = 0
) -> dict[Key, int]:
    """How far each queue may be read, of (numbers and sizes, after, upto), so that all together stay within both
    limits. One message of each is looked at that is left for a later batch.

    The next message is that of the queue that has had the fewest bytes, so what small ones leave goes to the others.
    Where not even one message fits, one is taken all the same, from the queue whose turn it is.
    """
    keys = list(queues)
    first = turn % len(keys) if keys else 0
    waiting = [(0, place, key) for place, key in enumerate(keys[first:] + keys[:first])]
    ends = {key: after for key, (_, after, _) in queues.items()}
    left_bytes, left = most_bytes, most
    while waiting:
        had, place, key = heappop(waiting)
        sizes, _, upto = queues[key]
        seq, size_bytes = next(sizes, (upto, None))
        if size_bytes is None:
            ends[key] = upto
        elif left and (size_bytes <= left_bytes or left == most):
            ends[key], left_bytes, left = seq, left_bytes - size_bytes, left - 1
            heappush(waiting, (had + size_bytes, place, key))
    return ends


def partition(queues: Sequence[QueueSpan[Key]], pieces: int) -> list[list[tuple[Key, Span]]]:
    """All queues in at most ``pieces`` tasks, none empty, that share what the directories hold evenly.

    The spans of a queue meet: what lies between directories goes with its neighbour.
    """
    total = sum(queue.size for queue in queues)
    pieces = max(1, min(pieces, total))
    ends = [total * number // pieces for number in range(1, pieces)]
    tasks: list[list[tuple[Key, Span]]] = [[] for _ in range(pieces)]
    task = passed = 0
    for queue in queues:
        after, size = queue.after, queue.size
        while task < len(ends) and ends[task] < passed + size:
            end = queue.end(ends[task] - passed)
            if end > after:
                tasks[task].append((queue.key, Span(after, end)))
            after, task = end, task + 1
        if queue.upto > after:
            tasks[task].append((queue.key, Span(after, queue.upto)))
        passed += size
        while task < len(ends) and ends[task] <= passed:
            task += 1
    return [spans for spans in tasks if spans]
