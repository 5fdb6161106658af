"""The bytes of a journal: segments of records, read back to where they end, or to where they are damaged.

    segment  <first LSN, 16 hex digits>.log: a header in its first sector, then records
    header   magic "XAQJ", version, 0, first LSN, size, checkpoint, CRC-32
    record   prefix, meta, body, zeros up to a multiple of 8
    prefix   magic "XAQJ", kind, 3 zeros, sizes of meta and body, LSN, LSN of its round's first record, epoch, CRC-32

A record's LSN is its place, so that what an earlier life left in a recycled segment never passes for a record. A round
ends in zeros, so that an end is told from a torn record. The records of one round may be torn in any order; but a good
record of a later round behind a bad one was written when the bad one was hardened, so that is damage and no torn tail.
The CRC is of prefix and meta; a body is checked by whoever knows its checksums from meta (``sound``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from xaqueue.errors import JournalDamaged, SpaceError
from xaqueue.storage.fs import FileSystem

VERSION = 1
SECTOR_BYTES = 512
MAGIC = b"XAQJ"
HEADER = struct.Struct("<4sHHQQQ")
PREFIX = struct.Struct("<4sBxxxIQQQQ")
CRC = struct.Struct("<I")
PREFIX_BYTES = PREFIX.size + CRC.size
LSN = struct.Struct("<Q")
END = bytes(PREFIX_BYTES)

CHECKPOINT, SWITCH = 254, 255
"""Kinds of the journal's own records; meta is an LSN: from which to replay, or where the next segment begins."""


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


Sound = Callable[[Record], bool]
"""Whether a record's body is what its meta says."""


@dataclass(slots=True)
class Segment:
    """One file: its first LSN, its size once it is full, how much of it is allocated, and a checkpoint before it."""

    start: int
    size: int
    allocated: int = 0
    checkpoint: int = 0

    @property
    def end(self) -> int:
        """The first LSN of the segment behind it."""
        return self.start + self.size


@dataclass(slots=True)
class Found:
    """What a journal's directory holds. ``records``: those that a replay needs, in their order."""

    segments: list[Segment] = field(default_factory=list)
    following: Segment | None = None
    """An empty segment, ready to take over."""
    records: list[Record] = field(default_factory=list)
    position: int = 0
    checkpoint: int = 0
    epoch: int = 0
    tail: bytes = b""
    """Of a record that was torn, behind ``position``."""
    strays: list[str] = field(default_factory=list)
    """Files that nothing needs any more."""


def name_of(start: int) -> str:
    return f"{start:016x}.log"


def parse_name(name: str) -> int | None:
    digits = name.removesuffix(".log")
    return int(digits, 16) if len(digits) == 16 and digits != name and set(digits) <= set("0123456789abcdef") else None


def header_of(segment: Segment) -> bytes:
    header = HEADER.pack(MAGIC, VERSION, 0, segment.start, segment.size, segment.checkpoint)
    return (header + CRC.pack(crc32(header))).ljust(SECTOR_BYTES, b"\0")


def record_of(entry: Entry, lsn: int, first: int, epoch: int) -> list[bytes]:
    """The record's bytes as chunks; bodies are not copied."""
    bodies = sum(map(len, entry.bodies))
    prefix = PREFIX.pack(MAGIC, entry.kind, len(entry.meta), bodies, lsn, first, epoch)
    padding = bytes(-(PREFIX_BYTES + len(entry.meta) + bodies) % 8)
    return [prefix, CRC.pack(crc32(entry.meta, crc32(prefix))), entry.meta, *entry.bodies, padding]


def look(fs: FileSystem, directory: str, sound: Sound) -> Found:
    """Reads a journal and changes nothing. Raises JournalDamaged, SpaceError for a newer format, OSError."""
    return _Look(fs, directory, sound).run()


class _Look:
    def __init__(self, fs: FileSystem, directory: str, sound: Sound) -> None:
        self.fs = fs
        self.directory = directory
        self.sound = sound
        self.found = Found()

    def run(self) -> Found:
        found = self.found
        chain = self._chain()
        found.checkpoint = max(segment.checkpoint for segment in chain)
        while chain:
            segment = chain.pop(0)
            found.segments.append(segment)
            if not self._read(segment, chain):
                break
        if chain:
            found.following = chain.pop(0)
        if found.segments[0].start > found.checkpoint:
            self._damaged(f"the segment that holds LSN {found.checkpoint:#x} is missing")
        needed = [segment for segment in found.segments if segment.end > found.checkpoint] or found.segments[-1:]
        found.strays += [name_of(segment.start) for segment in found.segments if segment not in needed]
        found.segments = needed
        found.records = [record for record in found.records if record.lsn >= found.checkpoint]
        return found

    def _chain(self) -> list[Segment]:
        """The segments without a gap up to the last one."""
        segments = []
        for name in sorted(self.fs.list(self.directory)):
            start = parse_name(name)
            segment = self._header(name) if start is not None else None
            if segment is not None and segment.start == start:
                segments.append(segment)
            elif segment is not None or name.endswith(".log.new"):
                self.found.strays.append(name)  # a crash cut its making or its recycling off
        if not segments:
            self._damaged("all its segments are missing")
        first = len(segments) - 1
        while first and segments[first - 1].end == segments[first].start:
            first -= 1
        self.found.strays += [name_of(segment.start) for segment in segments[:first]]
        return segments[first:]

    def _header(self, name: str) -> Segment:
        path = f"{self.directory}/{name}"
        data = self.fs.read(path, SECTOR_BYTES)
        if len(data) < SECTOR_BYTES or data[:4] != MAGIC:
            self._damaged(f"{name} has no header")
        _, version, _, start, size, checkpoint = HEADER.unpack_from(data)
        if version > VERSION:
            raise SpaceError(
                f"{path} has journal format {version}; this xaqueue reads format {VERSION}: use a newer one. "
                "Nothing was changed"
            )
        if CRC.unpack_from(data, HEADER.size)[0] != crc32(data[: HEADER.size]):
            self._damaged(f"the header of {name} is damaged")
        return Segment(start, size, self.fs.size(path), checkpoint)

    def _read(self, segment: Segment, behind: Sequence[Segment]) -> bool:
        """Reads the records of a segment; whether they go on in the one behind it."""
        found = self.found
        data = self.fs.read(f"{self.directory}/{name_of(segment.start)}")
        offset = SECTOR_BYTES
        while (parsed := self._parse(data, segment.start, offset)) is not None and parsed[2] >= found.epoch:
            record, _, found.epoch, size = parsed
            offset += size
            found.position = segment.start + offset
            if record.kind == CHECKPOINT:
                (found.checkpoint,) = LSN.unpack(record.meta)
            elif record.kind == SWITCH:
                return self._follow(LSN.unpack(record.meta)[0], behind)
            else:
                found.records.append(record)
        found.position = segment.start + offset
        self._end(data, segment, offset, behind)
        return False

    def _follow(self, start: int, behind: Sequence[Segment]) -> bool:
        if not behind or behind[0].start != start:
            self._damaged(f"segment {name_of(start)} is missing, and it has been written to")
        return True

    def _end(self, data: bytes, segment: Segment, offset: int, behind: Sequence[Segment]) -> None:
        """No good record stands at ``offset``: this is the end, or a torn tail, or damage."""
        found = self.found
        end = offset
        lsn = segment.start + offset
        for record, first, epoch, size in self._good_behind(data, segment.start, offset):
            if first > lsn:
                self._damaged(
                    f"the record at LSN {lsn:#x} ({name_of(segment.start)}, byte {offset:,}) is damaged, "
                    f"and good ones follow, from LSN {record.lsn:#x} on"
                )
            end = record.lsn - segment.start + size
            found.epoch = max(found.epoch, epoch)
        if behind:
            first_behind = self.fs.read(f"{self.directory}/{name_of(behind[0].start)}")
            if self._parse(first_behind, behind[0].start, SECTOR_BYTES) is not None:
                self._damaged(f"the record at LSN {lsn:#x} ({name_of(segment.start)}, byte {offset:,}) is damaged")
        if end == offset and data[offset : offset + PREFIX_BYTES].strip(b"\0"):
            end = min(offset + self._claimed(data, offset), len(data))
        found.tail = data[offset:end]

    def _good_behind(self, data: bytes, start: int, offset: int) -> Iterator[tuple[Record, int, int, int]]:
        while (offset := data.find(MAGIC, offset + 1)) >= 0:
            if offset % 8 == 0 and (parsed := self._parse(data, start, offset)) is not None:
                yield parsed

    def _parse(self, data: bytes, start: int, offset: int) -> tuple[Record, int, int, int] | None:
        """The good record in its place there, its round's first LSN, its epoch and its size; None without one."""
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
        if kind < CHECKPOINT and not self.sound(record):
            return None
        return record, first, epoch, (PREFIX_BYTES + meta_bytes + body_bytes + 7) & ~7

    @staticmethod
    def _claimed(data: bytes, offset: int) -> int:
        """How long the torn record says it is, if it can be asked."""
        if len(data) < offset + PREFIX_BYTES or data[offset : offset + 4] != MAGIC:
            return SECTOR_BYTES
        _, _, meta_bytes, body_bytes, *_ = PREFIX.unpack_from(data, offset)
        return PREFIX_BYTES + int(meta_bytes) + int(body_bytes)

    def _damaged(self, what: str) -> None:
        raise JournalDamaged(
            f"{self.directory}/ is damaged: {what}. Acknowledged steps may stand behind it, so nothing was changed: "
            f"put the file back from a copy if there is one; `xaqueue check` tells more, and "
            f"`xaqueue cut-journal` goes on without what is lost"
        )
