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

Decisions: a block of kind *branch* in ``batches/`` lists the branches that a decided batch commits. A query has one, of
its last batch. Its name is the query's key and the batch's number, so that a listing tells what is decided, and a
record is read only when somebody asks for it. The headers say query, number and how many messages; the body is
MessagePack:

    [[[format id, bqual], ...],             the branches in this space, whose gtrid is the batch's
     [[space id, format id, bqual], ...],   those in other spaces
     [digest, offsets, [space id, ...], once]]   what the batch was made from, and all spaces that it went to
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from datetime import UTC, datetime

import msgpack

from xaqueue.batch import Batch, Decision, Plan, is_of_a_batch, parse_gtrid
from xaqueue.core.model import layout
from xaqueue.core.model.block import NO_MESSAGE, UNLIMITED, Block, Kind, decode, encode_with_checksum
from xaqueue.core.model.block_files import damage_of, read_block, read_checked
from xaqueue.core.model.entry import Entry, Retry
from xaqueue.core.model.message_name import PLAIN_NAME
from xaqueue.core.storage.fs import FileSystem
from xaqueue.core.storage.regular import NO_DIRECTORY
from xaqueue.errors import DamagedBlock, InvalidArgument, QueueReserved
from xaqueue.message import MessageId, Properties
from xaqueue.xid import Xid

Place = tuple[int, MessageId]
"""Number and id of a message."""
FORMER = 100
"""Streams that were released are refused when they come again, and so many are remembered for it."""


def encode_retry(queue: str, message_id: MessageId, retry: Retry, epoch: int) -> bytes:
    """The record of a message of which a delivery has failed."""
    headers = {"last": str(retry.last), "reason": retry.reason}
    made = Properties(queue, tries=retry.tries, not_before=retry.not_before, enqueued_at=retry.first, headers=headers)
    head, _ = encode_with_checksum(Block(Kind.UPDATE, message_id, made, epoch=epoch))
    return head


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


def _encode(properties: Properties, body: bytes, epoch: int) -> tuple[bytes, bytes]:
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


def encode_stream(record: StreamRecord, epoch: int) -> tuple[bytes, bytes]:
    """Head and body of its block."""
    stored = {"stream": record.stream, "consumed": str(record.consumed)}
    if record.archived_after is not None:
        stored["archived_after"] = str(record.archived_after)
    if record.released:
        stored["released"] = "1"
    properties = Properties(record.queue, enqueued_at=record.since, headers=stored)
    body = "\n".join(record.former[-FORMER:]).encode()
    return _encode(properties, body, epoch)


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


def decision_path(gtrid: bytes) -> str:
    """Of the record of the batch with this gtrid, which must be one."""
    parsed = parse_gtrid(gtrid)
    assert parsed is not None
    return layout.batch_path(*parsed)


def encode_decision(decision: Decision, epoch: int) -> tuple[bytes, bytes]:
    """Head and body of its block."""
    batch = decision.batch
    stored = {"query": batch.query, "number": str(batch.number), "messages": str(decision.messages)}
    body: bytes = msgpack.packb(
        (
            [(xid.format_id, xid.bqual) for xid in decision.xids],
            [(space, xid.format_id, xid.bqual) for space, xid in decision.others],
            astuple(decision.plan),
        ),
        use_bin_type=True,
    )
    properties = Properties("", enqueued_at=decision.decided_at, headers=stored)
    return _encode(properties, body, epoch)


def read_decision(fs: FileSystem, path: str) -> Decision:
    """The decision recorded in a file. Raises DamagedBlock, and FileNotFoundError where there is none."""
    return decode_decision(read_checked(fs, path))


def decode_decision(data: bytes) -> Decision:
    """The decision that a record's bytes are. Raises DamagedBlock."""
    block = decode(data)
    try:
        if block.kind is Kind.BRANCH:
            return _decision(block)
    except (ValueError, TypeError, KeyError, InvalidArgument, msgpack.UnpackException) as error:
        raise DamagedBlock(f"is no record of a batch: {error!r}") from None
    raise DamagedBlock("is no record of a batch")


def decision_lists(fs: FileSystem, xid: Xid) -> bool | None:
    """Whether the decision on a branch's batch commits it; None where there is none, or it is damaged."""
    if not is_of_a_batch(xid):
        return None
    try:
        return xid in read_decision(fs, decision_path(xid.gtrid)).xids
    except (FileNotFoundError, DamagedBlock):
        return None


def _decision(block: Block) -> Decision:
    stored = block.properties.headers
    batch = Batch(stored["query"], int(stored["number"]))
    here, others, (digest, offsets, spaces, once) = msgpack.unpackb(block.body, raw=False)
    return Decision(
        batch,
        tuple(Xid(format_id, batch.gtrid, bqual) for format_id, bqual in here),
        tuple((str(space), Xid(format_id, batch.gtrid, bqual)) for space, format_id, bqual in others),
        int(stored["messages"]),
        block.properties.enqueued_at,
        Plan(str(digest), str(offsets), tuple(map(str, spaces)), bool(once)),
    )


class BatchMemory:
    """The last batch of each query that is decided, by the query's key. Used with the space's lock held."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        """Their numbers."""
        self.lost: dict[str, tuple[int, str]] = {}
        """Of a query whose record was damaged: its number, and where in quarantine it is."""
        self.recovered: dict[bytes, Decision] = {}
        """While the space is opened, by gtrid: of batches that have branches left."""
        self.claimed: set[str] = set()
        """The keys of queries to a batch of which something is being done just now."""
        self.forget_us = 0
        """When decisions that nobody will ask for are looked for next."""

    def found(self, names: Iterable[str]) -> None:
        """Takes the names in ``batches/``."""
        for key, number in filter(None, map(layout.parse_batch, names)):
            self.last[key] = max(number, self.last.get(key, -1))

    def found_lost(self, names: Iterable[str]) -> None:
        """Takes the names in ``quarantine/``. What was decided after a record that is there counts, and not that."""
        start = f"{layout.BATCHES}."
        for name in names:
            parsed = layout.parse_batch(name.removeprefix(start).partition("~")[0]) if name.startswith(start) else None
            if parsed is not None and parsed[1] > self.highest(parsed[0]):
                self.lost[parsed[0]] = parsed[1], f"{layout.QUARANTINE}/{name}"

    def highest(self, key: str) -> int:
        """The number of a query's last batch that is decided, or may be; -1 without one."""
        return max(self.last.get(key, -1), self.lost.get(key, (-1, ""))[0])

    def has(self, gtrid: bytes) -> bool:
        """Whether this batch is the last of its query that is decided."""
        parsed = parse_gtrid(gtrid)
        return parsed is not None and self.last.get(parsed[0]) == parsed[1]

    def is_lost(self, gtrid: bytes) -> bool:
        """Whether this batch may be decided, and nobody knows."""
        parsed = parse_gtrid(gtrid)
        return parsed is not None and self.lost.get(parsed[0], (-1, ""))[0] == parsed[1]
