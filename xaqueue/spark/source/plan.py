"""Where reading begins and ends, how far a stream has read, and how a batch is planned from that alone.

Everything here is numbers: no disk, no Spark. A span ``(after, upto]`` is two commit sequence numbers of a queue; the
range directories say which parts of it may hold messages, so that the cost of a plan does not grow with the messages.
A batch that is planned again after messages were consumed may be cut up differently, but covers the same numbers.

The house's number is the last one not wanted (to begin) or the last one wanted (to end). Kafka's is the first one
wanted, or the first one not wanted any more: one more in both cases. A moment stands for the messages committed at it
or later, or before it.

A stream's offset says of each queue of each space how far it was read, and whose stream it is.

    {"stream": "name#uuid", "spaces": {"/data/one": {"orders": 17}}, "ids": {"/data/one": "0a1b2c3d"},
     "consumed": {"/data/one": {"orders": 9}}, "first": {"/data/one": {"orders": 0}}}

``ids`` says which spaces these were: the numbers mean nothing in another one that is under the same path by now.
``consumed`` is how far the queues were consumed when the batch was planned: a space where they are not any more was
restored from an older copy, in which the same numbers are given to other messages.
``first`` is where those queues began that are read for the first time in the batch that ends here: what a new query
answers as its initial offset is not in the checkpoint, and may be another after a crash. Spark sees that there is
nothing new by the very same text, so an offset that stays is given back as it came.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import Any, Generic, NamedTuple, TypeVar

from xaqueue.core.model.layout import LAST_SEQ, RANGE_BITS, RANGE_SIZE
from xaqueue.errors import InvalidArgument, SpaceError
from xaqueue.message import QUEUE_NAME
from xaqueue.spark.options import RawOptions, json_object, refused, space_path, timestamp_ms

EARLIEST = "earliest"
LATEST = "latest"
_OF_KAFKA = {-2: EARLIEST, -1: LATEST}


class Timestamp(NamedTuple):
    """Milliseconds since 1970."""

    ms: int


Offset = int | str | Timestamp
"""A commit sequence number, ``earliest`` or ``latest``, or a moment."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where all queues begin, or end, and where those do that were named."""

    common: Offset
    named: Mapping[tuple[str, str], Offset] = field(default_factory=dict)
    """By the space's path (or in Kafka's terms by the number of the partition, as text) or "", and the queue."""
    option: str = field(default="", compare=False)
    """The name of the option that says so."""

    def of(self, space: str, number: int, queue: str) -> Offset:
        for named in (space, str(number), ""):
            if (named, queue) in self.named:
                return self.named[named, queue]
        return self.common


def bounds(raw: RawOptions, edge: str, default: str, *, kafka: bool) -> Bounds:
    """What the options say of an edge, ``starting`` or ``ending``. Of several Kafka takes the first of its order.

    Raises InvalidArgument.
    """
    names = f"{edge}Timestamp", f"{edge}OffsetsByTimestamp", f"{edge}Offsets"
    found = [name for name in names if name in raw]
    if len(found) > 1 and not kafka:
        raise InvalidArgument(f'options "{found[1]}" and "{found[0]}" exclude each other: give one')
    name = found[0] if found else names[2]
    text = raw.text(name)
    if text is None:
        return Bounds(default, option=name)
    if name == names[0]:
        return Bounds(Timestamp(timestamp_ms(name, text)), option=name)
    return parse_bounds(name, text, kafka=kafka)


def parse_bounds(name: str, text: str, *, kafka: bool) -> Bounds:
    """The value of the option with this name. Raises InvalidArgument that says what is accepted."""
    if name.endswith("ByTimestamp") or text.lstrip().startswith("{"):
        unnamed = EARLIEST if name.startswith("starting") else LATEST
        return Bounds(unnamed, dict(_named(name, text, kafka)), name)
    said: Any = text.strip().lower()
    found = _offset(int(said) if said.isascii() and said.isdigit() else said, kafka)
    if found is None:
        number = "an offset" if kafka else "a commit sequence number"
        accepted = f'"{EARLIEST}", "{LATEST}" or {number} is accepted, or JSON of numbers: {_example(name, kafka)}'
        raise refused(name, text, accepted)
    return Bounds(found, option=name)


def _named(name: str, text: str, kafka: bool) -> Iterator[tuple[tuple[str, str], Offset]]:
    example = _example(name, kafka)
    for key, value in json_object(name, text, example).items():
        nested = value if isinstance(value, dict) else {"": value}
        for inner, number in nested.items():
            # Kafka has the topic outside and the partition inside, the house has the space outside
            space, queue = (inner, key) if kafka or inner == "" else (key, inner)
            by_time = name.endswith("ByTimestamp")
            found: Offset | None = Timestamp(timestamp_ms(name, number)) if by_time else _offset(number, kafka)
            is_space = space.isdigit() if kafka else space == "" or "/" in space
            if found is None or not QUEUE_NAME.fullmatch(queue) or not is_space:
                raise InvalidArgument(f'option "{name}": {key!r}: {value!r} is refused: {example} is accepted')
            yield (space_path(name, space) if "/" in space else space, queue), found


def _offset(value: Any, kafka: bool) -> Offset | None:
    if value in (EARLIEST, LATEST):
        return str(value)
    if type(value) is not int or value > LAST_SEQ:
        return None
    if kafka and value in _OF_KAFKA:
        return _OF_KAFKA[value]
    return None if value < 0 else max(0, value - 1) if kafka else value


def _example(name: str, kafka: bool) -> str:
    number = 1795305600000 if name.endswith("ByTimestamp") else 23 if kafka else 5
    if kafka:
        return f'{{"orders": {{"0": {number}}}}}'
    return f'{{"orders": {number}}} or {{"/data/space": {{"orders": {number}}}}}'


Value = TypeVar("Value")
Numbers = Mapping[str, Mapping[str, int]]
"""Sequence numbers by the space's path and the queue."""


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """What a stream's offset says; the fields are those of its text."""

    stream: str
    """Empty where nobody said."""
    spaces: Numbers
    ids: Mapping[str, str] = field(default_factory=dict)
    """The beginnings of the spaces' ids, as far as they are known."""
    consumed: Numbers = field(default_factory=dict)
    first: Numbers = field(default_factory=dict)
    initial: bool = False
    """A new query's, before its first batch."""
    behind: bool = False
    """It was not begun at the front of its queues: there may be messages before that it never reads."""

    def at(self, path: str, queue: str) -> int | None:
        return self.spaces.get(path, {}).get(queue)

    def advanced(
        self, stream: str, ends: Numbers, begun: Numbers, ids: Mapping[str, str], consumed: Numbers
    ) -> StreamOffsets:
        """With these numbers read on to; ``begun``: where those begin that are not in here yet."""
        spaces = merged(merged(self.spaces, begun), ends)
        known = {path: self.ids.get(path) or ids[path] for path in spaces if path in self.ids or path in ids}
        first = merged(self.spaces, begun) if self.initial else begun
        return StreamOffsets(stream, spaces, known, merged(self.consumed, consumed), first, False, self.behind)

    def check_spaces(self, ids: Mapping[str, str]) -> None:
        """SpaceError where one of these ids is another than that of the space that was read."""
        for path, found in ids.items():
            if found != self.ids.get(path, found):
                raise SpaceError(
                    f"{path} is another space than the one that the stream has read there ({found} and not "
                    f"{self.ids[path]}): bring that one back, or start another checkpoint"
                )

    def document(self) -> dict[str, Any]:
        """What is given to Spark: no field that is empty but the first two."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in named.items() if value or name in ("stream", "spaces")}


def nested(numbers: Iterable[tuple[str, str, Value]]) -> dict[str, dict[str, Value]]:
    """Of (path, queue, number)."""
    found: dict[str, dict[str, Value]] = {}
    for path, queue, number in numbers:
        found.setdefault(path, {})[queue] = number
    return found


def merged(one: Numbers, other: Numbers) -> dict[str, dict[str, int]]:
    """Both, the other's where both have one; what is new comes last, so that places in the order stay."""
    both = {path: dict(queues) for path, queues in one.items()}
    for path, queues in other.items():
        both.setdefault(path, {}).update(queues)
    return both


def read(document: Mapping[str, Any]) -> StreamOffsets:
    return StreamOffsets(**{name: document[name] for name in StreamOffsets.__slots__ if name in document})


def between(start: StreamOffsets, end: StreamOffsets) -> Iterator[tuple[str, int, str, int, int]]:
    """Path, number of the space, queue and (after, upto] of all that a batch reads."""
    for number, (path, queues) in enumerate(end.spaces.items()):
        for queue, upto in queues.items():
            after = end.first.get(path, {}).get(queue)
            if after is None:
                after = start.at(path, queue) or 0
            if upto > after:
                yield path, number, queue, after, upto


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
