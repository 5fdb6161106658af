"""A journal is read back from its last checkpoint to where it ends, or is damaged; looking changes nothing.

``look`` is strict, and ``read_remains`` takes what can still be read of a damaged one, and what lies unread between.

The records of one round may be torn in any order, so what is bad there is a torn tail. But a good record of a later
round behind a bad one was written when the bad one was hardened: that is damage, and so is a segment that is missing
where others say that it was written to. A segment grows by whole steps that are on disk before a record is written
there: one that is shorter than it was made, or ends before one of its records does, was cut short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal_files import ARCHIVE, NEW, content, headers, names_in
from xaqueue.core.storage.journal_format import (
    CHECKPOINT,
    EPOCH_BITS,
    PREFIX_BYTES,
    SECTOR_BYTES,
    SWITCH,
    TIME,
    Name,
    Placed,
    Record,
    Segment,
    Validity,
    claimed_end,
    lsn_in,
    name_of,
    parse_name,
    records_in,
)
from xaqueue.core.storage.regular import NO_FILE
from xaqueue.errors import JournalDamaged

_FRESH_BYTES = 1 << 32
"""A new journal begins at a multiple of this, above all that the old one can have used."""
COVERED = 2_000
"""Of the records that a checkpoint covers so many are told of: an answer that a process took with it is of its last."""
LARGEST_BYTES = 1 << 30
"""Of a segment whose size stood in a header that is damaged, so much is looked at."""


@dataclass(slots=True)
class Found:
    """What a journal's directory holds. ``records``: those that a replay needs, in their order."""

    segments: list[Segment] = field(default_factory=list)
    following: Segment | None = None
    """An empty segment, ready to take over."""
    records: list[Record] = field(default_factory=list)
    covered: deque[Record] = field(default_factory=lambda: deque(maxlen=COVERED))
    """The last of those before, without their bodies: for who asks what became of a step."""
    position: int = 0
    checkpoint: int = 0
    epoch: int = 0
    """The highest of a record."""
    segment_epoch: int = 0
    """In the names of the segments; those of an older one are of a journal that this one has replaced."""
    tail: bytes = b""
    """Of a record that was torn, behind ``position``."""
    orphans: list[str] = field(default_factory=list)
    """Files that nothing needs any more."""
    abandoned: list[str] = field(default_factory=list)
    """Files that are to be kept: of a damaged journal that this one has replaced, or that a former owner wrote late."""


def look(fs: FileSystem, directory: str, is_valid: Validity, *, used: bool = False) -> Found:
    """Reads a journal, which may be missing as long as it was never used.

    used: whether it is known to hold something. Raises JournalDamaged, SpaceError for a newer format, OSError.
    """
    return _Look(fs, directory, is_valid).run(used)


def good_records(
    fs: FileSystem,
    directory: str,
    segments: Sequence[Segment],
    is_valid: Validity,
    covered: deque[Record] | None = None,
) -> tuple[int, list[list[Placed]]]:
    """The last checkpoint that a header or a record tells of, and from there on the good records of each segment.

    Without those that an earlier opening had cut off. What a record says of a checkpoint was true when it was written,
    hardened or not. covered: gets the others, without their bodies.
    """
    checkpoint = max((segment.checkpoint for segment in segments), default=0)
    goods, epoch = [], 0
    for segment in segments:
        placed = []
        for good in records_in(content(fs, directory, segment), segment.start):
            if good.epoch >= epoch and good.epoch >> EPOCH_BITS == segment.epoch:
                placed.append(good)
                epoch = good.epoch
                if good.record.kind == CHECKPOINT:
                    checkpoint = max(checkpoint, lsn_in(good.record))
        goods.append(placed)
    if covered is not None:
        older = (good.record for placed in goods for good in placed if good.record.lsn < checkpoint)
        covered.extend(record._replace(body=memoryview(b"")) for record in older if record.kind < TIME)
    return checkpoint, [
        [
            good
            for good in placed
            if good.record.lsn >= checkpoint and (good.record.kind >= TIME or is_valid(good.record))
        ]
        for placed in goods
    ]


@dataclass(slots=True)
class _Look:
    fs: FileSystem
    directory: str
    is_valid: Validity
    found: Found = field(default_factory=Found)

    def run(self, used: bool) -> Found:
        found = self.found
        segments, found.orphans, damaged = headers(self.fs, self.directory)
        newest = max((segment.epoch for segment in segments), default=0)
        for name in damaged:
            said = parse_name(name)
            if said is None or said.epoch >= newest:
                self._damaged(f"{name} has no sound header")
            found.abandoned.append(name)
        if not segments:
            if used or any(ARCHIVE in name for name in names_in(self.fs, self.directory)):
                self._damaged("all its segments are missing")
            return found
        chain = self._chain(segments)
        found.segment_epoch = chain[-1].epoch
        found.checkpoint, goods = good_records(self.fs, self.directory, chain, self.is_valid, found.covered)
        found.epoch = max((good.epoch for placed in goods for good in placed), default=0)
        if not chain[0].start <= found.checkpoint < chain[-1].end:
            self._damaged(f"the segment that holds LSN {found.checkpoint:#x} is missing")
        covered = sum(1 for segment in chain[:-1] if segment.end <= found.checkpoint)
        found.orphans += [segment.name for segment in chain[:covered]]
        self._read(chain[covered:], goods[covered:])
        return found

    def _chain(self, segments: list[Segment]) -> list[Segment]:
        """The segments without a gap up to the last one."""
        first, epoch = len(segments) - 1, segments[-1].epoch
        while first and segments[first - 1].end == segments[first].start and segments[first - 1].epoch == epoch:
            first -= 1
        before = [segment.name for segment in segments[:first]]
        begun = segments[first].checkpoint == segments[first].start  # with nothing to be done again
        if begun and all(segment.end != segments[first].start for segment in segments[:first]):
            self.found.abandoned += before  # nothing leads up to it: whoever began it did not replace these
        else:
            self.found.orphans += before
        return segments[first:]

    def _read(self, chain: list[Segment], goods: list[list[Placed]]) -> None:
        """Takes the records from the checkpoint on, as far as they go on without a gap."""
        found = self.found
        while True:
            segment, placed = chain.pop(0), goods.pop(0)
            if not segment.allocated or (placed and placed[-1].end > segment.start + segment.allocated):
                self._cut_short(segment, placed[-1].end if placed else segment.start + SECTOR_BYTES)
            found.segments.append(segment)
            found.position = max(segment.start + SECTOR_BYTES, found.checkpoint)
            for good in placed:
                if good.record.lsn == found.position:
                    found.position = good.end
                    if good.record.kind < TIME:
                        found.records.append(good.record)
            if not placed or placed[-1].end != found.position or placed[-1].record.kind != SWITCH:
                break
            start = lsn_in(placed[-1].record)
            if not chain or chain[0].start != start:
                self._damaged(f"segment {name_of(start, segment.epoch)} is missing, and it has been written to")
        self._end(segment, [good for placed in (placed, *goods) for good in placed if good.record.lsn > found.position])
        if chain:
            found.following = chain.pop(0) if chain[0].allocated else None
            found.orphans += [other.name for other in chain]

    def _end(self, segment: Segment, behind: Sequence[Placed]) -> None:
        """No good record stands at the position: this is the end, or a torn tail, or damage."""
        found = self.found
        start, offset = segment.start, found.position - segment.start
        for good in behind:
            if good.first > found.position:
                self._damaged(
                    f"the record at LSN {found.position:#x} ({segment.name}, byte {offset:,}) is damaged, and good "
                    f"ones follow, from LSN {good.record.lsn:#x} on"
                )
        data = content(self.fs, self.directory, segment)
        end, limit, claimed = found.position, start + segment.allocated, claimed_end(data, start, offset)
        if claimed is not None and limit < claimed <= segment.end:
            self._cut_short(segment, found.position)
        if behind:
            end = behind[-1].end
        elif data[offset : offset + PREFIX_BYTES].strip(b"\0"):
            end = min(claimed or found.position + SECTOR_BYTES, limit)
        found.tail = data[offset : end - start]

    def _cut_short(self, segment: Segment, end: int) -> NoReturn:
        size = self.fs.size(f"{self.directory}/{segment.name}")
        what = f"{segment.name} was cut short: it has {size:,} bytes, a size that no crash leaves"
        raise damage_of(self.directory, what, end)

    def _damaged(self, what: str) -> NoReturn:
        raise damage_of(self.directory, what)


def damage_of(directory: str, what: str, lost_from: int | None = None) -> JournalDamaged:
    """The error that says so, and what to do. lost_from: the LSN from which on nothing is left."""
    damage = JournalDamaged(
        f"{directory}/ is damaged: {what}. Acknowledged steps may stand behind it, so nothing was changed: "
        f"put the file back from a copy if there is one; `xaqueue check` tells more, and "
        f"`xaqueue salvage-journal` goes on without what is lost"
    )
    damage.lost_from = lost_from
    return damage


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
