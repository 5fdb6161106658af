"""The note of a carrier, and which carriers hang together."""

from __future__ import annotations

import pytest

from xaqueue.carried import CarrierState
from xaqueue.core.model.block import NO_MESSAGE, UNLIMITED, Block, Kind, encode_with_checksum
from xaqueue.errors import DamagedBlock
from xaqueue.features.carry.carrier import Carrier, together
from xaqueue.features.carry.carrier_note import decode_note, note_of
from xaqueue.message import Properties

NAME = "0123456789abcdef.ledger"


def carrier(name: str, *queues: str, damage: str = "") -> Carrier:
    return Carrier(name, queues=set(queues), damage=damage)


def noted(made: Carrier, state: CarrierState | None = None) -> bytes:
    _, path, head, body, _ = note_of(made, 9, state)
    assert path == f"carriers/{NAME}"
    return bytes(head) + bytes(body)


def test_a_note_comes_back() -> None:
    made = Carrier(NAME, CarrierState.OPEN, 3, 17, {12, 15}, 16, 14, {"orders", "bills"})
    found = decode_note(noted(made), NAME)
    assert found.status == made.status
    assert found.epoch == 3
    assert (found.noted, found.pending, found.delivered) == (set(), False, {})
    assert [number for number in (11, 12, 16, 17) if found.has_applied(number)] == [11, 16]
    assert decode_note(noted(made, CarrierState.CLOSED), NAME).state is CarrierState.CLOSED
    assert made.state is CarrierState.OPEN


def test_a_damaged_note_is_known() -> None:
    data = noted(Carrier(NAME, CarrierState.OPEN, 3, 17, {12}, 16, 14, {"orders"}))
    for place in range(len(data)):
        with pytest.raises(DamagedBlock):
            decode_note(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :], NAME)
    for length in range(0, len(data), 5):
        with pytest.raises(DamagedBlock):
            decode_note(data[:length], NAME)


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x96\x01\x01\x01\x01\x01\x01", b"\xc1"])
def test_a_sound_block_that_is_no_note(body: bytes) -> None:
    block = Block(Kind.BRANCH, NO_MESSAGE, Properties(""), body, 1)
    head, _ = encode_with_checksum(block, body_limit_bytes=UNLIMITED)
    with pytest.raises(DamagedBlock):
        decode_note(bytes(head) + body, NAME)


def test_carriers_hang_together_by_their_queues() -> None:
    a, b, c = carrier("a", "1", "2"), carrier("b", "2", "3"), carrier("c", "3")
    d, e = carrier("d", "4"), carrier("e")
    every = [a, b, c, d, e]
    for one in (a, b, c):
        assert {other.name for other in together(one, every)} == {"a", "b", "c"}
    assert together(d, every) == [d]
    assert together(e, every) == [e]
    assert together(a, [c]) == [a]


def test_a_damaged_one_may_have_had_any_queue() -> None:
    a, b, lost = carrier("a", "1"), carrier("b", "2"), carrier("c", damage="it is cut short")
    for one in (a, b, lost):
        assert {other.name for other in together(one, [a, b, lost])} == {"a", "b", "c"}
