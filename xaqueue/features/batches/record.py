"""What a space remembers of the batches of queries, in its files and in memory.

A decision, a block of kind *branch* in ``batches/``, lists the branches that a decided batch commits. A query has one,
of its last batch. Its name is the query's key and the batch's number, so that a listing tells what is decided, and a
record is read only when somebody asks for it. The headers say query, number and how many messages; the body is
MessagePack:

    [[[format id, bqual], ...],             the branches in this space, whose gtrid is the batch's
     [[space id, format id, bqual], ...],   those in other spaces
     [digest, offsets, [space id, ...], once]]   what the batch was made from, and all spaces that it went to
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import astuple
from enum import IntEnum

import msgpack

from xaqueue.batch import Batch, BatchDecision, Plan, is_of_a_batch, parse_gtrid
from xaqueue.core.engine.state import Space
from xaqueue.core.model import layout
from xaqueue.core.model.block import Block, Kind, decode
from xaqueue.core.model.block_files import read_checked
from xaqueue.core.model.records import encode_record
from xaqueue.core.storage.fs import FileSystem
from xaqueue.errors import DamagedBlock, InvalidArgument
from xaqueue.message import Properties
from xaqueue.xid import Xid

BATCHES = "batches"
BATCH = re.compile(r"([0-9a-f]{32})\.([0-7][0-9a-f]{15})")


class BatchStep(IntEnum):
    BATCH = 7


def batch_path(key: str, number: int) -> str:
    """Of the record of a query's batch that is decided."""
    return f"{BATCHES}/{key}.{number:016x}"


def parse_batch(name: str) -> tuple[str, int] | None:
    """Key and number of the batch of which a file in ``batches/`` is the record."""
    match = BATCH.fullmatch(name)
    return (match[1], int(match[2], 16)) if match else None


def decision_path(gtrid: bytes) -> str:
    """Of the record of the batch with this gtrid, which must be one."""
    parsed = parse_gtrid(gtrid)
    assert parsed is not None
    return batch_path(*parsed)


def encode_decision(decision: BatchDecision, epoch: int) -> tuple[bytes, bytes]:
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
    return encode_record(properties, body, epoch)


def read_decision(fs: FileSystem, path: str) -> BatchDecision:
    """The decision recorded in a file. Raises DamagedBlock, and FileNotFoundError where there is none."""
    return decode_decision(read_checked(fs, path))


def decode_decision(data: bytes) -> BatchDecision:
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


def _decision(block: Block) -> BatchDecision:
    stored = block.properties.headers
    batch = Batch(stored["query"], int(stored["number"]))
    here, others, (digest, offsets, spaces, once) = msgpack.unpackb(block.body, raw=False)
    return BatchDecision(
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
        self.recovered: dict[bytes, BatchDecision] = {}
        """While the space is opened, by gtrid: of batches that have branches left."""
        self.claimed: set[str] = set()
        """The keys of queries to a batch of which something is being done just now."""
        self.forget_us = 0
        """When decisions that nobody will ask for are looked for next."""

    def found(self, names: Iterable[str]) -> None:
        """Takes the names in ``batches/``."""
        for key, number in filter(None, map(parse_batch, names)):
            self.last[key] = max(number, self.last.get(key, -1))

    def found_lost(self, names: Iterable[str]) -> None:
        """Takes the names in ``quarantine/``. What was decided after a record that is there counts, and not that."""
        start = f"{BATCHES}."
        for name in names:
            parsed = parse_batch(name.removeprefix(start).partition("~")[0]) if name.startswith(start) else None
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


def batches_of(space: Space) -> BatchMemory:
    """Used with the lock held."""
    return space.memory_of(BatchMemory)
