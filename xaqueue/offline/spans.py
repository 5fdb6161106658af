"""The messages of a queue between two numbers, as files: what is there of them, how large they are, since when.

They are taken from the directory as they are, a block of many messages as one. For a time or a limit of bytes the files
tell their times and sizes, and are not read: 2.2 microseconds a message in the page cache, a tenth of what reading it
costs later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from xaqueue.core.model.block import MESSAGE_BYTES
from xaqueue.core.model.layout import RANGE_BITS, RANGE_SIZE, range_path
from xaqueue.core.model.message_name import parse_any
from xaqueue.core.storage.regular import READ
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams.message_files import ahead, is_block, read_message
from xaqueue.features.streams.record import StreamRecord, stream_path
from xaqueue.offline.reader import QueueReader

NS_PER_MS = 1_000_000

Found = tuple[int, str, int, bytes, bytes | None]
"""Number, file name, when it was committed in nanoseconds, the file's bytes, nothing of them checked, and None. Of a
block of many messages the first number that is wanted, and which of it are not, being gone or not asked for: a bit for
each, the first one's lowest."""
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a queue is. watermark: the highest number that is published. record: of the stream that consumes it, or
    of the last one that did."""

    queue: str
    watermark: int
    record: StreamRecord | None = None

    @property
    def consumed(self) -> int:
        return self.record.consumed if self.record is not None else 0

    @property
    def seen(self) -> int:
        """As far as anything is known of it."""
        return max(self.watermark, self.consumed)


def files(reader: QueueReader, after: int, upto: int) -> Iterator[Found]:
    """The messages with after < seq <= upto, ascending; what was consumed is left out."""
    flags = READ | os.O_NOATIME
    for directory, found in _directories(reader, after, upto):
        for seq, name in ahead(directory, found):
            unwanted = None
            if "+" in name and not (
                unwanted := _unwanted(reader, seq, name, upto)
            ):  # before the block, which goes first
                continue
            try:
                read = read_message(directory, name, flags)
            except PermissionError:  # the files are somebody else's: then each first reading is noted in the inode
                flags = READ
                read = read_message(directory, name, flags)
            if read is not None:
                data, time_ns = read
                yield seq, name, time_ns, data, unwanted


def _unwanted(reader: QueueReader, seq: int, name: str, upto: int) -> bytes:
    """Of a block what is gone, and what is not of this span, which begins with ``seq``; nothing where that is all."""
    named = parse_any(name)
    assert named is not None
    count = max(min(upto, named.last) + 1 - seq, 0)  # none where a stream has consumed beyond it meanwhile
    wanted = (1 << count) - 1 << seq - named.first
    if not (left := wanted & ~reader.gone(named)):
        return b""
    return ((1 << named.count) - 1 ^ left).to_bytes((named.count + 7) // 8, "little")


def sizes(reader: QueueReader, after: int, upto: int) -> Iterator[tuple[int, int]]:
    """(seq, size in bytes) of the messages there are, ascending, looked up one by one as they are asked for."""
    for directory, found in _directories(reader, after, upto):
        for seq, name in found:
            try:
                if is_block(name):
                    yield from _sizes_in(reader, seq, name, upto)
                else:
                    yield seq, os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
            except FileNotFoundError:
                continue  # consumed


def _sizes_in(reader: QueueReader, seq: int, name: str, upto: int) -> Iterator[tuple[int, int]]:
    try:
        block = reader.block(name, bodies=False)
    except DamagedBlock:
        yield seq, 0  # who reads it says so
        return
    for index in block.left(seq - 1, upto):
        yield block.named.first + index, block.table.sizes[index] + MESSAGE_BYTES


def _directories(reader: QueueReader, after: int, upto: int) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Each range directory, open, with the numbers and names in it."""
    for number, found in reader.names(after, upto):
        try:
            directory = os.open(reader.space / range_path(reader.queue, number << RANGE_BITS), os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            yield directory, found
        finally:
            os.close(directory)


def last_before(reader: QueueReader, time_ms: int, upto: int) -> int:
    """The number after which the messages begin that were committed at ``time_ms`` or later; ``upto`` without any.

    Messages of a queue are committed in the order of their numbers, and the modification time of a file is its commit
    time: so it is found by bisection, as far as the clock ascends, and a few directories are listed. Numbers between
    there and the first of these messages belong to messages that are gone.
    """

    def names(number: int) -> list[tuple[int, str]]:
        first = number << RANGE_BITS
        found = list(reader.names(max(0, first - 1), min(upto, first + RANGE_SIZE - 1)))
        return found[0][1] if found else []

    def time(found: tuple[int, str]) -> int | None:
        try:
            path = reader.space / range_path(reader.queue, found[0]) / found[1]
            return os.stat(path, follow_symlinks=False).st_mtime_ns  # noqa: PTH116
        except FileNotFoundError:
            return None

    def last_time(number: int) -> int | None:
        return next((last for found in reversed(names(number)) if (last := time(found)) is not None), None)

    ranges = [number for number in reader.ranges() if number << RANGE_BITS <= upto]
    place = _first_since(time_ms * NS_PER_MS, ranges, last_time)
    if place == len(ranges):
        return upto
    held = names(ranges[place])
    place = _first_since(time_ms * NS_PER_MS, held, time)
    return held[place][0] - 1 if place < len(held) else upto


def _first_since(time_ns: int, items: list[Item], time_of: Callable[[Item], int | None]) -> int:
    """The place of the first that is not before this time; what is gone has no time, and goes from the list."""
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        found = time_of(items[middle])
        if found is None:
            del items[middle]
            high -= 1
        elif found >= time_ns:
            high = middle
        else:
            low = middle + 1
    return low


class QueueFiles(QueueReader):
    """A queue by its files."""

    files = files
    sizes = sizes
    last_before = last_before

    def position(self) -> Position:
        """Raises SpaceError, DamagedBlock, OSError."""
        try:
            return Position(self.queue, self.watermark(), self.record())
        except DamagedBlock as damage:
            path, space = self.space / stream_path(self.queue), self.space
            raise DamagedBlock(f"{path}: {damage}: run `xaqueue release {self.queue} --space {space}`") from None
