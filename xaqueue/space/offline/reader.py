"""A reader follows a queue's directory without owning the space: it reads the watermark first and takes nothing above.

Every message at or below the watermark is in its range directory or has been consumed, so what a reader finds is
complete, and the same range read again holds a subset of what it held. A reader never writes, locks or waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from xaqueue.errors import DamagedBlock, SpaceError
from xaqueue.message import MessageId, check_queue_name
from xaqueue.space.model import layout, retries, stream_records
from xaqueue.space.model.block_files import read_message
from xaqueue.space.model.format import check_recovered, read_format
from xaqueue.space.model.message_name import ID_DIGITS, parse_seq
from xaqueue.storage.fs import DirectoryFileSystem
from xaqueue.storage.read_ahead import ahead
from xaqueue.storage.regular import NO_DIRECTORY, NO_FILE, read_at_most

WATERMARK_TRIES = 50


class QueueReader:
    """Reads one queue of a space directory, from any process and any machine that mounts it.

    Raises SpaceError when the directory is no space of a format that is known here, or where it is behind its journal.
    """

    def __init__(self, path: str | os.PathLike[str], queue: str, *, even_behind: bool = False) -> None:
        """even_behind: reads what the directory holds, be it less or more than what was committed."""
        self.space = Path(path)
        self.queue = check_queue_name(queue)
        read_format(path)
        if not even_behind:
            check_recovered(path)
        self._directory = self.space / layout.queue_path(queue)

    def watermark(self) -> int:
        """The highest published sequence number; 0 for a queue that has had no message yet.

        Raises SpaceError when the watermark stays unreadable.
        """
        path = self.space / layout.watermark_path(self.queue)
        for _ in range(WATERMARK_TRIES):
            try:
                data = read_at_most(str(path), layout.WATERMARK_BYTES)
            except FileNotFoundError:
                return 0
            except OSError as error:
                if error.errno not in NO_FILE | NO_DIRECTORY:
                    raise
                break
            if not data and not self.ranges():  # the queue's first message is on its way, or was when the power went
                return 0
            watermark = layout.parse_watermark(data)
            if watermark is not None:
                return watermark.published
            time.sleep(0.001)  # half a write was seen
        raise SpaceError(f"{path} stays unreadable: run `xaqueue check --space {self.space}`")

    def consumed(self) -> int:
        """Everything up to this number is consumed by a stream, and is never given out; 0 where no stream is known.

        Raises SpaceError when the stream's record is damaged.
        """
        try:
            record = stream_records.read(DirectoryFileSystem(self.space, keep_unsynced=False), self.queue)
        except (DamagedBlock, OSError) as error:
            path = self.space / layout.stream_path(self.queue)
            told = f"{path} cannot be read ({error}), and what is consumed is not known"
            raise SpaceError(f"{told}: run `xaqueue check --space {self.space}`") from error
        return record.consumed if record is not None else 0

    def ranges(self) -> list[int]:
        """The numbers of the range directories there are now, ascending; range r holds seq with seq >> 12 == r."""
        return sorted(number for name in _listed(self._directory) if (number := layout.parse_range(name)) is not None)

    def names(self, after: int, upto: int) -> Iterator[tuple[int, list[tuple[int, str]]]]:
        """Per range directory, ascending: its number and the (seq, file name) with after < seq <= upto, ascending.

        What is consumed is left out, also where its files are there yet.
        """
        after = max(after, self.consumed())
        for number in self.ranges():
            if number < (after + 1) >> layout.RANGE_BITS or number > upto >> layout.RANGE_BITS:
                continue
            low, high = f"{after:016x}.~", f"{upto:016x}.~"
            listed = _listed(self._range(number))
            taken = sorted(name for name in listed if low < name <= high)
            found = [(seq, name) for name in taken if (seq := parse_seq(name)) is not None]
            if found:
                yield number, found

    def tries(self) -> dict[int, int]:
        """By number, how often dequeues of those messages were rolled back that had any. Raises OSError."""
        fs = DirectoryFileSystem(self.space, keep_unsynced=False)
        return {seq: tries for (seq, _), tries in retries.read_all(fs, self.queue).items()}

    def read(self, after: int, upto: int) -> Iterator[tuple[int, MessageId, bytes]]:
        """(seq, message id, the block's bytes) for after < seq <= upto, ascending; what was consumed is left out.

        The caller passes an ``upto`` that it got from ``watermark``.
        """
        for number, found in self.names(after, upto):
            try:
                directory = os.open(self._range(number), os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            try:
                for seq, name in ahead(directory, found):
                    read = read_message(directory, name)
                    if read is not None:
                        yield seq, MessageId(bytes.fromhex(name[ID_DIGITS])), read[0]
            finally:
                os.close(directory)

    def _range(self, number: int) -> Path:
        return self.space / layout.range_path(self.queue, number << layout.RANGE_BITS)


def queues(path: str | os.PathLike[str]) -> list[str]:
    """The queues that have a directory in this space, sorted."""
    try:
        names = os.listdir(Path(path) / layout.COMMITTED)  # noqa: PTH208
    except FileNotFoundError:
        raise SpaceError(f"{os.fspath(path)} is no queue space: it has no {layout.COMMITTED}/ directory") from None
    return sorted(queue for name in names if (queue := layout.parse_queue_directory(name)))


def _listed(directory: Path) -> list[str]:
    """The names in a directory; none where it was emptied and cleaned up since, or is none."""
    try:
        return os.listdir(directory)  # noqa: PTH208
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
        return []
