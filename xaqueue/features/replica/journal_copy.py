"""The journal of a replica is that of its source, byte for byte, and its directories follow it.

So the replica is at any time what the source would be after a crash, and is opened like that when it is promoted. What
was written is synced before it is acknowledged. A record that says how far the directories are speaks of those of the
source: it is written once the directories here are as far, on disk.

Crash safety: where a piece holds several rounds, a crash could leave a later one and not an earlier one, which would
look like damage. So such a piece stands in ``incoming`` before it is written where it belongs, and is written again.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Collection
from contextlib import suppress
from zlib import crc32

from xaqueue.core.engine import redo
from xaqueue.core.model import layout
from xaqueue.core.model.block_files import listed, ranges_in
from xaqueue.core.model.change import highest_numbers, is_valid, targets_of
from xaqueue.core.model.layout import JOURNAL, Watermark
from xaqueue.core.model.message_name import parse_any
from xaqueue.core.storage.fs import FileSystem, discard
from xaqueue.core.storage.journal_files import OWN_BYTES, content, headers, make_segment
from xaqueue.core.storage.journal_format import (
    CHECKPOINT,
    EPOCH_BITS,
    SECTOR_BYTES,
    SWITCH,
    TIME,
    Placed,
    Record,
    Segment,
    lsn_in,
    parse_record,
    records_in,
)
from xaqueue.core.storage.journal_reader import look
from xaqueue.errors import DamagedBlock, OperationalError, SpaceError
from xaqueue.features.kinds import KINDS
from xaqueue.features.replica.shipping import Piece
from xaqueue.features.streams.cleanup import keep_gone
from xaqueue.features.streams.record import STREAMS, StreamRecord, archived_path, decode_stream, stream_path

INCOMING = f"{JOURNAL}/incoming"
_INCOMING = struct.Struct("<QQQQI")
"""Of what stands there: epoch and LSN of the segment, LSN of the bytes, how many there are, and their CRC-32."""
PENDING, PENDING_BYTES = 10_000, 16 * 1024 * 1024
"""Records that the directories do not follow yet, at most, and of these the bytes of their bodies."""


class Diverged(OperationalError):
    """What has come is not what follows here: the copy is to begin anew."""


def _check_directories(fs: FileSystem) -> None:
    """What is written below a link is written elsewhere. Raises SpaceError, OSError."""
    found = [*layout.directories(), layout.ARCHIVE, JOURNAL]
    for top in (layout.COMMITTED, layout.ARCHIVE):
        for queue in (f"{top}/{name}" for name in listed(fs, top) if layout.parse_queue_directory(name)):
            inner = fs.list(queue) if fs.is_dir(queue) else ()
            found.append(queue)
            found += [f"{queue}/{name}" for name in inner if name.startswith(("range=", ".retries", ".dedup"))]
    for path in found:
        if fs.exists(path) and not fs.is_dir(path):
            raise SpaceError(
                f"{path} is no directory, and a link may lead anywhere: remove the replica, and copy it anew"
            )


class JournalCopy:
    """Of one replica; used by one thread, and one that follows."""

    def __init__(self, fs: FileSystem, journal: int, lsn: int) -> None:
        """What is there, else a copy that begins at this LSN of a journal. Raises JournalDamaged, OSError."""
        self._fs = fs
        _check_directories(fs)
        if not fs.is_dir(JOURNAL):
            fs.make_dir(JOURNAL)
            fs.sync_dir("")
        self._finish_incoming()
        found = look(fs, JOURNAL, is_valid)
        for name in (*found.orphans, *found.abandoned):
            discard(fs, f"{JOURNAL}/{name}")
        for segment in found.segments:
            self._harden(segment)
        self._segments = found.segments
        self._following = found.following
        self._pending: list[Record] = found.records
        self._covered = found.checkpoint
        self.epoch, self.lsn = (found.segment_epoch, found.position) if found.segments else (journal, lsn)
        self.hardened = self.lsn
        """Below this LSN the source has all on its disk, and the directories may follow."""
        self._reported = self._last_round()
        """Below this LSN the source had all on its disk, by what it said: before that it writes no other round."""
        self._record_epoch = found.epoch
        self._behind, self._guard = threading.Lock(), threading.Lock()
        """Held while the directories follow; and while what they are to follow is changed."""

    def take(self, piece: Piece) -> None:
        """Writes what is whole of it, durably, and goes on behind that. Raises Diverged, OSError."""
        if piece.epoch != self.epoch:
            self._start_over(piece)
        if piece.epoch != self.epoch or piece.lsn != self.lsn:
            raise Diverged(f"LSN {piece.lsn:#x} of journal {piece.epoch:#x} has come, and {self.lsn:#x} was asked for")
        self.hardened = self._reported = piece.hardened
        placed = self._whole(piece)
        if not placed:
            return
        segment = self._segment_of(piece)
        first, last = placed[0].record, placed[-1]
        if first.kind == CHECKPOINT:
            self.follow()
            self._fs.sync_all()
        if last.record.kind == SWITCH:
            self._make_following(piece)
        data = piece.data[: last.end - piece.lsn]
        self._write(segment, data, is_one=len({good.first for good in placed}) == 1)
        self._note(placed)
        if first.kind == CHECKPOINT:
            self._release(lsn_in(first))

    def follow(self, *, everything: bool = False) -> None:
        """The directories become what was taken, and is hardened at the source. everything: the rest as well, which
        nobody takes back any more. Raises JournalDamaged where they are not what they were, OSError."""
        with self._behind:
            limit = self.lsn if everything else self.hardened
            with self._guard:
                records = [record for record in self._pending if record.lsn < limit]
            if records:
                self._follow(records)
            with self._guard:  # now: who could not follow has them to follow still
                del self._pending[: len(records)]

    def _follow(self, records: list[Record]) -> None:
        redo.replay(self._fs, records, KINDS)
        for queue, seq in highest_numbers(records).items():
            reserved = max(seq, self._watermark(queue).reserved)
            mark = layout.format_watermark(Watermark(seq, reserved))
            self._fs.write_at(layout.watermark_path(queue), 0, [mark])
        self.remove_consumed({path for record in records for path in targets_of(record) if path.startswith(STREAMS)})

    @property
    def is_begun(self) -> bool:
        """Whether anything has come behind the snapshot."""
        return bool(self._segments)

    # The journal

    def _harden(self, segment: Segment) -> None:
        """What was read may be in memory only, whatever a sync says: it is written again before it is acknowledged."""
        path = f"{JOURNAL}/{segment.name}"
        self._fs.write_at(path, 0, [self._fs.read(path)])
        self._fs.sync_data(path)

    def _last_round(self) -> int:
        """Where the last one begins that is here."""
        firsts = [
            good.first
            for segment in self._segments[-1:]
            for good in records_in(content(self._fs, JOURNAL, segment), segment.start)
            if good.record.lsn < self.lsn
        ]
        return firsts[-1] if firsts else self.lsn

    def _whole(self, piece: Piece) -> list[Placed]:
        """The records of a piece; one that says how far the directories are comes first, or in the next piece."""
        found: list[Placed] = []
        offset = 0
        while (good := parse_record(piece.data, piece.lsn, offset)) is not None:
            record = good.record
            if good.epoch >> EPOCH_BITS != self.epoch or good.epoch < self._record_epoch:
                break
            if record.kind < TIME and not is_valid(record):
                raise Diverged(f"the record at LSN {record.lsn:#x} has come damaged")
            if record.kind == CHECKPOINT and found:
                break
            found.append(good)
            self._record_epoch = good.epoch
            offset = good.end - piece.lsn
            if record.kind == SWITCH:
                break
        if piece.data and not found:
            raise Diverged(f"what has come for LSN {piece.lsn:#x} is no record")
        return found

    def _note(self, placed: list[Placed]) -> None:
        """They are on disk."""
        for good in placed:
            record = good.record
            if record.kind < TIME:
                with self._guard:
                    self._pending.append(record)
        self.lsn = placed[-1].end
        if placed[-1].record.kind == SWITCH:
            assert self._following is not None
            self._segments.append(self._following)
            self.lsn, self._following = self._following.start + SECTOR_BYTES, None
        if sum(len(record.body) for record in self._pending[-PENDING:]) > PENDING_BYTES or len(self._pending) > PENDING:
            self.follow()

    def _segment_of(self, piece: Piece) -> Segment:
        if not self._segments:  # the first of the copy, of which only the rest counts
            segment = Segment(piece.start, piece.size, checkpoint=self.lsn, epoch=self.epoch)
            segment.allocated = 0
            self._segments = [self._made(segment, self.lsn)]
            self._covered = self.lsn
        segment = self._segments[-1]
        if (segment.start, segment.size) != (piece.start, piece.size):
            raise Diverged(f"the segment at LSN {piece.start:#x} is not the one that is written here")
        return segment

    def _made(self, segment: Segment, upto: int) -> Segment:
        made = make_segment(self._fs, JOURNAL, segment)
        self._allocate(made, upto)
        return made

    def _make_following(self, piece: Piece) -> None:
        """It is there before the record that leads to it."""
        if self._following is None:
            if not piece.next_size:
                raise Diverged("the segment behind has no size")
            segment = Segment(piece.start + piece.size, piece.next_size, checkpoint=self._covered, epoch=self.epoch)
            self._following = self._made(segment, segment.start)

    def _start_over(self, piece: Piece) -> None:
        """The source was opened anew: what it had until then is in the directories, and its journal goes on in a new
        segment, which tells where the one before it had ended."""
        first = parse_record(piece.data, piece.lsn, 0)
        if piece.epoch < self.epoch or piece.lsn != piece.start + SECTOR_BYTES or first is None:
            raise Diverged(f"journal {piece.epoch:#x} does not begin where {self.epoch:#x} has ended")
        ended = lsn_in(first.record) if first.record.kind == CHECKPOINT else -1
        if 0 <= ended < self._reported:
            raise SpaceError(
                f"the source has lost its journal from LSN {ended:#x} on, which it had on disk up to "
                f"{self._reported:#x}, and this replica has that: stop the source and `xaqueue promote` this replica; "
                "or remove this directory, if what it has is the one to lose"
            )
        if not self.hardened <= ended <= self.lsn:
            raise Diverged(f"journal {piece.epoch:#x} goes on at LSN {ended:#x}, and not at {self.lsn:#x}")
        self.hardened = ended
        self.follow()
        with self._guard:
            self._pending.clear()  # of what was lost there, which nobody was promised
        self._fs.sync_all()
        old = self._segments + ([self._following] if self._following else [])
        self.epoch = piece.epoch
        segment = Segment(piece.start, piece.size, checkpoint=piece.start, epoch=piece.epoch)
        self._segments, self._following = [self._made(segment, segment.start)], None
        self.lsn = self._covered = piece.lsn
        self._discard(old)

    def _allocate(self, segment: Segment, upto: int) -> None:
        """As far as its writer would have it, whose file grows by steps."""
        path = f"{JOURNAL}/{segment.name}"
        while upto - segment.start + OWN_BYTES > segment.allocated and segment.growth:
            step = segment.growth
            self._fs.write_at(path, segment.allocated, [bytes(step)])
            self._fs.sync_data(path)
            segment.allocated += step

    def _write(self, segment: Segment, data: bytes, *, is_one: bool) -> None:
        """is_one: it is of one round."""
        self._allocate(segment, self.lsn + len(data))
        if not is_one:
            is_new = not self._fs.exists(INCOMING)  # else it is overwritten, which makes a sync cheap
            said = _INCOMING.pack(segment.epoch, segment.start, self.lsn, len(data), crc32(data))
            self._fs.write_at(INCOMING, 0, [said, data])
            self._fs.sync_data(INCOMING)
            if is_new:
                self._fs.sync_dir(JOURNAL)
        self._fs.write_at(f"{JOURNAL}/{segment.name}", self.lsn - segment.start, [data])
        self._fs.sync_data(f"{JOURNAL}/{segment.name}")

    def _finish_incoming(self) -> None:
        """A crash may have cut off that it was written where it belongs. Else it stands there, and is written again."""
        whole = self._fs.read(INCOMING) if self._fs.exists(INCOMING) else b""
        if len(whole) <= _INCOMING.size:
            return
        epoch, start, lsn, size, crc = _INCOMING.unpack_from(whole)
        data = whole[_INCOMING.size :][:size]
        name = Segment(start, 0, epoch=epoch).name
        if crc32(data) == crc and name in [segment.name for segment in headers(self._fs, JOURNAL)[0]]:
            self._fs.write_at(f"{JOURNAL}/{name}", lsn - start, [data])
            self._fs.sync_data(f"{JOURNAL}/{name}")

    def _release(self, below: int) -> None:
        """The directories have all below that LSN, on disk."""
        self._covered = max(self._covered, below)
        old = [segment for segment in self._segments[:-1] if segment.end <= self._covered]
        self._segments = [segment for segment in self._segments if segment not in old]
        self._discard(old)

    def _discard(self, segments: list[Segment]) -> None:
        for segment in segments:
            discard(self._fs, f"{JOURNAL}/{segment.name}")

    # The directories

    def _watermark(self, queue: str) -> Watermark:
        with suppress(OSError):
            data = self._fs.read(layout.watermark_path(queue), layout.WATERMARK_BYTES)
            return layout.parse_watermark(data) or Watermark(0, 0)
        return Watermark(0, 0)

    def remove_consumed(self, streams: Collection[str]) -> None:
        """What these streams have consumed leaves the directories here, too. Raises OSError."""
        for path in streams:
            self._remove_consumed(layout.parse_queue_directory(path.rpartition("/")[2]))

    def _remove_consumed(self, queue: str | None) -> None:
        record = self._stream(queue) if queue is not None else None
        if queue is None or record is None:
            return
        for number in ranges_in(self._fs, queue):
            directory = layout.range_path(queue, number << layout.RANGE_BITS)
            if number > record.consumed >> layout.RANGE_BITS:
                continue
            for name in self._fs.list(directory):
                named = parse_any(name)
                if named is None or named.last > record.consumed:
                    continue
                path = f"{directory}/{name}"
                if record.archives(named.last):
                    if named.is_block:
                        keep_gone(self._fs, record, [named])
                    archived = archived_path(path)
                    redo.make_dirs(self._fs, archived.rpartition("/")[0])
                    self._fs.rename(path, archived)
                else:
                    discard(self._fs, path)
                if named.is_block:
                    discard(self._fs, layout.gone_path(queue, named))

    def _stream(self, queue: str) -> StreamRecord | None:
        try:
            return decode_stream(self._fs.read(stream_path(queue)), queue)
        except (OSError, DamagedBlock):
            return None
