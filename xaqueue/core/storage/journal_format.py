"""The bytes of a journal: segments of records.

    segment  <epoch>.<first LSN>.log, 16 hex digits each: a header in its first sector, then records
    header   magic "XAQJ", version, 0, first LSN, size, checkpoint, CRC-32; so in every version
    record   prefix, meta, body, zeros up to a multiple of 8
    prefix   magic "XAQJ", kind, 3 zeros, sizes of meta and body, LSN, LSN of its round's first record, epoch, CRC-32

A record's LSN is its place, so that what an earlier life left in a recycled segment never passes for a record. A round
ends in zeros, so that an end differs from a torn record. The epoch counts up with every opening: what stands behind a
record and has an older one was cut off before. Its upper half is the epoch in the segment's name, which is that of
the owner who began the journal; a record of another one is refused. The lower half counts the writers, or failures.
The CRC is of prefix and meta; a body is checked by whoever knows its checksums from meta (``Validity``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

VERSION = 1
SECTOR_BYTES = 512
EXTENSION_BYTES = 1024 * 1024
"""A new segment is filled with zeros by this much at a time, its first time only, and synced before it is used."""
AHEAD = 8
"""So many times as much where nobody waits for it."""
MAGIC = b"XAQJ"
HEADER = struct.Struct("<4sHHQQQ")
PREFIX = struct.Struct("<4sBxxxIQQQQ")
CRC = struct.Struct("<I")
PREFIX_BYTES = PREFIX.size + CRC.size
LSN = struct.Struct("<Q")
END = bytes(PREFIX_BYTES)
PADDINGS = [bytes(size) for size in range(8)]
"""What follows a record: up to a multiple of 8."""
pack_prefix, pack_crc = PREFIX.pack, CRC.pack
EPOCH_BITS = 32
"""Of the epoch in a record, those below the epoch in the name of its segment."""
_NAME = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{16})\.log")

TIME, CHECKPOINT, SWITCH = 253, 254, 255
"""Kinds of the journal's own records, which are these and none below. Meta is a number: when the round that it begins
was written, microseconds UTC; the LSN from which to replay; that where the next segment begins."""


class Entry(NamedTuple):
    """What a record says. ``meta`` is small; ``bodies`` are written as they are, without a copy."""

    kind: int
    meta: bytes
    bodies: Sequence[bytes] = ()

    @property
    def size_bytes(self) -> int:
        """Of its record."""
        return (PREFIX_BYTES + len(self.meta) + sum(map(len, self.bodies)) + 7) & ~7


class Record(NamedTuple):
    """A record that was read."""

    lsn: int
    kind: int
    meta: bytes
    body: memoryview


class Placed(NamedTuple):
    """A good record in its place, with what its prefix says of its round, and the LSN behind it."""

    record: Record
    first: int
    epoch: int
    end: int


Validity = Callable[[Record], bool]
"""Whether a record's body is what its meta says."""


@dataclass(slots=True)
class Segment:
    """One file: its first LSN, its size once it is full, how much of it is allocated, and a checkpoint before it."""

    start: int
    size: int
    allocated: int = 0
    checkpoint: int = 0
    epoch: int = 1

    @property
    def end(self) -> int:
        """The first LSN of the segment behind it."""
        return self.start + self.size

    @property
    def name(self) -> str:
        return name_of(self.start, self.epoch)

    @property
    def growth(self) -> int:
        """By how much it grows next."""
        return min(EXTENSION_BYTES, self.size - self.allocated)

    def allocated_of(self, file_bytes: int) -> int:
        """How much of a file of this size may hold records: whole steps of growth. What is beyond is one that a crash
        cut off, or that found no room.
        """
        return self.size if file_bytes >= self.size else file_bytes // EXTENSION_BYTES * EXTENSION_BYTES


class BadHeader(Exception):
    """Bytes that are no header."""


class NewerHeader(Exception):
    """The header of a version that is not known here; its number is the argument."""


class Name(NamedTuple):
    """What the name of a segment says."""

    epoch: int
    start: int


def name_of(start: int, epoch: int = 1) -> str:
    return f"{epoch:016x}.{start:016x}.log"


def parse_name(name: str) -> Name | None:
    match = _NAME.fullmatch(name)
    return Name(int(match[1], 16), int(match[2], 16)) if match else None


def header_of(segment: Segment) -> bytes:
    header = HEADER.pack(MAGIC, VERSION, 0, segment.start, segment.size, segment.checkpoint)
    return (header + CRC.pack(crc32(header))).ljust(SECTOR_BYTES, b"\0")


def parse_header(data: bytes) -> Segment:
    """Raises BadHeader, NewerHeader."""
    if len(data) < SECTOR_BYTES or data[: len(MAGIC)] != MAGIC:
        raise BadHeader
    _, version, _, start, size, checkpoint = HEADER.unpack_from(data)
    if CRC.unpack_from(data, HEADER.size)[0] != crc32(data[: HEADER.size]):
        raise BadHeader
    if version > VERSION:
        raise NewerHeader(version)
    return Segment(start, size, checkpoint=checkpoint)


def record_of(entry: Entry, lsn: int, first: int, epoch: int) -> list[bytes]:
    """The record's bytes as chunks; bodies are not copied."""
    bodies = sum(map(len, entry.bodies))
    prefix = PREFIX.pack(MAGIC, entry.kind, len(entry.meta), bodies, lsn, first, epoch)
    padding = PADDINGS[-(PREFIX_BYTES + len(entry.meta) + bodies) & 7]
    return [prefix, CRC.pack(crc32(entry.meta, crc32(prefix))), entry.meta, *entry.bodies, padding]


def lsn_in(record: Record) -> int:
    """What one of the journal's own records tells."""
    lsn: int = LSN.unpack(record.meta)[0]
    return lsn


def parse_record(data: bytes, start: int, offset: int) -> Placed | None:
    """The record in its place at this offset of the segment that begins at LSN ``start``; None without one.

    Its prefix and meta are checked, its body is not.
    """
    if len(data) < offset + PREFIX_BYTES:
        return None
    magic, kind, meta_bytes, body_bytes, lsn, first, epoch = PREFIX.unpack_from(data, offset)
    body_at = offset + PREFIX_BYTES + meta_bytes
    if magic != MAGIC or lsn != start + offset or body_at + body_bytes > len(data):
        return None
    meta = data[offset + PREFIX_BYTES : body_at]
    (checksum,) = CRC.unpack_from(data, offset + PREFIX.size)
    if crc32(meta, crc32(data[offset : offset + PREFIX.size])) != checksum:
        return None
    record = Record(lsn, kind, meta, memoryview(data)[body_at : body_at + body_bytes])
    return Placed(record, first, epoch, lsn + ((PREFIX_BYTES + meta_bytes + body_bytes + 7) & ~7))


def records_in(data: bytes, start: int) -> Iterator[Placed]:
    """The records of the segment that begins at LSN ``start``, also those behind bad ones, checked as far as meta."""
    offset = SECTOR_BYTES
    while offset >= 0:
        placed = parse_record(data, start, offset) if offset % 8 == 0 else None
        if placed is not None:
            yield placed
            offset = placed.end - start
            if data[offset : offset + len(MAGIC)] == MAGIC:
                continue
        offset = data.find(MAGIC, offset + 1)


def claimed_end(data: bytes, start: int, offset: int) -> int | None:
    """The LSN where the bad record at this offset would end, if its prefix can be asked."""
    if len(data) >= offset + PREFIX_BYTES and data[offset : offset + len(MAGIC)] == MAGIC:
        _, _, meta_bytes, body_bytes, lsn, *_ = PREFIX.unpack_from(data, offset)
        if lsn == start + offset:
            claimed: int = lsn + PREFIX_BYTES + meta_bytes + body_bytes
            return claimed
    return None
