"""A reader follows a queue's directory without owning the space: it reads the watermark first and takes nothing above.

Every message at or below the watermark is in its range directory or has been consumed, so what a reader finds is
complete, and the same range read again holds a subset of what it held. A reader never writes, locks or waits.

``follow`` goes on as the queue grows: it looks at the watermark every ``LOOK_S`` seconds, which is about as far as
directories are behind their journal, and reads the messages between the old mark and the new one. What is consumed
before it is read is not seen.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from xaqueue.core.model import layout, records
from xaqueue.core.model.block_files import listed, ranges_in
from xaqueue.core.model.format import check_recovered, read_format
from xaqueue.core.model.message_name import BLOCK_ID_DIGITS, ID_DIGITS, Named, parse_any, parse_plain, parse_seq
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.regular import NO_DIRECTORY, NO_FILE
from xaqueue.errors import DamagedBlock, InvalidArgument, SpaceError
from xaqueue.features.streams.message_files import Block, ahead, gone_of, is_block, read_message, read_names, read_whole
from xaqueue.features.streams.record import StreamRecord, read_stream, stream_path
from xaqueue.message import MessageId, check_queue_name

READ_TRIES = 50
LOOK_S = 0.05
EARLIEST, LATEST = "earliest", "latest"

log = logging.getLogger("xaqueue")

Followed = tuple[int, MessageId, bytes]
"""Sequence number, message id, and the bytes of the message's block."""


class QueueReader:
    """Reads one queue of a space directory, from any process and any machine that mounts it.

    Raises SpaceError when the directory is no space of a format that is known here, or where it is behind its journal.
    """

    def __init__(self, path: str | os.PathLike[str], queue: str, *, even_behind: bool = False) -> None:
        """even_behind: reads what the directory holds, be it less or more than what was committed."""
        self.space = Path(path)
        self.queue = check_queue_name(queue)
        self.id = read_format(path).id
        if not even_behind:
            check_recovered(path)
        self._fs = DirectoryFileSystem(self.space, keep_unsynced=False)

    def watermark(self) -> int:
        """The highest published sequence number; 0 for a queue that has had no message yet.

        Raises SpaceError when the watermark stays unreadable.
        """
        path = layout.watermark_path(self.queue)
        try:
            found = watermark_in(self._fs, self.queue)
        except OSError as error:
            if error.errno not in NO_FILE | NO_DIRECTORY:
                raise
            found = None
        if found is None:
            raise SpaceError(f"{self.space / path} stays unreadable: run `xaqueue check --space {self.space}`")
        return found

    def consumed(self) -> int:
        """Everything up to this number is consumed by a stream, and is never given out; 0 where no stream is known.

        Raises SpaceError when the stream's record is damaged.
        """
        try:
            record = self.record()
        except (DamagedBlock, OSError) as error:
            path = self.space / stream_path(self.queue)
            reason = f"{path} cannot be read ({error}), and what is consumed is not known"
            raise SpaceError(f"{reason}: run `xaqueue check --space {self.space}`") from error
        return record.consumed if record is not None else 0

    def record(self) -> StreamRecord | None:
        """Of the stream that consumes the queue, or of the last one that did; None without one. Raises DamagedBlock
        where it stays unreadable, OSError."""
        for _ in range(READ_TRIES):
            with suppress(DamagedBlock):
                return read_stream(self._fs, self.queue)
            time.sleep(0.001)  # half a write was seen
        return read_stream(self._fs, self.queue)

    def ranges(self) -> list[int]:
        """The numbers of the range directories there are now, ascending; range r holds seq with seq >> 12 == r."""
        return ranges_in(self._fs, self.queue)

    def names(self, after: int, upto: int) -> Iterator[tuple[int, list[tuple[int, str]]]]:
        """Per range directory, ascending: its number and the (seq, file name) with after < seq <= upto, ascending; of
        a block of messages its first number above ``after``.

        What is consumed is left out, also where its files are there yet.
        """
        after = max(after, self.consumed())
        for number in self.ranges():
            if number < (after + 1) >> layout.RANGE_BITS or number > upto >> layout.RANGE_BITS:
                continue
            low, high = f"{after:016x}.~", f"{upto:016x}.~"
            names = listed(self._fs, self._range(number))
            taken = [name for name in names if name <= high and (low < name or is_block(name))]
            if plain := parse_plain(taken):
                yield number, [*zip(plain[0], taken, strict=True)]
            elif found := [(seq, name) for name in taken if (seq := parse_seq(name) or _first_in(name, after))]:
                yield number, found

    def tries(self) -> dict[int, int]:
        """By number, how often dequeues of those messages were rolled back that had any. Raises OSError."""
        return {seq: one.tries for (seq, _), one in records.read_retries(self._fs, self.queue).items()}

    def read(self, after: int, upto: int) -> Iterator[Followed]:
        """What there is for after < seq <= upto, ascending; what was consumed is left out.

        The caller passes an ``upto`` that it got from ``watermark``.
        """
        for number, found in self.names(after, upto):
            try:
                directory = os.open(self.space / self._range(number), os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            try:
                for seq, name in ahead(directory, found):
                    if is_block(name):
                        yield from self._read_block(directory, seq, name, upto)
                    elif (read := read_message(directory, name)) is not None:
                        yield seq, MessageId(bytes.fromhex(name[ID_DIGITS])), read[0]
            finally:
                os.close(directory)

    def gone(self, named: Named) -> int:
        """Which messages of this block are gone, a bit for each."""
        return gone_of(self._fs, self.queue, named, self._warn)

    def block(self, name: str, *, bodies: bool = True) -> Block:
        """The block of messages of this name. Raises FileNotFoundError, DamagedBlock, any other OSError."""
        named = parse_any(name)
        if named is None:
            raise FileNotFoundError(name)
        return (read_whole if bodies else read_names)(self._fs, self.queue, named, self._warn)

    def _read_block(self, directory: int, seq: int, name: str, upto: int) -> Iterator[Followed]:
        """From this number on; one that is damaged is as a damaged message is."""
        try:
            block = self.block(name)
        except FileNotFoundError:
            return
        except DamagedBlock:
            if (read := read_message(directory, name)) is not None:
                yield seq, MessageId(bytes.fromhex(name[BLOCK_ID_DIGITS])), read[0]
            return
        for index in block.left(seq - 1, upto):
            yield block.named.first + index, block.table.message_id(index), block.file(index)

    def _warn(self, seq: int, why: str) -> None:
        text = "[message-damaged] the block of message %d of queue %s, see `xaqueue check`: %s"
        log.warning(text, seq, self.queue, why)

    def _range(self, number: int) -> str:
        return layout.range_path(self.queue, number << layout.RANGE_BITS)


def _first_in(name: str, after: int) -> int | None:
    """Of a block's messages the first number that is above; None where there is none."""
    named = parse_any(name)
    return max(named.first, after + 1) if named is not None and named.last > after else None


def watermark_in(fs: FileSystem, queue: str) -> int | None:
    """The highest published number of a queue; 0 before the first, None where it stays damaged. Raises OSError."""
    path = layout.watermark_path(queue)
    for _ in range(READ_TRIES):
        try:
            data = fs.read(path, layout.WATERMARK_BYTES)
        except FileNotFoundError:
            return 0
        watermark = layout.parse_watermark(data)
        if watermark is not None:
            return watermark.published
        if not data and not ranges_in(fs, queue):
            return 0  # the queue's first message is on its way, or was when the power went
        time.sleep(0.001)  # half a write was seen
    return None


def queues(path: str | os.PathLike[str]) -> list[str]:
    """The queues that have a directory in this space, sorted."""
    return queues_in(DirectoryFileSystem(Path(path), keep_unsynced=False), path)


def queues_in(fs: FileSystem, path: str | os.PathLike[str] = "this") -> list[str]:
    """As ``queues``. path: what an error names the space by. Raises SpaceError."""
    try:
        names = fs.list(layout.COMMITTED)
    except FileNotFoundError:
        raise SpaceError(f"{os.fspath(path)} is no queue space: it has no {layout.COMMITTED}/ directory") from None
    return sorted(queue for name in names if (queue := layout.parse_queue_directory(name)))


def start_after(reader: QueueReader, start: str) -> int:
    """The sequence number behind which ``start`` begins: "earliest", "latest", or the first number wanted.

    Raises InvalidArgument, SpaceError.
    """
    if start == EARLIEST:
        return 0
    if start == LATEST:
        return reader.watermark()
    if not (start.isascii() and start.isdigit()) or int(start) > layout.LAST_SEQ:
        raise InvalidArgument(f"start {start!r} is refused: a sequence number, {EARLIEST} or {LATEST} is wanted")
    return max(int(start) - 1, 0)


def follow(
    path: str | os.PathLike[str],
    queue: str,
    *,
    start: str = LATEST,
    stopped: threading.Event | None = None,
) -> Iterator[Followed]:
    """Messages of the queue, and then those that come, until ``stopped`` is set; the queue may not exist yet.

    ``stopped`` is noticed at the next message or look. Raises SpaceError, also where another space, or an older copy,
    has come under the path: its numbers mean other messages. Raises InvalidArgument.
    """
    reader = QueueReader(path, queue)
    stopped = stopped or threading.Event()
    after, upto = start_after(reader, start), 0
    while not stopped.is_set():
        before, upto = upto, reader.watermark()
        if read_format(path, is_expected=True).id != reader.id or 0 < upto < before:
            raise SpaceError(f"{path} became another space, or an older copy, while it was followed: follow it again")
        for followed in reader.read(after, upto):
            if stopped.is_set():
                return
            yield followed
        after = max(after, upto)
        stopped.wait(LOOK_S)
