"""A journal of redo records: what ``write`` returned from is durable, at one overwrite and one sync a round.

Segments are preallocated and overwritten in place, so that a sync needs no commit of the file system's own journal.
Once a checkpoint has covered a segment, it is recycled under the name of a later LSN. ``journal_format`` has
the bytes, ``journal_reader`` reads them back. Nothing here knows what a record means.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from zlib import crc32

from xaqueue.core.storage.fs import NO_LINK, NO_ROOM, FileSystem, Writer, discard, suppress_room, synced
from xaqueue.core.storage.journal_files import OWN_BYTES, free_archive, make_segment
from xaqueue.core.storage.journal_format import (
    AHEAD,
    CHECKPOINT,
    END,
    EPOCH_BITS,
    LSN,
    MAGIC,
    PADDINGS,
    PREFIX_BYTES,
    SECTOR_BYTES,
    SWITCH,
    TIME,
    Entry,
    Record,
    Segment,
    Validity,
    header_of,
    pack_crc,
    pack_prefix,
    parse_name,
    record_of,
)
from xaqueue.core.storage.journal_reader import look
from xaqueue.core.storage.reserve import PIECE_BYTES
from xaqueue.core.storage.scheduling import THREADS

SEGMENT_BYTES = 64 * 1024 * 1024
"""Default size of a segment."""
SMALLEST_SEGMENT_BYTES = 64 * 1024

log = logging.getLogger("xaqueue")


def whole_sectors(segment_bytes: int) -> int:
    """The size of a segment for which this was asked."""
    return max(segment_bytes // SECTOR_BYTES * SECTOR_BYTES, SMALLEST_SEGMENT_BYTES)


def checkpoint_entry(lsn: int) -> Entry:
    """What records that everything below ``lsn`` is in the directories."""
    return Entry(CHECKPOINT, LSN.pack(lsn))


def time_entry(now_us: int) -> Entry:
    """What records when a round was written."""
    return Entry(TIME, LSN.pack(now_us))


class Journal:
    """One writer, which is whoever leads a round; ``recycle`` may run in another thread beside it."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str = "journal",
        *,
        segment_bytes: int = SEGMENT_BYTES,
        is_valid: Validity = lambda _: True,
        used: bool = False,
        epoch: int = 1,
    ) -> None:
        """Reads what is there and changes nothing. ``replay`` then has the records from the last checkpoint on.

        epoch: the owner's, which names a journal that is begun here; a higher one where that was used before. used:
        whether it is known to hold something, so that an empty directory is damage. Raises JournalDamaged,
        SpaceError for a newer format, OSError.
        """
        self._fs = fs
        self._directory = directory
        self._segment_bytes = whole_sectors(segment_bytes)
        self._guard = threading.Lock()
        self._making = threading.Lock()
        """Held while the following segment is made or takes over, and while the present one grows."""
        found = look(fs, directory, is_valid, used=used)
        self._segments = found.segments
        self._write: Writer
        self._limit = 0
        """Of the last of them, once it is to be written to: how, and up to which LSN before it has to grow."""
        self._following = found.following
        self._orphans = found.orphans
        self._abandoned = found.abandoned
        self._tail = found.tail
        self._begins = max(epoch, found.segment_epoch + 1)
        self.segment_epoch = found.segment_epoch
        """In the names of its segments."""
        self._epoch = found.epoch + 1 if found.epoch else found.segment_epoch << EPOCH_BITS
        self.replay: list[Record] = found.records
        self.covered: Sequence[Record] = found.covered
        """The last of those before them, without their bodies."""
        self.position = found.position
        """The LSN of the next record."""
        self.checkpoint = found.checkpoint
        """Every record below it is in the directories, durably."""
        self.syncs = 0
        self.switches = 0
        """How many segments became full."""
        self.waiting = THREADS
        """How ``write`` waits for its calls that may be slow, those by which it grows."""
        self.clock: Callable[[], int] | None = None
        """Microseconds UTC. Where there is one, every round begins with its time."""
        self.kept = ""
        """The directory into which segments go that nothing needs any more; empty where they are used again."""

    def harden(self, *, rewrites: bool = False) -> None:
        """What was read is on disk, and so is every name: after a kill both may be in memory only, and nobody acts on
        that, as by removing the segments that a newer one covers. rewrites: what no checkpoint covers is overwritten
        with itself before, since a sync that failed may have let go of it. Raises OSError."""
        for segment in self._segments:
            path, end = self._path(segment.name), min(segment.end, self.position) - segment.start
            for offset in range(max(0, self.checkpoint - segment.start), end if rewrites else 0, PIECE_BYTES):
                self._fs.write_at(path, offset, [self._fs.read(path, min(PIECE_BYTES, end - offset), offset)])
            synced(self._fs.sync_data, path)
        if self._segments:
            synced(self._fs.sync_dir, self._directory)

    def tidy(self) -> None:
        """Removes what a crash has left of segments that were being made or used again. Raises OSError."""
        for name in self._orphans:
            self._release(name)
        self._orphans = []

    def start(self, carried: Sequence[Entry] | None = None, *, is_shared: bool = False) -> list[str]:
        """Makes it ready for records, once ``replay`` is done with; returns what is worth a note. Raises OSError.

        carried: what was read may be in memory only, whatever a sync says, and nothing is written behind it: it goes on
        in a new segment, of which these are the first records, and all others go. Everything else that ``replay`` had
        is on disk elsewhere. is_shared: its last writer may come back and write into the old segments; that there is no
        room for a new one is an error then.
        """
        fs, notes = self._fs, []
        if not fs.is_dir(self._directory):
            fs.make_dir(self._directory)
            fs.sync_dir("")
        self.replay, self.covered = [], ()
        if self._tail:
            notes.append(self._archive(self._segments[-1], self._tail))
            self._tail = b""
        self.tidy()
        for name in self._abandoned:
            fs.rename(self._path(name), free_archive(fs, self._path(name)))
        self._abandoned = []
        if carried is not None and self._segments:
            notes += self._begin_anew(carried, is_shared)
        if not self._segments:
            self._name_by(self._begins)
            self._segments = [make_segment(fs, self._directory, self._segment(self.position, self._segment_bytes))]
            self.position += SECTOR_BYTES
        self._go_on()
        if self._following is not None and self._following.size != self._segment_bytes:
            self._unlink_following()
        try:
            self._ensure_following()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            notes.append(f"no room for the journal's next segment ({error.strerror})")
        return notes

    def _begin_anew(self, carried: Sequence[Entry], is_shared: bool) -> list[str]:
        """The header of the new segment covers the others: from the moment of its name on they are strays."""
        fs, old, start = self._fs, self._segments, self._segments[-1].end
        before = self.segment_epoch, self._epoch
        self._name_by(self._begins)
        self._unlink_following()
        records: list[bytes] = []
        position = start + SECTOR_BYTES
        for entry in carried:
            records += record_of(entry, position, position, self._epoch)
            position += entry.size_bytes
        needed = whole_sectors(position - start + OWN_BYTES + SECTOR_BYTES)
        segment = self._segment(start, max(self._segment_bytes, needed), start)
        try:
            self._segments = [make_segment(fs, self._directory, segment, records)]
        except OSError as error:
            if error.errno not in NO_ROOM or is_shared:
                raise
            self.segment_epoch, self._epoch = before
            return [f"no room for a new journal ({error.strerror}): it goes on in the old one"]
        self.position, self.checkpoint = position, start
        for segment in old:  # the last one last: without it the others would pass for a journal given up
            self._release(segment.name)
            fs.sync_dir(self._directory)
        return []

    def _name_by(self, epoch: int) -> None:
        """From here on segments are named by this epoch, and records have it."""
        self.segment_epoch, self._epoch = epoch, epoch << EPOCH_BITS

    def _segment(self, start: int, size: int, checkpoint: int = 0) -> Segment:
        return Segment(start, size, checkpoint=checkpoint, epoch=self.segment_epoch)

    def _unlink_following(self) -> None:
        if self._following is not None:
            self._fs.unlink(self._path(self._following.name))
            self._following = None

    def _archive(self, segment: Segment, tail: bytes) -> str:
        """Keeps a torn tail beside its segment, and cuts it off."""
        path = self._path(segment.name)
        archive = free_archive(self._fs, path)
        kept = f"kept as {archive}"
        try:
            self._fs.create(archive, [tail])
            self._fs.sync_file(archive)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            kept = f"not kept, for want of room ({error.strerror})"
        offset = self.position - segment.start
        wiped = min(max(len(tail), len(END)), segment.allocated - offset)
        self._fs.write_at(path, offset, [bytes(wiped)])
        synced(self._fs.sync_data, path)
        self._fs.sync_dir(self._directory)
        return f"the journal ended in {len(tail):,} bytes of a torn record, promised to nobody: {kept}"

    # Writing

    @property
    def largest_bytes(self) -> int:
        """A record of this size, at most, leaves its segment room for others."""
        return self._segment_bytes // 4

    def write(self, entries: Sequence[Entry], syncing: Callable[[int], None] | None = None) -> int:
        """Appends as many of these as go into one segment, at least one, and hardens them; returns how many.

        syncing: called with the LSN behind them when they are written, before their sync is waited for; then those are
        two calls.

        Raises OSError; where it is one of NO_ROOM, nothing was written.
        """
        segment, first = self._segments[-1], self.position
        asked, timed = entries, 0
        if self.clock is not None and (len(entries) > 1 or entries[0].kind != CHECKPOINT):
            entries, timed = [time_entry(self.clock()), *entries], 1
        chunks: list[bytes] = []
        lsn, done = first, -timed
        for kind, meta, bodies in entries:
            body_bytes = sum(map(len, bodies)) if bodies else 0
            end = lsn + PREFIX_BYTES + len(meta) + body_bytes
            padding = -end & 7
            end += padding
            if end > self._limit and not self._has_room(end - first):
                break
            prefix = pack_prefix(MAGIC, kind, len(meta), body_bytes, lsn, first, self._epoch)
            chunks += (prefix, pack_crc(crc32(meta, crc32(prefix))), meta, *bodies, PADDINGS[padding])
            lsn = end
            done += 1
        if done > 0:
            chunks.append(END)
            try:
                if syncing is None:
                    self._write(first - segment.start, chunks)
                else:
                    path = self._path(segment.name)
                    self._fs.write_synced(path, first - segment.start, chunks, partial(syncing, lsn))
            except OSError:
                self._epoch += 1  # what was written of it all the same is not to stand behind what is written next
                raise
            self.syncs += 1
            self.position = lsn
            return done
        if asked[0].kind == CHECKPOINT and self._has_reserve():
            self._write_own(CHECKPOINT, LSN.unpack(asked[0].meta)[0])
            return 1
        self.waiting.run(partial(self._make_room, sum(entry.size_bytes for entry in entries[: timed + 1])))
        return self.write(asked, syncing)

    def write_checkpoint(self, lsn: int) -> None:
        """Records, durably, that everything below ``lsn`` is in the directories; ``recycle`` may follow.

        Not in the last place of a segment that cannot grow: that is the switch's.
        """
        if self._has_room(0):
            self._write_own(CHECKPOINT, lsn)
            self.checkpoint = max(self.checkpoint, lsn)

    def _has_room(self, size: int) -> bool:
        """Whether so much goes into the present segment, which grows towards its size where the disk lets it."""
        segment = self._segments[-1]
        wanted = self.position - segment.start + size + OWN_BYTES
        if wanted <= segment.allocated:
            return True
        return wanted <= segment.size and self.waiting.run(partial(self._reach, segment, wanted))

    def _reach(self, segment: Segment, wanted: int) -> bool:
        with self._making:  # somebody may be at it
            while wanted > segment.allocated:
                if not self._extend(segment, segment.growth):
                    return False
        return True

    def _has_reserve(self) -> bool:
        """Whether a checkpoint can be recorded in what is kept free, on a full disk, so that it becomes less full."""
        segment = self._segments[-1]
        return self.position - segment.start + OWN_BYTES <= segment.allocated

    @property
    def is_short(self) -> bool:
        """Whether the present segment is to ``grow``: little is left of what is allocated, and more is to come."""
        segment = self._segments[-1]
        left = segment.start + segment.allocated - self.position
        return left < min(AHEAD * segment.growth, segment.allocated // 2)

    def grow(self) -> bool:
        """As a round does that needs it, by more, and beside whoever writes. Raises OSError, never one of NO_ROOM."""
        with self._making:
            segment = self._segments[-1]
            return self._extend(segment, min(AHEAD * segment.growth, segment.size - segment.allocated))

    def _extend(self, segment: Segment, step: int) -> bool:
        path = self._path(segment.name)
        try:
            self._fs.write_at(path, segment.allocated, [bytes(step)])
        except OSError as error:
            if error.errno not in NO_ROOM and self._fs.size(path) <= segment.allocated:  # not even a part of it
                raise
            return False
        # A file that ends before one of its records was cut short by somebody, and by no crash.
        synced(self._fs.sync_data, path)
        segment.allocated += step
        self._limit = segment.start + segment.allocated - OWN_BYTES
        return True

    def _write_own(self, kind: int, lsn: int) -> None:
        segment, entry = self._segments[-1], Entry(kind, LSN.pack(lsn))
        end = self.position + entry.size_bytes
        chunks = record_of(entry, self.position, self.position, self._epoch)
        try:
            self._write(self.position - segment.start, [*chunks, END[: segment.start + segment.allocated - end]])
        except OSError:
            self._epoch += 1
            raise
        self.syncs += 1
        self.position = end

    def _go_on(self) -> None:
        segment = self._segments[-1]
        self._write = self._fs.writer(self._path(segment.name))
        self._limit = segment.start + segment.allocated - OWN_BYTES

    # Segments

    @property
    def full_segments(self) -> int:
        """How many segments wait for a checkpoint to release them."""
        return len(self._segments) - 1

    @property
    def allocated_bytes(self) -> int:
        with self._guard:
            following = self._following
            return sum(segment.allocated for segment in self._segments) + (following.allocated if following else 0)

    def segment_at(self, lsn: int) -> tuple[Segment, int] | None:
        """The segment in which a record of this LSN stands, or is going to, and the size of the one behind it, 0 where
        nothing is written there; None where it is none of those that are written to.
        """
        with self._guard:
            for number, segment in enumerate(self._segments):
                if segment.start <= lsn < segment.end:
                    behind = self._segments[number + 1 :] or ([self._following] if self._following else [])
                    return segment, behind[0].size if behind else 0
        return None

    def recycle(self, *, may_keep: bool = True) -> None:
        """Releases the segments that the last checkpoint covers: one of them is the following one, the others go.

        may_keep: whether they are ``kept`` instead, where that is asked for.
        """
        with self._guard:
            released = [segment for segment in self._segments[:-1] if segment.end <= self.checkpoint]
            self._segments = [segment for segment in self._segments if segment not in released]
        for segment in released:
            with self._making:
                if self.kept and may_keep:
                    self._release(segment.name)
                elif self._following is None and segment.size == self._segment_bytes:
                    self._following = self._recycled(segment, self._segments[-1].end)
                else:
                    self._fs.unlink(self._path(segment.name))
        if released and self.kept and may_keep:
            with self._making, suppress_room():  # here, and not while a round waits for it
                self._ensure_following()

    def _release(self, name: str) -> None:
        """Nothing needs it any more. It has its name among those that are kept, on disk, before it loses the other.
        Where there is no room for it, or another file system, it goes: who comes by it says that it is missing.
        """
        path, kept = self._path(name), f"{self.kept}/{name}"
        if self.kept and parse_name(name) is not None and self._fs.exists(path):
            try:
                if self._fs.exists(kept):  # of a restore that was given up; else one that comes late finds another's
                    discard(self._fs, kept)
                self._fs.link(path, kept)
                synced(self._fs.sync_dir, self.kept)
            except FileNotFoundError:  # a former owner may have recycled it just now
                return
            except OSError as error:
                if error.errno in NO_LINK and error.errno != errno.EXDEV:
                    self._fs.rename(path, kept)
                    return
                if error.errno not in NO_ROOM and error.errno != errno.EXDEV:
                    raise
                log.warning("[archive-gap] %s is not kept (%s): no restore comes by it", path, error.strerror)
        discard(self._fs, path)

    def _ensure_following(self, size: int = 0) -> None:
        """Makes the segment that takes over when the present one is full, large enough for a record of this size."""
        needed = -(-(SECTOR_BYTES + size + OWN_BYTES) // SECTOR_BYTES) * SECTOR_BYTES
        if self._following is None or self._following.size < needed:
            segment = self._segment(self._segments[-1].end, max(self._segment_bytes, needed), self.checkpoint)
            self._following = make_segment(self._fs, self._directory, segment)

    def _make_room(self, size: int) -> None:
        """The following segment takes over. Raises OSError, one of NO_ROOM, where that would not help."""
        present = self._segments[-1]
        with self._making:
            if self.position - present.start + size + OWN_BYTES > present.size:
                self._ensure_following(size)
            elif self._following is None or self._following.allocated < SECTOR_BYTES + size + OWN_BYTES:
                raise OSError(errno.ENOSPC, "the journal cannot grow", self._directory)
            following = self._following
            assert following is not None
            self._write_own(SWITCH, following.start)
            with self._guard:
                self._segments.append(following)
                self._following = None
            self._go_on()
            self.position = following.start + SECTOR_BYTES
        self.switches += 1

    def _recycled(self, old: Segment, start: int) -> Segment | None:
        """Its header is one sector, so that it is either segment at any time; what has the other's name is a stray.

        None where there is no room for that: then it goes.
        """
        segment = Segment(start, old.size, old.allocated, self.checkpoint, old.epoch)
        source, target = self._path(old.name), self._path(segment.name)
        try:
            self._fs.hold_dir(self._directory)
            self._fs.write_at(source, 0, [header_of(segment)])
            self._fs.rename(source, target)
            synced(self._fs.sync_dir, self._directory)
            self._fs.write_at(target, SECTOR_BYTES, [END])
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            for path in (source, target):
                discard(self._fs, path)
            return None
        synced(self._fs.sync_data, target)
        return segment

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
