"""The embedded PostgreSQL keeps its data from run to run, and whoever comes second uses the one that runs."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import embedded_postgres
from embedded_postgres import PostgresServer, running
from ledger_demo import kill_a_backend
from support.postgres import HASTY, PATIENCE_S, reached
from xaqueue.errors import OperationalError

if not any(embedded_postgres.directories()):
    pytest.skip(embedded_postgres.MISSING, allow_module_level=True)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that a server can enter which does not run as root; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def test_data_stay_and_the_second_uses_the_first(place: Path) -> None:
    with running(place / "shop") as first, running(place / "shop") as second:
        assert first == second
        with psycopg.connect(first) as connection:
            connection.execute("create table kept (id int)")
    with running(place / "shop") as again, psycopg.connect(again) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (0,)
        with connection.transaction():
            pass
    assert not list(Path(tempfile.gettempdir()).glob(Path(str(again).split()[0].removeprefix("host=")).name))


def test_what_a_killed_server_left_is_no_server(place: Path) -> None:
    server = PostgresServer(place, settings=HASTY, keep=True)
    with reached(server.dsn) as connection:
        connection.execute("create table kept (id int)")
    assert server._process is not None
    os.killpg(server._process.pid, signal.SIGKILL)
    server._process.wait(PATIENCE_S)
    assert (place / "postgres" / "data" / "postmaster.pid").exists()
    with running(place) as dsn, reached(dsn) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (0,)
    server.stop()


def test_two_phases_are_possible(place: Path) -> None:
    with PostgresServer(place, 3, settings=HASTY) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("show max_prepared_transactions").fetchone() == ("13",)
    assert [path.name for path in place.iterdir()] == ["postgres.log"]


def test_a_server_that_is_wanted_and_has_ended_says_why(place: Path) -> None:
    with pytest.raises(OperationalError, match=r"the PostgreSQL server ended: .*max_connections"):
        PostgresServer(place, settings={"max_connections": "many"})


def test_a_backend_is_killed_and_the_server_recovers(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        own = connection.info.backend_pid
        assert kill_a_backend(dsn, lambda pids: next(pid for pid in pids if pid == own))
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    reached(dsn).close()


def test_a_server_alone_has_no_backend_to_kill(place: Path) -> None:
    with running(place) as dsn:
        assert not kill_a_backend(dsn, lambda pids: pids[0])


def test_root_is_told_of_a_directory_that_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(server: PostgresServer, command: list[str]) -> None:
        if "initdb" in command[0]:
            raise subprocess.CalledProcessError(1, command, stderr=b"could not access directory")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda *_: None)
    monkeypatch.setattr(PostgresServer, "_run", run)
    with pytest.raises(OperationalError, match=r"that \w+ may enter\): could not access directory"), running(tmp_path):
        pass
