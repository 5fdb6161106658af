"""A command block's bytes are fixed by the vectors in ``vectors/``, and no damage to them goes unseen.

``vectors/blocks.json`` says of each ``.bin`` file what it holds; the files are format 1 as spaces on disk have it, and
are never to change. To add one: write its entry, and run this in the directory of the tests:
``python -c "import test_command as t; v = t.VECTORS[-1]; t.path(v).open('xb').write(t.encoded(v))"``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import SUPPORT
from xaqueue.core.model import block as command
from xaqueue.core.model.block import PREFIX_BYTES, Block, Kind, Listed, decode, decode_head, decode_message, encode
from xaqueue.errors import DamagedBlock, MessageTooLarge
from xaqueue.message import DEFAULT_PRIORITY, MessageId, Properties

HERE = SUPPORT / "vectors"
VECTORS: list[dict[str, Any]] = json.loads((HERE / "blocks.json").read_text("utf-8"))["blocks"]
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
WITH_PROPERTIES = ("every-property", "not-persistent")
BYTES_PROPERTIES = ("correlation_id", "dedup_key")
LISTED = [
    Listed(Kind.ENQUEUE, "orders", MessageId(bytes(range(16))), 0xDEADBEEF),
    Listed(Kind.DEQUEUE, "replies", MessageId(bytes(range(16, 32))), 1),
]


def path(vector: dict[str, Any]) -> Path:
    return HERE / f"{vector['name']}.bin"


def block_of(vector: dict[str, Any]) -> Block:
    """The block that a vector's description means; byte strings are written in hex."""
    given = dict(vector["properties"])
    for name in BYTES_PROPERTIES:
        if name in given:
            given[name] = bytes.fromhex(given[name])
    body = bytes.fromhex(vector["body_hex"]) if "body_hex" in vector else vector["body"].encode()
    message_id = MessageId(bytes.fromhex(vector["message_id"]))
    return Block(Kind[vector["kind"]], message_id, Properties(**given), body, vector["epoch"], vector.get("crc32", 0))


def encoded(vector: dict[str, Any]) -> bytes:
    return b"".join(encode(block_of(vector)))


named = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])


@named
def test_encode_gives_the_committed_bytes(vector: dict[str, Any]) -> None:
    assert encoded(vector) == path(vector).read_bytes()


@named
def test_decode_gives_the_described_values(vector: dict[str, Any]) -> None:
    data = path(vector).read_bytes()
    expected = block_of(vector)
    assert decode(data) == expected
    head = decode_head(data)
    assert (head.kind, head.message_id, head.epoch) == (expected.kind, expected.message_id, expected.epoch)
    assert (head.properties, head.size_bytes) == (expected.properties, len(data))
    assert data[head.body_offset :] == expected.body
    assert head.checksum == crc32(data[PREFIX_BYTES:], crc32(data[: PREFIX_BYTES - 4])) == vector["crc32"]


def test_there_is_a_file_for_each_vector_and_no_other() -> None:
    assert sorted(file.name for file in HERE.glob("*.bin")) == sorted(path(vector).name for vector in VECTORS)


def test_the_vectors_cover_every_kind_and_every_property() -> None:
    """A block of messages stands in the manual."""
    assert {vector["kind"] for vector in VECTORS} == {kind.name for kind in Kind} - {Kind.MESSAGES.name}
    everything = [block_of(vector).properties for vector in VECTORS if vector["name"] in WITH_PROPERTIES]
    nothing = Properties("")
    for name in Properties.__dataclass_fields__:
        assert name == "unknown" or any(getattr(one, name) != getattr(nothing, name) for one in everything), name


def test_a_list_of_blocks_is_the_body_of_the_branch_vector() -> None:
    body = decode((HERE / "branch.bin").read_bytes()).body
    assert command.unpack_list(body) == LISTED
    assert command.pack_list(LISTED) == body


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x91\x01", b"\x91\x94\x09\xa1a\xc4\x00\x00", b"\x80\x80", b"\xc1"])
def test_a_damaged_list_of_blocks_is_seen(body: bytes) -> None:
    with pytest.raises(DamagedBlock, match="list of blocks"):
        command.unpack_list(body)


def test_an_unknown_property_is_kept() -> None:
    data = (HERE / "unknown-property.bin").read_bytes()
    block = decode(data)
    assert block.properties.unknown == {"lease": [1, {"by": "a later version"}], "shard": 7}
    assert b"".join(encode(block)) == data


def test_encoding_is_deterministic_and_chunks_are_not_copied() -> None:
    body = b"x" * 1000
    block = Block(Kind.ENQUEUE, MessageId(bytes(16)), Properties("q"), body)
    chunks = encode(block)
    assert chunks[1] is body
    assert encode(block) == chunks
    assert len(encode(Block(Kind.ENQUEUE, MessageId(bytes(16)), Properties("q")))) == 1


# Damage


def sample(size_bytes: int = 300) -> bytes:
    head = len(b"".join(encode(Block(Kind.ENQUEUE, MessageId(b"i" * 16), Properties("orders", b"corr")))))
    body = bytes(number % 251 for number in range(size_bytes - head))
    return b"".join(encode(Block(Kind.ENQUEUE, MessageId(b"i" * 16), Properties("orders", b"corr"), body, 7)))


def test_every_single_bit_flip_is_seen() -> None:
    data = sample()
    assert len(data) == 300
    for position in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        for reads in (decode, decode_message):
            with pytest.raises(DamagedBlock):
                reads(bytes(flipped))


def test_every_bit_flip_of_the_head_is_seen_without_the_body() -> None:
    """An index is built from heads alone: all of it but the checksum over everything is guarded by its own."""
    data = sample()
    body_offset = decode_head(data).body_offset
    for position in range(body_offset * 8):
        if PREFIX_BYTES - 4 <= position // 8 < PREFIX_BYTES:
            continue
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(DamagedBlock):
            decode_head(bytes(flipped))


def test_every_truncation_and_every_added_byte_is_seen() -> None:
    data = sample()
    for length in range(len(data)):
        for reads in (decode, decode_message):
            with pytest.raises(DamagedBlock):
                reads(data[:length])
    for reads in (decode, decode_message):
        with pytest.raises(DamagedBlock):
            reads(data + b"\0")


def test_a_head_needs_no_more_than_the_head() -> None:
    data = sample()
    head = decode_head(data)
    assert decode_head(data[: head.body_offset]) == head
    for length in range(head.body_offset):
        with pytest.raises(DamagedBlock):
            decode_head(data[:length])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"XAQB", "less than a prefix"),
        (b"\x7fELF" + bytes(300), "foreign file"),
        (bytes(300), "foreign file"),
    ],
)
def test_the_reason_names_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedBlock, match=reason):
        decode(data)


def forged(packed: bytes, *, version: int = 1, kind: int = 1, body: bytes = b"") -> bytes:
    """Right checksums around wrong content: what a later version, or a bug, would write."""
    prefix = command.PREFIX.pack(command.MAGIC, version, kind, 0, len(packed), len(body), 1, bytes(16))
    head_crc = command.HEAD_CRC.pack(crc32(packed, crc32(prefix)))
    return (
        prefix + head_crc + command.HEAD_CRC.pack(crc32(body, crc32(packed, crc32(prefix + head_crc)))) + packed + body
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (forged(msgpack.packb({"queue": "q"}), version=2), "format version 2 is unknown"),
        (forged(msgpack.packb({"queue": "q"}), kind=0), "kind 0 is unknown"),
        (forged(msgpack.packb({"queue": "q"}), kind=6), "kind 6 is unknown"),
        (forged(msgpack.packb({"priority": 4})), "properties cannot be read"),  # no queue
        (forged(msgpack.packb([1])), "properties cannot be read"),
        (forged(b""), "properties cannot be read"),
        (forged(b"\xc1"), "properties cannot be read"),
        (forged(msgpack.packb({"queue": "q"}) + b"\x00"), "properties cannot be read"),
    ],
)
def test_sound_checksums_around_nonsense(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedBlock, match=reason):
        decode(data)


def test_decode_message_gives_what_decode_gives() -> None:
    for vector in VECTORS:
        data = path(vector).read_bytes()
        block = decode(data)
        if block.kind is Kind.ENQUEUE:
            message_id, stored, body = decode_message(data)
            assert (message_id, body) == (block.message_id, block.body)
            assert stored["queue"] == block.properties.queue
            assert stored.get("priority", DEFAULT_PRIORITY) == block.properties.priority
        else:
            with pytest.raises(DamagedBlock, match="is no message"):
                decode_message(data)


# Limits


def test_a_body_over_the_limit_is_refused_with_the_way_out() -> None:
    block = Block(Kind.ENQUEUE, MessageId(bytes(16)), Properties("q"), b"x" * 11)
    assert b"".join(encode(block, body_limit_bytes=11)).endswith(b"x" * 11)
    with pytest.raises(MessageTooLarge, match=r"11 bytes is over the limit of 10: raise .* max_body_bytes"):
        encode(block, body_limit_bytes=10)
    assert command.BODY_LIMIT_BYTES == 64 * 1024 * 1024


def test_properties_of_64_kib_are_taken_and_one_byte_more_is_not() -> None:
    def headed(size: int) -> Block:
        return Block(Kind.ENQUEUE, MessageId(bytes(16)), Properties("q", headers={"h": "x" * size}))

    overhead = decode_head(b"".join(encode(headed(60_000)))).body_offset - PREFIX_BYTES - 60_000
    largest = headed(64 * 1024 - overhead)
    assert decode(b"".join(encode(largest))).properties == largest.properties
    with pytest.raises(MessageTooLarge, match="properties of 65,537 bytes are over the limit of 65,536"):
        encode(headed(64 * 1024 - overhead + 1))


# Any block

texts = st.text(max_size=20)
optional_texts = st.none() | texts.filter(bool)
optional_bytes = st.none() | st.binary(min_size=1, max_size=20)
times = st.none() | st.integers(0, 2**63 - 1)
all_properties = st.builds(
    Properties,
    queue=texts,
    correlation_id=optional_bytes,
    reply_queue=optional_texts,
    failure_queue=optional_texts,
    priority=st.integers(0, 9),
    enqueued_at=st.integers(0, 2**63 - 1),
    not_before=times,
    expires_at=times,
    tries=st.integers(0, 2**31),
    group=optional_texts,
    dedup_key=optional_bytes,
    content_type=optional_texts,
    headers=st.dictionaries(texts, texts, max_size=3),
    traceparent=optional_texts,
    origin=optional_texts,
    unknown=st.dictionaries(
        texts.filter(lambda name: name not in Properties.__dataclass_fields__),
        st.integers(-5, 2**64 - 1) | texts | st.binary(max_size=5) | st.lists(st.booleans(), max_size=2),
        max_size=3,
    ),
)


@unhurried
@given(
    st.sampled_from([kind for kind in Kind if kind is not Kind.MESSAGES]),
    st.binary(min_size=16, max_size=16),
    all_properties,
    st.binary(max_size=200),
    st.integers(0, 2**64 - 1),
)
def test_any_block_round_trips(kind: Kind, message_id: bytes, properties: Properties, body: bytes, epoch: int) -> None:
    block = Block(kind, MessageId(message_id), properties, body, epoch)
    data = b"".join(encode(block))
    found = decode(data)
    assert (found.kind, found.message_id, found.properties) == (kind, message_id, properties)
    assert (found.body, found.epoch) == (body, epoch)
    assert b"".join(encode(found)) == data


@unhurried
@given(st.binary(max_size=200) | st.binary(max_size=200).map(command.MAGIC.__add__))
def test_any_bytes_are_a_block_or_damage(data: bytes) -> None:
    for reads in (decode, decode_head, decode_message, command.unpack_list):
        try:
            reads(data)
        except DamagedBlock:
            continue
