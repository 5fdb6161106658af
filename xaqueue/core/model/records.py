"""What a space records beside its messages: each record is a command block, in a file of its own.

Retries: a message's file stays as it was committed. How often a delivery of it has failed stands beside it, under the
same number and id in ``.retries/`` of its queue: a block of kind *update*, whose property ``tries`` counts. Until
``not_before`` it is put off, ``enqueued_at`` is when a delivery failed first, and the headers say when (``last``) and
why (``reason``) one failed last. It comes with the first failure and goes with the message; one whose message is gone
is removed by the next open.

Streams: a block of kind *branch* in ``streams/``, named after the queue, says through which number a stream has
consumed it. That it stands there is the commit point: a message at or below the number is gone, wherever its file still
is. The headers say all but the streams whose reservations were ended by hand; these are the body, a line each. It is
replaced as a whole, and stays for as long as the queue is known.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from xaqueue.core.model import layout
from xaqueue.core.model.block import NO_MESSAGE, UNLIMITED, Block, Kind, decode, encode_with_checksum
from xaqueue.core.model.block_files import damage_of, read_block, read_checked
from xaqueue.core.model.entry import Entry, Retry
from xaqueue.core.model.message_name import PLAIN_NAME
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.regular import NO_DIRECTORY
from xaqueue.errors import DamagedBlock, QueueReserved
from xaqueue.message import MessageId, Properties

Place = tuple[int, MessageId]
"""Number and id of a message."""


def decode_retry(data: bytes, queue: str, message_id: MessageId) -> Retry:
    """What the record tells. Raises DamagedBlock, also for the record of another message."""
    block = decode(data)
    told = block.properties
    if (block.kind, block.message_id, told.queue) != (Kind.UPDATE, message_id, queue):
        raise DamagedBlock("is not the record of tries of the message that it is named after")
    last = told.headers.get("last", "")
    return Retry(
        told.tries,
        told.not_before,
        told.enqueued_at,
        int(last) if last.isdecimal() else 0,
        sys.intern(told.headers.get("reason", "")),  # many have failed for the same one
    )


def read_retries(
    fs: FileSystem, queue: str, damaged: Callable[[str, str], object] = lambda path, reason: None
) -> dict[Place, Retry]:
    """Of all messages of which a delivery has failed. ``damaged``: told of paths that are no records, and why."""
    directory = layout.retries_path(queue)
    found = {}
    for name in names_in(fs, directory, "tries", damaged):
        path, place = f"{directory}/{name}", layout.parse_message(name[:PLAIN_NAME])
        if place is None or len(name) != PLAIN_NAME:
            damaged(path, "no record of tries: its name is not <seq>.<message id>")
            continue
        try:
            found[place] = decode_retry(read_checked(fs, path), queue, place[1])
        except FileNotFoundError:
            continue  # it went with its message
        except DamagedBlock as damage:
            damaged(path, f"the record of tries: {damage}")
    return found


def names_in(fs: FileSystem, directory: str, what: str, damaged: Callable[[str, str], object]) -> list[str]:
    try:
        return sorted(name for name in fs.list(directory) if not name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
        damaged(directory, f"a file where the directory of {what} should be")
        return []


def files_of(queue: str, entry: Entry) -> list[str]:
    """All that goes with a message: its file, and the record of its tries where it has one."""
    path = layout.message_path(queue, entry.seq, entry.message_id, entry.tags)
    return [path, layout.retry_path(queue, entry.seq, entry.message_id)] if entry.retry is not None else [path]


def encode_record(properties: Properties, body: bytes, epoch: int) -> tuple[bytes, bytes]:
    """Head and body of a record of kind *branch*, whose size was checked when what it tells of came in."""
    head, _ = encode_with_checksum(Block(Kind.BRANCH, NO_MESSAGE, properties, body, epoch), body_limit_bytes=UNLIMITED)
    return head, body


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
    path = layout.stream_path(queue)
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
