"""A carried change as a row has it, and what a space tells of its carriers."""

from __future__ import annotations

import msgpack
import pytest

from xaqueue.carried import CarriedChange, Carriers, CarrierState, CarrierStatus, Life, checked_carrier, decode
from xaqueue.errors import InvalidArgument
from xaqueue.xid import Xid

NAME = "0123456789abcdef.ledger"
LIFE = Life("5f" * 16, 7, "secret")
CHANGE = CarriedChange(
    NAME, LIFE, 12, Xid(1, b"gtrid", b"queue"), [(b"head", b"body"), (b"h", b"")], [("orders", bytes(16))]
)


def test_a_change_comes_back_as_it_was_but_for_the_secret() -> None:
    found = decode(CHANGE.encode())
    assert found.life == Life(LIFE.space, LIFE.epoch, "")
    assert (found.carrier, found.number, found.xid) == (NAME, 12, CHANGE.xid)
    assert (found.added, found.taken) == (CHANGE.added, CHANGE.taken)
    assert b"secret" not in CHANGE.encode()


@pytest.mark.parametrize("cut", range(0, len(CHANGE.encode()), 7))
def test_a_row_that_was_cut_is_refused(cut: int) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        decode(CHANGE.encode()[:cut])


@pytest.mark.parametrize(
    "value",
    [
        *(None, 1, [], ["a"] * 6, ["a", "b", "c", 1, [1, b"", b""], [], []], ["a", "b", 1, 1, [1], [], []]),
        *(["a", "b", 1, 1, [1, b"", b""], [[1]], []], ["a", "b", 1, 1, [1, b"", b""], [], [["q"]]]),
    ],
)
def test_something_else_in_a_row_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument):
        decode(msgpack.packb(value))


@pytest.mark.parametrize("name", [NAME, "0123456789abcdef." + "x" * 192, "0123456789abcdef.a.b"])
def test_the_names_of_carriers(name: str) -> None:
    assert checked_carrier(name) == name


@pytest.mark.parametrize(
    "name",
    [
        None,
        7,
        b"0123456789abcdef.a",
        "",
        "ledger",
        "short.ledger",
        NAME[:17],
        NAME + "x" * 192,
        NAME + "\n",
        "0123456789abcdef.a/b",
    ],
)
def test_what_is_no_name_of_a_carrier(name: object) -> None:
    with pytest.raises(InvalidArgument, match=r"<node>\.<participant> is wanted"):
        checked_carrier(name)


def test_what_is_applied_and_who_is_awaited() -> None:
    status = CarrierStatus(NAME, CarrierState.OPEN, 5, (2, 4), 3, 2, ("orders",), pending=True)
    assert [number for number in range(1, 7) if status.has_applied(number)] == [1, 3]
    assert status.is_awaited
    known = Carriers(*LIFE, (status,))
    assert known.life == LIFE
    assert known.get(NAME) is status
    assert known.get("other") is None
