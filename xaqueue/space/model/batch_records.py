"""The record of a decided batch: a block of kind *branch* in ``batches/`` that lists the branches it commits.

A query has one, of its last batch; that of an earlier one is there only as long as branches of it are not finished. Its
name is the query's key and the batch's number, so that a listing tells what is decided, and a record is read only when
somebody asks for it. The headers say query, number and how many messages; the body is MessagePack:

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
from xaqueue.message import Properties
from xaqueue.space.engine.blocks import NO_MESSAGE
from xaqueue.space.model import layout
from xaqueue.space.model.block import UNLIMITED, Block, Kind, decode, encode_with_checksum
from xaqueue.space.model.block_files import damage_of, read_block
from xaqueue.storage.fs import FileSystem
from xaqueue.xid import Xid


def path_of(batch: Batch) -> str:
    return layout.batch_path(batch.key, batch.number)


def path_of_gtrid(gtrid: bytes) -> str:
    """Of the record of the batch with this gtrid, which must be one."""
    parsed = parse_gtrid(gtrid)
    assert parsed is not None
    return layout.batch_path(*parsed)


def making_path(batch: Batch) -> str:
    """Where the record is written before it is renamed into its place."""
    return f"{layout.BATCHES}/.{name_of(batch.gtrid)}"


def name_of(gtrid: bytes) -> str:
    """Of the file."""
    return path_of_gtrid(gtrid).rpartition("/")[2]


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
    head, _ = encode_with_checksum(Block(Kind.BRANCH, NO_MESSAGE, properties, body, epoch), body_limit_bytes=UNLIMITED)
    return head, body


def read(fs: FileSystem, path: str) -> Decision:
    """The decision recorded in a file. Raises DamagedBlock, and FileNotFoundError where there is none."""
    try:
        block = decode(read_block(fs, path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise damage_of(fs, path, error) from error
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
        return xid in read(fs, path_of_gtrid(xid.gtrid)).xids
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
    """Which batches are decided, by the keys of their queries. All methods are called with the space's lock held."""

    def __init__(self) -> None:
        self._numbers: dict[str, set[int]] = {}
        self.claimed: set[str] = set()
        """The keys of queries to a batch of which something is being done just now."""
        self.look_us = 0
        """When decisions that nobody will ask for are looked for next."""
        self.lost: dict[bytes, str] = {}
        """The gtrids of those whose record was damaged, and where in quarantine it is."""

    def found(self, names: Iterable[str]) -> list[str]:
        """Takes the names in ``batches/``; returns those that are none of a record."""
        strange = []
        for name in names:
            parsed = layout.parse_batch(name)
            if parsed is not None:
                self._numbers.setdefault(parsed[0], set()).add(parsed[1])
            else:
                strange.append(name)
        return strange

    def found_lost(self, names: Iterable[str]) -> None:
        """Takes the names in ``quarantine/``."""
        start = f"{layout.BATCHES}."
        for name in names:
            parsed = layout.parse_batch(name.removeprefix(start).partition("~")[0]) if name.startswith(start) else None
            if parsed is not None and parsed[1] not in self._numbers.get(parsed[0], ()):
                self.lost[f"{parsed[0]}:{parsed[1]}".encode()] = f"{layout.QUARANTINE}/{name}"

    def lose(self, gtrid: bytes) -> None:
        """Its record was damaged, and is no more; ``found_lost`` or ``lost`` are to be told where it is."""
        parsed = parse_gtrid(gtrid)
        assert parsed is not None
        self.remove(*parsed)

    def add(self, batch: Batch) -> None:
        self._numbers.setdefault(batch.key, set()).add(batch.number)

    def remove(self, key: str, number: int) -> None:
        numbers = self._numbers.get(key, set())
        numbers.discard(number)
        if not numbers:
            self._numbers.pop(key, None)

    def has(self, gtrid: bytes) -> bool:
        """Whether the batch of this gtrid is decided."""
        parsed = parse_gtrid(gtrid)
        return parsed is not None and parsed[1] in self._numbers.get(parsed[0], ())

    def standing(self, gtrid: bytes) -> int | None:
        """The number of the batch whose decision holds for this one: its own, or that of a later one of its query."""
        parsed = parse_gtrid(gtrid)
        if parsed is None:
            return None
        key, number = parsed
        lost = (each for each in map(parse_gtrid, self.lost) if each is not None)
        known = {*self._numbers.get(key, ()), *(other for of, other in lost if of == key)}
        return number if number in known else max((other for other in known if other > number), default=None)

    def numbers(self, key: str) -> list[int]:
        return sorted(self._numbers.get(key, ()))

    def firsts(self) -> list[str]:
        """The keys of queries that have decided batch 0 and no other."""
        return [key for key, numbers in self._numbers.items() if numbers == {0}]

    def beyond(self) -> list[tuple[str, int]]:
        """What is there beside the last of each query."""
        return [(key, number) for key, numbers in self._numbers.items() for number in sorted(numbers)[:-1]]
