"""The table of a last participant in PostgreSQL, and a PostgreSQL whose last server was killed."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from pathlib import Path

import psycopg
import pytest

from support.postgres import HASTY
from xaqueue import TransactionManager
from xaqueue.tm import last_resource
from xaqueue.tools import postgres

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
                    last_resource.make_ready(connection, NODE, is_known=False)
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
        connection.execute(last_resource.CREATE)
        connection.execute("create role clerk login")
        connection.execute(f"grant select, insert, delete on {last_resource.TABLE} to clerk")
    try:
        with psycopg.connect(dsn, user="clerk") as connection:
            last_resource.make_ready(connection, NODE, is_known=False)
            last_resource.make_ready(connection, NODE, is_known=True)
    finally:
        with psycopg.connect(dsn) as connection:
            connection.execute(f"revoke all on {last_resource.TABLE} from clerk")
            connection.execute("drop role clerk")


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
            source.give_back(connection)
        with pytest.raises(psycopg.OperationalError), manager.transaction() as tx:
            tx["db"].execute("select pg_terminate_backend(pg_backend_pid())")
        assert source._idle == []
        assert all(connection.closed for connection in opened)


def test_a_server_whose_last_one_was_killed_is_waited_for() -> None:
    """The lock file of the killed one says that it is ready."""
    if not any(postgres.directories()):
        pytest.skip(postgres.MISSING)
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        for _ in range(2):
            server = postgres.PostgresServer(Path(name), keep=True, settings=HASTY)
            try:
                psycopg.connect(server.dsn).close()
            finally:
                assert server._process is not None
                os.killpg(server._process.pid, signal.SIGKILL)
                server._process.wait()
                server.stop()
