"""What is remembered of the stream that consumes a queue.

A block of kind *branch* in ``streams/``, named after the queue, says through which number a stream has
consumed it. That it stands there is the commit point: a message at or below the number is gone, wherever its file still
is. The headers say all but the streams whose reservations were ended by hand; these are the body, a line each. It is
replaced as a whole, and stays for as long as the queue is known.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import cast

from xaqueue.core.engine.redo import is_that
from xaqueue.core.model import layout
from xaqueue.core.model.block import Kind, decode
from xaqueue.core.model.block_files import damage_of, listed, read_block, read_checked
from xaqueue.core.model.layout import ARCHIVE, COMMITTED
from xaqueue.core.model.message_block import decode_gone, encode_gone
from xaqueue.core.model.message_name import Named, parse
from xaqueue.core.model.queue import Queue
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import DamagedBlock, QueueReserved

STREAMS = "streams"


class StreamStep(IntEnum):
    STREAM = 8


def stream_path(queue: str) -> str:
    """Of the record of the stream that consumes a queue."""
    return f"{STREAMS}/queue={queue}"


def archived_path(path: str) -> str:
    """Where the message file that stands there is kept once a stream has consumed it."""
    return ARCHIVE + path.removeprefix(COMMITTED)


def archived_gone(fs: FileSystem, record: StreamRecord, named: Named, given: bytes = b"") -> tuple[bytes, bytes] | None:
    """Head and body of the bitmap that a block is kept with: what was taken of it, or consumed before anything was to
    be kept, is none of the stream's, and what was cut off has a file of its own there. None where all of it is.
    given: what its bitmap is, where that is not there yet.
    """
    queue, path = record.queue, layout.gone_path(record.queue, named)
    gone = (1 << max((record.archived_after or 0) + 1 - named.first, 0)) - 1
    for place in (path, archived_path(path)):  # the second by an earlier try
        with suppress(DamagedBlock, FileNotFoundError):
            data = given if given and place == path else read_checked(fs, place)
            gone |= decode_gone(data, queue, named)
    directory = archived_path(layout.range_path(queue, named.first))
    for name in listed(fs, directory):
        one, place = parse(name), f"{directory}/{name}"
        if one is not None and named.first <= one[0] <= named.last and is_that(fs, place, place):
            gone |= 1 << one[0] - named.first
    return encode_gone(queue, named, gone, 0) if gone else None


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """What is remembered of one queue. ``since``: int microseconds UTC."""

    queue: str
    stream: str
    consumed: int = 0
    since: int = 0
    archived_after: int | None = None
    """What is consumed above this number is kept in ``archive/``; None where nothing is."""
    released: bool = False
    former: tuple[str, ...] = ()
    """Streams whose reservations were ended by hand, the last one last."""
    damage: str = ""
    """Why nobody knows who consumes the queue, and how far; empty where that can be read."""

    def archives(self, seq: int) -> bool:
        """Whether a message with this number is kept when it is consumed."""
        return self.archived_after is not None and seq > self.archived_after

    def refusal(self) -> QueueReserved:
        """What anybody else is told who wants something of the queue."""
        if self.damage:
            return QueueReserved(
                f"queue {self.queue} is kept for a stream whose record is damaged ({self.damage}): what it has "
                f"consumed may be there again. `xaqueue release {self.queue}` makes it an ordinary queue"
            )
        since = datetime.fromtimestamp(self.since / 1e6, UTC).isoformat(timespec="seconds")
        return QueueReserved(
            f"queue {self.queue} is reserved for stream {self.stream} since {since}: nobody else takes its messages "
            f"until `xaqueue release {self.queue}` ends that"
        )


def decode_stream(data: bytes, queue: str) -> StreamRecord:
    """The record that these bytes are. Raises DamagedBlock."""
    block = decode(data)
    stored = block.properties.headers
    if block.kind is not Kind.BRANCH or block.properties.queue != queue or "stream" not in stored:
        raise DamagedBlock(f"is no record of a stream that consumes queue {queue}")
    try:
        after = stored.get("archived_after")
        return StreamRecord(
            queue,
            stored["stream"],
            int(stored["consumed"]),
            block.properties.enqueued_at,
            None if after is None else int(after),
            "released" in stored,
            tuple(block.body.decode().split("\n")) if block.body else (),
        )
    except (ValueError, KeyError) as error:
        raise DamagedBlock(f"is no record of a stream: {error!r}") from None


def read_stream(fs: FileSystem, queue: str) -> StreamRecord | None:
    """The queue's record; None without one. Raises DamagedBlock, OSError."""
    path = stream_path(queue)
    try:
        data = read_block(fs, path)
    except OSError as error:
        if error.errno == errno.ENOENT and not fs.exists(path):
            return None
        raise damage_of(fs, path, error) from error
    return decode_stream(data, queue)


def consumed_in(fs: FileSystem, queue: str) -> int:
    """Through which number the queue is consumed; 0 where that cannot be read."""
    try:
        record = read_stream(fs, queue)
    except (DamagedBlock, OSError):
        return 0
    return record.consumed if record is not None else 0


def record_of(queue: Queue) -> StreamRecord | None:
    """Of the stream that consumes it, or of the last one that did."""
    return cast(StreamRecord | None, queue.record)
