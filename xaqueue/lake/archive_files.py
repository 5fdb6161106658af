"""What has left a queue and is kept, as far as it is in files of messages yet: in ``archive/``, and what of those in
``committed/`` is on its way there.

Whoever looks at a queue as a whole asks for what is there first, for this behind it, and for Parquet at last: that is
the way that a message goes, so that none is missed while it moves. Of a range, names are listed where they come from
before those where they go to, and who took them is read behind both: what says so is written before a message leaves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from xaqueue.core.model import layout
from xaqueue.core.model.block_files import listed
from xaqueue.core.model.layout import ARCHIVE, RANGE_BITS
from xaqueue.core.model.message_block import check_block, decode_gone
from xaqueue.core.model.message_name import Named, parse_any
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.errors import DamagedBlock
from xaqueue.features.streams.message_files import Block, gone_of, read_message, whole_table
from xaqueue.features.streams.record import StreamRecord, archived_path, read_stream
from xaqueue.features.streams.taken import CONSUMED, Taken, read_all
from xaqueue.offline.spans import Found

Told = dict[int, tuple[Taken, bool]]
"""By number who took the message last, and whether it is in another queue now."""


class KeptFile(NamedTuple):
    """A file of messages that are kept. unwanted: of a block which are not, a bit for each."""

    named: Named
    name: str
    is_leaving: bool
    """It stands in ``committed/`` yet."""
    unwanted: int

    @property
    def first(self) -> int:
        """The first number that is kept of it."""
        return self.named.first + (~self.unwanted & (self.unwanted + 1)).bit_length() - 1


class KeptRange(NamedTuple):
    """Those of one range directory, ascending, and who took what."""

    number: int
    files: list[KeptFile]
    told: Told

    @property
    def taken(self) -> dict[int, tuple[int, str | None]]:
        """By number when, and by whom."""
        return {seq: (one.at_us, one.by or None) for seq, (one, _) in self.told.items()}


class _Directories:
    """Those that were read from are open."""

    def __init__(self, space: Path) -> None:
        self._space = space
        self._open: dict[str, int] = {}

    def __enter__(self) -> _Directories:
        return self

    def read(self, directory: str, name: str) -> tuple[bytes, int] | None:
        try:
            if directory not in self._open:
                self._open[directory] = os.open(self._space / directory, os.O_RDONLY | os.O_DIRECTORY)
            return read_message(self._open[directory], name)
        except FileNotFoundError:
            return None

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            os.close(fd)


class KeptFiles:
    """Of one queue."""

    def __init__(self, space: str, queue: str) -> None:
        self.queue = queue
        self._space = Path(space)
        self._fs = DirectoryFileSystem(space, keep_unsynced=False)

    def ranges(self, *, with_leaving: bool) -> list[int]:
        """The numbers of range directories, ascending."""
        above = layout.queue_path(self.queue)
        names = {*(listed(self._fs, above) if with_leaving else ()), *listed(self._fs, archived_path(above))}
        return sorted(number for name in names if (number := layout.parse_range(name)) is not None)

    def range(self, number: int, after: int = 0, upto: int = layout.LAST_SEQ, *, with_leaving: bool) -> KeptRange:
        """with_leaving: also what is on its way. Without, what stands in both places is left out, which a power loss
        may do: who opens the space next decides. Raises DamagedBlock where nobody knows what a stream has consumed."""
        first = number << RANGE_BITS
        after, upto = max(after, first - 1), min(upto, first + layout.RANGE_SIZE - 1)
        directory = layout.range_path(self.queue, first)
        there = {name: named for name, named in self._names(directory) if named.last > after and named.first <= upto}
        gone = {name: gone_of(self._fs, self.queue, named) for name, named in there.items() if named.is_block}
        kept = dict(self._names(archived_path(directory)))  # a block that had no bitmap any more is among these
        others = {name: self._others(named) for name, named in kept.items() if named.is_block}
        record = read_stream(self._fs, self.queue) if with_leaving and there else None
        told = self._told(after, upto)
        files = []
        for name, named in (there | kept).items() if with_leaving else kept.items():
            is_leaving = name not in kept
            if (name in there and not with_leaving) or named.last <= after or named.first > upto:
                continue
            if not named.is_block:
                unwanted = 0 if not is_leaving or _is_consumed(record, named.first) else 1
            elif is_leaving:
                unwanted = _staying(named, gone[name], record, told)
            else:
                unwanted = _not_kept(named, others[name], told)
            wanted = (1 << named.count) - 1 & ~unwanted & ~((1 << max(after + 1 - named.first, 0)) - 1)
            wanted &= (2 << upto - named.first) - 1
            if wanted:
                files.append(KeptFile(named, name, is_leaving, (1 << named.count) - 1 & ~wanted))
        return KeptRange(number, sorted(files, key=lambda one: one.first), told)

    def found(self, of: KeptRange) -> Iterator[Found]:
        """What these files hold, ascending; each number once, and what has moved on meanwhile not at all."""
        group, last = list[KeptFile](), 0
        with _Directories(self._space) as directories:
            for one in of.files:
                if group and one.first > last:
                    yield from self._together(directories, group)
                    group = []
                group.append(one)
                last = max(last, one.named.last)
            yield from self._together(directories, group)

    def _read(self, directories: _Directories, one: KeptFile) -> Found | None:
        """None where it has moved on."""
        place = layout.range_path(self.queue, one.named.first)
        read = directories.read(place, one.name) if one.is_leaving else None
        read = read or directories.read(archived_path(place), one.name)
        if read is None:
            return None
        size = (one.named.count + 7) // 8
        unwanted = one.unwanted.to_bytes(size, "little") if one.named.is_block else None
        return one.first, one.name, read[1], read[0], unwanted

    def _together(self, directories: _Directories, group: list[KeptFile]) -> Iterator[Found]:
        """Of a block that was cut, messages have files of their own, too: then each is taken by itself."""
        if len(group) < 2:
            yield from (read for one in group if (read := self._read(directories, one)) is not None)
            return
        single: dict[int, Found] = {}
        for one in group:
            if (read := self._read(directories, one)) is None:
                continue
            if read[4] is None:
                single[one.first] = read
                continue
            table = whole_table(read[3])
            check_block(table, self.queue, one.named)
            block = Block(one.named, table, read[3], one.unwanted)
            for index in block.left(0):
                seq = one.named.first + index
                single.setdefault(seq, (seq, block.name(index), read[2], block.file(index), None))
        yield from (single[seq] for seq in sorted(single))

    def _names(self, directory: str) -> Iterator[tuple[str, Named]]:
        for name in listed(self._fs, directory):
            if (named := parse_any(name)) is not None:
                yield name, named

    def _others(self, named: Named) -> int:
        """Of a block that is kept, what was not the stream's that kept it."""
        with suppress(DamagedBlock, FileNotFoundError):
            data = self._fs.read(archived_path(layout.gone_path(self.queue, named)), layout.WATERMARK_BYTES)
            return decode_gone(data, self.queue, named)
        return 0

    def _told(self, after: int, upto: int) -> Told:
        """A stream says through which number it has consumed, and so of what others had taken before, too."""
        told: Told = {}
        records = read_all(self._fs, self.queue, after, upto)
        for one in sorted(records, key=lambda one: (one.how != CONSUMED, one.at_us)):
            for spans, has_moved in ((one.spans, False), (one.moved, True)):
                for first, last in spans:
                    for seq in range(max(first, after + 1), min(last, upto) + 1):
                        told[seq] = one, has_moved
        return told


def queues_kept(space: str) -> list[str]:
    """Those that have something in ``archive/``, in whatever form, sorted."""
    fs = DirectoryFileSystem(space, keep_unsynced=False)
    names = {*listed(fs, ARCHIVE), *listed(fs, f"{ARCHIVE}/parquet")}
    return sorted(queue for name in names if (queue := layout.parse_queue_directory(name)))


def _is_consumed(record: StreamRecord | None, seq: int) -> bool:
    """By a stream that keeps what it consumes."""
    return record is not None and seq <= record.consumed and record.archives(seq)


def _staying(named: Named, gone: int, record: StreamRecord | None, told: Told) -> int:
    """Of a block in ``committed/`` what is not kept, or not gone yet. The bitmap may have been cleared for a stream."""
    bits, consumed = 0, record.consumed if record is not None else 0
    for index in range(named.count):
        seq, is_gone = named.first + index, gone >> index & 1
        one, has_moved = told.get(seq, (None, False))
        is_taken = (is_gone or seq <= consumed) and one is not None and one.how != CONSUMED and not has_moved
        bits |= (not (is_taken or (not is_gone and _is_consumed(record, seq)))) << index
    return bits


def _not_kept(named: Named, others: int, told: Told) -> int:
    """Of a block in ``archive/``."""
    for index in range(named.count):
        one, has_moved = told.get(named.first + index, (None, False))
        if has_moved:
            others |= 1 << index
        elif one is not None and one.how != CONSUMED:
            others &= ~(1 << index)
    return others
