"""A clean close leaves an image of each deep queue's index, so that the next open need not read a head a message.

It is never believed for what the directories do not say themselves: a message whose name is not there is not there, one
that the image lacks has its head read, and an image that is damaged, foreign or of an earlier owner is no image. It is
removed before the space that was opened changes anything. So losing it costs time and never content.

    offset  size  field (little-endian)
         0     4  magic "XAQI"
         4     1  format version (1)
         5     1  length of the queue's name
         6     2  0
         8     8  epoch of the owner that wrote it
        16     4  number of ranges
        20     4  CRC-32 of everything else
        24        name of the queue, then the ranges

    a range: 8 number, 4 messages, 4 length of what is special; for each message 8 sequence number (big-endian) and
    16 message id, so that these are in hexadecimal digits what its name is; for each 8 size of the file; a MessagePack
    array with [place, correlation id, priority, not before, expires at, tries] of those that have not all by default
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgpack

from xaqueue.message import Properties
from xaqueue.space.model import layout
from xaqueue.space.model.block import PROPERTIES_LIMIT_BYTES
from xaqueue.space.model.index import Entry, QueueIndex
from xaqueue.space.model.layout import RANGE_BITS, RANGE_SIZE
from xaqueue.space.model.packed_index import Row
from xaqueue.storage.fs import FileSystem
from xaqueue.storage.fs import discard as discard_file

if TYPE_CHECKING:
    from xaqueue.space.engine.state import Space

MAGIC = b"XAQI"
IMAGE_VERSION = 1
PREFIX = struct.Struct("<4sBBHQII")
RANGE = struct.Struct("<QII")
ROW = struct.Struct(">Q16s")
SIZE_BYTES = 8
NAME_LENGTH = 49
RANGE_LIMIT_BYTES = RANGE.size + RANGE_SIZE * (ROW.size + SIZE_BYTES + PROPERTIES_LIMIT_BYTES)
WORTH = 1000
"""Messages below which a queue is opened as fast without an image."""

Special = Mapping[int, Sequence[Any]]

log = logging.getLogger("xaqueue")


@dataclass(frozen=True, slots=True)
class Section:
    """What the image says of one range directory."""

    names: memoryview
    sizes: memoryview
    special: memoryview

    def __len__(self) -> int:
        return len(self.sizes) // SIZE_BYTES

    def matches(self, names: Sequence[str]) -> bool:
        """Whether these, sorted, are the names of exactly its messages."""
        if set(map(len, names)) != {NAME_LENGTH}:
            return False
        text = "".join(names)
        return text[16::NAME_LENGTH] == "." * len(self) and text.replace(".", "") == self.names.hex()

    def add_to(self, index: QueueIndex, queue: str) -> bool:
        """Adds all its messages. False, and nothing is done, where one of them is there already."""
        seqs, ids = zip(*ROW.iter_unpack(self.names), strict=True)
        if index.has_any(ids):
            return False
        if not self.special and seqs[-1] - seqs[0] == len(seqs) - 1:
            index.add_run(seqs[0], ids, self._sizes())
        else:
            for entry in self.entries(queue):
                index.add(entry)
        return True

    def entries(self, queue: str) -> Iterator[Entry]:
        """All its messages."""
        special = {place: properties for place, *properties in msgpack.unpackb(self.special)} if self.special else {}
        plain = Properties(queue)
        rows = zip(ROW.iter_unpack(self.names), self._sizes(), strict=True)
        for place, ((seq, message_id), size_bytes) in enumerate(rows):
            given = special.get(place)
            yield Entry(seq, message_id, _properties(queue, *given) if given else plain, size_bytes)

    def _sizes(self) -> tuple[int, ...]:
        return struct.unpack(f"<{len(self)}Q", self.sizes)


@dataclass(frozen=True, slots=True)
class Image:
    """A queue's index as an owner left it. ``sections``: by number of the range."""

    epoch: int
    sections: dict[int, Section]

    def follows(self, epoch: int) -> bool:
        """Whether an owner of this epoch is the next behind the one who left it: one between changed what it says."""
        return epoch - 1 <= self.epoch <= epoch


def leave(space: Space) -> None:
    """What a clean close does last: an image of each queue that is deep enough, where one can be written."""
    deep = [queue for queue in space.queues.values() if len(queue.index) >= WORTH]
    if not deep:
        return
    try:
        if not space.hardening.content:  # so that no power loss keeps the image and tears the messages it tells of
            space.fs.sync_all()
        for queue in deep:
            write(space.fs, queue.name, queue.index, space.epoch)
    except OSError as error:  # nobody was promised an image
        log.warning("no index image is left (%s): the next open reads heads", error)
        for queue in deep:
            with suppress(OSError):
                discard(space.fs, queue.name)


def write(fs: FileSystem, queue: str, index: QueueIndex, epoch: int) -> None:
    """Replaces the queue's image by one of this index. Raises OSError."""
    discard(fs, queue)
    path = layout.image_path(queue)
    fs.create(path, encode(queue, index, epoch))
    fs.sync_data(path)


def discard(fs: FileSystem, queue: str) -> None:
    """The image goes, if there is one."""
    discard_file(fs, layout.image_path(queue))


def read(fs: FileSystem, queue: str) -> Image | None:
    """The queue's image; None where there is none that can be believed. Raises no OSError."""
    return read_path(fs, layout.image_path(queue), queue)


def read_path(fs: FileSystem, path: str, queue: str) -> Image | None:
    """As ``read``, of the file that stands there."""
    try:
        most_bytes = _most_bytes(fs.read(path, PREFIX.size))
        data = fs.read(path) if fs.size(path) <= most_bytes else b""
    except OSError:
        return None
    found = decode(data, queue)
    if found is None:
        log.warning("%s, an index image, is damaged: heads are read instead", path)
    return found


def encode(queue: str, index: QueueIndex, epoch: int) -> list[bytes]:
    """The image as chunks: prefix, name, and one for each range."""
    special = {entry.seq: _special(entry) for entry in index.unpacked() if not entry.is_plain}
    return _encode(queue, epoch, [_section(rows, special) for rows in _ranges(index)])


def encode_range(queue: str, rows: Sequence[Row], special: Special, epoch: int) -> list[bytes]:
    """An image of one range, of which ``range_of`` gave these."""
    return _encode(queue, epoch, [_section(rows, special)])


def range_of(index: QueueIndex, number: int) -> tuple[list[Row], Special]:
    """The messages of a range in the order of their numbers, and what is special about some of them, by number."""
    packed, entries = index.between(number << RANGE_BITS, (number + 1) << RANGE_BITS)
    rows = [*packed, *[(entry.seq, entry.message_id, entry.size_bytes) for entry in entries]]
    return sorted(rows), {entry.seq: _special(entry) for entry in entries if not entry.is_plain}


def _encode(queue: str, epoch: int, sections: Sequence[bytes]) -> list[bytes]:
    name = queue.encode()
    prefix = (MAGIC, IMAGE_VERSION, len(name), 0, epoch, len(sections))
    checksum = 0
    for chunk in (PREFIX.pack(*prefix, 0), name, *sections):
        checksum = crc32(chunk, checksum)
    return [PREFIX.pack(*prefix, checksum), name, *sections]


def decode(data: bytes, queue: str) -> Image | None:
    """The image of a queue, or None for any other bytes."""
    try:
        magic, version, length, zero, epoch, ranges, checksum = PREFIX.unpack_from(data)
        view = memoryview(data)
        end = PREFIX.size + length
        prefix = PREFIX.pack(magic, version, length, zero, epoch, ranges, 0)
        if (magic, version, data[PREFIX.size : end]) != (MAGIC, IMAGE_VERSION, queue.encode()):
            return None
        if crc32(view[PREFIX.size :], crc32(prefix)) != checksum:
            return None
        sections = {}
        for _ in range(ranges):
            number, count, special = RANGE.unpack_from(data, end)
            names = end + RANGE.size
            sizes = names + count * ROW.size
            rest = sizes + count * SIZE_BYTES
            end = rest + special
            sections[number] = Section(view[names:sizes], view[sizes:rest], view[rest:end])
    except struct.error:
        return None
    return Image(epoch, sections) if end == len(data) else None


def _most_bytes(prefix: bytes) -> int:
    """How large an image can be that begins like this."""
    if len(prefix) < PREFIX.size or not prefix.startswith(MAGIC):
        return 0
    _, _, length, _, _, ranges, _ = PREFIX.unpack(prefix)
    most: int = PREFIX.size + length + ranges * RANGE_LIMIT_BYTES
    return most


def _ranges(index: QueueIndex) -> Iterator[list[Row]]:
    """All messages, one range at a time, each in the order of their numbers."""
    others: dict[int, list[Row]] = {}
    for entry in index.unpacked():
        others.setdefault(entry.seq >> RANGE_BITS, []).append((entry.seq, entry.message_id, entry.size_bytes))
    for rows in index.packed():
        yield sorted(rows + others.pop(rows[0][0] >> RANGE_BITS, []))
    for rows in others.values():
        yield sorted(rows)


def _section(rows: Sequence[Row], special: Special) -> bytes:
    told = [(place, *special[seq]) for place, (seq, _, _) in enumerate(rows) if seq in special] if special else ()
    packed: bytes = msgpack.packb(told, use_bin_type=True) if told else b""
    seqs, ids, sizes_bytes = zip(*rows, strict=True)
    sizes = struct.pack(f"<{len(rows)}Q", *sizes_bytes)
    return b"".join(
        (RANGE.pack(seqs[0] >> RANGE_BITS, len(rows), len(packed)), *map(ROW.pack, seqs, ids), sizes, packed)
    )


def _special(entry: Entry) -> tuple[Any, ...]:
    return entry.correlation_id, entry.priority, entry.not_before, entry.expires_at, entry.tries


def _properties(
    queue: str, correlation_id: bytes | None, priority: int, not_before: int | None, expires_at: int | None, tries: int
) -> Properties:
    return Properties(
        queue,
        correlation_id=correlation_id,
        priority=priority,
        not_before=not_before,
        expires_at=expires_at,
        tries=tries,
    )
