"""A command block is one file's bytes: a fixed prefix, a MessagePack property map, the body.

All integers are little-endian, so a space moves between machines. Two checksums: the head's, so that an index is
built without reading bodies, and one over everything, so that no single-bit flip goes unseen. An unknown property
is kept. Encoding is deterministic: the same block gives the same bytes. No I/O here; ``man/xaqueue.5`` has the table.

    offset  size  field
         0     4  magic "XAQB"
         4     1  format version (1)
         5     1  kind: 1 enqueue, 2 dequeue, 3 update, 4 branch, 5 messages
         6     2  flags (0)
         8     4  length of the properties
        12     8  length of the body
        20     8  epoch of the owner that wrote it
        28    16  message id
        44     4  CRC-32 of bytes 0 to 43 and the properties
        48     4  CRC-32 of bytes 0 to 47, the properties and the body; of kind 5 its table only
        52        properties, then body
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any
from zlib import crc32

import msgpack

from xaqueue.errors import DamagedBlock, InvalidArgument, MessageTooLarge
from xaqueue.message import DEFAULT_PRIORITY, MessageId, Properties, properties_in, restored

MAGIC = b"XAQB"
FORMAT_VERSION = 1
PREFIX = struct.Struct("<4sBBHIQQ16s")
HEAD_CRC = struct.Struct("<I")
PREFIX_BYTES = PREFIX.size + 2 * HEAD_CRC.size
_HEAD = struct.Struct(PREFIX.format + "II")
CHECKSUM_OFFSET = PREFIX.size + HEAD_CRC.size
PROPERTIES_LIMIT_BYTES = 64 * 1024
BODY_LIMIT_BYTES = 64 * 1024 * 1024
"""Default limit of a body; ``[space] max_body_bytes`` in queues.toml changes it for a space."""
UNLIMITED = 1 << 62
"""For blocks whose size was checked when their message came in."""
pack: Callable[[object], bytes] = msgpack.Packer(autoreset=True).pack
"""As ``msgpack.packb``, by one packer for all: no thread comes in between."""
COLUMNS = struct.Struct("<II")
"""What the table of a block of messages begins with: how many there are, and the size of what ends it."""
MESSAGE_BYTES = 24
"""Of each in its columns."""
HOLLOW = 2**32 - 1
"""As the size of a body: there is none any more."""
NO_TRY = "no_try"
"""A property of a dequeue's block, true where somebody moves or removes the message: no delivery fails with it."""
HEAD_READ_BYTES = PREFIX_BYTES + PROPERTIES_LIMIT_BYTES + 1024
"""Enough of a file for ``decode_head``, and all of a small one."""


class Kind(IntEnum):
    """What a block asks for when its branch commits."""

    ENQUEUE = 1
    DEQUEUE = 2
    UPDATE = 3
    BRANCH = 4
    MESSAGES = 5
    """Many to enqueue; see ``message_block``."""


ADDS = (Kind.ENQUEUE, Kind.MESSAGES)
MANY, MANY_HEAD = MAGIC + bytes((FORMAT_VERSION, Kind.MESSAGES)), struct.Struct("<8xIQQ16s4xI")
_MESSAGE, _MESSAGE_HEAD = MAGIC + bytes((FORMAT_VERSION, Kind.ENQUEUE)), struct.Struct("<8xIQ8x16s4xI")
"""What a message begins with, and where in its head stands what it is split by."""


@dataclass(slots=True)
class Block:
    """A decoded command block. ``checksum`` is the CRC-32 over everything, as stored."""

    kind: Kind
    message_id: MessageId
    properties: Properties
    body: bytes = b""
    epoch: int = 0
    checksum: int = 0


@dataclass(slots=True)
class Head:
    """All of a block but its body; ``size_bytes`` is what the whole file must measure."""

    kind: Kind
    message_id: MessageId
    properties: Properties
    epoch: int
    checksum: int
    body_offset: int
    size_bytes: int


_KNOWN = tuple(f.name for f in fields(Properties) if f.name != "unknown")
_WITH_DEFAULTS = ("queue", "priority", "enqueued_at", "tries", "possible_duplicate", "persistent")
_OPTIONAL = tuple(name for name in _KNOWN if name not in _WITH_DEFAULTS)
_optional = attrgetter(*_OPTIONAL)
_ABSENT = _optional(Properties(""))


def property_map(properties: Properties) -> dict[str, Any]:
    """The map that is stored: what is absent or default is left out, what is unknown comes last."""
    stored: dict[str, Any] = {"queue": properties.queue}
    if properties.enqueued_at:
        stored["enqueued_at"] = properties.enqueued_at
    if properties.priority != DEFAULT_PRIORITY:
        stored["priority"] = properties.priority
    if properties.tries:
        stored["tries"] = properties.tries
    if properties.possible_duplicate:
        stored["possible_duplicate"] = True
    if not properties.persistent:
        stored["persistent"] = False
    optional = _optional(properties)
    if optional != _ABSENT:
        for name, value in zip(_OPTIONAL, optional, strict=True):
            if value is not None and value != {}:
                stored[name] = dict(value) if name == "headers" else value
    if properties.unknown:
        stored.update(properties.unknown)
    return stored


def encode(block: Block, *, body_limit_bytes: int = BODY_LIMIT_BYTES) -> list[bytes]:
    """The block's bytes as chunks to be written in order: head first, then the body itself, not copied.

    Raises MessageTooLarge for a body over ``body_limit_bytes`` or properties over 64 KiB.
    """
    head, _ = encode_with_checksum(block, body_limit_bytes=body_limit_bytes)
    return [head, block.body] if block.body else [head]


def encode_with_checksum(block: Block, *, body_limit_bytes: int = BODY_LIMIT_BYTES) -> tuple[bytes, int]:
    """The head's bytes and the CRC-32 over head and body (``block.checksum`` is not read)."""
    packed = pack_properties(block.properties)
    return head_of(block.kind, block.message_id, packed, block.body, block.epoch, body_limit_bytes)


def head_of(
    kind: Kind, message_id: MessageId, packed: bytes, body: bytes, epoch: int, body_limit_bytes: int = UNLIMITED
) -> tuple[bytes, int]:
    """``encode_with_checksum`` of a block whose properties are packed already."""
    body_bytes = len(body)
    if body_bytes > body_limit_bytes:
        raise MessageTooLarge(
            f"body of {body_bytes:,} bytes is over the limit of {body_limit_bytes:,}: "
            "raise [space] max_body_bytes in queues.toml, or send a reference to the content"
        )
    prefix = PREFIX.pack(MAGIC, FORMAT_VERSION, kind, 0, len(packed), body_bytes, epoch, message_id)
    so_far = crc32(prefix)
    head_crc = HEAD_CRC.pack(crc32(packed, so_far))
    checksum = crc32(body, crc32(packed, crc32(head_crc, so_far)))
    return b"".join((prefix, head_crc, HEAD_CRC.pack(checksum), packed)), checksum


def head_of_many(message_id: MessageId, packed: bytes, table: bytes, body_bytes: int, epoch: int) -> tuple[bytes, int]:
    """``head_of`` a block of messages, whose body has this size and begins with this table."""
    prefix = PREFIX.pack(MAGIC, FORMAT_VERSION, Kind.MESSAGES, 0, len(packed), body_bytes, epoch, message_id)
    head_crc = HEAD_CRC.pack(crc32(packed, crc32(prefix)))
    checksum = crc32(table, crc32(packed, crc32(head_crc, crc32(prefix))))
    return b"".join((prefix, head_crc, HEAD_CRC.pack(checksum), packed)), checksum


def pack_properties(properties: Properties) -> bytes:
    """The property map as it is stored. Raises MessageTooLarge."""
    packed: bytes = msgpack.packb(property_map(properties), use_bin_type=True)
    if len(packed) > PROPERTIES_LIMIT_BYTES:
        raise MessageTooLarge(
            f"properties of {len(packed):,} bytes are over the limit of {PROPERTIES_LIMIT_BYTES:,}: "
            "put large values into the body"
        )
    return packed


def names(packed: bytes, queue: str) -> bool:
    """Whether these properties, which are few, say that their message is of this queue."""
    return packed.startswith(_named(queue), 1)


@lru_cache(maxsize=1024)
def _named(queue: str) -> bytes:
    return pack("queue") + pack(queue)


@lru_cache(maxsize=1024)
def before_time(queue: str) -> bytes:
    """With ``pack`` of when it was enqueued behind it: ``pack_properties`` of a message that has no others."""
    packed: bytes = pack({"queue": queue, "enqueued_at": 0})
    return packed[:-1]


def decode_head(data: bytes) -> Head:
    """The head of a block from its first bytes, which may end anywhere behind the properties.

    Raises DamagedBlock with the first thing that is wrong.
    """
    if len(data) < PREFIX_BYTES:
        raise DamagedBlock("empty file" if not data else f"{len(data)} bytes are less than a prefix")
    magic, version, kind, _, properties_bytes, body_bytes, epoch, message_id, head_crc, checksum = _HEAD.unpack_from(
        data
    )
    if magic != MAGIC:
        raise DamagedBlock(f"starts with {magic!r}, not with {MAGIC!r}: a foreign file")
    body_offset = PREFIX_BYTES + properties_bytes
    if len(data) < body_offset:
        raise DamagedBlock(f"properties of {properties_bytes:,} bytes end behind the {len(data):,} bytes there are")
    packed = data[PREFIX_BYTES:body_offset]
    if crc32(packed, crc32(data[: PREFIX.size])) != head_crc:
        raise DamagedBlock("checksum of the head does not match")
    if version != FORMAT_VERSION:
        raise DamagedBlock(f"format version {version} is unknown; this xaqueue reads version {FORMAT_VERSION}")
    try:
        known = Kind(kind)
    except ValueError:
        raise DamagedBlock(f"block kind {kind} is unknown") from None
    properties, size_bytes = unpack_properties(packed), body_offset + body_bytes
    return Head(known, MessageId(message_id), properties, epoch, checksum, body_offset, size_bytes)


def size_in_head(data: bytes) -> int:
    """How large a file is that begins like this, by its head; where that is none, no larger than what is there."""
    try:
        return decode_head(data).size_bytes
    except DamagedBlock:
        return len(data)


def decode(data: bytes) -> Block:
    """The whole block, its checksum verified. Raises DamagedBlock."""
    head = decode_head(data)
    verify(head, data)
    return Block(head.kind, head.message_id, head.properties, data[head.body_offset :], head.epoch, head.checksum)


def decode_message(data: bytes) -> tuple[bytes, dict[str, Any], bytes]:
    """Message id, property map as stored, and body of a message's block: ``decode`` without the values that it makes.

    For readers of many messages, at a quarter of the cost; every bit is checked all the same. What is left out of the
    map is absent or default. Raises DamagedBlock, also for a block that is no message.
    """
    message_id, packed, body = split_message(data)
    return message_id, stored_in(packed), body


def split_message(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Message id, packed properties (see ``stored_in``) and body, checked as ``decode_message`` does."""
    if len(data) >= PREFIX_BYTES and data.startswith(_MESSAGE):
        properties_bytes, body_bytes, message_id, checksum = _MESSAGE_HEAD.unpack_from(data)
        body_offset = PREFIX_BYTES + properties_bytes
        packed, body = data[PREFIX_BYTES:body_offset], data[body_offset:]
        found = crc32(body, crc32(packed, crc32(data[:CHECKSUM_OFFSET])))
        if found == checksum and len(data) == body_offset + body_bytes:
            return message_id, packed, body
    block = decode(data)
    raise DamagedBlock(f"a block of kind {block.kind.name.lower()} is no message")


def stored_in(packed: bytes) -> dict[str, Any]:
    """The property map that these bytes are. Raises DamagedBlock."""
    try:
        stored = msgpack.unpackb(packed, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise DamagedBlock(f"properties cannot be read: {error}") from None
    if not isinstance(stored, dict):
        raise DamagedBlock(f"properties cannot be read: {type(stored).__name__} instead of a map")
    return stored


def verify(head: Head, data: bytes) -> None:
    """DamagedBlock unless ``data`` is the whole file that ``head`` was read from, bit for bit."""
    if len(data) != head.size_bytes:
        raise DamagedBlock(f"{len(data):,} bytes instead of {head.size_bytes:,}: truncated or overwritten")
    if head.kind is Kind.MESSAGES:
        verify_many(head.body_offset, head.checksum, data)
    elif crc32(memoryview(data)[PREFIX_BYTES:], crc32(data[:CHECKSUM_OFFSET])) != head.checksum:
        raise DamagedBlock("checksum does not match")


def verify_table(body_offset: int, checksum: int, data: bytes) -> int:
    """Where the table of a block of messages ends. DamagedBlock unless these bytes begin with it, bit for bit."""
    end = body_offset + COLUMNS.size
    if len(data) >= end:
        count, rest_bytes = COLUMNS.unpack_from(data, body_offset)
        end += MESSAGE_BYTES * count + rest_bytes
    if len(data) < end:
        raise DamagedBlock(f"its table of {end - body_offset:,} bytes ends behind the {len(data):,} bytes there are")
    if crc32(memoryview(data)[PREFIX_BYTES:end], crc32(data[:CHECKSUM_OFFSET])) != checksum:
        raise DamagedBlock("checksum of its table does not match")
    return end


def verify_many(body_offset: int, checksum: int, data: bytes) -> None:
    """DamagedBlock unless this is a whole block of messages, bit for bit."""
    at = end = verify_table(body_offset, checksum, data)
    count, _ = COLUMNS.unpack_from(data, body_offset)
    sizes = struct.unpack_from(f"<{2 * count}I", data, body_offset + COLUMNS.size + 16 * count)
    for size, body_checksum in zip(sizes[:count], sizes[count:], strict=True):
        begin, at = at, at + size
        if crc32(data[begin:at]) != body_checksum:
            raise DamagedBlock("checksum of a body in it does not match")
    if data[at:] != data[:end] + HEAD_CRC.pack(end):
        raise DamagedBlock("its two tables differ")


def has_valid_checksum(head: bytes, body: bytes | memoryview = b"") -> bool:
    """Whether these are the bytes of a whole block, by its checksum alone; ``head`` may hold the body as well."""
    if len(head) < PREFIX_BYTES:
        return False
    _, _, kind, _, properties_bytes, body_bytes, _, _, _, checksum = _HEAD.unpack_from(head)
    if kind == Kind.MESSAGES:
        try:
            verify_many(PREFIX_BYTES + properties_bytes, checksum, b"".join((head, body)))
        except DamagedBlock:
            return False
        return bool(len(head) + len(body) == PREFIX_BYTES + properties_bytes + body_bytes)
    found = crc32(body, crc32(memoryview(head)[PREFIX_BYTES:], crc32(head[:CHECKSUM_OFFSET])))
    return len(head) + len(body) == PREFIX_BYTES + properties_bytes + body_bytes and bool(found == checksum)


def split_block(data: bytes) -> tuple[bytes, bytes]:
    """The bytes of its head, and those of its body."""
    end = PREFIX_BYTES + _HEAD.unpack_from(data)[4] if len(data) >= PREFIX_BYTES else len(data)
    return data[:end], data[end:]


def unpack_properties(packed: bytes) -> Properties:
    """The inverse of ``pack_properties``. Raises DamagedBlock."""
    stored = stored_in(packed)
    if "queue" not in stored:
        raise DamagedBlock("properties cannot be read: they name no queue")
    return properties_in(stored)


def repacked(queue: str, properties: Properties) -> tuple[Properties, bytes]:
    """Those of a message that comes back to this queue, checked; and packed. InvalidArgument, MessageTooLarge."""
    try:
        found = restored(queue, property_map(properties))
        packed = pack_properties(found)
        unpack_properties(packed)
    except (DamagedBlock, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"the properties of the message are refused: {error}") from None
    return found, packed


@dataclass(frozen=True, slots=True)
class Listed:
    """What a branch block says of one other block of its branch."""

    kind: Kind
    queue: str
    message_id: MessageId
    checksum: int
    key: bytes = b""
    """The hash of a dedup_key that the branch claims with it."""


NO_MESSAGE = MessageId(bytes(16))
NOTHING = Listed(Kind.BRANCH, "", NO_MESSAGE, 0)
"""Where a dequeue came to nothing."""


def pack_list(blocks: Sequence[Listed]) -> bytes:
    """The body of a branch block: a MessagePack array, one entry a block, in the order of their numbers from 1."""
    rows: list[tuple[object, ...]] = []
    for listed in blocks:
        row = int(listed.kind), listed.queue, listed.message_id, listed.checksum
        rows.append((*row, listed.key) if listed.key else row)
    packed: bytes = msgpack.packb(rows, use_bin_type=True)
    return packed


def unpack_list(body: bytes) -> list[Listed]:
    """The inverse of ``pack_list``. Raises DamagedBlock."""
    try:
        rows = msgpack.unpackb(body, raw=False)
        return [
            Listed(Kind(kind), queue, MessageId(message_id), checksum, b"".join(key))
            for kind, queue, message_id, checksum, *key in rows
        ]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamagedBlock(f"list of blocks cannot be read: {error}") from None


def check_message(head: Head | Block, queue: str, message_id: MessageId) -> None:
    """DamagedBlock unless this is the message that its name says."""
    if head.kind is not Kind.ENQUEUE:
        raise DamagedBlock(f"a block of kind {head.kind.name.lower()} is no message")
    if head.message_id != message_id:
        raise DamagedBlock(f"holds message {head.message_id.hex()}, not the one it is named after")
    if head.properties.queue not in (queue, ""):  # several queues have it: none is named
        raise DamagedBlock(f"belongs to queue {head.properties.queue!r}, not {queue!r}")
