"""What the two recovery threads say to each other until a database may carry, and lives that change in between."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import unquote

import pytest

from xaqueue.carried import CarriedChange, Carriers, CarrierState, CarrierStatus, Life, Pruned, checked_carrier
from xaqueue.errors import OperationalError
from xaqueue.tm.deciding import CarriedRow, DecidingDatabases
from xaqueue.tm.decisions import Decisions
from xaqueue.tm.driver import Dialect
from xaqueue.tm.gtrid import Gtrid
from xaqueue.tm.last_resource import DecisionRow, DecisionRows, LifeOver
from xaqueue.xa import Outcome
from xaqueue.xid import Xid

ROWS = DecisionRows()

NODE = "0123456789abcdef"
NAME = f"{NODE}.ledger"
SPACE = "5f" * 16
FIRST, SECOND = Life(SPACE, 1, "one"), Life(SPACE, 2, "two")


class Log(Decisions):
    node = NODE


class Queue:
    """Takes what is delivered, or not yet."""

    def __init__(self) -> None:
        self.delivered: list[tuple[str, list[bytes], Pruned]] = []
        self.is_taken = True

    def deliver(self, carrier: str, secret: str, changes: list[bytes], pruned: Pruned) -> bool:
        self.delivered.append((carrier, changes, pruned))
        return self.is_taken


def of(life: Life, *, pending: bool = False) -> Carriers:
    return Carriers(*life, (CarrierStatus(NAME, CarrierState.OPEN, 1, (), 0, 0, ("orders",), pending),))


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as made:
        ROWS.make_ready(made, NODE, is_known=False)
        yield made


def decode_carrier(name: str) -> str:
    node, _, quoted = checked_carrier(name).partition(".")
    assert node == NODE
    return unquote(quoted)


@pytest.fixture
def queue() -> Queue:
    return Queue()


def row(number: int, life: Life = FIRST, carrier: str = NAME) -> DecisionRow:
    change = CarriedChange(carrier, life, number, Xid(1, b"g", b"queue"), [], [("orders", bytes(16))])
    return DecisionRow(bytes(Gtrid(NODE, 1, number)), Outcome.COMMITTED, ("queue",), change.encode())


def test_only_who_is_wanted_or_waited_for_is_asked() -> None:
    deciding = DecidingDatabases(Log())
    assert deciding.ask("queue", of(FIRST), ["ledger"]) == []
    assert deciding.ask("queue", of(FIRST, pending=True), ["ledger", "other"]) == ["ledger"]
    assert not deciding.is_ready("queue", "other")
    assert deciding.ask("queue", of(FIRST), ["other"]) == ["other"]
    assert deciding.is_asked("other")
    assert not deciding.is_asked("third")
    assert deciding.is_waiting


def test_from_the_first_wish_to_a_database_that_carries(database: sqlite3.Connection, queue: Queue) -> None:
    deciding = DecidingDatabases(Log())
    assert not deciding.is_ready("queue", "ledger")
    assert deciding.ask("queue", of(FIRST), ["ledger"]) == ["ledger"]
    assert deciding.begin("ledger", database) == ["queue"]
    assert not deciding.is_ready("queue", "ledger")
    assert deciding.deliver("queue", of(FIRST), queue, ["ledger"]) == (True, "")
    assert queue.delivered == [(NAME, [], Pruned())]
    assert deciding.is_ready("queue", "ledger")
    assert not deciding.is_waiting
    assert deciding.ask("queue", of(FIRST), ["ledger"]) == []
    assert deciding.deliver("queue", of(FIRST), queue, ["ledger"]) == (False, "")
    ROWS.insert_carried(database, row(1), FIRST, Dialect.SQLITE)


def test_what_is_not_taken_is_delivered_again(database: sqlite3.Connection, queue: Queue) -> None:
    """Another carrier of the queue has not delivered yet."""
    deciding = DecidingDatabases(Log())
    deciding.ask("queue", of(FIRST, pending=True), ["ledger"])
    deciding.begin("ledger", database)
    queue.is_taken = False
    for _ in range(2):
        taken, trouble = deciding.deliver("queue", of(FIRST), queue, ["ledger"])
        assert not taken
        assert "waits for other databases" in trouble
        assert not deciding.is_ready("queue", "ledger")
        assert deciding.ask("queue", of(FIRST, pending=True), ["ledger"]) == []
    queue.is_taken = True
    assert deciding.deliver("queue", of(FIRST), queue, ["ledger"]) == (True, "")
    assert len(queue.delivered) == 3


def test_a_life_that_changes_before_the_delivery_is_asked_for_anew(database: sqlite3.Connection, queue: Queue) -> None:
    """What was found for the earlier one is not delivered: more may have been committed until the next began."""
    deciding = DecidingDatabases(Log())
    deciding.ask("queue", of(FIRST, pending=True), ["ledger"])
    deciding.begin("ledger", database)
    ROWS.insert_carried(database, row(1), FIRST, Dialect.SQLITE)
    database.commit()
    assert deciding.deliver("queue", of(SECOND), queue, ["ledger"]) == (False, "")
    assert queue.delivered == []
    assert deciding.ask("queue", of(SECOND, pending=True), ["ledger"]) == ["ledger"]
    assert deciding.begin("ledger", database) == ["queue"]
    assert deciding.deliver("queue", of(SECOND), queue, ["ledger"]) == (True, "")
    assert queue.delivered == [(NAME, [row(1).carried], Pruned())]
    with pytest.raises(LifeOver, match="opened anew"):
        ROWS.insert_carried(database, row(2), FIRST, Dialect.SQLITE)


def test_a_life_that_ends_takes_the_readiness_with_it(database: sqlite3.Connection, queue: Queue) -> None:
    deciding = DecidingDatabases(Log())
    deciding.ask("queue", of(FIRST, pending=True), ["ledger"])
    deciding.begin("ledger", database)
    deciding.deliver("queue", of(FIRST), queue, ["ledger"])
    assert deciding.ask("queue", of(SECOND), ["ledger"]) == []
    assert not deciding.is_ready("queue", "ledger")
    assert deciding.ask("queue", of(SECOND), ["ledger"]) == ["ledger"], "now it is wanted again"
    deciding.begin("ledger", database)
    deciding.deliver("queue", of(SECOND), queue, ["ledger"])
    deciding.refused("queue", "ledger")
    assert not deciding.is_ready("queue", "ledger")


def test_a_life_that_is_older_than_the_databases_is_not_begun(database: sqlite3.Connection) -> None:
    ROWS.begin_life(database, SECOND)
    ROWS.begin_life(database, SECOND)
    for life in (FIRST, Life(SPACE, 2, "a copy")):
        with pytest.raises(OperationalError, match="is an old copy"):
            ROWS.begin_life(database, life)
    with pytest.raises(OperationalError, match="is no id of a space"):
        ROWS.begin_life(database, Life("it's", 1, "one"))


def test_a_database_tells_what_it_has_of_this_carrier_and_space(database: sqlite3.Connection) -> None:
    ROWS.begin_life(database, FIRST)
    other = Life("6f" * 16, 1, "other")
    ROWS.begin_life(database, other)
    for one, life in ((row(1), FIRST), (row(2), FIRST), (row(3, other), other), (row(4, carrier="x.y"), FIRST)):
        ROWS.insert_carried(database, one, life, Dialect.SQLITE)
    database.commit()
    assert ROWS.read_carried(database, NODE, SPACE, NAME) == ([row(1).carried, row(2).carried], Pruned())
    ROWS.delete(database, [row(2).gtrid], {row(2).gtrid: (SPACE, NAME, 2)})
    ROWS.delete(database, [row(1).gtrid], {row(1).gtrid: (SPACE, NAME, 1)})
    assert ROWS.read_carried(database, NODE, SPACE, NAME) == ([], Pruned(2, 2))
    assert ROWS.read_carried(database, NODE, other.space, NAME) == ([row(3, other).carried], Pruned())


def test_rows_that_are_found_are_remembered() -> None:
    deciding = DecidingDatabases(Log())
    deciding.add_row(row(7))
    deciding.add_row(DecisionRow(bytes(Gtrid(NODE, 1, 8)), Outcome.ROLLED_BACK))
    deciding.add_row(DecisionRow(bytes(Gtrid(NODE, 1, 9)), Outcome.COMMITTED, ("queue",)))
    assert deciding.rows == {row(7).gtrid: CarriedRow("queue", NAME, SPACE, 7)}


def test_any_name_of_a_participant_makes_a_carrier(database: sqlite3.Connection, queue: Queue) -> None:
    """Also one that could be no name of a file."""
    log = Log()
    deciding = DecidingDatabases(log)
    for name in ("pg/main", "..", "%2F", "x" * 64, "/" * 64):
        assert decode_carrier(log.carrier(name)) == name
        deciding.want(CarriedRow("queue", log.carrier(name), SPACE, 1))
        assert deciding.ask("queue", of(FIRST), [name]) == [name]
