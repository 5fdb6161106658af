"""The bench measures a server through client processes and leaves none of them behind. No figure is asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from xaqueue.bench import engine, served
from xaqueue.bench.options import Options
from xaqueue.bench.peers.peer import OPERATIONS, Echoing
from xaqueue.bench.peers.process_clients import ProcessClients
from xaqueue.bench.served import ServerPeer
from xaqueue.cli.exits import ExitCode
from xaqueue.cli.main import app
from xaqueue.errors import OperationalError

BODY = b"body" * 16
PATIENCE_S = 60.0


def test_a_server_and_its_clients_are_measured_beside_the_engine_and_a_peer(tmp_path: Path) -> None:
    lines: list[str] = []
    options = Options(
        tmp_path, threads=(1, 2), flags=("NONE",), seconds=0.05, rounds=1, peers=("sqlite",), server=True, size_bytes=64
    )
    result = engine.run(options, lines.append)
    rows = {(row["clients"], row["operation"]): row for row in result["server"]}
    assert set(rows) == {(clients, name) for clients in (1, 2) for name in ("echo", *OPERATIONS)}
    for (clients, operation), row in rows.items():
        assert row["flags"] == "NONE"
        assert row["per_s"] > 0
        assert row["client_cpu_us"] > 0
        assert row["server_cpu_us"] > 0
        assert row["client_cpu_us"] + row["server_cpu_us"] == pytest.approx(row["cpu_us"])
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["p999_us"]
        if operation == "echo":
            assert row["round_trips"] == 1
            assert row["times_peer"] == {}
            continue
        peer = next(p for p in result["peers"] if (p["clients"], p["operation"]) == (clients, operation))
        assert {peer["kind"], *peer["slower"]} == {"threads", "processes"}
        assert row["times_peer"] == {"sqlite": pytest.approx(row["per_s"] / peer["per_s"])}
    assert any(line.startswith("server") and line.endswith("x sqlite") for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_round_trips_and_rounds_are_those_of_the_protocol(tmp_path: Path) -> None:
    peer = ServerPeer(tmp_path, "JOURNAL")
    try:
        client = served.connect(peer.place)
        assert isinstance(client, Echoing)
        figures = []
        for work in (
            lambda: client.enqueue([BODY, BODY]),
            lambda: client.dequeue(2),
            lambda: client.dequeue(1),
            lambda: client.echo(BODY),
        ):
            before, used = client.round_trips, peer.used()
            work()
            after = peer.used()
            figures.append((client.round_trips - before, after.rounds - used.rounds, after.steps - used.steps))
            assert after.cpu_s > used.cpu_s
        assert figures == [(2, 2, 2), (4, 2, 2), (2, 1, 1), (1, 0, 0)]
        client.close()
    finally:
        peer.close()
    assert peer._process.returncode == 0
    assert list((tmp_path / "active").iterdir()) == list((tmp_path / "prepared").iterdir()) == []


def test_clients_that_enqueue_at_the_same_time_are_emptied_by_one(tmp_path: Path) -> None:
    peer = ServerPeer(tmp_path, "NONE")
    clients = ProcessClients(peer, 2)
    try:
        enqueued = clients.rate("enqueue", 2, 3, BODY, 0.05)
        dequeued = clients.rate("dequeue", 1, 1, BODY, PATIENCE_S)
    finally:
        clients.close()
        peer.close()
    assert enqueued.round_trips == 2 * enqueued.operations > 0
    assert dequeued.operations == 3 * enqueued.operations


def test_a_server_that_does_not_come_up_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OperationalError, match="the server that was to be measured ended with 1"):
        ServerPeer(tmp_path, "SOMETIMES")
    assert "SOMETIMES" in capfd.readouterr().err


def test_the_server_ends_with_the_bench_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib; from xaqueue.bench.served import ServerPeer\n"
        "peer = ServerPeer(pathlib.Path(sys.argv[1]), 'NONE')\n"
        "print(peer._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )  # it returns once the server, which has the same standard error, has ended too
    assert done.returncode == -9
    assert done.stdout.split() != []
    assert done.stderr == ""


def test_the_verb_measures_at_the_level_of_a_journal(tmp_path: Path) -> None:
    words = ["--directory", str(tmp_path), "--threads", "1", "--seconds", "0.05", "--rounds", "1", "--server"]
    done = CliRunner().invoke(app, ["bench", *words, "--chart", str(tmp_path / "chart.svg")])
    assert done.exit_code == ExitCode.OK, done.output
    assert "server, JOURNAL, 1 in processes, echo: " in done.output
    assert "NONE" not in done.output
    assert "xaqueue server JOURNAL" in (tmp_path / "chart.svg").read_text()
