"""What can still be read of a damaged journal, and what lies unread between; looking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal_files import ARCHIVE, NEW, headers, names_in
from xaqueue.core.storage.journal_format import (
    SECTOR_BYTES,
    SWITCH,
    TIME,
    Name,
    Placed,
    Record,
    Segment,
    Validity,
    parse_name,
)
from xaqueue.core.storage.journal_reader import good_records
from xaqueue.core.storage.regular import NO_FILE

_FRESH_BYTES = 1 << 32
"""A new journal begins at a multiple of this, above all that the old one can have used."""
LARGEST_BYTES = 1 << 30
"""Of a segment whose size stood in a header that is damaged, so much is looked at."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Part of a journal that cannot be read."""

    start: int
    end: int | None
    """The LSN behind it; None where nothing that can be read follows."""
    name: str = ""
    """Of the segment that it is in; empty where that is missing."""

    def __str__(self) -> str:
        where = self.name or "missing"
        if self.end is None:
            return f"from LSN {self.start:#x} on ({where})"
        return f"from LSN {self.start:#x} to {self.end:#x}, {self.end - self.start:,} bytes ({where})"


@dataclass(slots=True)
class ReadableRecords:
    """``records`` and ``gaps`` are those that no checkpoint covers, in the order of their LSN."""

    records: list[Record] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    checkpoint: int = 0
    files: list[str] = field(default_factory=list)
    """The names of all segments, whole or damaged."""
    unused: list[str] = field(default_factory=list)
    """The names of segments that were in the making."""
    fresh: int = 0
    """Where a new journal can begin: above all LSNs that were ever used."""
    epoch: int = 0
    """The highest in the name of a segment."""


def read_readable(fs: FileSystem, directory: str, is_valid: Validity) -> ReadableRecords:
    """Reads all that can be read. Raises SpaceError for a newer format, OSError."""
    names = names_in(fs, directory)
    segments, orphans, damaged = headers(fs, directory)
    for name in damaged:
        said = parse_name(name)
        assert said is not None
        largest = max((segment.size for segment in segments), default=LARGEST_BYTES)
        size = min(_size(fs, f"{directory}/{name}"), largest)
        segments.append(Segment(said.start, size, epoch=said.epoch))
    newest = max((segment.epoch for segment in segments), default=0)
    segments = sorted((one for one in segments if one.epoch == newest), key=lambda segment: segment.start)
    for segment, behind in pairwise(segments):
        if segment.name in damaged:  # its size was in its header
            segment.size = behind.start - segment.start
    checkpoint, goods = good_records(fs, directory, segments, is_valid)
    highest = max((_highest(fs, directory, name) for name in names), default=0)
    return ReadableRecords(
        records=[good.record for placed in goods for good in placed if good.record.kind < TIME],
        gaps=[gap for gap in _gaps(segments, goods, checkpoint) if gap.end is None or gap.end > checkpoint],
        checkpoint=checkpoint,
        files=[name for name in names if parse_name(name) is not None],
        unused=[name for name in orphans if name.endswith(NEW)],
        fresh=(highest // _FRESH_BYTES + 1) * _FRESH_BYTES,
        epoch=max((said.epoch for name in names if (said := _named(name)) is not None), default=0),
    )


def _gaps(segments: list[Segment], goods: list[list[Placed]], checkpoint: int) -> Iterator[Gap]:
    used = max((number for number, placed in enumerate(goods) if placed), default=-1)
    wanted = checkpoint  # what is to be read next
    for number, (segment, placed) in enumerate(zip(segments, goods, strict=True)):
        if number > used:
            break
        if segment.start > wanted:
            yield Gap(wanted, segment.start)
        here = max(segment.start + SECTOR_BYTES, min(checkpoint, segment.end))
        for good in placed:
            if good.record.lsn > here:
                yield Gap(here, good.record.lsn, segment.name)
            here = good.end
        wanted = segment.end
        if not placed or placed[-1].record.kind != SWITCH:
            if number < used:
                yield Gap(here, segment.end, segment.name)
            else:
                wanted = here
    switched = used >= 0 and goods[used][-1].record.kind == SWITCH
    if not segments or (switched and wanted not in [segment.start for segment in segments]):
        yield Gap(wanted, None)
    elif used < 0 and segments[0].start > checkpoint:
        yield Gap(checkpoint, segments[0].start)


def _highest(fs: FileSystem, directory: str, name: str) -> int:
    """At least the highest LSN that a file can hold, by its name and size."""
    said = _named(name)
    return said.start + _size(fs, f"{directory}/{name}") if said is not None else 0


def _named(name: str) -> Name | None:
    """What it says of the segment that it is, was, or was to be."""
    return parse_name(name.partition(ARCHIVE)[0].removesuffix(NEW))


def _size(fs: FileSystem, path: str) -> int:
    try:
        return fs.size(path)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return 0
