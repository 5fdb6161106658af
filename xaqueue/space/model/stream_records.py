"""The record of the stream that consumes a queue: a block of kind *branch* in ``streams/``, named after the queue.

It says through which number the queue is consumed. That it stands there is the commit point: a message at or below the
number is gone, wherever its file still is. The headers say all but the streams whose reservations were ended by hand;
these are the body, a line each. A record is replaced as a whole, and stays for as long as the queue is known.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from datetime import UTC, datetime

from xaqueue.errors import DamagedBlock, QueueReserved
from xaqueue.message import MessageId, Properties
from xaqueue.space.model import layout
from xaqueue.space.model.block import UNLIMITED, Block, Kind, decode, encode_with_checksum
from xaqueue.space.model.block_files import damage_of, read_block
from xaqueue.storage.fs import FileSystem

FORMER = 100
"""Streams that were released are refused when they come again, and so many are remembered for it."""
_NO_MESSAGE = MessageId(bytes(16))


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


def encode(record: StreamRecord, epoch: int) -> tuple[bytes, bytes]:
    """Head and body of its block."""
    told = {"stream": record.stream, "consumed": str(record.consumed)}
    if record.archived_after is not None:
        told["archived_after"] = str(record.archived_after)
    if record.released:
        told["released"] = "1"
    properties = Properties(record.queue, enqueued_at=record.since, headers=told)
    body = "\n".join(record.former[-FORMER:]).encode()
    head, _ = encode_with_checksum(Block(Kind.BRANCH, _NO_MESSAGE, properties, body, epoch), body_limit_bytes=UNLIMITED)
    return head, body


def decode_record(data: bytes, queue: str) -> StreamRecord:
    """The record that these bytes are. Raises DamagedBlock."""
    block = decode(data)
    told = block.properties.headers
    if block.kind is not Kind.BRANCH or block.properties.queue != queue or "stream" not in told:
        raise DamagedBlock(f"is no record of a stream that consumes queue {queue}")
    try:
        after = told.get("archived_after")
        return StreamRecord(
            queue,
            told["stream"],
            int(told["consumed"]),
            block.properties.enqueued_at,
            None if after is None else int(after),
            "released" in told,
            tuple(block.body.decode().split("\n")) if block.body else (),
        )
    except (ValueError, KeyError) as error:
        raise DamagedBlock(f"is no record of a stream: {error!r}") from None


def read(fs: FileSystem, queue: str) -> StreamRecord | None:
    """The queue's record; None without one. Raises DamagedBlock, OSError."""
    path = layout.stream_path(queue)
    try:
        data = read_block(fs, path)
    except OSError as error:
        if error.errno == errno.ENOENT and not fs.exists(path):
            return None
        raise damage_of(fs, path, error) from error
    return decode_record(data, queue)


def consumed_in(fs: FileSystem, queue: str) -> int:
    """Through which number the queue is consumed; 0 where that cannot be read."""
    try:
        record = read(fs, queue)
    except (DamagedBlock, OSError):
        return 0
    return record.consumed if record is not None else 0


def refusal(record: StreamRecord) -> QueueReserved:
    """What anybody else is told who wants something of the queue."""
    if record.damage:
        return QueueReserved(
            f"queue {record.queue} is kept for a stream whose record is damaged ({record.damage}): what it has "
            f"consumed may be there again. `xaqueue release {record.queue}` makes it an ordinary queue"
        )
    since = datetime.fromtimestamp(record.since / 1e6, UTC).isoformat(timespec="seconds")
    return QueueReserved(
        f"queue {record.queue} is reserved for stream {record.stream} since {since}: nobody else takes its messages "
        f"until `xaqueue release {record.queue}` ends that"
    )
