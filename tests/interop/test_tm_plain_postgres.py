"""PostgreSQL gets the same statements, in the same order, by the plain way of a transaction and by its general one."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from support.carry_scene import LEDGER
from support.tm_plain import SPACES, Notes, Pair, compare
from xaqueue.tm import driver
from xaqueue.tm.last_resource import TABLE


class Ledger(psycopg.Connection[Any]):
    def work(self, _: bytes) -> None:
        self.execute("insert into orders values (1)")


@pytest.mark.parametrize("voter", SPACES)
def test_whatever_fails_at_whichever_call(dsn: str, voter: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute("create table orders (n int)")

        def rows() -> list[Any]:
            is_made = own.execute("select 1 from pg_tables where tablename = %s", [TABLE]).fetchall()
            decisions = own.execute(f"select * from {TABLE} order by gtrid").fetchall() if is_made else []
            return [*decisions, *own.execute("select * from orders")]

        opened: list[psycopg.Connection[Any]] = []

        def make(notes: Notes) -> Pair:
            while opened:
                psycopg.Connection.close(opened.pop())  # those whose close has failed
            own.execute(f"drop table if exists {TABLE}")
            own.execute("truncate orders")
            kind, cursors = notes.of(Ledger, LEDGER), notes.of(psycopg.Cursor, LEDGER)

            def decide() -> Any:
                opened.append(kind.connect(dsn, cursor_factory=cursors))  # type: ignore[attr-defined]
                return opened[-1]

            return Pair(notes, voter, decide, rows)

        try:
            compare(make, [lambda: psycopg.OperationalError("lost")])
        finally:
            while opened:
                psycopg.Connection.close(opened.pop())


def test_what_the_server_refuses_of_an_order_is_told(dsn: str) -> None:
    """And not that its transaction has failed, which is only what comes of it."""
    with psycopg.connect(dsn) as connection:
        connection.execute("select 1")  # begins one
        driver.order(connection, "set local work_mem = '8MB'")
        assert connection.execute("show work_mem").fetchall() == [("8MB",)]
        with pytest.raises(psycopg.DatabaseError, match="work_mem"):
            driver.order(connection, "set local work_mem = 'much'")


def test_an_order_to_a_server_that_is_gone_is_an_operational_error(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as other, psycopg.connect(dsn) as connection:
        connection.execute("select 1")
        other.execute("select pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            driver.order(connection, "set local work_mem = '8MB'")
