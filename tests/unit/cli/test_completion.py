"""The shell completes names from the space, quickly, and says nothing where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import xaqueue
from support.served import ServerThread
from xaqueue.cli import completion
from xaqueue.cli.main import app


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is: at the limit the whole process ends, see test_completion_process.py."""
    monkeypatch.setattr(completion, "LIMIT_S", 600.0)


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
        server.space.definer.define("served", {}, "queues")
        assert completed(monkeypatch, server.url, "get ser") == ["served"]
        assert completed(monkeypatch, server.url, "indoubt show 1") == [str(xid)]
    finally:
        server.stop()


def test_what_is_away_or_damaged_completes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(monkeypatch, tmp_path / "none", "get ") == []
    assert completed(monkeypatch, f"xaq+unix://{tmp_path}/none", "get ") == []
    assert completed(monkeypatch, "xaq://host:no-port", "get ") == []

    def fails(*_: object) -> list[str]:
        raise ValueError("of no kind that is expected")

    xaqueue.connect(tmp_path / "s", create=True).close()
    monkeypatch.setattr(completion, "_queues", fails)
    assert completed(monkeypatch, tmp_path / "s", "get ") == []


def test_nothing_is_completed_that_the_shell_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may call anything a queue."""
    xaqueue.connect(tmp_path / "s", create=True).close()
    names = ["orders", "o$(touch x)", "o`x`", "o\x1b[2J", "o;x", "o\nx", "o x", "", "o/x", "o\u202e"]
    monkeypatch.setattr(completion, "_queues", lambda _: names)
    assert completed(monkeypatch, tmp_path / "s", "get o") == ["orders"]
    monkeypatch.setattr(completion, "_queues", lambda _: [7, "orders"])
    assert completed(monkeypatch, tmp_path / "s", "get o") == []
