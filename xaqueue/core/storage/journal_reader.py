"""A journal is read back from its last checkpoint to where it ends, or is damaged; looking changes nothing.

It is strict; what can still be read of a damaged one is read by ``xaqueue.offline.journal_remains``.

The records of one round may be torn in any order, so what is bad there is a torn tail. But a good record of a later
round behind a bad one was written when the bad one was hardened: that is damage, and so is a segment that is missing
where others say that it was written to. A segment grows by whole steps that are on disk before a record is written
there: one that is shorter than it was made, or ends before one of its records does, was cut short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.journal_files import ARCHIVE, content, headers, names_in
from xaqueue.core.storage.journal_format import (
    CHECKPOINT,
    EPOCH_BITS,
    PREFIX_BYTES,
    SECTOR_BYTES,
    SWITCH,
    TIME,
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
from xaqueue.errors import JournalDamaged

COVERED = 2_000
"""Of the records that a checkpoint covers so many are kept: an answer that a process took with it is of its last."""


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
