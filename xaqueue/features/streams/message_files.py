"""The messages of a queue, by the files that are there, for who does not own the space: one in a file, or many.

A message in a block has the name here that it would have as a file of its own, and these bytes. The bitmap of a block
is read before the block, which goes first: so nobody is shown what was gone before. A damaged one says nothing: what
was gone is given again, and why is reported.
"""

from __future__ import annotations

import os
import resource
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from zlib import crc32

from xaqueue.core.model import layout
from xaqueue.core.model.block import (
    CHECKSUM_OFFSET,
    HEAD_CRC,
    HEAD_READ_BYTES,
    PREFIX_BYTES,
    Kind,
    head_of,
    pack,
    size_in_head,
)
from xaqueue.core.model.block_files import listed, ranges_in, read_checked, read_gone, read_messages, read_table
from xaqueue.core.model.message_block import Table, decode_copy, decode_table
from xaqueue.core.model.message_name import ID_DIGITS, Named, parse_any
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.regular import NO_FILE, READ, open_regular, read_up_to
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams.record import consumed_in

Damaged = Callable[[int, str], object]
"""Told of the number of a message, or of the first of a block, and of what is wrong."""
READ_TRIES = 5
KEPT = 4
"""Blocks that are kept, for who reads one message after the other."""
AHEAD = 128
"""Files a group."""
ASKED_BYTES = 64 * 1024
"""Of each file, from its beginning; the kernel itself looks ahead in larger ones."""


def is_block(name: str) -> bool:
    """Whether the name of a file of messages is that of a block, if it is one at all."""
    return name[16:17] == "+"


def _told(seq: int, why: str) -> None:
    """Somebody tells of it elsewhere."""


def gone_of(fs: FileSystem, queue: str, named: Named, damaged: Damaged = _told) -> int:
    """As ``read_gone``; nothing is gone where that stays damaged."""
    for left in reversed(range(READ_TRIES)):
        try:
            return read_gone(fs, queue, named)
        except DamagedBlock as damage:
            if not left:
                damaged(named.first, f"what is gone of its block is not known, so all of it is shown: {damage}")
        time.sleep(0.001)  # half a write was seen
    return 0


@dataclass(frozen=True, slots=True)
class Block:
    """A block of messages as it was read. Messages are known by their index in it, from 0."""

    named: Named
    table: Table
    data: bytes
    """Of the whole file, where that was read."""
    gone: int

    def left(self, after: int, upto: int = layout.LAST_SEQ) -> Sequence[int]:
        """Those that are there, and whose numbers are above the one, up to the other."""
        first = self.named.first
        return self.table.left(self.gone, max(after + 1 - first, 0), max(upto + 1 - first, 0))

    def name(self, index: int) -> str:
        table = self.table
        return f"{self.named.first + index:016x}.{table.message_id(index).hex()}{table.tags_of(index)}"

    def file(self, index: int) -> bytes:
        """With the damage that its body has."""
        table = self.table
        body = self.data[table.offsets[index] : table.offsets[index + 1]]
        packed = pack(table.stored(index)) if index in table.own else table.packed
        head, checksum = head_of(Kind.ENQUEUE, table.message_id(index), packed, body, table.epoch)
        checksum ^= crc32(body) ^ table.checksums[index]  # as of the body that it was
        return b"".join((head[:CHECKSUM_OFFSET], HEAD_CRC.pack(checksum), head[PREFIX_BYTES:], body))

    def mended(self) -> bytes:
        """The file with a whole table at both of its ends."""
        begin, end = self.table.offsets[0], self.table.offsets[-1]
        tables = self.data[:begin], self.data[end : end + begin]
        whole = tables[0] if has_table(tables[0]) else tables[1]
        return b"".join((whole, self.data[begin:end], whole, HEAD_CRC.pack(begin)))


def has_table(data: bytes) -> bool:
    """Whether a block of messages may begin like this."""
    try:
        decode_table(data)
    except DamagedBlock:
        return False
    return True


def whole_table(data: bytes) -> Table:
    """Of a whole file, by the table at either of its ends. Raises DamagedBlock."""
    try:
        return decode_table(data)
    except DamagedBlock:
        return decode_copy(data)


def read_whole(fs: FileSystem, queue: str, named: Named, damaged: Damaged = _told) -> Block:
    """Raises FileNotFoundError, DamagedBlock, any other OSError."""
    gone = gone_of(fs, queue, named, damaged)
    return Block(named, *read_messages(fs, queue, named), gone)


def read_names(fs: FileSystem, queue: str, named: Named, damaged: Damaged = _told) -> Block:
    """The same without the bodies."""
    gone = gone_of(fs, queue, named, damaged)
    return Block(named, read_table(fs, queue, named), b"", gone)


def count_in(fs: FileSystem, queue: str, named: Named) -> int:
    """How many messages are in a file."""
    return named.count - gone_of(fs, queue, named).bit_count() if named.is_block else 1


class QueueMessages:
    """Those of one queue that are there now, without what a stream has consumed."""

    def __init__(self, fs: FileSystem, queue: str, damaged: Damaged = _told) -> None:
        self._fs = fs
        self._queue = queue
        self._damaged = damaged
        self._kept: dict[int, Block] = {}
        self.files = _files_in(fs, queue)
        self._consumed = consumed = consumed_in(fs, queue)
        if consumed:
            self.files = [name for name in self.files if not layout.is_consumed(name, consumed)]
        self._blocks: list[Named] = []
        """Ascending."""
        self.names = self.files
        """Of all messages; those of foreign files, and of blocks that cannot be read, are among them."""
        if any(map(is_block, self.files)):
            self.names = [name for file in self.files for name in self._names_in(file)]

    def _names_in(self, file: str) -> list[str]:
        named = parse_any(file) if is_block(file) else None
        if named is None:
            return [file]
        try:
            block = read_names(self._fs, self._queue, named, self._damaged)
        except FileNotFoundError:
            return []
        except DamagedBlock as damage:
            self._damaged(named.first, str(damage))
            return [file]
        self._blocks.append(named)
        return [block.name(index) for index in block.left(self._consumed)]

    def path(self, name: str) -> str | None:
        """Of the file in which the message of this name stands, or which has this name; None for a foreign one."""
        file = self._file(name)
        return layout.messages_path(self._queue, file) if file is not None else None

    def _file(self, name: str) -> Named | None:
        named = parse_any(name)
        if named is not None and not named.is_block and self._blocks:
            block = self._blocks[max(bisect_right(self._blocks, named.first, key=attrgetter("first")) - 1, 0)]
            if block.first <= named.first <= block.last:
                return block
        return named

    def read(self, name: str) -> bytes:
        """All of the message of this name. Raises FileNotFoundError, DamagedBlock, any other OSError."""
        file = self._file(name)
        if file is None:
            raise FileNotFoundError(name)
        if not file.is_block:
            return read_checked(self._fs, layout.messages_path(self._queue, file))
        block = self._kept.get(file.first)
        if block is None:
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            block = self._kept[file.first] = read_whole(self._fs, self._queue, file, _told)
        seq = int(name[:16], 16)
        for index in block.left(seq - 1, seq):
            return block.file(index)
        raise FileNotFoundError(name)  # gone since it was listed


def _files_in(fs: FileSystem, queue: str) -> list[str]:
    """Their names, range by range."""
    ranges = [layout.range_path(queue, number << layout.RANGE_BITS) for number in ranges_in(fs, queue)]
    return [name for directory in ranges for name in listed(fs, directory)]


def blocks_of(fs: FileSystem, queue: str) -> list[Named]:
    """The blocks of many messages in a queue, whatever is gone of them."""
    names = [name for name in _files_in(fs, queue) if is_block(name)]
    return [named for name in names if (named := parse_any(name)) is not None]


def message_names(fs: FileSystem, queue: str) -> list[str]:
    """The names of a queue's messages, those of foreign files among them, and of none that is consumed."""
    return QueueMessages(fs, queue).names


def ids_in(fs: FileSystem, queue: str) -> frozenset[str]:
    """The ids, in hex, of the messages in a queue."""
    return frozenset(name[ID_DIGITS] for name in message_names(fs, queue))


def read_message(directory: int, name: str, flags: int = READ) -> tuple[bytes, int] | None:
    """The bytes of a message in an open directory, and its commit time in nanoseconds; None when it is consumed.

    Empty where no file stands there, as for a damaged message. Raises OSError.
    """
    try:
        fd, found = open_regular(name, flags, directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return b"", 0
    try:
        data = os.read(fd, HEAD_READ_BYTES)
        if len(data) == HEAD_READ_BYTES:
            data += read_up_to(fd, size_in_head(data) + 1 - HEAD_READ_BYTES)
    finally:
        os.close(fd)
    return data, found.st_mtime_ns


def ahead(directory: int, found: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The same numbers and names again, for the caller to read each file in an open directory when it comes."""
    asks = True
    for begin in range(0, len(found), AHEAD):
        group = found[begin : begin + AHEAD]
        before = blocks_read()
        if asks:
            for _, name in group:
                _ask(directory, name)
        yield from group
        asks = blocks_read() != before


def blocks_read() -> int:
    """How much this thread has read from disks."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def _ask(directory: int, name: str) -> None:
    with suppress(OSError):  # only a hint: whoever reads the file meets what is wrong
        fd = os.open(name, READ, dir_fd=directory)
        try:
            os.posix_fadvise(fd, 0, ASKED_BYTES, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(fd)
