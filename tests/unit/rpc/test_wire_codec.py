"""Frames and dataclasses on the wire, without a server."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from typing import Any

import msgpack
import pytest

from xaqueue.message import Message, MessageId, stored_message
from xaqueue.reservation import Reservation
from xaqueue.rpc import wire
from xaqueue.rpc.methods.work import PLAIN, begins_plain
from xaqueue.rpc.wire import MalformedFrame, decode, plain
from xaqueue.xid import Xid

LIMIT_BYTES = 2**22


@dataclass(frozen=True)
class Inner:
    name: str
    size: int | None = None


@dataclass(frozen=True)
class Outer:
    xid: Xid
    inner: Inner | None
    several: list[Inner]
    pair: tuple[int, int] = (0, 0)


OUTER = Outer(Xid(1, b"g", b"b"), Inner("a", 3), [Inner("b"), Inner("c", 1)], (1, 2))


def over_the_wire(value: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(value, default=plain))


def test_a_dataclass_comes_back() -> None:
    assert decode(Outer, over_the_wire(OUTER)) == OUTER
    held = Reservation("q", "s#1", 3, (3, 9), 12, 77, True)
    assert over_the_wire(held) == {**asdict(held), "in_flight": [3, 9]}
    assert decode(Reservation, over_the_wire(held)) == held


def stored(number: int, **properties: Any) -> Message:
    return stored_message(MessageId(b"%016d" % number), "q", number, b"%d" % number, {"queue": "q", **properties})


ALIKE = [stored(1, enqueued_at=5), stored(2, enqueued_at=5)]
COLUMNS: list[Any] = list(wire.columns_to(ALIKE))


@pytest.mark.parametrize("found", [[], ALIKE, [stored(1, tries=2), stored(2)], [stored(3, headers={"a": "b"})]])
def test_messages_come_back_in_columns(found: list[Message]) -> None:
    values = [(one.message_id, one.seq, one.body) for one in found]
    back = wire.messages_of("q", over_the_wire(wire.columns_to(found)))
    assert [(one.message_id, one.seq, one.body) for one in back] == values
    assert back == found, "and their properties"
    assert wire.messages_of("q", over_the_wire(wire.columns_to(found))) == back, "also of those that were looked at"


def test_properties_that_all_have_are_one_map_of_which_each_has_its_own() -> None:
    assert COLUMNS[2] == {"queue": "q", "enqueued_at": 5}
    one, other = wire.messages_of("q", over_the_wire([*COLUMNS[:2], {"queue": "q", "headers": {"a": "b"}}, COLUMNS[3]]))
    one.properties.headers["c"] = "d"  # type: ignore[index]
    one.properties.tries = 3
    assert (other.headers, other.tries) == ({"a": "b"}, 0)


WRONG: list[list[Any]] = [
    [None, [], b"", b"x" * 31, b"x" * 48, "x" * 32],
    [None, 3, [], [1], [1, 2, 3]],
    [None, {}, [], [{"queue": "q"}], [{"queue": "q"}, {}], ["queue"] * 2],
    [None, 3, [], [b"1"]],
]
"""In the place of each column."""


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, 3, "text", [], {}, COLUMNS[:3], [*COLUMNS, 1]),
        *([*COLUMNS[:at], wrong, *COLUMNS[at + 1 :]] for at, some in enumerate(WRONG) for wrong in some),
    ],
)
def test_what_are_no_columns_is_refused(wrong: Any) -> None:
    with pytest.raises(MalformedFrame, match="no messages"):
        wire.messages_of("q", wrong)


def test_a_list_stands_for_fields_in_their_order() -> None:
    assert decode(Inner, list(astuple(OUTER.several[1]))) == OUTER.several[1]


def test_a_field_of_a_later_version_is_passed_over() -> None:
    assert decode(Inner, {"name": "a", "colour": "red"}) == Inner("a")


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, 3, "text", [], {}),
        *({"name": 3}, {"size": 1}, {"name": "a", "size": "large"}, {"name": b"a"}),
        ["a", 3, "more"],
    ],
)
def test_what_is_no_such_dataclass(wrong: Any) -> None:
    with pytest.raises(MalformedFrame, match="is no Inner"):
        decode(Inner, wrong)


@pytest.mark.parametrize("portion", [1, 7, 99_999, 100_001, 300_000, 2**21])
def test_frames_of_all_sizes_in_any_portions(portion: int) -> None:
    """Short ones and long ones are read by two unpackers, and their sizes are those of the bytes that came."""
    sizes = [1, 10, 99_990, 5, 100_001, 200_000, 1, 1, 99_000, 150_000, 3]
    if portion < 10:
        sizes = [size // 100 + 1000 * (size > 100_000) for size in sizes]
    frames = [[wire.REQUEST, number, "echo", [b"x" * size]] for number, size in enumerate(sizes)]
    packed = [msgpack.packb(frame) for frame in frames]
    data = b"".join(packed)
    unpacker = wire.CallUnpacker(LIMIT_BYTES)
    found = [one for start in range(0, len(data), portion) for one in unpacker.frames(data[start : start + portion])]
    assert found == list(zip(frames, map(len, packed), strict=True))


REQUEST = [wire.REQUEST, 1, "echo", [b"x"]]


@pytest.mark.parametrize(
    "data",
    [
        *map(msgpack.packb, (REQUEST, [0, 2**32 - 1, "work", [[0, b"", b""], True, []]], [0, 1, "echo", []])),
        *map(msgpack.packb, ([0, 300, "commit", [[0, b"", b""]]], [0, 70_000, "work", [None, None, None, None]])),
        *map(
            msgpack.packb, ([2, "echo", []], [1, 1, None, None], None, [], [0, True, "echo", []], [False, 1, "e", []])
        ),
        *map(msgpack.packb, ([0, -1, "echo", []], [0, 2**32, "echo", []], [0, 1, b"echo", []], [0, 1, "echo", {}])),
        *map(msgpack.packb, ([0, 1, "echo", [{1: 2}]], [0, 1, "echo", [[0] * (wire.LONGEST_LIST + 1)]])),
        *(msgpack.packb([0, 1, "echo", [b"x" * size]]) for size in (99_900, wire.FRAME_VALUES)),
        *(2 * msgpack.packb(REQUEST), msgpack.packb(REQUEST) + b"\x94", msgpack.packb(REQUEST)[:-1], b"\x94\x00", b""),
        b"\x94\x00\x01\xa4echo\x91" + b"\x91" * 1000 + b"\x00",
        b"\xdc\x00\x04\x00\x01\xa4echo\x90",
        b"\x94\x00\x01\xa4echo\x91\xa1\xff",
        b"\xc1",
    ],
)
def test_one_frame_by_itself_is_what_it_is_among_others(data: bytes) -> None:
    unpacker = wire.CallUnpacker(LIMIT_BYTES)
    try:
        frames = unpacker.frames(data)
    except (ValueError, msgpack.UnpackException):
        frames = []
    try:
        found = wire.unpacked(data)
    except (ValueError, msgpack.UnpackException):
        assert len(frames) != 1 or frames[0][1] < len(data)
    else:
        ((frame, size),) = frames
        assert (size, _call_of(frame)) == (len(data), _call_of(found))
        if begins_plain(data):
            number, method, params = wire.call_of(found)
            assert (number is not None, method in PLAIN, len(params) in range(1, 5)) == (True, True, True)


def _call_of(frame: Any) -> wire.CallFrame | str:
    try:
        return wire.call_of(frame)
    except MalformedFrame as error:
        return str(error)


@pytest.mark.parametrize("number", [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1])
@pytest.mark.parametrize(("method", "params"), [("work", [1, 2, 3]), ("work", [1, 2, 3, 4]), ("commit", [1])])
def test_what_may_be_plain_is_seen_by_how_it_begins(number: int, method: str, params: list[int]) -> None:
    assert begins_plain(msgpack.packb([wire.REQUEST, number, method, params]))
    for other in (
        [wire.NOTIFICATION, method, params],
        [wire.RESPONSE, number, method, params],
        [wire.REQUEST, -1, method, params],
        [wire.REQUEST, 2**32, method, params],
        [wire.REQUEST, number, method.encode(), params],
        [wire.REQUEST, number, method, {1: 2}],
        [wire.REQUEST, number, method, []],
        [wire.REQUEST, number, f"{method}s", params],
        [wire.REQUEST, number, method, params, 0],
    ):
        assert not begins_plain(msgpack.packb(other))


@pytest.mark.parametrize("size", [1, wire.FRAME_VALUES])
def test_what_ends_a_frame_is_behind_a_part_of_it(size: int) -> None:
    frame = [wire.REQUEST, 1, "echo", [b"x" * size, msgpack.packb(REQUEST)]]
    packed = msgpack.packb(frame)
    unpacker = wire.CallUnpacker(LIMIT_BYTES)
    begin = len(packed) - len(msgpack.packb(REQUEST))
    found = [(unpacker.frames(data), unpacker.has_part) for data in (packed[:begin], packed[begin:], packed)]
    assert found == [([], True), ([(frame, len(packed))], False), ([(frame, len(packed))], False)]


def test_values_of_a_long_frame_are_counted_anew_for_each() -> None:
    many = [[None] * wire.LONGEST_LIST] * (wire.FRAME_VALUES // wire.LONGEST_LIST - 1)
    allowed = msgpack.packb([wire.REQUEST, 1, "echo", [*many, b"x" * wire.FRAME_VALUES]])
    refused = msgpack.packb([wire.REQUEST, 2, "echo", [*many, *many]])
    unpacker = wire.CallUnpacker(LIMIT_BYTES)
    assert len(unpacker.frames(allowed * 3)) == 3
    with pytest.raises(ValueError, match="more than 100000 values in one frame"):
        unpacker.frames(refused)
