"""A block of many messages, its table at both ends, and the bitmap of what is gone."""

from __future__ import annotations

import struct
from typing import Any
from unittest import mock
from zlib import crc32

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.manual import page
from xaqueue.core.model import layout, message_block
from xaqueue.core.model.block import decode, decode_head, decode_message, has_valid_checksum, pack_properties
from xaqueue.core.model.block_files import read_gone, read_messages, read_table
from xaqueue.core.model.message_block import (
    check_block,
    decode_copy,
    decode_gone,
    decode_table,
    encode,
    encode_gone,
)
from xaqueue.core.model.message_name import Named, parse, parse_any
from xaqueue.errors import DamagedBlock
from xaqueue.features.topics import blocks as writer
from xaqueue.message import MessageId, Properties
from xaqueue.testing.forgetful import ForgetfulFileSystem

PACKED = pack_properties(Properties("q", enqueued_at=1))
Own = dict[int, tuple[str, dict[str, Any]]]


def ids_of(count: int) -> list[MessageId]:
    return [MessageId(number.to_bytes(16, "big")) for number in range(7, 7 + count)]


def named_of(count: int, first: MessageId | None = None) -> Named:
    return Named(4096, 4095 + count, first or ids_of(1)[0])


def example() -> tuple[bytes, bytes]:
    """As in the manual: the block and its bitmap."""
    ids = [MessageId(bytes([byte]) * 16) for byte in (0x11, 0x22, 0x33)]
    head, body, _ = encode(PACKED, ids, [b"one", b"", b"three"], 7, own={2: (".p9", {"priority": 9})})
    return head + body, b"".join(encode_gone("q", named_of(3, ids[0]), 0b101, 7))


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
bodies = st.lists(st.binary(max_size=70), min_size=2, max_size=20)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[bytes], str, Own]:
    found = draw(bodies)
    differs = st.tuples(st.sampled_from(["", ".p9", ".z1"]), st.dictionaries(st.text(max_size=3), st.integers(0, 9)))
    own = draw(st.dictionaries(st.integers(0, len(found) - 1), differs, max_size=3))
    return found, draw(st.sampled_from(["", ".p1"])), own


@unhurried
@given(blocks(), st.integers(0))
def test_what_was_encoded_is_decoded(block: tuple[list[bytes], str, Own], bits: int) -> None:
    contents, tags, own = block
    count, ids = len(contents), ids_of(len(contents))
    head, body, checksum = encode(PACKED, ids, contents, 3, tags=tags, own=own)
    data = head + body
    table = decode_table(data)
    assert decode_table(data[: table.offsets[0]]) == table == decode_copy(data)
    assert (table.count, table.message_ids(), table.checksum, table.epoch) == (count, tuple(ids), checksum, 3)
    assert [*table.bodies(data, 0, count)] == contents
    assert [table.body(data, index) for index in range(count)] == contents
    for index in range(count):
        assert table.message_id(index) == ids[index]
        assert table.tags_of(index) == (own[index][0] if index in own else tags)
        assert table.stored(index) == {"queue": "q", "enqueued_at": 1} | (own[index][1] if index in own else {})
    assert table.is_plain == (not tags and not any(tags for tags, _ in own.values()))
    assert decode(data).checksum == checksum
    assert decode_head(data).size_bytes == len(data)
    assert has_valid_checksum(head, memoryview(body))
    assert has_valid_checksum(data)
    if not tags and not own:
        assert writer.size_of(count, PACKED, sum(map(len, contents))) == len(data)
    gone = bits % (1 << count)
    assert list(table.left(gone)) == [index for index in range(count) if not gone >> index & 1]
    check_block(table, "q", named_of(count))


@unhurried
@given(bodies, st.data())
def test_a_flipped_bit_is_found(contents: list[bytes], data: st.DataObject) -> None:
    """In the first table the copy holds; in a body only that message is lost, in the copy none."""
    head, body, _ = encode(PACKED, ids_of(len(contents)), contents, 3)
    whole = bytearray(head + body)
    table = decode_table(bytes(whole))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    flipped = bytes(whole)
    assert not has_valid_checksum(flipped)
    with pytest.raises(DamagedBlock):
        decode(flipped)
    if at < table.offsets[0]:
        assert decode_copy(flipped) == table
        with pytest.raises(DamagedBlock):
            decode_table(flipped)
    else:
        assert decode_table(flipped) == table
    hit = {index for index in range(len(contents)) if table.offsets[index] <= at < table.offsets[index + 1]}
    for index, content in enumerate(contents):
        if index in hit:
            with pytest.raises(DamagedBlock, match=f"message {index} "):
                table.bodies(flipped, 0, len(contents))
        else:
            assert table.body(flipped, index) == content


@unhurried
@given(bodies, st.data())
def test_a_part_of_a_block_is_none(contents: list[bytes], data: st.DataObject) -> None:
    head, body, _ = encode(PACKED, ids_of(len(contents)), contents, 3)
    whole = head + body
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert not has_valid_checksum(part)
    with pytest.raises(DamagedBlock):
        decode(part)
    with pytest.raises(DamagedBlock):
        decode_copy(part)


@unhurried
@given(st.binary(max_size=400))
def test_any_bytes_are_refused(data: bytes) -> None:
    for read in (decode_table, decode_copy):
        with pytest.raises(DamagedBlock):
            read(data)


@unhurried
@given(bodies, st.integers(0), st.integers(0))
def test_a_hollow_block_has_all_but_the_bodies_of_those_gone(contents: list[bytes], bits: int, more: int) -> None:
    """Whatever the bitmap says by then: nobody is given a message without its body."""
    count = len(contents)
    gone = bits % (1 << count)
    head, body, _ = encode(PACKED, ids_of(count), contents, 3, own={1: (".p9", {"priority": 9})})
    table = decode_table(head + body)
    hollow = [index for index in range(count) if gone >> index & 1]
    bodies = [b"" if index in hollow else content for index, content in enumerate(contents)]
    head, body, _ = encode(table.packed, table.message_ids(), bodies, 4, own=table.own, hollow=hollow)
    found = decode_table(head + body)
    assert has_valid_checksum(head, body)
    left = found.left(0)
    assert (found.count, found.held, found.packed) == (count, len(left), table.packed)
    assert found.own == {index: one for index, one in table.own.items() if index in left}
    assert [found.message_id(index) for index in (0, *left)] == [table.message_id(index) for index in (0, *left)]
    assert decode_copy(head + body) == found
    check_block(found, "q", named_of(count))
    assert list(left) == list(table.left(gone))
    assert [found.body(head + body, index) for index in left] == [contents[index] for index in left]
    assert list(found.left(more % (1 << count))) == list(table.left(gone | more % (1 << count)))
    for index in set(range(count)).difference(left):
        with pytest.raises(DamagedBlock):
            found.body(head + body, index)


def test_what_is_gone_of_a_hollow_block_takes_a_bit() -> None:
    """A thousand messages of 1 KiB of which one is left."""
    count, body = writer.MOST, bytes(1024)
    for at in (0, 1, count - 1):
        hollow = set(range(count)) - {at}
        made = b"".join(encode(PACKED, ids_of(count), [body] * count, 3, hollow=hollow)[:2])
        assert len(made) < 1.5 * len(body) + 2 * len(PACKED)
        assert decode_table(made).body(made, at) == body


@pytest.mark.parametrize("rest", [(3, b"\7"), (1, b"\1"), (3, b"\x0c"), (5000, b"\5"), ("x", b"\5"), (3,), (3, 5)])
def test_a_hollow_block_with_other_columns_is_damaged(rest: tuple[Any, ...]) -> None:
    """Two columns, and a rest that does not say whose they are."""
    whole = b"".join(encode(PACKED, ids_of(3), [b"a", b"b", b"c"], 3, hollow=[1])[:2])
    assert decode_table(whole).left(0) == [0, 2]
    wrong = msgpack.packb(["", {}, *rest])
    with mock.patch("msgpack.packb", return_value=wrong):
        whole = b"".join(encode(PACKED, ids_of(3), [b"a", b"b", b"c"], 3, hollow=[1])[:2])
    with pytest.raises(DamagedBlock):
        decode_table(whole)


def test_another_block_is_not_the_one_of_the_name() -> None:
    table = decode_table(example()[0])
    first = table.message_id(0)
    for queue, named in (("x", named_of(3, first)), ("q", named_of(3, table.message_id(1))), ("q", named_of(4, first))):
        with pytest.raises(DamagedBlock):
            check_block(table, queue, named)


def test_it_is_no_message_by_itself() -> None:
    with pytest.raises(DamagedBlock, match="messages is no message"):
        decode_message(example()[0])


@given(st.integers(1, writer.MOST), st.integers(0))
def test_a_bitmap_is_read_as_it_was_made(count: int, bits: int) -> None:
    gone, queue = bits % (1 << count), "q" * 127
    head, body = encode_gone(queue, named_of(count), gone, 9)
    assert len(head) + len(body) <= 512
    assert len(body) == (count + 7) // 8
    assert decode_gone(head + body, queue, named_of(count)) == gone
    assert has_valid_checksum(head, body)


def test_a_wrong_bitmap_is_damaged() -> None:
    """Which is not as none: nobody knows what was gone."""
    named = named_of(20)
    data = b"".join(encode_gone("q", named, 5, 9))
    refused = [
        (b"", "q", named),
        (data[:-1], "q", named),
        (data[:-1] + b"\1", "q", named),
        (data, "other", named),
        (data, "q", named_of(20, ids_of(2)[1])),
        (data, "q", named_of(16)),
        (data, "q", named_of(25)),
        (b"".join(encode_gone("q", named_of(24), 1 << 23, 9)), "q", named),
        (example()[0], "q", named),
    ]
    for arguments in refused:
        with pytest.raises(DamagedBlock):
            decode_gone(*arguments)


@pytest.fixture
def fs() -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    for directory in (
        "committed",
        "committed/queue=q",
        "committed/queue=q/range=0000000000001",
        "committed/queue=q/.gone",
    ):
        fs.make_dir(directory)
    return fs


@pytest.mark.parametrize("at", [None, 1, 44, 60, 100, -1, -5])
def test_files_are_read_whatever_is_damaged_of_one_table(fs: ForgetfulFileSystem, at: int | None) -> None:
    contents = [bytes([number]) * 65536 for number in range(15)]
    head, body, _ = encode(PACKED, ids_of(15), contents, 3)
    data = bytearray(head + body)
    if at is not None:
        data[at] ^= 255
    path = layout.messages_path("q", named_of(15))
    fs.create(path, [bytes(data)])
    table, whole = read_messages(fs, "q", named_of(15))
    assert table == read_table(fs, "q", named_of(15)) == decode_table(head + body)
    assert [*table.bodies(whole, 0, 15)] == contents
    for queue, named in (("q", named_of(16)), ("x", named_of(15))):
        with pytest.raises((DamagedBlock, FileNotFoundError)):
            read_table(fs, queue, named)


def test_no_bitmap_is_told_from_a_damaged_one(fs: ForgetfulFileSystem) -> None:
    named, path = named_of(20), layout.gone_path("q", named_of(20))
    assert read_gone(fs, "q", named) == 0
    fs.create(path, encode_gone("q", named, 5, 9))
    assert read_gone(fs, "q", named) == 5
    fs.write_at(path, 60, [b"!"])
    with pytest.raises(DamagedBlock):
        read_gone(fs, "q", named)


numbers = st.integers(0, layout.LAST_SEQ)


@given(numbers, st.integers(1, 4095))
def test_a_name_tells_its_numbers(first: int, count: int) -> None:
    message_id = ids_of(1)[0]
    named = Named(first, first + count - 1, message_id)
    fits = named.last >> layout.RANGE_BITS == first >> layout.RANGE_BITS
    path = layout.messages_path("q", named)
    name = path.rpartition("/")[2]
    assert named.is_block == (count > 1)
    assert (parse_any(name) == named) == fits
    assert (parse(name) is None) == (count > 1)
    if fits:
        assert layout.parse_path(path) == ("q", named)
        assert layout.parse_message_path(path) == ("q", named.last)
        assert layout.is_recorded(path)
        assert layout.is_recorded(path.replace(layout.COMMITTED, layout.ARCHIVE))
        assert layout.is_recorded(layout.gone_path("q", named))
        assert layout.is_consumed(name, named.last)
        assert not layout.is_consumed(name, named.last - 1)


def test_other_names_are_no_block() -> None:
    first, message_id = "0000000000000abc", "00112233445566778899aabbccddeeff"
    right = f"{first}+064.{message_id}"
    assert parse_any(right) is not None
    others = [
        *(f"{first}+000.{message_id}", f"{first}+001.{message_id}", f"{first}+64.{message_id}"),
        *(f"{first}+0064.{message_id}", f"{first}+06A.{message_id}", f"{right}.p9", right.upper(), f"{right} "),
        *(f"{first}+545.{message_id}", f"{first}.064.{message_id}", f".{right}", right[:-1]),
    ]
    assert [name for name in others if parse_any(name) is not None] == []


def test_the_example_in_the_manual_is_what_it_says() -> None:
    """Read by the words of the page alone, and made by the code."""
    text = page("xaqueue.5")
    text = text[text.index(".Ss Blocks of messages") : text.index(".Ss Keys")]
    data, bitmap = (bytes.fromhex(part.split(".Ed")[0]) for part in text.split(".Bd -literal\n")[1:])
    assert (data, bitmap) == example()

    properties_bytes, body_bytes, epoch, first = struct.unpack_from("<IQQ16s", data, 8)
    begin = 52 + properties_bytes
    assert (data[:4], data[5], epoch, len(data)) == (b"XAQB", 5, 7, begin + body_bytes)
    assert msgpack.unpackb(data[52:begin]) == {"queue": "q", "enqueued_at": 1}
    count, rest_bytes = struct.unpack_from("<II", data, begin)
    ids = data[begin + 8 : begin + 8 + 16 * count]
    sizes = struct.unpack_from(f"<{count}I", data, begin + 8 + 16 * count)
    checksums = struct.unpack_from(f"<{count}I", data, begin + 8 + 20 * count)
    at = end = begin + 8 + 24 * count + rest_bytes
    assert first == ids[:16] == b"\x11" * 16
    assert msgpack.unpackb(data[end - rest_bytes : end], strict_map_key=False) == ["", {2: [".p9", {"priority": 9}]}]
    found = []
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    assert found == [b"one", b"", b"three"]
    assert tuple(map(crc32, found)) == checksums
    assert data[at:-4] == data[:end]
    assert struct.unpack("<I", data[-4:]) == (end,)
    assert struct.unpack_from("<II", data, 44) == (
        crc32(data[:44] + data[52:begin]),
        crc32(data[:48] + data[52:end]),
    )

    properties_bytes, body_bytes = struct.unpack_from("<IQ", bitmap, 8)
    begin = 52 + properties_bytes
    assert (bitmap[5], bitmap[28:44]) == (3, first)
    assert msgpack.unpackb(bitmap[52:begin]) == {"queue": "q"}
    assert bitmap[begin:] == b"\x05"
    assert struct.unpack_from("<I", bitmap, 48) == (crc32(bitmap[:48] + bitmap[52:]),)


def test_limits_are_those_of_the_manual() -> None:
    text = " ".join(page("xaqueue.5").split())
    assert f"holds {writer.FEWEST} to {writer.MOST} messages" in text
    assert f"at most {writer.MOST_BODY_BYTES >> 10} KiB" in text
    assert f"{message_block.MOST_BYTES >> 20} MiB at most" in text
    assert "at most 512 bytes, one sector" in text
