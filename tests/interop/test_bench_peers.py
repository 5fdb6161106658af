"""The peers hold what they are given and say what they promise; their servers and processes end with the bench."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xaqueue.bench import engine, peers
from xaqueue.bench.options import Options
from xaqueue.bench.peers.peer import OPERATIONS, Peer, ThreadClients, Wanted
from xaqueue.bench.peers.process_clients import ProcessClients
from xaqueue.demo import postgres as postgres_server
from xaqueue.errors import InvalidArgument, OperationalError

EMBEDDED = ("sqlite", "dirq", "persist-queue")
BODY = b"body" * 16


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that a server can enter which does not run as root; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="xaqueue-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def fill_and_empty(peer: Peer) -> None:
    """Branches of one and of several messages come out again, in any peer."""
    client, other = peer.connect(), peer.connect()
    try:
        client.enqueue([b"1"])
        client.enqueue([b"2", b"3", b"4"])
        assert other.dequeue(1) == 1
        assert other.dequeue(2) == 2
        assert client.dequeue(2) == 1
        assert client.dequeue(1) == 0
        client.enqueue([b"5", b"6"])
        peer.clear()
        assert client.dequeue(2) == 0
    finally:
        client.close()
        other.close()


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedded_peer_is_a_queue(name: str, tmp_path: Path) -> None:
    with peers.opened(name, tmp_path, Wanted()) as peer:
        assert peer.name == name
        assert not peer.two_phase
        assert ("not power loss" in peer.durability) is not peer.survives_power_loss
        assert peer.server_cpu_s() == 0.0
        fill_and_empty(peer)


def test_sqlite_is_measured_as_durably_as_it_says(tmp_path: Path) -> None:
    with peers.opened("sqlite", tmp_path, Wanted()) as peer:
        client: Any = peer.connect()
        settings = [client._connection.execute(f"pragma {name}").fetchone() for name in ("journal_mode", "synchronous")]
        client.close()
    assert settings == [("wal",), (2,)]


@pytest.mark.parametrize("name", ["sqlite", "dirq"])
def test_clients_in_processes_are_measured_and_end(name: str, tmp_path: Path) -> None:
    with peers.opened(name, tmp_path, Wanted()) as peer:
        processes = ProcessClients(peer, 2)
        try:
            enqueued = processes.rate("enqueue", 2, 3, BODY, 0.05)
            dequeued = processes.rate("dequeue", 1, 1, BODY, 60.0)
        finally:
            processes.close()
    assert enqueued.operations == len(enqueued.latencies_s) > 0
    assert enqueued.cpu_seconds > 0
    assert dequeued.operations == 3 * enqueued.operations
    assert [process.poll() for process in processes._processes] == [-9, -9]


def test_a_client_process_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with peers.opened("sqlite", tmp_path, Wanted()) as peer:
        peer.place = str(tmp_path / "missing/queue")
        with pytest.raises(OperationalError, match="a client process of sqlite ended with 1"):
            ProcessClients(peer, 1)
    assert "unable to open database file" in capfd.readouterr().err


def test_client_processes_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "xaqueue.bench.peers.process_clients", "xaqueue.bench.peers.sqlite"]
    done = subprocess.run(
        command, input=f'"{tmp_path}/queue"\n', capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith('{"pid"')


def test_the_faster_way_of_running_a_peers_clients_counts(tmp_path: Path) -> None:
    options = Options(tmp_path, threads=(1, 2), flags=(), seconds=0.03, rounds=1, peers=EMBEDDED, size_bytes=10)
    lines: list[str] = []
    result = engine.run(options, lines.append)
    rows = {(row["peer"], row["clients"], row["operation"]): row for row in result["peers"]}
    assert set(rows) == {(peer, clients, name) for peer in EMBEDDED for clients in (1, 2) for name in OPERATIONS}
    for (peer, clients, _), row in rows.items():
        assert row["per_s"] > 0
        both = clients == 2 and peer != "persist-queue"
        assert {row["kind"], *row["slower"]} == ({"threads", "processes"} if both else {"threads"})
        assert all(row["per_s"] >= slower for slower in row["slower"].values())
    for name, promise in result["durability"].items():
        assert f"{name}: {promise}" in lines
    assert list(tmp_path.iterdir()) == []


def test_the_engine_is_told_as_so_many_times_a_peer(tmp_path: Path) -> None:
    options = Options(tmp_path, threads=(1,), flags=("NONE",), seconds=0.03, rounds=1, peers=("sqlite",))
    result = engine.run(options, lambda _: None)
    peer = {row["operation"]: row["per_s"] for row in result["peers"]}
    for row in result["results"]:
        assert row["times_peer"] == {"sqlite": pytest.approx(row["engine_per_s"] / peer[row["operation"]])}


def test_a_peer_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="postgres, sqlite, dirq, persist-queue are there"):
        Options(peers=("rabbit",))


@pytest.mark.parametrize(
    ("name", "package"), [("dirq", "dirq"), ("persist-queue", "persistqueue"), ("postgres", "psycopg")]
)
def test_the_extra_of_a_missing_package_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, peers.PEERS[name], raising=False)
    with pytest.raises(OperationalError, match=rf'{package} is not installed: pip install "xaqueue\[peer-{name}\]"'):
        peers.opener(name)


# PostgreSQL


def test_postgres_is_measured_in_threads_and_processes_and_its_server_ends(open_to_all: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not any(postgres_server.directories()):
        pytest.skip(postgres_server.MISSING)
    with peers.opened("postgres", open_to_all, Wanted(clients=2)) as peer:
        assert peer.two_phase
        assert peer.survives_power_loss
        assert "fsync=on, synchronous_commit=on" in peer.durability
        fill_and_empty(peer)
        before = peer.server_cpu_s()
        processes = ProcessClients(peer, 2)
        try:
            enqueued = processes.rate("enqueue", 2, 1, BODY, 0.1)
        finally:
            processes.close()
        dequeued = ThreadClients(peer).rate("dequeue", 2, 2, BODY, 60.0)
        assert enqueued.operations > 0
        assert dequeued.operations >= enqueued.operations / 2
        after = peer.server_cpu_s()
        assert before is not None
        assert after is not None
        assert 0 < before < after
        a_second_client_of_a_server_that_runs_already(peer.place, open_to_all)
        server = peer._server  # type: ignore[attr-defined]
        process, sockets = server._process, Path(server._sockets)
    assert process.returncode is not None
    assert not sockets.exists()
    assert list(open_to_all.iterdir()) == [open_to_all / "postgres.log"]


def is_running(pid: str) -> bool:
    """Whether there is such a process; one that has ended and that nobody has waited for is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def test_the_server_ends_with_a_bench_that_is_killed(open_to_all: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not any(postgres_server.directories()):
        pytest.skip(postgres_server.MISSING)
    script = (
        "import sys, pathlib; from xaqueue.demo.postgres import Server\n"
        f"server = Server(pathlib.Path({str(open_to_all)!r}), 1)\n"
        "print(server._process.pid, server._sockets, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as it:
        assert it.stdout is not None
        pid, sockets = it.stdout.readline().split()
        it.kill()
    until = time.monotonic() + 30
    while (running := is_running(pid)) and time.monotonic() < until:
        time.sleep(0.05)
    shutil.rmtree(sockets)
    assert not running


def a_second_client_of_a_server_that_runs_already(dsn: str, scratch: Path) -> None:
    """A server that is given has its table dropped again, also where a client left a branch prepared."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as own:
        own.execute("drop table xaqueue_bench")
        with peers.opened("postgres", scratch, Wanted(clients=2, postgres_dsn=dsn)) as peer:
            assert peer.server_cpu_s() is None
            client: Any = peer.connect()
            client._begin()
            client._cursor.execute("insert into xaqueue_bench (body) values ('')")
            client._connection.tpc_prepare()
            client.close()
        assert own.execute("select to_regclass('xaqueue_bench')").fetchone() == (None,)
        own.execute("create table xaqueue_bench (nothing int)")
        with pytest.raises(OperationalError, match="already exists"):
            peers.opener("postgres")(scratch, Wanted(postgres_dsn=dsn))
        with pytest.raises(OperationalError, match="max_prepared_transactions = 12"):
            peers.opener("postgres")(scratch, Wanted(clients=13, postgres_dsn=dsn))


def test_a_server_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(OperationalError, match="PostgreSQL: connection"):
        peers.opener("postgres")(tmp_path, Wanted(postgres_dsn=f"host={tmp_path}"))


def test_what_a_missing_server_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "directories", lambda: iter(()))
    with pytest.raises(OperationalError, match="--postgres-dsn"):
        postgres_server.Server(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_servers_are_looked_for_on_the_path_in_debians_place_and_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("path", "system/9/bin", "system/17/bin", "package/pginstall/bin", "system/18/bin"):
        (tmp_path / place).mkdir(parents=True)
        for program in ("postgres", "initdb"):
            (tmp_path / place / program).touch(0o755)
    (tmp_path / "system/18/bin/initdb").unlink()
    (tmp_path / "package/__init__.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(postgres_server, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(postgres_server, "PACKAGE", "package")
    monkeypatch.syspath_prepend(tmp_path)
    found = [os.path.relpath(place, tmp_path) for place in postgres_server.directories()]
    assert found == ["path", "system/17/bin", "system/9/bin", "package/pginstall/bin"]


def test_a_server_that_cannot_make_its_data_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for program, script in (("postgres", "exit 0"), ("initdb", "echo no room at all >&2; exit 1")):
        (programs / program).write_text(f"#!/bin/sh\n{script}\n")
        (programs / program).chmod(0o755)
    monkeypatch.setattr(postgres_server, "directories", lambda: iter([programs]))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(OperationalError, match=r"initdb failed in .*: no room at all"):
        postgres_server.Server(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_a_server_that_ends_at_its_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = tmp_path / "bin"
    programs.mkdir()
    for program, script in (
        ("postgres", '[ "$1" = --version ] || { echo cannot start; exit 1; }'),
        ("initdb", "exit 0"),
    ):
        (programs / program).write_text(f"#!/bin/sh\n{script}\n")
        (programs / program).chmod(0o755)
    monkeypatch.setattr(postgres_server, "directories", lambda: iter([programs]))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(OperationalError, match="the PostgreSQL server ended: cannot start"):
        peers.opener("postgres")(tmp_path, Wanted())


def test_root_runs_the_server_as_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "UNPRIVILEGED", ("no-such-user", "nobody"))
    assert postgres_server._unprivileged().pw_name == "nobody"
    monkeypatch.setattr(postgres_server, "UNPRIVILEGED", ("no-such-user",))
    with pytest.raises(OperationalError, match="no user no-such-user"):
        postgres_server._unprivileged()
