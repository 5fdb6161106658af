"""Frames and dataclasses on the wire, without a server."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from typing import Any

import msgpack
import pytest

from xaqueue.reservation import Reservation
from xaqueue.rpc import wire
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
    """Short ones and long ones are read by two unpackers, and their ends are those of the bytes that came."""
    sizes = [1, 10, 99_990, 5, 100_001, 200_000, 1, 1, 99_000, 150_000, 3]
    if portion < 10:
        sizes = [size // 100 + 1000 * (size > 100_000) for size in sizes]
    frames = [[wire.REQUEST, number, "echo", [b"x" * size]] for number, size in enumerate(sizes)]
    packed = [msgpack.packb(frame) for frame in frames]
    data = b"".join(packed)
    unpacker = wire.CallUnpacker(LIMIT_BYTES)
    found = [one for start in range(0, len(data), portion) for one in unpacker.frames(data[start : start + portion])]
    ends = [sum(map(len, packed[: number + 1])) for number in range(len(packed))]
    assert found == list(zip(frames, ends, strict=True))


def test_values_of_a_long_frame_are_counted_anew_for_each() -> None:
    many = [[None] * wire.LONGEST_LIST] * (wire.FRAME_VALUES // wire.LONGEST_LIST - 1)
    allowed = msgpack.packb([wire.REQUEST, 1, "echo", [*many, b"x" * wire.FRAME_VALUES]])
    refused = msgpack.packb([wire.REQUEST, 2, "echo", [*many, *many]])
    unpacker = wire.CallUnpacker(LIMIT_BYTES)
    assert len(unpacker.frames(allowed * 3)) == 3
    with pytest.raises(ValueError, match="more than 100000 values in one frame"):
        unpacker.frames(refused)
