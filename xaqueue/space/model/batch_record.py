"""The record of a decided batch: a block of kind *branch* in ``batches/`` that lists the branches it commits.

A query has one, of its last batch. Its name is the query's key and the batch's number, so that a listing tells what is
decided, and a record is read only when somebody asks for it. The headers say query, number and how many messages; the
body is MessagePack:

    [[[format id, bqual], ...],             the branches in this space, whose gtrid is the batch's
     [[space id, format id, bqual], ...],   those in other spaces
     [digest, offsets, [space id, ...], once]]   what the batch was made from, and all spaces that it went to
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple

import msgpack

from xaqueue.batch import Batch, Decision, Plan, is_of_a_batch, parse_gtrid
from xaqueue.errors import DamagedBlock, InvalidArgument
from xaqueue.message import MessageId, Properties
from xaqueue.space.model import layout
from xaqueue.space.model.block import UNLIMITED, Block, Kind, decode, encode_with_checksum
from xaqueue.space.model.block_files import damage_of, read_block
from xaqueue.storage.fs import FileSystem
from xaqueue.xid import Xid


def path_of(gtrid: bytes) -> str:
    """Of the record of the batch with this gtrid, which must be one."""
    parsed = parse_gtrid(gtrid)
    assert parsed is not None
    return layout.batch_path(*parsed)


def content(decision: Decision, epoch: int) -> tuple[bytes, bytes]:
    """Head and body of its block."""
    batch = decision.batch
    told = {"query": batch.query, "number": str(batch.number), "messages": str(decision.messages)}
    body: bytes = msgpack.packb(
        (
            [(xid.format_id, xid.bqual) for xid in decision.xids],
            [(space, xid.format_id, xid.bqual) for space, xid in decision.others],
            astuple(decision.plan),
        ),
        use_bin_type=True,
    )
    properties = Properties("", enqueued_at=decision.decided_at, headers=told)
    block = Block(Kind.BRANCH, MessageId(bytes(16)), properties, body, epoch)
    head, _ = encode_with_checksum(block, body_limit_bytes=UNLIMITED)
    return head, body


def read(fs: FileSystem, path: str) -> Decision:
    """The decision recorded in a file. Raises DamagedBlock, and FileNotFoundError where there is none."""
    try:
        data = read_block(fs, path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise damage_of(fs, path, error) from error
    return parse(data)


def parse(data: bytes) -> Decision:
    """The decision that a record's bytes are. Raises DamagedBlock."""
    block = decode(data)
    try:
        if block.kind is Kind.BRANCH:
            return _decision(block)
    except (ValueError, TypeError, KeyError, InvalidArgument, msgpack.UnpackException) as error:
        raise DamagedBlock(f"is no record of a batch: {error!r}") from None
    raise DamagedBlock("is no record of a batch")


def lists(fs: FileSystem, xid: Xid) -> bool | None:
    """Whether the decision on a branch's batch commits it; None where there is none, or it is damaged."""
    if not is_of_a_batch(xid):
        return None
    try:
        return xid in read(fs, path_of(xid.gtrid)).xids
    except (FileNotFoundError, DamagedBlock):
        return None


def _decision(block: Block) -> Decision:
    told = block.properties.headers
    batch = Batch(told["query"], int(told["number"]))
    here, others, (digest, offsets, spaces, once) = msgpack.unpackb(block.body, raw=False)
    return Decision(
        batch,
        tuple(Xid(format_id, batch.gtrid, bqual) for format_id, bqual in here),
        tuple((str(space), Xid(format_id, batch.gtrid, bqual)) for space, format_id, bqual in others),
        int(told["messages"]),
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
