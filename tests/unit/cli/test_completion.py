"""The shell completes names from the space, quickly, and says nothing where it cannot."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.served import ServerThread
from xaqueue.cli import completion
from xaqueue.cli.main import app


def completed(monkeypatch: pytest.MonkeyPatch, space: object, words: str) -> list[str]:
    monkeypatch.setenv("XAQUEUE_SPACE", str(space))
    environment = {
        "_XAQUEUE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"xaqueue {words}",
        "COMP_CWORD": str(words.count(" ") + 1),
    }
    done = CliRunner().invoke(app, [], prog_name="xaqueue", env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.stderr == ""
    return done.stdout.split()


def test_queues_and_branches_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "LIMIT_S", 60.0)  # however busy this machine is
    place = tmp_path / "s"
    with xaqueue.connect(place, create=True) as connection:
        for queue in ("orders", "orders.failed", "parcels"):
            connection.enqueue(queue, b"one")
        connection.commit()
        connection._manager.space.settle()  # type: ignore[attr-defined]  # the directories have them
        connection.tpc_begin(connection.xid(1, "order-7", "queue"))
        connection.enqueue("orders", b"two")
        connection.tpc_prepare()
        (xid,) = connection.tpc_recover()
        assert completed(monkeypatch, place, "get ord") == ["orders", "orders.failed"]
        assert completed(monkeypatch, place, "move orders p") == ["parcels"]
        assert completed(monkeypatch, place, "indoubt show 1") == [str(xid)]
    server = ServerThread(place, tmp_path / "socket", sync="NONE")
    try:
        server.space.define("served", {}, False)
        assert completed(monkeypatch, server.url, "get ser") == ["served"]
        assert completed(monkeypatch, server.url, "indoubt show 1") == [str(xid)]
    finally:
        server.stop()


def test_what_is_away_or_hangs_completes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(monkeypatch, tmp_path / "none", "get ") == []
    assert completed(monkeypatch, f"xaq+unix://{tmp_path}/none", "get ") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.thread_time()
        assert completed(monkeypatch, f"xaq://127.0.0.1:{silent.getsockname()[1]}", "get ") == []
        assert time.thread_time() - began < completion.LIMIT_S
