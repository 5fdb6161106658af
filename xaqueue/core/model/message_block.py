"""A block of many messages of one queue: a command block whose body is their table, their bodies, and the table again.

     0  prefix as of every command block, of kind 5; the id is that of the first message
    52  the properties that all of them have
        table: count and size of the rest (4 bytes each), ids (16 each), sizes and CRC-32s of the bodies (4 each),
               rest: nothing where all have these properties and no tag, else MessagePack
               [tags, {index: [tags, properties]}]; what differs stands there, over what all have
        bodies, one behind the other
        copy of all that stands before the bodies, and its size (4 bytes)

The CRC-32 of a block is that of all before the bodies: it says nothing of these, each has its own. So who opens a space
reads the table, and who takes some reads these. A block that was made smaller is *hollow*: its columns and bodies are
those of the messages that were not gone by then, and its rest says [tags, map, count, a bit for each that has a place].
What else is gone says a bitmap beside the block: a command block of kind *update* with the id of the first message, and
a bit for each, the first one's lowest. It is always the whole of what is gone. No I/O here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from struct import Struct, pack, unpack_from
from typing import Any
from zlib import crc32

import msgpack

from xaqueue.core.model.block import (
    CHECKSUM_OFFSET,
    COLUMNS,
    HEAD_CRC,
    HOLLOW,
    MANY,
    MANY_HEAD,
    NO_MESSAGE,
    PREFIX_BYTES,
    Kind,
    decode,
    decode_head,
    head_of,
    head_of_many,
    names,
    pack_properties,
    stored_in,
    verify_table,
)
from xaqueue.core.model.message_name import Named
from xaqueue.errors import DamagedBlock
from xaqueue.message import MessageId, Properties

MOST_BYTES = 1024 * 1024
"""Of a block's file."""
BLOCK = "block"
"""A property of a dequeue that takes from a block: number and id of its first message, its count, and the bits."""
_MOST = 0xFFF
"""Messages: its name has three digits for them."""
_SIZE = Struct("<I")
_NO_OWN: Mapping[int, tuple[str, dict[str, Any]]] = {}


@dataclass(slots=True)
class Table:
    """All of a block but the bodies. Messages are known by their index in it, from 0."""

    packed: bytes
    """The properties that all have."""
    ids: bytes
    """One behind the other."""
    sizes: tuple[int, ...]
    checksums: tuple[int, ...]
    offsets: Sequence[int]
    """Where in the file each body begins, and where the last one ends."""
    tags: str
    own: Mapping[int, tuple[str, dict[str, Any]]]
    """By index the tags and properties of those that differ."""
    epoch: int
    checksum: int
    is_shared: bool = False
    """Several queues have these messages."""

    @property
    def count(self) -> int:
        return len(self.sizes)

    def message_id(self, index: int) -> MessageId:
        return MessageId(self.ids[16 * index : 16 * index + 16])

    def message_ids(self) -> tuple[MessageId, ...]:
        return _ids(self.count).unpack(self.ids)

    def tags_of(self, index: int) -> str:
        """As they end the name of a message that has a file of its own."""
        return self.own[index][0] if index in self.own else self.tags

    @property
    def held(self) -> int:
        """How many have a body still; of the others the size is ``HOLLOW``, and all else stands for nothing."""
        return self.count - self.sizes.count(HOLLOW)

    @property
    def is_plain(self) -> bool:
        """No message of it has a tag."""
        return not self.tags and not any(tags for tags, _ in self.own.values())

    def stored(self, index: int) -> dict[str, Any]:
        """The property map of a message, for ``stored_message``. Raises DamagedBlock."""
        stored = stored_in(self.packed)
        return stored | self.own[index][1] if index in self.own else stored

    def body(self, data: bytes, index: int) -> bytes:
        """Of the whole file. Raises DamagedBlock."""
        body = data[self.offsets[index] : self.offsets[index + 1]]
        if crc32(body) != self.checksums[index] or self.sizes[index] == HOLLOW:
            self.bodies(data, index, index + 1)  # says what is wrong
        return body

    def bodies(self, data: bytes, begin: int, end: int) -> Sequence[bytes]:
        """Those with these indexes, of the whole file. Raises DamagedBlock where one of them is not what it was."""
        sizes, offsets = self.sizes[begin:end], self.offsets
        if HOLLOW in sizes:
            raise DamagedBlock("a message that was gone has no body any more")
        if offsets[end] <= len(data):
            found: Sequence[bytes] = unpack_from("%ds" * len(sizes) % sizes, data, offsets[begin])
            if tuple(map(crc32, found)) == self.checksums[begin:end]:
                return found
        wrong = next(at for at in range(begin, end) if crc32(data[offsets[at] : offsets[at + 1]]) != self.checksums[at])
        raise DamagedBlock(f"checksum of the body of message {wrong:,} does not match")

    def left(self, gone: int, begin: int = 0, end: int | None = None) -> Sequence[int]:
        """The indexes of those that are there, from ``begin`` up to ``end``. gone: what the bitmap says."""
        some = range(self.count)[begin:end]
        if HOLLOW in self.sizes:
            return [index for index in some if not gone >> index & 1 and self.sizes[index] != HOLLOW]
        return [index for index in some if not gone >> index & 1] if gone else some


def encode(
    properties: bytes,
    ids: Sequence[bytes],
    bodies: Sequence[bytes],
    epoch: int,
    *,
    tags: str = "",
    own: Mapping[int, tuple[str, dict[str, Any]]] = _NO_OWN,
    hollow: Collection[int] = (),
) -> tuple[bytes, bytes, int]:
    """Head and body of the block, and its checksum. properties: packed, of all; own: see ``Table.own``; hollow: indexes
    of those gone, of which it says nothing any more, whatever stands here."""
    message_id, rest = MessageId(ids[0]), msgpack.packb([tags, own]) if tags or own else b""
    if hollow:
        places = [index for index in range(len(ids)) if index not in hollow]
        bits = sum(1 << index for index in places).to_bytes((len(ids) + 7) // 8, "little")
        rest = msgpack.packb([tags, {index: own[index] for index in places if index in own}, len(ids), bits])
        ids, bodies = [ids[index] for index in places], [bodies[index] for index in places]
    count, sizes = len(ids), list(map(len, bodies))
    columns = pack(f"<{count}I", *sizes), pack(f"<{count}I", *map(crc32, bodies))
    table = b"".join((COLUMNS.pack(count, len(rest)), *ids, *columns, rest))
    copy_bytes = PREFIX_BYTES + len(properties) + len(table)
    size_bytes = len(table) + sum(sizes) + copy_bytes + _SIZE.size
    head, checksum = head_of_many(message_id, properties, table, size_bytes, epoch)
    return head, b"".join((table, *bodies, head, table, _SIZE.pack(copy_bytes))), checksum


def decode_table(data: bytes) -> Table:
    """From the first bytes of a file, which may end anywhere behind its table. Raises DamagedBlock."""
    if len(data) < PREFIX_BYTES or not data.startswith(MANY):
        raise DamagedBlock(f"a block of kind {decode_head(data).kind.name.lower()} is no block of messages")
    properties_bytes, body_bytes, epoch, message_id, checksum = MANY_HEAD.unpack_from(data)
    begin = PREFIX_BYTES + properties_bytes
    end = verify_table(begin, checksum, data)
    count, rest_bytes = COLUMNS.unpack_from(data, begin)
    at = begin + COLUMNS.size
    ids, at = data[at : at + 16 * count], at + 16 * count
    sizes: tuple[int, ...] = unpack_from(f"<{count}I", data, at)
    checksums: tuple[int, ...] = unpack_from(f"<{count}I", data, at + 4 * count)
    tags, own, most, bits = _rest_in(data[end - rest_bytes : end], count)
    if bits is not None:
        ids, sizes, checksums = _widened(message_id, most, bits, ids, sizes, checksums)
    offsets = list(accumulate(sizes if bits is None else [size % HOLLOW for size in sizes], initial=end))
    if offsets[-1] + end + _SIZE.size != begin + body_bytes or not most or ids[:16] != message_id:
        raise DamagedBlock("its table is not that of a block of this size and id")
    packed = data[PREFIX_BYTES:begin]
    return Table(packed, ids, sizes, checksums, offsets, tags, own, epoch, checksum)


def _rest_in(data: bytes, count: int) -> tuple[str, Mapping[int, tuple[str, dict[str, Any]]], int, int | None]:
    """Tags, what differs, how many messages; and of a hollow block which have a place in so many columns."""
    if not data:
        return "", _NO_OWN, count, None
    try:
        tags, rows, *hollow = msgpack.unpackb(data, raw=False, strict_map_key=False)
        own = {int(index): (str(own_tags), dict(stored)) for index, (own_tags, stored) in rows.items()}
        most, bits = (int(hollow[0]), int.from_bytes(hollow[1], "little")) if hollow else (count, None)
    except (ValueError, TypeError, AttributeError, LookupError, msgpack.UnpackException) as wrong:
        raise DamagedBlock(f"the rest of its table cannot be read: {wrong}") from None
    if not isinstance(tags, str) or not all(0 <= index < most for index in own) or not count <= most <= _MOST:
        raise DamagedBlock("the rest of its table is that of no such block")
    if bits is not None and (bits >> most or bits.bit_count() != count):
        raise DamagedBlock("its columns are not those of the messages that it still has")
    return tags, own, most, bits


def _widened(
    first: MessageId, count: int, bits: int, ids: bytes, sizes: Sequence[int], checksums: Sequence[int]
) -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
    """The columns of a hollow block with a place for each of its messages again."""
    wide_ids, wide_sizes, wide_checksums = [first] + [NO_MESSAGE] * (count - 1), [HOLLOW] * count, [0] * count
    for at, index in enumerate(index for index in range(count) if bits >> index & 1):
        wide_ids[index] = MessageId(ids[16 * at : 16 * at + 16])
        wide_sizes[index], wide_checksums[index] = sizes[at], checksums[at]
    return b"".join(wide_ids), tuple(wide_sizes), tuple(wide_checksums)


def decode_copy(data: bytes) -> Table:
    """From the end of a whole file, where its beginning is damaged. Raises DamagedBlock."""
    end = len(data) - _SIZE.size
    copy_bytes = int.from_bytes(data[end:], "little") if end > 0 else 0
    table = decode_table(data[max(end - copy_bytes, 0) : end])
    if table.offsets[-1] + copy_bytes != end:
        raise DamagedBlock("the copy of its table is not that of a block of this size")
    return table


def check_block(table: Table, queue: str, named: Named) -> None:
    """DamagedBlock unless this is the table of the block that its name says. From here on it is one of this queue."""
    if table.ids[:16] != named.message_id or table.count != named.count:
        raise DamagedBlock(f"holds {table.count:,} messages from {table.ids[:16].hex()} on, not those of its name")
    if names(table.packed, queue):
        return
    stored = stored_in(table.packed)
    if (owner := stored.get("queue")) == "":  # several queues have it: none is named
        table.packed, table.is_shared = msgpack.packb(stored | {"queue": queue}), True
    elif owner != queue:
        raise DamagedBlock(f"belongs to queue {owner!r}, not {queue!r}")


@lru_cache(maxsize=16)
def _ids(count: int) -> Struct:
    return Struct("16s" * count)


def encode_gone(queue: str, named: Named, gone: int, epoch: int) -> tuple[bytes, bytes]:
    """Head and body of the bitmap of a block."""
    before, behind, checksum, size_bytes = _around_gone(queue, named.message_id, named.last - named.first + 1, epoch)
    bits = gone.to_bytes(size_bytes, "little")
    return b"".join((before, HEAD_CRC.pack(crc32(bits, checksum)), behind)), bits


@lru_cache(maxsize=64)
def _around_gone(queue: str, message_id: MessageId, count: int, epoch: int) -> tuple[bytes, bytes, int, int]:
    """Of a bitmap what stands before its checksum and behind that, the checksum of these, and the bytes of its bits."""
    size_bytes = (count + 7) // 8
    head, _ = head_of(Kind.UPDATE, message_id, pack_properties(Properties(queue)), bytes(size_bytes), epoch)
    before, behind = head[:CHECKSUM_OFFSET], head[PREFIX_BYTES:]
    return before, behind, crc32(behind, crc32(before)), size_bytes


def read_taken(properties: Properties) -> tuple[Named, int] | None:
    """The block from which a dequeue takes, and which bits; None where its message has a file of its own."""
    try:
        first, message_id, count, bits = properties.unknown[BLOCK]
        return Named(first, first + count - 1, message_id), int.from_bytes(bits, "little")
    except (KeyError, TypeError, ValueError):
        return None


def decode_gone(data: bytes, queue: str, named: Named) -> int:
    """What it says is gone. Raises DamagedBlock, also for the bitmap of another block."""
    block, count = decode(data), named.count
    if (block.kind, block.message_id, block.properties.queue) != (Kind.UPDATE, named.message_id, queue):
        raise DamagedBlock("is not the bitmap of the block that it is named after")
    gone = int.from_bytes(block.body, "little")
    if len(block.body) != (count + 7) // 8 or gone >> count:
        raise DamagedBlock(f"is not the bitmap of {count:,} messages")
    return gone
