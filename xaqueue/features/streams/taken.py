"""What leaves a queue with an archive, and who took it.

A queue with ``archive = "parquet"`` drops no message that a transaction takes, that a stream consumes or that expires:
its file moves to ``archive/`` in the very step, one of many messages with the last of them. A record beside them,

    archive/queue=Q/.taken/<first number>-<last number>[.consumed]

is a block of kind *branch*: when they were taken, by whom and how, and in its body, as MessagePack, the spans of
numbers that were taken, and of those that only left their block for another queue.

Where files are the record, it is written before any message leaves. So what a crash has undone may be said to be taken:
a message that is there is there, whatever a record says, and of several records of one number the newest holds.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgpack

from xaqueue.core.model import layout
from xaqueue.core.model.block import Kind, decode
from xaqueue.core.model.block_files import listed, read_block
from xaqueue.core.model.layout import LAST_SEQ
from xaqueue.core.model.records import encode_record
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import DamagedBlock
from xaqueue.message import Properties

TAKEN = ".taken"
BY_BRANCH, EXPIRED, CONSUMED = "taken", "expired", "consumed"
NAME = re.compile(rf"([0-7][0-9a-f]{{15}})-([0-7][0-9a-f]{{15}})(?:\.{CONSUMED})?")
"""A stream consumes all between two numbers, of which others may have taken these two."""

Span = tuple[int, int]
"""First and last of numbers that follow one another."""


class Taken(NamedTuple):
    at_us: int
    by: str
    """The stream, or the xid as text; empty where nobody did."""
    how: str
    spans: Sequence[Span]
    """Ascending; those that are neither here nor in the queue were somewhere else by then."""
    moved: Sequence[Span] = ()
    """They are in another queue now."""

    @property
    def ends(self) -> Span:
        """The lowest and the highest number that it names."""
        named = [*self.spans, *self.moved]
        return min(first for first, _ in named), max(last for _, last in named)


def taken_directory(queue: str) -> str:
    return f"{layout.ARCHIVE}/queue={queue}/{TAKEN}"


def taken_path(queue: str, taken: Taken) -> str:
    first, last = taken.ends
    return f"{taken_directory(queue)}/{first:016x}-{last:016x}{f'.{CONSUMED}' * (taken.how == CONSUMED)}"


def parse_taken(name: str) -> Span | None:
    """The numbers that ``taken_path`` was made of."""
    match = NAME.fullmatch(name)
    return (int(match[1], 16), int(match[2], 16)) if match else None


def encode_taken(queue: str, taken: Taken, epoch: int) -> tuple[bytes, bytes]:
    """Head and body of its block."""
    headers = {"by": taken.by, "how": taken.how}
    body: bytes = msgpack.packb((taken.spans, taken.moved))
    return encode_record(Properties(queue, enqueued_at=taken.at_us, headers=headers), body, epoch)


def decode_taken(data: bytes, queue: str) -> Taken:
    """Raises DamagedBlock."""
    block = decode(data)
    headers = block.properties.headers
    if block.kind is not Kind.BRANCH or block.properties.queue != queue or not headers.keys() >= {"by", "how"}:
        raise DamagedBlock(f"is no record of what was taken of queue {queue}")
    try:
        spans, moved = ([(int(first), int(last)) for first, last in some] for some in msgpack.unpackb(block.body))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamagedBlock(f"is no record of what was taken: {error!r}") from None
    return Taken(block.properties.enqueued_at, headers["by"], headers["how"], spans, moved)


def read_all(fs: FileSystem, queue: str, after: int = 0, upto: int = LAST_SEQ) -> list[Taken]:
    """What is said of these numbers, by name; without records that are being written, or that a crash has torn."""
    directory, found = taken_directory(queue), []
    for name in sorted(listed(fs, directory)):
        ends = parse_taken(name)
        if ends is None or ends[1] <= after or ends[0] > upto:
            continue
        if (one := read_taken(fs, queue, f"{directory}/{name}")) is not None:
            found.append(one)
    return found


def read_taken(fs: FileSystem, queue: str, path: str) -> Taken | None:
    """None for one that is being written, that a crash has torn, or that is gone."""
    try:
        return decode_taken(read_block(fs, path), queue)
    except (DamagedBlock, OSError):
        return None


def spans_of(numbers: Iterable[int]) -> list[Span]:
    """Of numbers in any order, ascending."""
    found: list[Span] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def meets(spans: Sequence[Span], first: int, last: int) -> bool:
    """spans: ascending."""
    at = bisect_right(spans, (last, LAST_SEQ)) - 1
    return at >= 0 and spans[at][1] >= first


def without(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """others: ascending."""
    left = []
    for first, last in spans:
        begin = first
        for low, high in others[max(bisect_right(others, (first, LAST_SEQ)) - 1, 0) :]:
            if low > last:
                break
            if low > begin:
                left.append((begin, low - 1))
            begin = max(begin, high + 1)
        if begin <= last:
            left.append((begin, last))
    return left
