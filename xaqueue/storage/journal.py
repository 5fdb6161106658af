"""A journal of redo records: what ``write`` returned from is durable, at one overwrite and one sync a round.

Segments are preallocated and overwritten in place, so that a sync needs no commit of the file system's own journal.
Once a checkpoint has covered a segment, it is recycled under the name of a later LSN. ``xaqueue.storage.segments`` has
the bytes. Nothing here knows what a record means.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence

from xaqueue.storage.fs import NO_ROOM, FileSystem
from xaqueue.storage.segments import (
    CHECKPOINT,
    END,
    LSN,
    PREFIX_BYTES,
    SECTOR_BYTES,
    SWITCH,
    Entry,
    Found,
    Record,
    Segment,
    Sound,
    header_of,
    look,
    name_of,
    record_of,
)

SEGMENT_BYTES = 64 * 1024 * 1024
"""Default size of a segment."""
SMALLEST_SEGMENT_BYTES = 64 * 1024
EXTENSION_BYTES = 1024 * 1024
"""A new segment is filled with zeros by this much at a time, its first time only."""
_ZEROS = bytes(EXTENSION_BYTES)
_OWN_BYTES = 2 * (PREFIX_BYTES + LSN.size)
"""Kept free at the end of every segment, for one of each of the journal's own records."""


def checkpoint_entry(lsn: int) -> Entry:
    """What records that everything below ``lsn`` is in the directories."""
    return Entry(CHECKPOINT, LSN.pack(lsn))


class Journal:
    """One writer, which is whoever leads a round; ``recycle`` may run in another thread beside it."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str = "journal",
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sound: Sound = lambda _: True,
    ) -> None:
        """Reads what is there and changes nothing. ``replay`` then has the records from the last checkpoint on.

        Raises JournalDamaged, SpaceError for a newer format, OSError.
        """
        self._fs = fs
        self._directory = directory
        self._segment_bytes = max(segment_bytes, SMALLEST_SEGMENT_BYTES)
        self._guard = threading.Lock()
        found = look(fs, directory, sound) if fs.is_dir(directory) else Found()
        self._segments = found.segments
        self._following = found.following
        self._strays = found.strays
        self._tail = found.tail
        self._epoch = found.epoch + 1
        self.replay: list[Record] = found.records
        self.position = found.position
        """The LSN of the next record."""
        self.checkpoint = found.checkpoint
        """Every record below it is in the directories, durably."""
        self.syncs = 0
        self.switched: Callable[[], None] = lambda: None
        """Called by the writer when a segment is full."""

    def start(self) -> list[str]:
        """Makes it ready for records, once ``replay`` is done with; returns what is worth a note. Raises OSError."""
        fs, notes = self._fs, []
        if not fs.is_dir(self._directory):
            fs.make_dir(self._directory)
            fs.sync_dir("")
        self.replay = []
        if self._tail:
            notes.append(self._archive(self._segments[-1], self._tail))
            self._tail = b""
        for name in self._strays:
            fs.unlink(self._path(name))
        self._strays = []
        if not self._segments:
            self._segments = [self._make(self.position)]
            self.position += SECTOR_BYTES
        if self._following is None:
            self.make_following()
        return notes

    def _archive(self, segment: Segment, tail: bytes) -> str:
        """Keeps a torn tail beside its segment, and cuts it off."""
        fs, path = self._fs, self._path(name_of(segment.start))
        archive, copies = f"{path}.archive", 1
        while fs.exists(archive):
            copies += 1
            archive = f"{path}.archive~{copies}"
        fs.create(archive, [tail])
        fs.sync_file(archive)
        offset = self.position - segment.start
        fs.write_at(path, offset, [END[: segment.allocated - offset]])
        fs.sync_data(path)
        fs.sync_dir(self._directory)
        return f"the journal ended in {len(tail):,} bytes of a torn record, promised to nobody: kept as {archive}"

    # Writing

    def fits(self, size_bytes: int) -> bool:
        """Whether a record of this size leaves its segment room for others."""
        return size_bytes <= self._segment_bytes // 4

    def write(self, entries: Sequence[Entry]) -> int:
        """Appends as many of these as go into one segment, at least one, and hardens them; returns how many.

        Raises OSError; where it is one of NO_ROOM, nothing was written.
        """
        fitting = self._fitting(entries)
        if not fitting:
            self._switch()
            fitting = self._fitting(entries)
            if not fitting:
                raise OSError(errno.ENOSPC, "the journal cannot grow", self._directory)
        chunks: list[bytes] = []
        lsn = first = self.position
        for entry in entries[:fitting]:
            chunks += record_of(entry, lsn, first, self._epoch)
            lsn += entry.size_bytes
        self._overwrite(chunks, lsn - first)
        return fitting

    def write_checkpoint(self, lsn: int) -> None:
        """Records, durably, that everything below ``lsn`` is in the directories; ``recycle`` may follow."""
        self._write_own(CHECKPOINT, lsn)
        self.checkpoint = lsn

    def _fitting(self, entries: Sequence[Entry]) -> int:
        size = 0
        for number, entry in enumerate(entries):
            size += entry.size_bytes
            if not self._has_room(size):
                return number
        return len(entries)

    def _has_room(self, size: int) -> bool:
        """Whether so much goes into the present segment, which grows towards its size where the disk lets it."""
        segment = self._segments[-1]
        wanted = self.position - segment.start + size + _OWN_BYTES
        while wanted > segment.allocated:
            if wanted > segment.size or not self._extend(segment):
                return False
        return True

    def _extend(self, segment: Segment) -> bool:
        step = min(len(_ZEROS), segment.size - segment.allocated)
        try:
            self._fs.write_at(self._path(name_of(segment.start)), segment.allocated, [_ZEROS[:step]])
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        segment.allocated += step
        return True

    def _write_own(self, kind: int, lsn: int) -> None:
        entry = Entry(kind, LSN.pack(lsn))
        self._overwrite(record_of(entry, self.position, self.position, self._epoch), entry.size_bytes)

    def _overwrite(self, chunks: list[bytes], size: int) -> None:
        segment = self._segments[-1]
        offset = self.position - segment.start
        path = self._path(name_of(segment.start))
        self._fs.write_at(path, offset, [*chunks, END[: segment.allocated - offset - size]])
        self._fs.sync_data(path)
        self.syncs += 1
        self.position += size

    def _switch(self) -> None:
        """The following segment takes over. Raises OSError where there is none, and no room for one."""
        if self._following is None:
            self.make_following()
        with self._guard:
            following, self._following = self._following, None
        assert following is not None
        self._write_own(SWITCH, following.start)
        with self._guard:
            self._segments.append(following)
        self.position = following.start + SECTOR_BYTES
        self.switched()

    # Segments

    @property
    def full_segments(self) -> int:
        """How many segments wait for a checkpoint to release them."""
        return len(self._segments) - 1

    @property
    def allocated_bytes(self) -> int:
        with self._guard:
            segments = [*self._segments, *([self._following] if self._following else [])]
            return sum(segment.allocated for segment in segments)

    def recycle(self) -> None:
        """Releases the segments that the last checkpoint covers: one of them is the following one, the others go."""
        with self._guard:
            released = [segment for segment in self._segments[:-1] if segment.end <= self.checkpoint]
            self._segments = [segment for segment in self._segments if segment not in released]
        for segment in released:
            if self._following is None:
                self.make_following(segment)
            else:
                self._fs.unlink(self._path(name_of(segment.start)))

    def make_following(self, old: Segment | None = None) -> None:
        """Makes the segment that takes over when the present one is full, of a released one where there is one."""
        start = self._segments[-1].end
        made = self._recycled(old, start) if old is not None else self._make(start)
        with self._guard:
            self._following = made

    def _recycled(self, old: Segment, start: int) -> Segment:
        source, target = self._path(name_of(old.start)), self._path(name_of(start))
        segment = Segment(start, old.size, old.allocated, self.checkpoint)
        self._fs.write_at(source, 0, [header_of(segment)])
        self._fs.sync_data(source)
        self._fs.rename(source, target)
        self._fs.sync_dir(self._directory)
        return segment

    def _make(self, start: int) -> Segment:
        """A new segment, its first part allocated. Raises OSError, and leaves nothing then."""
        segment = Segment(start, self._segment_bytes, min(len(_ZEROS), self._segment_bytes), self.checkpoint)
        path = self._path(name_of(start))
        new = path + ".new"
        if self._fs.exists(new):
            self._fs.unlink(new)
        self._fs.create(new, [header_of(segment), _ZEROS[: segment.allocated - SECTOR_BYTES]])
        self._fs.sync_file(new)
        self._fs.rename(new, path)
        self._fs.sync_dir(self._directory)
        return segment

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
