"""Small journals for tests: entries that know whether they are sound, and files that are damaged one way each."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from zlib import crc32

from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem, write_then_sync
from xaqueue.core.storage.journal import SMALLEST_SEGMENT_BYTES, Journal
from xaqueue.core.storage.journal_format import (
    CHECKPOINT,
    EPOCH_BITS,
    SECTOR_BYTES,
    Entry,
    Record,
    parse_name,
    record_of,
)

PLACE = "journal"


def entry(number: int, size: int = 0, kind: int = 1) -> Entry:
    """An entry with a body of this size, of which its meta has the checksum."""
    body = (b"%d," % number * (size // 2 + 1))[:size]
    return Entry(kind, b"%d %d" % (number, crc32(body)), [body] if body else [])


def sound(record: Record) -> bool:
    return int(record.meta.split()[1]) == crc32(record.body)


def numbers(records: Sequence[Record]) -> list[int]:
    return [int(record.meta.split()[0]) for record in records]


def journal_of(fs: FileSystem, segment_bytes: int = SMALLEST_SEGMENT_BYTES, *, used: bool = False) -> Journal:
    """What an opening finds; it is not started."""
    return Journal(fs, PLACE, segment_bytes=segment_bytes, is_valid=sound, used=used)


def started(fs: FileSystem, segment_bytes: int = SMALLEST_SEGMENT_BYTES) -> Journal:
    journal = journal_of(fs, segment_bytes)
    journal.start()
    return journal


def begun_anew(fs: FileSystem) -> Journal:
    """A new journal with all that the one before it has, as who may have lost what was read begins it."""
    journal = journal_of(fs)
    records = [Entry(record.kind, record.meta, [bytes(record.body)]) for record in journal.replay]
    journal.harden()
    journal.start(records)
    return journal


def write(journal: Journal, *entries: Entry) -> None:
    """One round, or as many as the segments make of it."""
    left = list(entries)
    while left:
        left = left[journal.write(left) :]


def fill(journal: Journal, first: int, size: int = 10_000) -> list[int]:
    """Writes rounds of one entry each until the segment was switched; returns their numbers."""
    before, number = journal.full_segments, first
    while journal.full_segments == before:
        write(journal, entry(number, size))
        number += 1
    return list(range(first, number))


def found(fs: FileSystem) -> list[int]:
    return numbers(journal_of(fs).replay)


def segment_names(fs: FileSystem) -> list[str]:
    return sorted(name for name in fs.list(PLACE) if parse_name(name) is not None)


def archives(fs: FileSystem) -> dict[str, bytes]:
    return {name: fs.read(f"{PLACE}/{name}") for name in sorted(fs.list(PLACE)) if ".archive" in name}


def content(fs: FileSystem) -> dict[str, bytes]:
    """The whole directory."""
    return {name: fs.read(f"{PLACE}/{name}") for name in fs.list(PLACE)}


def overwrite(fs: FileSystem, name: str, offset: int, data: bytes) -> None:
    fs.write_at(f"{PLACE}/{name}", offset, [data])


def spoil(fs: FileSystem, lsn: int, at: int = 0) -> None:
    """Flips a bit of the byte so far behind an LSN."""
    for name in segment_names(fs):
        said = parse_name(name)
        assert said is not None
        data = fs.read(f"{PLACE}/{name}")
        offset = lsn + at - said.start
        if 0 <= offset < len(data):
            overwrite(fs, name, offset, bytes([data[offset] ^ 1]))
            return
    raise AssertionError(f"no segment has LSN {lsn:#x}")


def bytes_of(wanted: Entry, lsn: int, first: int, writer: int = 0, epoch: int = 1) -> bytes:
    return b"".join(record_of(wanted, lsn, first, epoch << EPOCH_BITS | writer))


def replace_segment(fs: FileSystem, name: str, data: bytes) -> None:
    fs.unlink(f"{PLACE}/{name}")
    fs.create(f"{PLACE}/{name}", [data])


class FullFileSystem(DirectoryFileSystem):
    """A disk that has no more room once it is told so: no file is made and none grows; in place all goes on."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self.full = False
        self.short_by: int | None = None
        """Of a write that would grow a file so many bytes are missing; None: it fails whole."""
        self.before: dict[str, Callable[[str], None]] = {}
        """By the name of a call: what happens before it."""

    write_synced = write_then_sync

    def create(self, path: str, chunks: Sequence[bytes], modified_ns: int = 0) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().create(path, chunks, modified_ns)

    def write_at(self, path: str, offset: int, chunks: Sequence[bytes]) -> None:
        self._told("write_at", path)
        data = b"".join(chunks)
        if self.full and offset + len(data) > self.size(path):
            if self.short_by is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            super().write_at(path, offset, [data[: -self.short_by]])
            raise OSError(errno.EIO, "short write in place", path)
        super().write_at(path, offset, chunks)

    def sync_data(self, path: str) -> None:
        self._told("sync_data", path)
        super().sync_data(path)

    def rename(self, source: str, target: str) -> None:
        self._told("rename", target)
        super().rename(source, target)

    def _told(self, call: str, path: str) -> None:
        if call in self.before:
            self.before[call](path)


__all__ = ["CHECKPOINT", "PLACE", "SECTOR_BYTES"]
